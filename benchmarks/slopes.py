"""Do slopes follow gains, and what do they cost? One backward pass against columns that are tried.

    python benchmarks/slopes.py --data stores/knee --limit 96

At some steps along a fixed order all columns of test slices of different volumes are tried, and
their slopes are taken (`training.slopes`). The record is slopes.json; a line of the same
reconstruction, step and device is replaced.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from averaged import apart
from tables import ROOT, markdown, number

from kscout import policies, reconstruction
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.bench.limits import best_time
from kscout.core import Reconstructor, SliceBatch
from kscout.data.store import Store
from kscout.device import describe_device, resolve_device
from kscout.files import write_json
from kscout.physics.sampling import start_mask
from kscout.policies.fixed import FixedOrder
from kscout.training.estimators.slopes import column_slopes, differentiable

RECORD = ROOT / "benchmarks" / "slopes.json"
KEY = ("reconstructor", "device", "step")
N_TRIED = 24
"""Columns that are tried at a state by default."""


def line_of(
    batches: Sequence[SliceBatch], frozen: Reconstructor, taken: Sequence[int], n_initial: int
) -> dict[str, Any]:
    """Return how slopes and gains agree where some columns of an order are taken."""
    plain, device = differentiable(frozen), batches[0].kspace.device
    mask = start_mask(n_initial, (1, batches[0].n_cols), device).clone()
    mask[:, taken] = True
    is_open = ~mask[0].cpu().numpy()
    gains, slopes, costs = [], [], []
    for batch in batches:
        simulator = Simulator(batch, frozen)
        state = simulator.start_from(mask.expand(len(batch), -1))
        pass_back = partial(column_slopes, plain, simulator, state)
        gains.append((simulator.score_every_column(state) - state.score[:, None]).cpu())
        slopes.append(pass_back().cpu())
        costs.append(_cost(simulator, state, pass_back))
    gain, slope = (torch.cat(x).double().numpy()[:, is_open] for x in (gains, slopes))
    each = [np.corrcoef(*pair)[0, 1] for pair in zip(gain, slope, strict=True)]
    return {
        **{"step": len(taken) + 1, "n_slices": len(gain), "correlation": float(np.mean(each))},
        "best": float(gain.max(axis=1).mean()),
        "steepest": float(gain[np.arange(len(gain)), slope.argmax(axis=1)].mean()),
        "fixed": float(gain.mean(axis=0).max()),
        "cost": float(np.median(costs)),
    }


def _cost(simulator: Simulator, state: State, pass_back: Callable[[], object]) -> float:
    """Return how many columns are tried in the time of a pass for slopes."""
    device, n_tried = state.mask.device, min(N_TRIED, state.mask.shape[1])
    columns = torch.arange(n_tried, device=device).expand(len(state), -1)
    timed = partial(best_time, device=device, at_least_s=0.0, n_least=2)
    return n_tried * timed(pass_back) / timed(lambda: simulator.score_columns(state, columns))


def table(path: Path = RECORD) -> str:
    """Return a line for each step, and what a pass costs."""
    lines = json.loads(path.read_text(encoding="utf-8"))
    head = (
        *("before column", "correlation", "gain of the best column"),
        *("of the steepest", "of the best for all"),
    )
    parts = []
    for name, device in dict.fromkeys((one["reconstructor"], one["device"]) for one in lines):
        own = [x for x in lines if (x["reconstructor"], x["device"]) == (name, device)]
        rows = [
            (
                *(str(x["step"]), f"{x['correlation']:.2f}"),
                *(number(x[key]) for key in ("best", "steepest", "fixed")),
            )
            for x in own
        ]
        cost = np.median([x["cost"] for x in own])
        parts.append(
            f"`{name}`, {own[0]['n_slices']} slices of different volumes, {device}; a pass takes "
            f"as long as {cost:.1f} tried columns:\n\n{markdown(head, rows)}"
        )
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reconstructor", default="knee-unet")
    parser.add_argument("--fixed", default="knee-base-fixed", help="a fixed order")
    parser.add_argument("--n-initial", type=int, default=16)
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 5, 10, 15])
    parser.add_argument("--limit", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", type=Path, default=RECORD)
    wanted = parser.parse_args(arguments)
    device, fixed = resolve_device(wanted.device), policies.load(wanted.fixed)
    assert isinstance(fixed, FixedOrder)
    slices = apart(Store.open(wanted.data).split("test"), wanted.limit).to(device)
    batches, (_, n_rows, n_cols) = list(slices.batches(wanted.batch_size)), slices.shape
    frozen = reconstruction.load(wanted.reconstructor).frozen(
        precision="auto", n_rows=n_rows, n_cols=n_cols, device=device
    )
    about = {"reconstructor": wanted.reconstructor, "device": describe_device(device)}
    about |= {"data": wanted.data.name}
    path = wanted.record
    for step in wanted.steps:
        line = about | line_of(batches, frozen, fixed.order[:step], wanted.n_initial)
        lines = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        kept = [x for x in lines if [x[k] for k in KEY] != [line[k] for k in KEY]]
        write_json(path, [*kept, line])
        print(line, flush=True)


if __name__ == "__main__":
    main()
