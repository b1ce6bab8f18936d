"""Does a policy decide better by the mean of scores: over mirrored observations, or two networks?

    python benchmarks/averaged.py --data stores/knee-test --policy knee-base-column
    python benchmarks/averaged.py --data stores/knee-test --policy knee-base-column \
        --policy dense-large=runs/dense-large --over left-right "both policies"

Observations are mirrored, left to right with opposite columns or upside down, and reconstructed
once. The last policy acquires slices of different volumes as it is, by means over mirrored views,
and by the mean of the gains that all of them expect. The record is averaged.json; a line that is
there, of as many slices, is replaced.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from paired import Paired
from tables import ROOT, difference, markdown, number
from torch import Tensor

from kscout import policies
from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.evaluation import AcquisitionPlan, EvaluationSetting, evaluate
from kscout.files import write_json
from kscout.physics.fourier import opposite

RECORD = ROOT / "benchmarks" / "averaged.json"
PLAIN, ALL = "as it is", "both policies"
VIEWS = {
    "left-right": [(False, False), (False, True)],
    "upside down": [(False, False), (True, False)],
    "all four": [(False, False), (False, True), (True, False), (True, True)],
}
"""By name, whether rows and columns of an observation are mirrored."""


@final
class Averaged(Policy):
    """Expects the mean gain over policies and views of what was observed."""

    is_stochastic, needs_measurement, serves_any_size = False, True, True

    def __init__(self, members: Sequence[Policy], views: Sequence[tuple[bool, bool]]) -> None:
        super().__init__()
        self.members, self.views = torch.nn.ModuleList(members), views

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        total = torch.zeros(seen.mask.shape, device=seen.mask.device)
        assert seen.zero_filled is not None
        for is_mirrored in self.views:
            rows, cols = (
                opposite(n, total.device) if is_so else torch.arange(n, device=total.device)
                for n, is_so in zip(seen.image.shape[-2:], is_mirrored, strict=True)
            )
            image, zero_filled = (
                x[..., rows, :][..., cols] for x in (seen.image, seen.zero_filled)
            )
            view = replace(seen, image=image, zero_filled=zero_filled, mask=seen.mask[:, cols])
            for member in self.members:
                unit = member.units_at(seen.mask, seen.for_each(seen.step))
                total += unit[:, None] * member(view)[:, cols]
        return total


def apart(slices: SliceSet, n: int) -> SliceSet:
    """Return slices that lie evenly over volumes, and at other places of each."""
    every, at = len(slices) // n, torch.arange(n)
    return slices.subset(at * every + at * 7 % every)


def lines_of(
    name: str, own: Policy, others: dict[str, Policy], given: Sequence[Any]
) -> list[dict[str, Any]]:
    """Return what each of the others is beside a policy as it is."""
    found = evaluate([(PLAIN, own), *others.items()], *given).found
    ssim = {one.policy: one.ssim for one in found.policies}
    compared = {one.policy: one for one in found.comparisons}
    about = {"policy": name, "n_slices": found.n_slices, "alone": ssim[PLAIN]}
    return [
        {
            **{**about, "over": over, "ssim": ssim[over]},
            **{"difference": compared[over].difference, "interval": compared[over].interval},
        }
        for over in others
    ]


def table(path: Path = RECORD) -> str:
    """Return a line for each mean, and how many of them help."""
    lines = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        (
            *(f"`{one['policy']}`", one["over"], str(one["n_slices"])),
            *(number(one["alone"]), number(one["ssim"])),
            difference(Paired((), one["difference"], one["interval"])),
        )
        for one in lines
    ]
    head = ("policy", "mean over", "slices", "alone", "mean", "difference")
    n_clear = sum((one["interval"] or [0])[0] > 0 for one in lines)
    return (
        f"{markdown(head, rows)}\n"
        f"{n_clear} of {len(lines)} have an interval above zero"
        f"{'' if n_clear else ': policies decide by one look'}.\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--reconstructor", default="knee-unet")
    parser.add_argument("--policy", action="append", required=True, metavar="[NAME=]POLICY")
    parser.add_argument("--over", nargs="+", choices=[*VIEWS, ALL], help="all where not given")
    parser.add_argument("--n-initial", type=int, default=16)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--limit", type=int, default=96, help="slices")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--record", type=Path, default=RECORD)
    wanted = parser.parse_args(arguments)
    plan = AcquisitionPlan(n_initial=wanted.n_initial, horizon=wanted.steps, n_trajectories=1)
    setting = EvaluationSetting(plan, reference=PLAIN, device=wanted.device, n_examples=0)
    slices = apart(Store.open(wanted.data).split("test"), wanted.limit)
    named = {x.partition("=")[0]: policies.load(x.rpartition("=")[2]) for x in wanted.policy}
    name, own = list(named.items())[-1]
    others: dict[str, Policy] = {how: Averaged([own], views) for how, views in VIEWS.items()}
    others |= {ALL: Averaged([*named.values()], [(False, False)])} if len(named) > 1 else {}
    others = {how: others[how] for how in wanted.over or others}
    found = lines_of(name, own, others, (slices, wanted.reconstructor, setting))
    kept = json.loads(wanted.record.read_text("utf-8")) if wanted.record.exists() else []
    again = {(x["policy"], x["over"], x["n_slices"]) for x in found}
    kept = [x for x in kept if (x["policy"], x["over"], x["n_slices"]) not in again]
    write_json(wanted.record, [*kept, *found])


if __name__ == "__main__":
    main()
