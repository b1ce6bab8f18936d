"""The section at the paper's size: a table, a picture and SSIM by step."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float64

from kscout.demo.oracles import StoredOracles, read_stored
from kscout.demo.settings import SHOWN_BASELINE, ZOO_BASELINES, ZOO_SIZE, ZOO_UNET
from kscout.demo.stages import ZooRun
from kscout.demo.words import say
from kscout.evaluation.statistics import confidence_interval
from kscout.evaluation.summaries.summary import Summary
from kscout.figures.blocks import Block, Drawing, Prose, Section
from kscout.figures.curves import draw_ssim_by_step
from kscout.figures.pictures import draw_reconstructions
from kscout.figures.series import Curve
from kscout.figures.tables import Column, Measured, Row, Table

TITLE = "At the paper's size"
_ORACLE_TITLES = {"na-oracle": "NA oracle", "oracle": "oracle"}


def paper_size_section(runs: Sequence[ZooRun]) -> Section:
    """Return what the zoo's policies reached, acquisition by acquisition."""
    names = [ZOO_UNET, *(name for run in runs for name in run.acquisition.policies.values())]
    told = {**counts_of(runs[0].summary), "protocol": runs[0].summary.protocol}
    blocks: list[Block] = [
        Prose(say("paper_size", size=ZOO_SIZE, weights=", ".join(names), **told))
    ]
    for run in runs:
        stored = read_stored(run.acquisition.name)
        is_same, why = (
            (False, "") if stored is None else stored.check(run.fingerprint, run.scores[0])
        )
        oracles = stored.ssim if stored is not None and is_same else {}
        blocks += [
            Prose(tell_handful(run.summary, run.acquisition.told, stored)),
            _table(run, stored, oracles, why),
            _pictures(run),
            _by_step(run, oracles),
        ]
    return Section(TITLE, tuple(blocks))


def tell_scores(runs: Sequence[ZooRun]) -> str:
    """Say in a sentence what the table shows, for the top of the page."""
    parts = []
    for run in runs:
        one, entries = run.acquisition, run.summary.policies
        scores = [f"{each.ssim:.4f} for {each.policy}" for each in entries]
        parts.append(f"SSIM after {one.n_initial} + {one.horizon} columns is {', '.join(scores)}")
    told = counts_of(runs[0].summary)
    scores_told = "; ".join(parts)
    return say("paper_size_summary", size=ZOO_SIZE, scores=scores_told, title=TITLE, **told)


def counts_of(summary: Summary) -> dict[str, int]:
    """Return how many slices of how many volumes were scored, for sentences."""
    return {"n_slices": summary.n_slices, "n_volumes": summary.n_volumes}


def tell_handful(summary: Summary, told: str, stored: StoredOracles | None) -> str:
    """Say what the slices of this run can and cannot show.

    Args:
        summary: of the evaluation.
        told: the policy that the sentence is about.
        stored: scores over the whole test set.
    """
    text, here = say("handful", **counts_of(summary)), summary.comparison(told)
    if here is not None and here.interval is not None:
        difference = _difference(here.difference, here.interval)
        reference = summary.reference
        text += say("handful_here", told=told, reference=reference, difference=difference)
    whole = None if stored is None else stored.whole_test.get(told)
    if whole is not None and whole["interval"] is not None:
        difference = _difference(whole["difference_to_fixed"], whole["interval"])
        how = "" if whole["is_argmax"] else ", columns drawn and not argmax"
        text += say("handful_whole", difference=difference, how=how)
    return text


def _difference(value: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"{value:+.4f} (95 % interval {low:+.4f} to {high:+.4f})".replace("-", "−")


def _table(
    run: ZooRun,
    stored: StoredOracles | None,
    oracles: Mapping[str, Float64[np.ndarray, "slice moment"]],
    why: str,
) -> Table:
    one, summary = run.acquisition, run.summary
    reference, whole_test = summary.reference, {} if stored is None else stored.whole_test
    ssim = {scores.policy: scores.metric("ssim") for scores in run.scores}
    base, volumes = ssim[reference][:, -1], run.scores[0].volumes

    def row(
        title: str,
        final: Float64[np.ndarray, " slice"],
        name: str | None = None,
        *,
        is_oracle: bool = False,
    ) -> Row:
        interval = confidence_interval(final - base, volumes)
        minus = Measured(float((final - base).mean()), None, interval)
        whole = Measured(whole_test[name]["ssim"]) if name in whole_test else None
        cells = (title, Measured(float(final.mean())), None if name == reference else minus, whole)
        return Row(cells, is_oracle=is_oracle)

    rows = [
        row(f"{one.n_initial} central columns alone", ssim[reference][:, 0]),
        row(f"{SHOWN_BASELINE}, zero-filled", run.zero_filled.metric("ssim")[:, -1]),
        *(row(name, ssim[name][:, -1], name) for name in (*ZOO_BASELINES, *one.policies)),
        *(
            row(f"{_ORACLE_TITLES.get(name, name)} (stored)", values[:, -1], name, is_oracle=True)
            for name, values in oracles.items()
        ),
    ]
    size = "" if stored is None else f", {stored.test_set['n_slices']} slices"
    columns = (
        Column("policy"),
        Column(f"SSIM, {summary.n_slices} slices"),
        Column(f"minus {reference}", is_signed=True),
        Column(f"whole test set{size} (stored)", is_paper=True),
    )
    title = f"SSIM after {one.n_initial} + {one.horizon} of {ZOO_SIZE} columns"
    note = _note(run, stored, is_shown=bool(oracles), why=why)
    return Table(title, columns, tuple(rows), note, f"paper-size-{one.name}")


def _note(run: ZooRun, stored: StoredOracles | None, *, is_shown: bool, why: str) -> str:
    n_draws = max(entry.n_trajectories for entry in run.summary.policies)
    text = say("table_note", n_draws=n_draws, unet=ZOO_UNET)
    if stored is None:
        return text + say("oracles_missing")
    made = {"command": stored.command, "date": stored.date, "why": why}
    if not is_shown:
        return text + say("oracles_other", **made)
    names = [name for name in run.acquisition.policies if name != run.acquisition.reference]
    drawn = [name for name in names if not stored.whole_test.get(name, {}).get("is_argmax", True)]
    told = f"; {', '.join(drawn)} drew its columns there" if drawn else ""
    n_volumes = stored.test_set["n_volumes"]
    return text + say("oracles_shown", **made, n_volumes=n_volumes, drawn=told)


def _pictures(run: ZooRun) -> Drawing:
    plain, *learned = run.examples
    shown = {"zero-filled": plain} | {one.policy: one for one in learned}
    figure = draw_reconstructions(
        plain.target,
        {name: one.image for name, one in shown.items()},
        ssim={name: one.ssim for name, one in shown.items()},
        masks={name: one.mask for name, one in shown.items()},
    )
    one = run.acquisition
    budget = {"n_initial": one.n_initial, "horizon": one.horizon}
    names = {"told": one.told, "reference": one.reference, "baseline": SHOWN_BASELINE}
    at = {"volume": plain.volume, "slice": plain.slice}
    caption = say("pictures_caption", **names, **budget, **at)
    return Drawing(figure, f"paper-size-{one.name}-images", caption, is_wide=True)


def _by_step(run: ZooRun, oracles: Mapping[str, Float64[np.ndarray, "slice moment"]]) -> Drawing:
    ssim = {one.policy: one.metric("ssim") for one in run.scores} | dict(oracles)
    means = {name: values.mean(axis=0) for name, values in ssim.items()}
    curves = [
        Curve(name, np.arange(len(mean), dtype=np.float64), mean, is_oracle=name in oracles)
        for name, mean in means.items()
    ]
    stored = " Oracles, dashed, are stored with the demo." if oracles else ""
    one, n_slices = run.acquisition, run.summary.n_slices
    caption = say("by_step_caption", n_slices=n_slices, n_initial=one.n_initial, stored=stored)
    return Drawing(draw_ssim_by_step(curves), f"paper-size-{one.name}-by-step", caption)
