"""One network for many matrix sizes: what a reconstruction, and a policy, reach at each of them.

    python benchmarks/sizes.py --data stores/knee-320 --reconstructor knee-unet
    python benchmarks/sizes.py --data stores/knee-320 --reconstructor knee-sizes-unet \
        --policy knee-sizes-column --label knee-sizes-column --limit 208 --n-train 64

Test slices are made coarser, as in training with `training.sizes`. A reconstruction gets the
central quarter of the columns; zero-filling stands beside it.
A policy starts from the central eighth and acquires another, beside the fixed order of training
slices made coarser likewise, which `--orders` keeps for the next policy. Of few columns that order
depends much on these slices, so that there should be many (`--n-train`). Lines of a label replace
those of the same size in sizes.json, from which `benchmarks/tables.py` writes a table of
docs/dense.md.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import torch
from leaderboard import REFERENCE
from paired import Paired
from tables import difference, markdown, number

from kscout import reconstruction
from kscout.config import ReconstructorTraining, read, to_table
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import resolve_device
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.evaluation.running.fixed_orders import fitted_order
from kscout.files import write_json
from kscout.physics.sampling import center_mask
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.augmentation import coarser_slices
from kscout.training.reconstructor import validation_ssim
from kscout.zoo import ZOO

RECORD = Path(__file__).with_name("sizes.json")
SIZES = (64, 96, 128, 192, 256, 320)


@final
@dataclass(frozen=True)
class SizeRecord:
    """What was reached at one matrix size."""

    label: str
    n_cols: int
    n_slices: int
    zero_filled: float
    ssim: float
    """Of the reconstruction, as that before of the central quarter of the columns."""
    fixed: float | None = None
    """Of the fixed order, an eighth of the columns acquired after an eighth."""
    difference: float | None = None
    """Of the policy to it."""
    interval: tuple[float, float] | None = None
    precision: str = "fp32"
    """Of the reconstruction's arithmetic."""
    n_train: int | None = None
    """Training slices that the fixed order was fitted on."""
    store: str | None = None
    """Fingerprint of the store of both."""


def from_center(model: Reconstructor, slices: SliceSet) -> float:
    """Return mean SSIM with the central quarter of the columns."""
    masks = center_mask(slices.n_cols, slices.n_cols // 4).expand(len(slices), -1)
    return validation_ssim(model, slices, masks, ReconstructorTraining())


def record_of(wanted: argparse.Namespace, n_cols: int, device: torch.device) -> SizeRecord:
    """Return what is reached at one size."""
    store, model = Store.open(wanted.data), reconstruction.load(wanted.reconstructor)
    slices = coarser_slices(store.split("test").sample(wanted.limit), n_cols).to(device)
    found = SizeRecord(
        wanted.label or wanted.reconstructor,
        n_cols,
        len(slices),
        *(from_center(one.to(device), slices) for one in (ZeroFilled(), model)),
    )
    if wanted.policy is None:
        return found
    plan = AcquisitionPlan(n_initial=n_cols // 8, horizon=n_cols // 8, n_trajectories=1)
    setting = EvaluationSetting(plan, reference=REFERENCE, device=str(device), n_examples=0)
    train = coarser_slices(store.split("train").sample(wanted.n_train), n_cols).to(device)
    sizes = {"n_rows": slices.shape[1], "n_cols": n_cols}
    frozen = model.frozen(precision=setting.precision, device=str(device), **sizes)
    order = fitted_order(
        *(train, frozen, plan), n_slices_per_step=setting.n_fixed_slices, cache=wanted.orders
    )
    compared_with = (REFERENCE, FixedOrder(n_cols=n_cols, order=order))
    told = evaluate([f"policy={wanted.policy}", compared_with], slices, model, setting).found
    (compared,) = told.comparisons
    return replace(
        found,
        fixed=next(one.ssim for one in told.policies if one.policy == REFERENCE),
        difference=compared.difference,
        interval=compared.interval,
        precision=told.precision,
        n_train=len(train),
        store=store.fingerprint,
    )


def read_lines(path: Path = RECORD) -> list[SizeRecord]:
    """Return all lines."""
    return [read(SizeRecord, one) for one in json.loads(path.read_text(encoding="utf-8"))]


def shipped() -> str:
    """Return the lines of what comes with kscout."""
    return table([one for one in read_lines() if one.label in ZOO])


def trials() -> str:
    """Return the lines of what was tried besides."""
    return table([one for one in read_lines() if one.label not in ZOO])


def table(found: Sequence[SizeRecord]) -> str:
    """Return a line for each network and size."""
    lines = [
        (
            *(f"`{one.label}`", str(one.n_cols), str(one.n_slices)),
            # Of a policy's line those are of its reconstruction, which has lines of its own.
            *(number(x) if one.fixed is None else "" for x in (one.zero_filled, one.ssim)),
            "" if one.fixed is None else f"{number(one.fixed)} ({one.n_train})",
            "" if one.difference is None else difference(Paired((), one.difference, one.interval)),
        )
        for one in found
    ]
    head = (
        *("network", "columns", "slices", "zero-filled", "reconstructed"),
        *("fixed order (its slices)", "policy minus fixed order"),
    )
    return f"{markdown(head, lines)}\n{_sentence(found)}"


def _sentence(lines: Sequence[SizeRecord]) -> str:
    """Return what networks add to zero-filling at best and at worst, and where policies lead."""
    told = []
    for label in dict.fromkeys(one.label for one in lines if one.fixed is None):
        own = sorted((x for x in lines if x.label == label), key=lambda x: x.ssim - x.zero_filled)
        adds = [
            f"{number(x.ssim - x.zero_filled)} at {x.n_cols} columns" for x in (own[-1], own[0])
        ]
        told.append(
            f"To zero-filling `{label}` adds {adds[0]} and {adds[1]} ({own[0].n_slices} slices).\n"
        )
    for label in dict.fromkeys(one.label for one in lines if one.fixed is not None):
        own = [one for one in lines if one.label == label]
        ends = [one.interval or (math.nan, math.nan) for one in own]
        n_above, n_below = sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)
        told.append(
            f"`{label}` lies above the fixed order with the whole interval at {n_above} of "
            f"{len(own)} sizes, and below it at {n_below} ({own[0].n_slices} slices).\n"
        )
    return "".join(told)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the lines of one network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reconstructor", default="knee-unet")
    parser.add_argument("--policy", help="run folder or a name of the zoo")
    parser.add_argument("--label", help="how the table calls it")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--limit", type=int, help="slices; all where not given")
    parser.add_argument("--n-train", type=int, default=256, help="slices of the fixed order")
    parser.add_argument("--orders", type=Path, help="folder that keeps these orders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", type=Path, default=RECORD)
    wanted = parser.parse_args(arguments)
    device = resolve_device(wanted.device)
    found = [record_of(wanted, n_cols, device) for n_cols in wanted.sizes]
    kept = read_lines(wanted.record) if wanted.record.exists() else []
    new = {(one.label, one.n_cols) for one in found}
    kept = [one for one in kept if (one.label, one.n_cols) not in new]
    labels = list(dict.fromkeys(one.label for one in (*kept, *found)))
    lines = sorted((*kept, *found), key=lambda one: (labels.index(one.label), one.n_cols))
    write_json(wanted.record, [to_table(one, nulls=True) for one in lines])


if __name__ == "__main__":
    main()
