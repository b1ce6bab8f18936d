"""The section of the page at the paper's size: a table, a picture and SSIM by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from kscout.demo.oracles import StoredOracles, read_stored
from kscout.demo.paper_size import BASELINES, SHOWN_BASELINE, SIZE, UNET
from kscout.demo.zoo_stages import ZooRun
from kscout.evaluation.statistics import bootstrap_interval
from kscout.figures.blocks import Block, Drawing, Prose, Section
from kscout.figures.curves import Curve, draw_ssim_by_step
from kscout.figures.pictures import draw_reconstructions
from kscout.figures.tables import Column, Measured, Row, Table

TITLE = "At the paper's size"
_ORACLE_TITLES = {"na-oracle": "NA oracle", "oracle": "oracle"}

Final = Float64[np.ndarray, " slice"]


@final
@dataclass(frozen=True)
class _Shown:
    """A run, and the stored scores that go with it."""

    run: ZooRun
    stored: StoredOracles | None
    is_same: bool
    """The stored oracles are those of these slices."""
    why: str

    @classmethod
    def of(cls, run: ZooRun) -> "_Shown":
        stored = read_stored(run.budget.name)
        if stored is None:
            return cls(run, None, is_same=False, why="none are stored for this acquisition")
        return cls(run, stored, *stored.check(run.fingerprint, run.scores[0]))

    @property
    def oracles(self) -> dict[str, Float64[np.ndarray, "slice moment"]]:
        return self.stored.ssim if self.stored is not None and self.is_same else {}

    def whole_test(self, name: str) -> dict[str, Any] | None:
        return None if self.stored is None else self.stored.whole_test.get(name)


def paper_size_section(runs: Sequence[ZooRun]) -> Section:
    """Return what the zoo's policies reached, acquisition by acquisition."""
    blocks: list[Block] = [Prose(_tell_what(runs))]
    for run in runs:
        shown = _Shown.of(run)
        blocks += [
            Prose(tell_handful(run.summary, run.budget.told, shown.stored)),
            _table(shown),
            _pictures(run),
            _by_step(shown),
        ]
    return Section(TITLE, tuple(blocks))


def tell_scores(runs: Sequence[ZooRun]) -> str:
    """Say in a sentence what the table shows, for the top of the page."""
    parts = []
    for run in runs:
        scores = ", ".join(
            f"{entry['final']['ssim']['mean']:.4f} for {entry['policy']}"
            for entry in run.summary["policies"]
        )
        parts.append(
            f"SSIM after {run.budget.n_initial} + {run.budget.horizon} columns is {scores}"
        )
    first = runs[0].summary
    return (
        f"At the paper's size, {SIZE}×{SIZE} pixels, nothing is trained here: the networks come "
        f"with kscout. On {first['n_slices']} slices of {first['n_volumes']} unseen knees, "
        f"{'; '.join(parts)}. So few slices settle nothing; the section “{TITLE}” has the whole "
        "test set's scores beside."
    )


def tell_handful(summary: dict[str, Any], told: str, stored: StoredOracles | None) -> str:
    """Say what the slices of this run can and cannot show.

    Args:
        summary: of the evaluation.
        told: the policy that the sentence is about.
        stored: scores over the whole test set.
    """
    reference = summary["reference"]
    text = (
        f"**{summary['n_slices']} slices of {summary['n_volumes']} knees settle nothing.** They "
        "show what the networks do, not which policy is better."
    )
    compared = {entry["policy"]: entry for entry in summary["comparisons"]}.get(told)
    if compared is not None and compared["interval"] is not None:
        text += f" Here {told} minus {reference} is {_difference(compared)}, over so few knees."
    whole = None if stored is None else stored.whole_test.get(told)
    if whole is None or whole["interval"] is None:
        return text
    how = "" if whole["is_argmax"] else ", columns drawn and not argmax"
    return f"{text} Over the whole test set, it is {_difference(whole)}{how}."


def _difference(entry: Mapping[str, Any]) -> str:
    value = entry["difference" if "difference" in entry else "difference_to_fixed"]
    low, high = entry["interval"]
    text = f"{value:+.4f} (95 % interval {low:+.4f} to {high:+.4f})"
    return text.replace("-", "−")


def _tell_what(runs: Sequence[ZooRun]) -> str:
    summary = runs[0].summary
    weights = ", ".join(one.weights for run in runs for one in run.budget.policies)
    return (
        f"Nothing was trained for this section. The U-Net and the policies come with kscout, "
        f"trained on procedural slices of {SIZE}×{SIZE} pixels, 6959 as in the paper or, where "
        f"the card says so, more ({UNET}, {weights}; see docs/zoo.md). Here they run on "
        f"{summary['n_slices']} slices of {summary['n_volumes']} knees of the paper-size test "
        f"set, which no training saw. Trained policies take their best column at each step; "
        f"protocol {summary['protocol']}."
    )


def _table(shown: _Shown) -> Table:
    run, summary = shown.run, shown.run.summary
    reference = summary["reference"]
    ssim = {one.policy: one.metric("ssim") for one in run.scores}
    base = ssim[reference][:, -1]
    columns = (
        Column("policy"),
        Column(f"SSIM, {summary['n_slices']} slices"),
        Column(f"minus {reference}", is_signed=True),
        Column(f"whole test set{_size_of(shown.stored)} (stored)", is_paper=True),
    )

    def row(title: str, final: Final, name: str | None = None, *, is_oracle: bool = False) -> Row:
        whole = None if name is None else shown.whole_test(name)
        interval = bootstrap_interval(final - base, run.scores[0].volumes)
        minus = (
            None if name == reference else Measured(float((final - base).mean()), None, interval)
        )
        beside = None if whole is None else Measured(whole["ssim"])
        return Row((title, Measured(float(final.mean())), minus, beside), is_oracle=is_oracle)

    n_initial = run.budget.n_initial
    rows = [
        row(f"{n_initial} central columns alone", ssim[reference][:, 0]),
        row(f"{SHOWN_BASELINE}, zero-filled", run.zero_filled.metric("ssim")[:, -1]),
        *(row(name, ssim[name][:, -1], name) for name in BASELINES),
        *(row(one.title, ssim[one.title][:, -1], one.title) for one in run.budget.policies),
        *(
            row(f"{_ORACLE_TITLES.get(name, name)} (stored)", values[:, -1], name, is_oracle=True)
            for name, values in shown.oracles.items()
        ),
    ]
    title = f"SSIM after {n_initial} + {run.budget.horizon} of {SIZE} columns"
    return Table(title, columns, tuple(rows), _note(shown), f"paper-size-{run.budget.name}")


def _size_of(stored: StoredOracles | None) -> str:
    return "" if stored is None else f", {stored.test_set['n_slices']} slices"


def _note(shown: _Shown) -> str:
    run = shown.run
    n_draws = max(entry["n_trajectories"] for entry in run.summary["policies"])
    text = (
        f"Means over slices; random is the mean of {n_draws} acquisitions per slice. All rows but "
        f"the zero-filled one are reconstructed by {UNET}. Brackets: paired 95 % intervals with "
        "knees as the unit, which are rough with so few."
    )
    if shown.stored is None:
        return f"{text} Oracle scores: {shown.why}."
    made = f"by {shown.stored.command} on {shown.stored.date}"
    if not shown.is_same:
        return f"{text} Oracle scores, computed {made}, are not shown: {shown.why}."
    text += (
        f" Oracles try every column at every step, which takes minutes, so their scores were "
        f"computed once, {made}, and are stored with the demo; {shown.why}. The NA oracle's order "
        "is fitted on the very slices that it is scored on."
    )
    drawn = [
        one.title
        for one in run.budget.policies
        if (whole := shown.whole_test(one.title))
        and not whole["is_argmax"]
        and one.title != run.budget.reference
    ]
    n_volumes = shown.stored.test_set["n_volumes"]
    beside = f" The last column was measured earlier over all {n_volumes} knees of the test set"
    return text + beside + (f"; {', '.join(drawn)} drew its columns there." if drawn else ".")


def _pictures(run: ZooRun) -> Drawing:
    plain, *learned = run.examples
    shown = {"zero-filled": plain} | {one.policy: one for one in learned}
    figure = draw_reconstructions(
        plain.target,
        {name: one.image for name, one in shown.items()},
        ssim={name: one.ssim for name, one in shown.items()},
        masks={name: one.mask for name, one in shown.items()},
    )
    budget = run.budget
    caption = (
        f"Knee {plain.volume}, slice {plain.slice}: of the slices above, the one on which the lead "
        f"of {budget.told} over {SHOWN_BASELINE} is the median. Above: the images after "
        f"{budget.n_initial} + {budget.horizon} columns, in the target's gray scale; the "
        f"zero-filled one has the columns of {SHOWN_BASELINE}. Middle: measured columns in white. "
        "Below: absolute errors on one scale."
    )
    return Drawing(figure, f"paper-size-{budget.name}-images", caption, is_wide=True)


def _by_step(shown: _Shown) -> Drawing:
    run = shown.run
    ssim = {one.policy: one.metric("ssim") for one in run.scores} | shown.oracles
    curves = []
    for name, values in ssim.items():
        mean = values.mean(axis=0)
        steps = np.arange(len(mean), dtype=np.float64)
        curves.append(Curve(name, steps, mean, is_oracle=name in shown.oracles))
    stored = " Oracles, dashed, are stored with the demo." if shown.oracles else ""
    caption = (
        f"SSIM after every acquired column, mean over {run.summary['n_slices']} slices; all start "
        f"from the same {run.budget.n_initial} central columns.{stored}"
    )
    return Drawing(draw_ssim_by_step(curves), f"paper-size-{run.budget.name}-by-step", caption)
