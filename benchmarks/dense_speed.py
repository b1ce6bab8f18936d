"""How many columns a second dense training tries, everything counted: choices, gradients, steps.

    python benchmarks/dense_speed.py --data stores/knee --seeds 1,3 --record speed.json

Some optimizer steps of the arm `no-repeats` are timed after the first ones, in which kernels and
graphs are made; seeds of one training are in lockstep.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from dense import config_of
from dense_records import RECORDS, read_records
from tables import ROOT, markdown

from kscout.data.store import Store
from kscout.device import describe_device, resolve_device
from kscout.files import write_json
from kscout.runs import Progress
from kscout.training.policy import train_policies

RECORD = ROOT / "benchmarks" / "dense_speed.json"
N_TIMED = (8, 40)
"""Optimizer steps before and until the end of the measurement."""


class _MeasuredError(Exception):
    """Ends a training whose steps were timed."""


def measured(store: Store, wanted: argparse.Namespace, n_seeds: int) -> dict[str, Any]:
    """Time a training with some seeds."""
    config = config_of("no-repeats", "knee-base", ["training.n_prior_slices=16", *wanted.set])
    configs = [replace(config, training=replace(config.training, seed=x)) for x in range(n_seeds)]
    marks: list[float] = []

    def watch(progress: Progress) -> None:
        done = (progress.epoch - 1) * progress.n_steps + progress.step
        if done in N_TIMED:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            marks.append(time.perf_counter())
        if done >= N_TIMED[1]:
            raise _MeasuredError

    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(number) for number in range(n_seeds)]
        where = (store, wanted.reconstructor, outs)
        try:
            train_policies(configs, *where, device=wanted.device, on_step=watch)
        except _MeasuredError:
            pass
    if len(marks) < 2:
        raise SystemExit(f"the training ended before step {N_TIMED[1]}; use a larger store")
    seconds = (marks[1] - marks[0]) / (N_TIMED[1] - N_TIMED[0])
    n_states = n_seeds * config.training.batch_size * config.acquisition.horizon
    per_second = n_states * config.training.n_tried / seconds
    return {"n_seeds": n_seeds, "step_ms": 1e3 * seconds, "columns_per_s": per_second}


def table(path: Path = RECORD) -> str:
    """Return what the record says."""
    record = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        (f"{x['n_seeds']}", f"{x['step_ms']:.0f} ms", f"{x['columns_per_s']:,.0f}")
        for x in record["trainings"]
    ]
    head = ("seeds in lockstep", "one step of all", "columns tried a second")
    return f"On {record['device']}:\n\n{markdown(head, lines)}\n{whole()}"


def whole(folder: Path = RECORDS) -> str:
    """Return how many columns whole trainings tried, validation and repeats counted."""
    found = read_records(folder)
    no_repeats = [one for one in found if one.arm == "no-repeats"]
    others = [one for one in found if one.arm == "column"]
    slow, fast = (
        max(one.n_reconstructions / one.train_s for one in x) for x in (others, no_repeats)
    )
    return (
        f"Of whole trainings, with validation, the fastest without repeats tried {fast:,.0f} a "
        f"second, and the fastest with repeats, which are the default, {slow:,.0f}.\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Time trainings and write a record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reconstructor", default="knee-unet")
    parser.add_argument("--seeds", type=lambda text: [int(x) for x in text.split(",")], default=[1])
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", type=Path)
    wanted = parser.parse_args(arguments)
    store = Store.open(wanted.data)
    trainings = [measured(store, wanted, n_seeds) for n_seeds in wanted.seeds]
    for one in trainings:
        print(json.dumps(one))
    if wanted.record:
        device = describe_device(resolve_device(wanted.device))
        write_json(wanted.record, {"device": device, "changes": wanted.set, "trainings": trainings})


if __name__ == "__main__":
    main()
