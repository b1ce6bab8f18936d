"""A stand-in for kscout: writes what a command would leave, quickly, and can be told to fail.

Like a training, a run adds one line per epoch to what is in its folder, so that a killed one goes
on. What it writes depends on its arguments and inputs alone. Environment: FAKE_EPOCHS, how many it
takes; FAKE_HOLD, a file as long as which is there a run of that name stays in its first epoch;
FAKE_FAIL, words of a title's label that fail; FAKE_FAIL_ONCE, the same, the first time only.
"""

import os
import sys
import time
import zlib
from itertools import pairwise

# Files by the oldest functions: a process starts for every run, and pathlib takes longer than it.
# ruff: noqa: PTH103, PTH104, PTH110, PTH112, PTH113, PTH119, PTH120, PTH123

PRODUCTS = {"data": "manifest.json", "train": "done.json", "evaluate": "summary.json"}
ANALYSES = {"policy": "average_policy.json", "entropy": "entropies.json"}


def main(words: list[str]) -> int:
    """Do one run."""
    out = next(after for word, after in pairwise(words) if word == "--out")
    return run(words, out)


def run(words: list[str], out: str) -> int:
    os.makedirs(out, exist_ok=True)
    name = os.path.basename(out)
    if os.environ.get("FAKE_FAIL") and os.environ["FAKE_FAIL"] in name:
        sys.stderr.write("starting\nerror: the moon is in the way; wait\n")
        return 1
    once = os.environ.get("FAKE_FAIL_ONCE")
    if once and once in name and not os.path.exists(f"{out}/failed-once"):
        open(f"{out}/failed-once", "w").close()
        return 3
    metrics = f"{out}/metrics.jsonl"
    n_done = content(metrics).count(b"\n") if os.path.exists(metrics) else 0
    for epoch in range(n_done, int(os.environ.get("FAKE_EPOCHS", "1"))):
        with open(metrics, "a") as file:
            file.write(f'{{"epoch": {epoch + 1}}}\n')
        hold = os.environ.get("FAKE_HOLD", "")
        while os.path.basename(hold) == name and os.path.exists(hold):
            time.sleep(0.02)
    digest = zlib.crc32(content(metrics))
    for word in words:
        for product in (*PRODUCTS.values(), "settings.toml"):
            path = f"{word}/{product}" if os.path.isdir(word) else word
            if os.path.isfile(path) and os.path.dirname(path) != out:
                digest = zlib.crc32(content(path), digest)
    product = PRODUCTS.get(words[0]) or ANALYSES.get(words[1], f"{words[1]}.json")
    with open(f"{out}/.{product}", "w") as file:
        file.write(f'{{"digest": "{digest:08x}"}}')
    os.rename(f"{out}/.{product}", f"{out}/{product}")
    return 0


def content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
