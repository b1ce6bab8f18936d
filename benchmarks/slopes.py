"""Do slopes follow gains, and what do they cost? One backward pass against columns that are tried.

    python benchmarks/slopes.py --data stores/knee --limit 96

At some steps along a fixed order all columns of test slices of different volumes are tried, and
their slopes are taken (`training.slopes`). The record is slopes.json; a line of the same
reconstruction, step and device is replaced.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from averaged import apart
from tables import ROOT, markdown

from kscout import policies, reconstruction
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.core import SliceBatch
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


def line_of(batches: Sequence[SliceBatch], step: int, wanted: argparse.Namespace) -> dict[str, Any]:
    """Return how slopes and gains agree before a column of the order."""
    place = resolve_device(wanted.device)
    fixed = policies.load(wanted.fixed)
    assert isinstance(fixed, FixedOrder)
    _, n_rows, n_cols = batches[0].kspace.shape[1:]
    frozen = reconstruction.load(wanted.reconstructor).frozen(
        precision="auto", n_rows=n_rows, n_cols=n_cols, device=place
    )
    plain = differentiable(frozen)
    mask = start_mask(wanted.n_initial, (1, n_cols), place).clone()
    mask[:, fixed.order[:step]] = True
    is_open = ~mask[0].cpu().numpy()
    gains, slopes, costs = [], [], []
    for batch in batches:
        simulator = Simulator(batch.to(place), frozen)
        state = simulator.start_from(mask.expand(len(batch), -1))
        gains.append((simulator.score_every_column(state) - state.score[:, None]).cpu())
        slopes.append(column_slopes(plain, simulator, state).cpu())
        costs.append(
            _cost(simulator, state, lambda s=simulator, x=state: column_slopes(plain, s, x))
        )
    gain, slope = (torch.cat(x).double().numpy()[:, is_open] for x in (gains, slopes))
    chosen = [np.arange(len(gain)), slope.argmax(axis=1)]
    return {
        **{"reconstructor": wanted.reconstructor, "device": describe_device(place)},
        **{"data": wanted.data.name, "step": step + 1, "n_slices": len(gain)},
        "correlation": float(
            np.mean([np.corrcoef(*x)[0, 1] for x in zip(gain, slope, strict=True)])
        ),
        "best": float(gain.max(axis=1).mean()),
        "steepest": float(gain[*chosen].mean()),
        "fixed": float(gain.mean(axis=0).max()),
        "cost": float(np.median(costs)),
    }


def _cost(simulator: Simulator, state: State, pass_back: Callable[[], object]) -> float:
    """Return how many columns are tried in the time of a pass for slopes."""
    n_tried = min(N_TRIED, state.mask.shape[1])
    columns = torch.arange(n_tried, device=state.mask.device).expand(len(state), -1)
    return n_tried * _seconds(pass_back) / _seconds(lambda: simulator.score_columns(state, columns))


def _seconds(work: Callable[[], object]) -> float:
    """Return how long a second call takes, and wait for a GPU."""
    work()
    _wait()
    begun = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - begun


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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
                *(f"{x[key]:.4f}".replace("0.", ".") for key in ("best", "steepest", "fixed")),
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
    parser.add_argument("--out", type=Path, default=RECORD)
    wanted = parser.parse_args(arguments)
    slices = apart(Store.open(wanted.data).split("test"), wanted.limit)
    batches = list(slices.batches(wanted.batch_size))
    for step in wanted.steps:
        line = line_of(batches, step, wanted)
        lines = json.loads(wanted.out.read_text(encoding="utf-8")) if wanted.out.exists() else []
        kept = [x for x in lines if [x[k] for k in KEY] != [line[k] for k in KEY]]
        write_json(wanted.out, [*kept, line])
        print(line)


if __name__ == "__main__":
    main()
