"""Dense gains and imagined images, arm by arm and seed by seed: train, evaluate, write a record.

    python benchmarks/dense.py --data stores/knee --reconstructor knee-unet --arm column \
        --seeds 0,1,2 --minutes 10 --out records

How many epochs fit is measured on the first steps and kept for all seeds of the arm, so that the
same command goes on after a kill; `--epochs` asks for a number of them in place of minutes, so that
arms may share a GPU with others and be compared all the same. Each arm and seed is a file of its
own, ARM-STORE-PRESET-seedN.json, with `--label` in place of ARM where given; one that is there is
not run again. Seeds of one command train in lockstep and share the minutes. `--start` goes on from
a trained policy, whose own minutes are not counted. `--list` tells which arms have which records.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from marks import key_of, setting_of

from kscout import policies
from kscout.assemble import make_policy
from kscout.config import ACQUISITIONS, PolicyConfig, merge, read, to_table
from kscout.config.layers import assigned
from kscout.data.store import Store
from kscout.device import describe_device, resolve_device
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.evaluation.summaries.summarize import gap_closed
from kscout.evaluation.summaries.summary import read_summary
from kscout.files import write_json
from kscout.runs import Progress, RunRecord
from kscout.training.policy import train_policies

ARMS: dict[str, list[str]] = {
    "column": [],
    "large": ["policy.width=320", "policy.n_heads=8", "policy.channels=[32,64,96]"],
    "paired": ["policy.paired=true"],
    "conv": ["policy.name='conv'"],
    "unmirrored": ["policy.sees_mirrored=false"],
    "random-labels": ["training.n_best=1", "training.n_random=23"],
    "best-labels": ["training.n_best=23", "training.n_random=1"],
    "half-labels": ["training.n_best=4", "training.n_random=8"],
    "no-prior": ["training.from_order=false"],
    "no-flips": ["training.flips=false"],
    "regression": ["training.gain_weight=0"],
    "completion": ["training.completion='fixed'"],
    "zoom": ["training.zoom=1.8"],
    "no-repeats": ["training.n_repeats=0"],
    "small-batches": ["training.batch_size=16"],
    "diverse": [
        *["training.label_every=4", "training.batch_size=192"],
        *["training.turn=8", "training.bend=2"],
    ],
    "bent": ["training.turn=8", "training.bend=2"],
    "imagine": [],
    "imagine-zoom": ["training.zoom=1.8"],
    "imagine-completion": ["training.completion='fixed'"],
    "weighed": [],
}
"""Settings that an arm changes; fewer or more slices are another store."""
_N_TIMED = (8, 32)
"""Optimizer steps before and until the end of the measurement of their time."""


class _TimeIsUpError(Exception):
    """Ends a training whose steps were timed."""


def config_of(arm: str, preset: str, changes: Sequence[str] = ()) -> PolicyConfig:
    """Return the settings of an arm with seed 0."""
    own = {"imagine": "imagine", "weighed": "weigh"}
    method = own.get(arm.partition("-")[0], "dense")
    base = replace(PolicyConfig.of(method), acquisition=ACQUISITIONS[preset])
    return read(PolicyConfig, merge(to_table(base), assigned([*ARMS[arm], *changes])))


def n_parameters(config: PolicyConfig, n_rows: int, n_cols: int) -> int:
    """Return the number of parameters of an arm's network."""
    n_initial, horizon = config.spanned
    sizes = {"n_rows": n_rows, "n_cols": n_cols, "n_initial": n_initial, "horizon": horizon}
    return sum(p.numel() for p in make_policy(config.policy, **sizes).parameters())


def epochs_that_fit(
    configs: Sequence[PolicyConfig], store: Store, wanted: argparse.Namespace
) -> int:
    """Time some optimizer steps, and return how many epochs fit; at least one."""
    marks: list[float] = []
    n_steps = 1

    def watch(progress: Progress) -> None:
        nonlocal n_steps
        n_steps = progress.n_steps
        if progress.record:  # The end of an epoch, whose last step was told before.
            return
        done = (progress.epoch - 1) * n_steps + progress.step
        if done in _N_TIMED:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            marks.append(time.perf_counter())
        if done >= _N_TIMED[1]:
            raise _TimeIsUpError

    # So many that their steps can be timed, were there one in each.
    how = {"n_epochs": max(configs[0].training.n_epochs, _N_TIMED[1]), "patience": None}
    timed = [replace(x, training=replace(x.training, **how)) for x in configs]
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(number) for number in range(len(configs))]
        where = (store, wanted.reconstructor, outs)
        with suppress(_TimeIsUpError):
            train_policies(timed, *where, start=wanted.start, device=wanted.device, on_step=watch)
    per_step = (marks[1] - marks[0]) / (_N_TIMED[1] - _N_TIMED[0])
    return max(1, int(60 * wanted.minutes / per_step / n_steps))


def record_of(
    run: RunRecord, wanted: argparse.Namespace, config: PolicyConfig, seed: int
) -> dict[str, Any]:
    """Evaluate a trained policy, best column at each step, and tell all that counts."""
    how = {"limit": wanted.limit, "batch_size": wanted.batch_size, "device": wanted.device}
    setting = replace(setting_of(config, **how), reference="fixed")
    where = (wanted.test or wanted.data, wanted.reconstructor, setting)
    policy = policies.load(run.path)
    own = evaluate([("dense", policy), "fixed"], *where).found
    ssim = marks(wanted, setting)
    (comparison,) = own.comparisons
    mine = next(one.ssim for one in own.policies if one.policy == "dense")
    lines = run.metrics
    return {
        **{"arm": wanted.arm, "seed": seed, "data": wanted.data.name, "preset": wanted.preset},
        "test": (wanted.test or wanted.data).name,
        "reconstructor": wanted.reconstructor,
        "minutes": 0.0 if wanted.epochs else wanted.minutes,
        **{"changes": [*ARMS[wanted.arm], *wanted.set], "n_epochs": len(lines)},
        "start": Path(wanted.start or "").name.removesuffix(".safetensors"),
        "n_lockstep": lines[0].get("n_lockstep", 1),
        "train_s": sum(line["time_s"] for line in lines),
        "n_reconstructions": sum(line["n_reconstructions"] for line in lines),
        "val_ssim": [line["val_ssim"] for line in lines],
        **{"n_slices": own.n_slices, "n_volumes": own.n_volumes, "ssim": mine, "marks": ssim},
        "gap_closed": gap_closed(mine, ssim["na-oracle"], ssim["oracle"]),
        "difference_to_fixed": comparison.difference,
        "interval": comparison.interval,
        "n_parameters": sum(weight.numel() for weight in policy.parameters()),
        "n_draws": max(getattr(one, "n_draws", 0) for one in policy.modules()),
        "device": describe_device(resolve_device(wanted.device)),
    }


def marks(wanted: argparse.Namespace, setting: EvaluationSetting) -> dict[str, float]:
    """Return SSIM of fixed orders and the oracle, found once for all arms that ask alike."""
    data, names = wanted.test or wanted.data, ["fixed", "na-oracle", "oracle"]
    key = key_of(names, data, wanted.reconstructor, setting)
    folder = wanted.out / f"marks-{data.name}-{wanted.preset}-{wanted.limit or 'all'}-{key}"
    if (folder / "summary.json").is_file():
        found = read_summary(folder)
    else:
        found = evaluate(names, data, wanted.reconstructor, setting, out=folder).found
    return {one.policy: one.ssim for one in found.policies}


def path_of(wanted: argparse.Namespace, seed: int) -> Path:
    """Return the record of an arm and seed."""
    name = f"{wanted.label or wanted.arm}-{wanted.data.name}-{wanted.preset}-seed{seed}.json"
    return wanted.out / name


def list_records(wanted: argparse.Namespace) -> None:
    """Print which arms have which records."""
    for arm in ARMS:
        found = sorted(wanted.out.glob(f"{arm}-{wanted.data.name}-{wanted.preset}-seed*.json"))
        closed = [json.loads(path.read_text(encoding="utf-8"))["gap_closed"] for path in found]
        print(f"{arm:14}", ", ".join(f"{x:.3f}" for x in closed if x is not None) or "not run")


def run_arm(wanted: argparse.Namespace) -> None:
    """Train the seeds that have no record yet in lockstep, and write their records."""
    missing = [seed for seed in wanted.seeds if not path_of(wanted, seed).exists()]
    if not missing:
        return
    store, config = Store.open(wanted.data), config_of(wanted.arm, wanted.preset, wanted.set)
    configs = [replace(config, training=replace(config.training, seed=seed)) for seed in missing]
    runs = [wanted.out / "runs" / path_of(wanted, seed).stem for seed in missing]
    planned = runs[0].with_name(f"{runs[0].name.rpartition('-seed')[0]}.epochs.json")
    if wanted.epochs is None and not planned.exists():
        n_epochs = epochs_that_fit(configs, store, wanted)
        planned.parent.mkdir(parents=True, exist_ok=True)
        write_json(planned, n_epochs)
    # A run that was begun with another number refuses to go on.
    n_epochs = wanted.epochs or json.loads(planned.read_text(encoding="utf-8"))
    configs = [replace(x, training=replace(x.training, n_epochs=n_epochs)) for x in configs]
    how = {"start": wanted.start, "device": wanted.device}
    done = train_policies(configs, store, wanted.reconstructor, runs, **how)
    for seed, run in zip(missing, done, strict=True):
        record = record_of(run, wanted, config, seed)
        write_json(path_of(wanted, seed), record)
        print(json.dumps({key: record[key] for key in ("arm", "seed", "ssim", "gap_closed")}))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one arm, or tell which were run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--test", type=Path, help="another store whose test slices are scored")
    parser.add_argument("--reconstructor", default="knee-unet")
    parser.add_argument("--preset", choices=list(ACQUISITIONS), default="knee-base")
    parser.add_argument("--arm", choices=list(ARMS), default="column")
    parser.add_argument("--seeds", type=lambda text: [int(x) for x in text.split(",")], default=[0])
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--epochs", type=int, help="to train, in place of minutes")
    parser.add_argument("--limit", type=int, help="test slices; all where not given")
    parser.add_argument("--batch-size", type=int, default=256, help="slices evaluated at once")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--start", help="a trained policy to go on from")
    parser.add_argument("--label", help="name of the record where settings are changed")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--list", action="store_true")
    wanted = parser.parse_args(arguments)
    if wanted.epochs is not None and wanted.epochs < 1:
        parser.error(f"--epochs is {wanted.epochs}; give 1 or more, or --minutes")
    wanted.out.mkdir(parents=True, exist_ok=True)
    list_records(wanted) if wanted.list else run_arm(wanted)


if __name__ == "__main__":
    main()
