"""A stand-in for kscout: writes what a command would leave, quickly, and can be told to fail.

Like a training, a run adds one line per epoch to what is in its folder, so that a killed one goes
on. What it writes depends on its arguments and inputs alone. Environment: FAKE_EPOCHS, how many it
takes; FAKE_HOLD, a file as long as which is there a run of that name stays in its first epoch;
FAKE_FAIL, words of a title's label that fail; FAKE_FAIL_ONCE, the same, the first time only.
"""

import hashlib
import os
import sys
import time
from itertools import pairwise
from pathlib import Path

PRODUCTS = {"data": "manifest.json", "train": "done.json", "evaluate": "summary.json"}
ANALYSES = {"policy": "average_policy.json", "entropy": "entropies.json"}


def main(words: list[str]) -> int:
    """Do one run, or one after the other what is to be trained in lockstep."""
    outs, configs = (
        [after for word, after in pairwise(words) if word == option]
        for option in ("--out", "--config")
    )
    if words[:2] != ["train", "policies"]:
        return run(words, Path(outs[0]))
    shared = words[: words.index("--config")]
    # As in a training, all begin, and one that fails ends them all.
    runs = zip(configs, outs, strict=True)
    return max(run([*shared, "--config", file, "--out", out], Path(out)) for file, out in runs)


def run(words: list[str], out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    if os.environ.get("FAKE_FAIL") and os.environ["FAKE_FAIL"] in out.name:
        sys.stderr.write("starting\nerror: the moon is in the way; wait\n")
        return 1
    once = os.environ.get("FAKE_FAIL_ONCE")
    if once and once in out.name and not (out / "failed-once").exists():
        (out / "failed-once").touch()
        return 3
    metrics = out / "metrics.jsonl"
    n_done = metrics.read_text().count("\n") if metrics.exists() else 0
    for epoch in range(n_done, int(os.environ.get("FAKE_EPOCHS", "1"))):
        with metrics.open("a") as file:
            file.write(f'{{"epoch": {epoch + 1}}}\n')
        hold = Path(os.environ.get("FAKE_HOLD", ""))
        while hold.name == out.name and hold.exists():
            time.sleep(0.02)
    digest = hashlib.sha256(metrics.read_bytes())
    for word in words:
        for product in (*PRODUCTS.values(), "settings.toml"):
            path = Path(word) / product if Path(word).is_dir() else Path(word)
            if path.is_file() and path.parent != out:
                digest.update(path.read_bytes())
    product = PRODUCTS.get(words[0]) or ANALYSES.get(words[1], f"{words[1]}.json")
    aside = out / f".{product}"
    aside.write_text(f'{{"digest": "{digest.hexdigest()}"}}')
    aside.rename(out / product)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
