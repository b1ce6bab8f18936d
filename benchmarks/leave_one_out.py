"""Heads by subject: trains without one, tests on that one as made and as imported plainly.

    python benchmarks/leave_one_out.py --heads heads/*.nii.gz --minutes 3 --out records

For each head a store is made of which it is the test head, and an arm of `dense.py` is trained on
the others (its record is ARM-heads-without-NAME-PRESET-seedN.json). The head's file is imported as
it is, all of its slices, cut to the size of the store, with and without resampling; the policy and
the fixed order of the training heads acquire it, for the columns that the policy was trained for.
`--plain` names further files, of people and contrasts never seen.
Of heads that are coarser than they were (`benchmarks/small_heads.py`), `--cut` names slices of the
untouched files in place of an import without resampling. `--start` goes on from a trained policy.
What has a record is not run again. `--imagine-epochs` is for the arm `weighed`: a policy that
imagines is trained on the other heads first, with `--imagine-set`, and weighed with `--beside`:

    python benchmarks/leave_one_out.py --heads heads/*.nii.gz --arm weighed --epochs 1 \
        --imagine-epochs 10 --start knee-base-imagine --imagine-set training.compile=true \
        --seeds 0,1,2 --out records

Each seed has an imagining member of its own. With another `--preset` and `--imagine-preset
knee-base` the same members are weighed for another acquisition. `--imports` names how the head is
imported plainly; nothing behind it: not at all. `--label` names records of other members.
The reconstruction is the same for all: where it has learned
from a head, its images are better than they should be, for both orders alike.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import dense
from marks import setting_of

from kscout import policies
from kscout.cli import app
from kscout.config import PolicyConfig, read
from kscout.data.store import Store
from kscout.evaluation import evaluate
from kscout.files import write_json
from kscout.runs import read_run
from kscout.training.policy import train_policy

RESAMPLED_MM = 1.6
"""Heads are some 200 mm long."""
IMPORTS = {"cut": (), "resampled": ("--resample", str(RESAMPLED_MM))}
"""How a file is imported beside its size."""


def name_of(path: Path) -> str:
    """Return what a head is called."""
    return path.name.removesuffix(".gz").removesuffix(".nii").removesuffix(".npy")


def sources_without(heads: Sequence[Path], left_out: Path) -> list[Path]:
    """Return heads in an order of which the last is for test, the one before it for validation."""
    at = heads.index(left_out)
    return [*heads[at + 1 :], *heads[:at], left_out]


def kscout(*words: object) -> None:
    """Run a command as it is typed."""
    app([str(word) for word in words], standalone_mode=False)


def made_store(wanted: argparse.Namespace, left_out: Path) -> Path:
    """Return the store of which one head is the test head, made where it is not there.

    One that was made of other heads, volumes or sizes is refused by the command.
    """
    path = wanted.out / "stores" / f"heads-without-{name_of(left_out)}"
    sources = [
        word for head in sources_without(wanted.heads, left_out) for word in ("--source", head)
    ]
    counts = ("--volumes", wanted.volumes, "--slices", 16, "--size", wanted.size)
    words = map(str, ("data", "make", "heads", *sources, *counts, "--out", path))
    # In a process of its own, beside the training on the store of before.
    done = subprocess.run([sys.executable, "-m", "kscout", *words])
    if done.returncode:
        sys.exit(done.returncode)  # The command has said why.
    return path


def plain_imports(wanted: argparse.Namespace, head: Path) -> list[tuple[Path, str]]:
    """Return the files that show a head, or people never seen, and how each is imported."""
    cut = {name_of(file): file for file in wanted.cut}
    # An array does not tell its spacing.
    files = [
        (file, how)
        for file in (head, *wanted.plain)
        for how in (("cut",) if file.suffix == ".npy" else IMPORTS)
        if how in wanted.imports
    ]
    return [(cut.get(name_of(file), file) if how == "cut" else file, how) for file, how in files]


def acquire_plainly(
    wanted: argparse.Namespace, file: Path, how: str, run: Path, store: Path
) -> None:
    """Import a file as it is, and compare the policy with the fixed order of its training heads."""
    record = wanted.out / f"plain-{how}-{name_of(file)}-by-{run.name}.json"
    if record.exists():
        return
    path = wanted.out / "stores" / f"plain-{how}-{name_of(file)}"
    # As plainly as it can be typed: all slices, and what the size does not hold is cut off.
    # The others do nothing to most files: some are smaller, or negative after a resampling.
    sizes = ["--size", wanted.size, "--pad", wanted.size, "--absolute"]
    # A store of the same is taken as it is, one of another file or size refused.
    kscout("data", "import", file, *IMPORTS[how], *sizes, "--out", path)
    config = read(PolicyConfig, read_run(run).config)
    setting = replace(setting_of(config, device=wanted.device), reference="fixed")
    found = evaluate(
        [("dense", policies.load(run)), "fixed", "oracle"],
        # The only volume of an import is for training.
        Store.open(path).split("train"),
        wanted.reconstructor,
        setting,
        train=Store.open(store).split("train"),
    ).found
    write_json(
        record,
        {
            **{"file": file.name, "import": how, "run": run.name, "n_slices": found.n_slices},
            "ssim": {one.policy: one.ssim for one in found.policies},
            # One head is one volume, so that there is no interval over volumes.
            "difference_to_fixed": found.comparisons[0].difference,
        },
    )


def imagined(wanted: argparse.Namespace, store: Path, seed: int) -> Path:
    """Return a policy that imagines heads of a store, trained where it is not there."""
    preset = wanted.imagine_preset or wanted.preset
    config = dense.config_of("imagine-zoom", preset, wanted.imagine_set)
    own = replace(config.training, n_epochs=wanted.imagine_epochs, seed=seed)
    config = replace(config, training=own)
    run = wanted.out / "runs" / f"imagine-zoom-{store.name}-{preset}-seed{seed}"
    how = {"start": wanted.start, "device": wanted.device}
    return train_policy(config, Store.open(store), wanted.reconstructor, run, **how).path


def leave_out(wanted: argparse.Namespace, head: Path, store: Path) -> None:
    """Train on the store that has a head for test, and acquire the head as it is imported."""
    seeds = wanted.seeds.split(",")
    if wanted.imagine_epochs:
        for seed in seeds:
            members = [str(imagined(wanted, store, int(seed))), *wanted.beside]
            chosen = json.dumps(members, separators=(",", ":"))
            _train(wanted, store, seed, [*wanted.set, f"policy.members={chosen}"])
    else:
        _train(wanted, store, wanted.seeds, wanted.set, start=wanted.start)
    for seed in seeds:
        name = f"{wanted.label or wanted.arm}-{store.name}-{wanted.preset}-seed{seed}"
        run = wanted.out / "runs" / name
        for file, how in plain_imports(wanted, head):
            acquire_plainly(wanted, file, how, run, store)


def _train(
    wanted: argparse.Namespace,
    store: Path,
    seeds: str,
    changes: Sequence[str],
    start: str | None = None,
) -> None:
    """Write the records of seeds that train in lockstep."""
    given = {"data": store, "reconstructor": wanted.reconstructor, "preset": wanted.preset}
    given |= {"arm": wanted.arm, "minutes": wanted.minutes, "device": wanted.device}
    given |= {"seeds": seeds, **({"epochs": wanted.epochs} if wanted.epochs else {})}
    given |= {"start": start} if start else {}
    given |= {"label": wanted.label} if wanted.label else {}
    words = [str(word) for key, value in given.items() for word in (f"--{key}", value)]
    words += [word for change in changes for word in ("--set", change)]
    dense.main([*words, "--out", str(wanted.out)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Leave out each head in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", type=Path, nargs="+", required=True)
    parser.add_argument("--plain", type=Path, nargs="*", default=[])
    parser.add_argument("--cut", type=Path, nargs="*", default=[], help="slices of heads, by name")
    parser.add_argument("--imports", nargs="*", default=list(IMPORTS), choices=list(IMPORTS))
    parser.add_argument("--only", help="name of the head to leave out; each in turn if not given")
    parser.add_argument("--reconstructor", default="heads-unet")
    parser.add_argument("--preset", default="knee-base")
    parser.add_argument("--arm", default="zoom", choices=list(dense.ARMS))
    parser.add_argument("--start", help="a trained policy, which has not seen these heads")
    parser.add_argument("--seeds", default="0", help="in lockstep, as in 0,1,2; they share minutes")
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--epochs", type=int, help="to train, in place of minutes")
    parser.add_argument("--volumes", default="400,16,40")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--imagine-epochs", type=int, help="of a member that imagines")
    parser.add_argument("--imagine-preset", help="its acquisition; that of --preset if not given")
    parser.add_argument("--imagine-set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--beside", nargs="+", default=["knee-base-column"], help="other members")
    parser.add_argument("--label", help="name of records and runs in place of the arm's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    wanted = parser.parse_args(arguments)
    if wanted.imagine_epochs and wanted.arm != "weighed":
        parser.error(f"--imagine-epochs is for --arm weighed, and the arm is {wanted.arm}")
    left_out = [head for head in wanted.heads if wanted.only in (None, name_of(head))]
    pool = ThreadPoolExecutor(1)
    try:
        stores = [pool.submit(made_store, wanted, head) for head in left_out]
        for head, made in zip(left_out, stores, strict=True):
            leave_out(wanted, head, made.result())
    finally:
        pool.shutdown(cancel_futures=True)


if __name__ == "__main__":
    main()
