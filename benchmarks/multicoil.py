"""Reconstructions and policies on simulated coils: stages that each leave a record.

A stage is a command of kscout, which goes on where it was stopped; a stage whose record has the
same command is not run again. Records are JSON files in `--records`, one per stage;
`benchmarks/tables.py` writes the tables of docs/coils.md from them.

    python benchmarks/multicoil.py all --kind heads knee --source heads/*.nii.gz --minutes 9

Stages are in the order of their worth, as far as one needs another: what is cut off at any time
leaves rows that are whole. One that fails is tried once more without torch.compile, and keeps no
other from being tried. Kinds are done side by side: while one starts a process, reads or compiles,
the other has the GPU. `--minutes` are for all that is named: what is left over is done by the same
command again.

Sizes are for one H200, as counted, not measured: `varnet` at 128x128 with 8 coils takes 6 GFLOP for
an image and 18 for its gradients, some 500 slices a second in training and 8,000 images a second
frozen, so that both kinds take 12 minutes, two thirds of that for policies and oracles.
"""

import argparse
import csv
import json
import math
import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from multicoil_records import RECORDS

from kscout.files import write_json
from kscout.provenance import commit

BUDGETS = {"4x": ("--n-initial", "16", "--steps", "16"), "8x": ("--n-initial", "8", "--steps", "8")}
UNTRAINED = ("zero-filled", "zero-filled-weighted", "total-variation", "sense", "sense-tv")
POLICIES = ("random", "equispaced-two", "center-out", "fixed", "na-oracle", "oracle")
SETTINGS = {
    # Multiples of 8 channels suit tensor cores.
    "reconstructor.n_cascades": "4",
    "reconstructor.n_channels": "16",
    # A policy starts from the mean gains of a fixed order; few labels of many states refine it.
    "training.n_best": "4",
    "training.n_random": "4",
    "training.batch_size": "16",
    "training.n_warm": "20",
    # To see a state again costs sensitivities and one image.
    "training.n_repeats": "4",
    "training.n_repeated": "128",
    "training.n_prior_slices": "48",
}
"""Of `varnet` and of dense policies, to fit some minutes of a GPU; `--set` changes them."""
COMPILING = {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
"""By default torch starts a process per core, in every command, to compile some twenty kernels."""
ONE_STORE = threading.Lock()
"""Making a store takes all cores: the first kind is to train while the second one's is made."""
# From the bare start of each budget to its end, so that no state of an acquisition is new.
MASKS = (
    "--set",
    "training.accelerations=[8,6,4,16,12,8]",
    "--set",
    "training.center_fractions=[0.125,0.125,0.125,0.0625,0.0625,0.0625]",
)


@dataclass(frozen=True)
class Stage:
    """A command, and what of its results is recorded."""

    command: list[str]
    results: Callable[[], Any]
    orders: tuple[Path, Path] | None = None
    """Folder of fitted orders, which are not to be fitted twice, and where it looks for them."""


def name_of(wanted: argparse.Namespace) -> str:
    """Return what folders and tables call a store: `heads8`, `heads8weighted`."""
    return f"{wanted.kind}{wanted.coils}{'' if wanted.target == 'rss' else wanted.target}"


def settings(wanted: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Return the options that set up `varnet`, and those that set up policies."""
    chosen = {"reconstructor.output": wanted.target, **SETTINGS}
    chosen |= dict(one.split("=", 1) for one in wanted.set)
    of_network: list[str] = []
    of_policy: list[str] = []
    for key, value in chosen.items():
        own = of_network if key.startswith("reconstructor.") else of_policy
        own += ["--set", f"{key}={value}"]
    return of_network, of_policy


def stages(wanted: argparse.Namespace) -> dict[str, Stage]:
    """Return every stage by its name."""
    work = wanted.work / name_of(wanted)
    store, blind = str(work / "store"), ("--protocol", "blind")
    of_network, of_policy = settings(wanted)
    networks = {name: str(work / f"{name}-seed{wanted.seed}") for name in ("varnet", "unet")}
    data = ("--data", store, *blind, "--device", wanted.device)
    make = ["data", "make", wanted.kind, "--coils", str(wanted.coils), "--phase", "--out", store]
    make += ["--size", str(wanted.size), "--volumes", wanted.volumes, "--seed", "0"]
    make += ["--slices", str(wanted.slices), "--target", wanted.target]
    for source in wanted.source if wanted.kind == "heads" else ():
        make += ["--source", str(source)]
    found = {"store": Stage(make, lambda: _manifest(work / "store"))}
    for name, out in networks.items():
        train = ["train", "reconstructor", "--model", name, *data, *MASKS, "--out", out]
        train += ["--epochs", str(wanted.epochs), "--batch-size", "16", "--seed", str(wanted.seed)]
        train += of_network if name == "varnet" else []
        decay = max(1, 4 * wanted.epochs // 5)
        train += ["--set", f"training.decay_epochs=[{decay}]"]
        found[name] = Stage(train, lambda out=out: _last(Path(out)))  # type: ignore[misc]
    methods = [*UNTRAINED, *(f"{name}={out}" for name, out in networks.items())]
    for x, budget in BUDGETS.items():
        out = str(work / f"images-{x}")
        compare = ["analyze", "reconstructions", *methods, *data, *budget, "--out", out]
        found[f"reconstructions-{x}"] = Stage(compare, lambda out=out: rows(Path(out)))  # type: ignore[misc]
    for x, budget in BUDGETS.items():
        given = (*data, "--reconstructor", networks["varnet"], *budget)
        run = str(work / f"dense-{x}-seed{wanted.seed}")
        learn = ["train", "policy", "--method", "dense", "--policy", "column", *given]
        learn += of_policy
        learn += ["--epochs", str(wanted.policy_epochs), "--seed", str(wanted.seed), "--out", run]
        marks, judged = work / f"policies-{x}", work / f"dense-{x}"
        found[f"policies-{x}"] = _judged(wanted, given, POLICIES, marks)
        found[f"policy-{x}"] = Stage(learn, lambda run=run: _last(Path(run)))  # type: ignore[misc]
        judge = _judged(wanted, given, ("fixed", run), judged)
        found[f"dense-{x}"] = replace(judge, orders=(marks / "orders", judged / "orders"))
    return found


def _judged(
    wanted: argparse.Namespace, given: Sequence[str], policies: Sequence[str], out: Path
) -> Stage:
    """Return the stage that compares policies with a fixed order."""
    names = [word for name in policies for word in ("--policy", name)]
    judge = ["evaluate", *given, *names, "--argmax", "--trajectories", "1", "--out", str(out)]
    judge += ["--fixed-slices", str(wanted.fixed_slices), "--reference", "fixed"]
    judge += ["--limit", str(wanted.limit)] if wanted.limit else []
    return Stage(judge, lambda: _summary(out))


def _manifest(store: Path) -> dict[str, Any]:
    """Return what a store holds, and for each split where its subjects come from."""
    manifest = json.loads((store / "manifest.json").read_text())
    sources: dict[str, list[str]] = {split: [] for split in manifest["splits"]}
    for volume in manifest["volumes"]:
        own = sources[volume["split"]]
        own += [] if volume["source"] in own else [volume["source"]]
    return {"splits": manifest["splits"], "sources": {k: sorted(v) for k, v in sources.items()}}


def _last(run: Path) -> dict[str, Any]:
    """Return the last epoch's record of a run."""
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def rows(analysis: Path) -> list[dict[str, str]]:
    """Return what an analysis of reconstructions found, a row for each."""
    with (analysis / "reconstructions.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _summary(results: Path) -> dict[str, Any]:
    summary = json.loads((results / "summary.json").read_text())
    kept = ("policy", "is_oracle", "final", "gap_closed")
    rows = [{key: row.get(key) for key in kept} for row in summary["policies"]]
    told = ("n_slices", "n_volumes", "reference", "comparisons", "headroom")
    return {"policies": rows, **{key: summary.get(key) for key in told}}


def run(name: str, stage: Stage, record: Path, *, until: float = math.inf) -> None:
    """Run the command of a stage, unless its record says that it was run.

    Args:
        name: of the stage.
        stage: what to run.
        record: the file that is written when the command has ended well.
        until: time by `time.monotonic` at which it is asked to stop; the same stage then goes on
            where it was.
    """
    command = shlex.join(["kscout", *stage.command])
    if record.is_file() and json.loads(record.read_text())["commands"] == [command]:
        print(f"{name}: recorded in {record}", flush=True)
        return
    begin = time.monotonic()
    if stage.orders is not None and stage.orders[0].is_dir():
        shutil.copytree(*stage.orders, dirs_exist_ok=True)
    code = _ended(stage.command, until)
    if code and "--device" in stage.command:
        print(f"{name}: ended with {code}; once more, without torch.compile", flush=True)
        code = _ended(stage.command, until, TORCH_COMPILE_DISABLE="1")
    if code is None:
        raise SystemExit(f"{name}: stopped, time is up; run it again")
    if code:
        raise SystemExit(f"{name}: kscout {stage.command[0]} ended with {code}")
    told = {
        "stage": name,
        "commands": [command],
        "commit": commit(),
        "seconds": round(time.monotonic() - begin, 1),
        "results": stage.results(),
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, told)
    print(f"{name}: {told['seconds']:.0f} s", flush=True)


def _ended(words: Sequence[str], until: float, **changes: str) -> int | None:
    """Run a command of kscout; return how it ended, None where it was stopped by the clock.

    Args:
        words: of the command.
        until: as for `run`.
        changes: variables of its environment.
    """
    left = until - time.monotonic()
    if left <= 0:
        return None
    environment = {**COMPILING, **os.environ, **changes}
    with subprocess.Popen([sys.executable, "-m", "kscout", *words], env=environment) as process:
        try:
            return process.wait(None if left == math.inf else left)
        except subprocess.TimeoutExpired:
            process.terminate()
            return None


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    """Read the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "stage", nargs="+", help="all, or store, varnet, unet, reconstructions, ..."
    )
    parser.add_argument("--work", type=Path, default=Path("runs/multicoil"))
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--kind", nargs="+", default=["heads"], help="of heads, knee, brain")
    parser.add_argument("--source", type=Path, nargs="*", default=[], help="of heads")
    parser.add_argument("--coils", type=int, default=8)
    parser.add_argument("--target", default="rss", help="rule of targets: rss or weighted")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--volumes", default="100,8,16")
    parser.add_argument("--slices", type=int, default=16, help="per volume")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--policy-epochs", type=int, default=2)
    parser.add_argument("--limit", type=int, default=64, help="slices that policies are judged on")
    parser.add_argument("--fixed-slices", type=int, default=48, help="per column of a fixed order")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, help="stop after so many, to go on later")
    parser.add_argument("--set", action="append", default=[], help="of varnet and of policies")
    return parser.parse_args(words)


def run_kind(wanted: argparse.Namespace, until: float) -> list[str]:
    """Run the stages that were named, for one kind, and return what went wrong."""
    known, failed = stages(wanted), []
    named = list(known) if wanted.stage == ["all"] else wanted.stage
    if any(name not in known for name in named):
        raise SystemExit(f"name stages among all, {', '.join(known)}")
    for name in named:
        record = wanted.records / f"{name_of(wanted)}-seed{wanted.seed}-{name}.json"
        with ONE_STORE if name == "store" else nullcontext():
            try:
                run(f"{wanted.kind} {name}", known[name], record, until=until)
            except SystemExit as error:
                failed.append(str(error))
                if name == "store":
                    break
    return failed


def main(words: Sequence[str] | None = None) -> None:
    """Run the stages of each kind, which wait for no other kind."""
    wanted = parsed(words)
    until = math.inf if wanted.minutes is None else time.monotonic() + 60 * wanted.minutes
    kinds = [argparse.Namespace(**{**vars(wanted), "kind": kind}) for kind in wanted.kind]
    with ThreadPoolExecutor(len(kinds)) as pool:
        failed = [one for found in pool.map(run_kind, kinds, [until] * len(kinds)) for one in found]
    if failed:
        raise SystemExit("\n".join(failed))


if __name__ == "__main__":
    main()
