"""Reconstructions and policies on simulated coils: stages that each leave a record.

A stage is a few commands of kscout, which go on where they were stopped; a stage whose record has
the same commands is not run again. Records are JSON files in `--records`, one per stage.

    python benchmarks/multicoil.py store varnet unet reconstructions --work runs/coils
    python benchmarks/multicoil.py policy-4x policies-4x --work runs/coils --minutes 8
    python benchmarks/multicoil.py --table
"""

import argparse
import csv
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kscout.files import write_json

RECORDS = Path(__file__).parent / "multicoil"
BUDGETS = {"4x": ("--n-initial", "16", "--steps", "16"), "8x": ("--n-initial", "8", "--steps", "8")}
UNTRAINED = ("zero-filled", "zero-filled-weighted", "total-variation", "sense", "sense-tv")
POLICIES = ("random", "equispaced-two", "center-out", "fixed", "na-oracle", "oracle")
# From the bare start of each budget to its end, so that no state of an acquisition is new.
MASKS = (
    "--set",
    "training.accelerations=[8,6,4,16,12,8]",
    "--set",
    "training.center_fractions=[0.125,0.125,0.125,0.0625,0.0625,0.0625]",
)


@dataclass(frozen=True)
class Stage:
    """Commands, and what of their results is recorded."""

    commands: list[list[str]]
    results: Callable[[], Any]


def name_of(wanted: argparse.Namespace) -> str:
    """Return what folders and tables call a store: `heads8`, `heads8weighted`."""
    return f"{wanted.kind}{wanted.coils}{'' if wanted.target == 'rss' else wanted.target}"


def stages(wanted: argparse.Namespace) -> dict[str, Stage]:
    """Return every stage by its name."""
    work = wanted.work / name_of(wanted)
    store, blind = str(work / "store"), ("--protocol", "blind")
    own = [one for one in wanted.set if one.startswith("reconstructor.")]
    own = [f"reconstructor.output={wanted.target}", *own]
    of_network = [word for one in own for word in ("--set", one)]
    of_policy = [word for one in wanted.set if one not in own for word in ("--set", one)]
    networks = {name: str(work / f"{name}-seed{wanted.seed}") for name in ("unet", "varnet")}
    data = ("--data", store, *blind, "--device", wanted.device)
    make = ["data", "make", wanted.kind, "--coils", str(wanted.coils), "--phase", "--out", store]
    make += ["--size", str(wanted.size), "--volumes", wanted.volumes, "--seed", "0"]
    make += ["--target", wanted.target]
    for source in wanted.source:
        make += ["--source", str(source)]
    found = {"store": Stage([make], lambda: _manifest(work / "store"))}
    for name, out in networks.items():
        train = ["train", "reconstructor", "--model", name, *data, *MASKS, "--out", out]
        train += ["--epochs", str(wanted.epochs), "--batch-size", "16", "--seed", str(wanted.seed)]
        train += of_network if name == "varnet" else []
        decay = max(1, 4 * wanted.epochs // 5)
        train += ["--set", f"training.decay_epochs=[{decay}]"]
        found[name] = Stage([train], lambda out=out: _last(Path(out)))  # type: ignore[misc]
    methods = [*UNTRAINED, *(f"{name}={out}" for name, out in networks.items())]
    compare = [
        ["analyze", "reconstructions", *methods, *data, *budget, "--out", str(work / f"images-{x}")]
        for x, budget in BUDGETS.items()
    ]
    tables = [work / f"images-{x}" / "reconstructions.csv" for x in BUDGETS]
    found["reconstructions"] = Stage(compare, lambda: _rows(tables))
    for x, budget in BUDGETS.items():
        given = (*data, "--reconstructor", networks["varnet"], *budget)
        run, out = str(work / f"dense-{x}-seed{wanted.seed}"), work / f"policies-{x}"
        learn = ["train", "policy", "--method", "dense", "--policy", "column", *given]
        learn += of_policy
        learn += ["--epochs", str(wanted.policy_epochs), "--seed", str(wanted.seed), "--out", run]
        found[f"policy-{x}"] = Stage([learn], lambda run=run: _last(Path(run)))  # type: ignore[misc]
        names = [word for name in (*POLICIES, run) for word in ("--policy", name)]
        judge = ["evaluate", *given, *names, "--argmax", "--trajectories", "1", "--out", str(out)]
        judge += ["--limit", str(wanted.limit)] if wanted.limit else []
        found[f"policies-{x}"] = Stage([judge], lambda out=out: _summary(out))  # type: ignore[misc]
    return found


def _manifest(store: Path) -> dict[str, Any]:
    manifest = json.loads((store / "manifest.json").read_text())
    return {key: manifest[key] for key in ("kind", "fingerprint") if key in manifest}


def _last(run: Path) -> dict[str, Any]:
    """Return the last epoch's record of a run."""
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def _rows(tables: Iterable[Path]) -> list[dict[str, str]]:
    rows = []
    for table in tables:
        with table.open(newline="") as file:
            rows += list(csv.DictReader(file))
    return rows


def _summary(results: Path) -> dict[str, Any]:
    summary = json.loads((results / "summary.json").read_text())
    kept = ("policy", "is_oracle", "final", "gap_closed")
    rows = [{key: row.get(key) for key in kept} for row in summary["policies"]]
    told = ("n_slices", "n_volumes", "reference", "comparisons", "headroom")
    return {"policies": rows, **{key: summary.get(key) for key in told}}


def run(name: str, stage: Stage, record: Path, *, minutes: float | None = None) -> None:
    """Run the commands of a stage, unless its record says that they were run.

    Args:
        name: of the stage.
        stage: what to run.
        record: the file that is written when all commands have ended well.
        minutes: after which a command is asked to stop; the same stage then goes on where it was.
    """
    commands = [shlex.join(["kscout", *words]) for words in stage.commands]
    if record.is_file() and json.loads(record.read_text())["commands"] == commands:
        print(f"{name}: recorded in {record}")
        return
    begin = time.monotonic()
    for words in stage.commands:
        with subprocess.Popen([sys.executable, "-m", "kscout", *words]) as process:
            try:
                code = process.wait(None if minutes is None else 60 * minutes)
            except subprocess.TimeoutExpired:
                process.terminate()
                raise SystemExit(
                    f"{name}: stopped after {minutes:g} minutes; run it again"
                ) from None
        if code:
            raise SystemExit(f"{name}: kscout {words[0]} ended with {code}")
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    told = {
        "stage": name,
        "commands": commands,
        "commit": commit,
        "seconds": round(time.monotonic() - begin, 1),
        "results": stage.results(),
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, told)


def table(records: Path) -> str:
    """Return the recorded reconstructions and policies as Markdown."""
    lines = [
        "| store | reconstruction | acceleration | SSIM | 95 % | PSNR |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(records.glob("*-reconstructions.json")):
        for row in json.loads(path.read_text())["results"]:
            between = f"{float(row['ssim_low'] or 0):.4f} to {float(row['ssim_high'] or 0):.4f}"
            store = path.name.partition("-")[0]
            cells = [store, row["reconstruction"], f"{float(row['acceleration']):g}"]
            cells += [f"{float(row['ssim']):.4f}", between, f"{float(row['psnr']):.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| store | policy | SSIM | gap closed |", "|---|---|---|---|"]
    for path in sorted(records.glob("*-policies-*.json")):
        for row in json.loads(path.read_text())["results"]["policies"]:
            closed = row.get("gap_closed")
            cells = [path.stem.replace("-policies", ""), row["policy"]]
            cells += [
                f"{row['final']['ssim']['mean']:.4f}",
                "" if closed is None else f"{closed:.2f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", nargs="*", help="store, varnet, unet, reconstructions, ...")
    parser.add_argument("--work", type=Path, default=Path("runs/multicoil"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--kind", default="heads", help="heads, knee or brain")
    parser.add_argument("--source", type=Path, action="append", default=[], help="of heads")
    parser.add_argument("--coils", type=int, default=8)
    parser.add_argument("--target", default="rss", help="rule of targets: rss or weighted")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--volumes", default="200,20,40")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--policy-epochs", type=int, default=10)
    parser.add_argument("--limit", type=int, default=0, help="slices that policies are judged on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, help="stop a command after so many")
    parser.add_argument("--set", action="append", default=[], help="of varnet and of policies")
    parser.add_argument("--table", action="store_true")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Run the stages that were named, or print what is recorded."""
    wanted = parsed(words)
    if wanted.table:
        print(table(wanted.records))
        return
    known = stages(wanted)
    unknown = [name for name in wanted.stage if name not in known]
    if unknown or not wanted.stage:
        raise SystemExit(f"name stages among {', '.join(known)}")
    for name in wanted.stage:
        record = wanted.records / f"{name_of(wanted)}-seed{wanted.seed}-{name}.json"
        run(name, known[name], record, minutes=wanted.minutes)


if __name__ == "__main__":
    main()
