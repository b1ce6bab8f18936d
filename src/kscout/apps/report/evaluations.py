"""The sections of one evaluation: sentences and figures."""

from collections.abc import Mapping
from functools import partial
from html import escape

import numpy as np

from kscout.apps.report.words import facts, sentences
from kscout.evaluation.statistics import TOO_FEW_VOLUMES
from kscout.evaluation.summaries.overview import curves_of
from kscout.evaluation.summaries.summary import Summary, policy_table
from kscout.figures.blocks import Block, Drawing, Prose, Widget, under_protocol
from kscout.figures.curves import (
    draw_differences,
    draw_final_differences,
    draw_ranking,
    draw_ssim_by_step,
)
from kscout.figures.series import Curve, LineStyle

PROTOCOL_WORDS = {
    "paper": "Protocol **paper**: images are scaled to the target's units with the target's own "
    "mean and deviation, which no scanner has. Masks, normalization and scores follow the "
    "paper; comparability with its numbers depends on the data.",
    "blind": "Protocol **blind**: images are scaled to the target's units with statistics of the "
    "measured data only, as on a scanner; scores are not comparable with the paper's.",
}


def result_parts(
    summary: Summary, looks: dict[str, LineStyle], *, stem: str = ""
) -> dict[str, tuple[Block, ...]]:
    """Return the blocks of one evaluation, by section title.

    With several evaluations on a page, names of figures and tables begin with `stem`.
    """
    blocks = [Prose(sentence) for sentence in sentences(summary)[1:]]
    protocol = PROTOCOL_WORDS.get(summary.protocol, f"Protocol {summary.protocol}.")
    if summary.columns is not None:
        protocol += " Measured k-space of coils allows no other."
    by_step = Drawing(
        partial(draw_ssim_by_step, curves_of(summary), styles=looks),
        f"{stem}ssim-by-step",
        f"SSIM after every acquired column, mean over {summary.n_slices} slices of the "
        f"{summary.split} split. Oracles, which use the ground truth, are dashed. Volumes "
        "differ far more than policies do, so intervals are only shown for differences.",
    )
    parts: dict[str, tuple[Block, ...]] = {
        f"Difference to {summary.reference}": _differences(summary, looks, stem),
        "Scores": (
            *blocks,
            Widget(facts_html(facts(summary))),
            Prose(protocol),
            policy_table(summary, name=f"{stem}policies"),
        ),
        "SSIM by step": (by_step,),
        "SSIM and PSNR": _ranking(summary, looks, stem),
    }
    return {x: tuple(under_protocol(blocks, summary.protocol)) for x, blocks in parts.items()}


def facts_html(values: Mapping[str, str]) -> str:
    """Return short facts by label as a grid."""
    pairs = (f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in values.items())
    return f'<dl class="facts">{"".join(pairs)}</dl>'


def differences_of(summary: Summary) -> list[Curve]:
    """Return paired differences to the reference by step, best first."""
    oracles = {one.policy for one in summary.policies if one.is_oracle}
    curves = []
    for one in summary.comparisons:
        ends = [pair for pair in one.by_step.interval if pair is not None]
        has_band = len(ends) == len(one.by_step.difference)
        low, high = np.array(ends).T if has_band else (None, None)
        mean = np.array(one.by_step.difference)
        x = np.array(summary.moments[-len(mean) :], float)
        curves.append(Curve(one.policy, x, mean, low, high, one.policy in oracles))
    return curves


def _differences(summary: Summary, styles: dict[str, LineStyle], stem: str) -> tuple[Block, ...]:
    curves, reference = differences_of(summary), summary.reference
    if not curves:
        return ()
    has_bands = any(curve.low is not None for curve in curves)
    interval = (
        f" with its 95 % interval over {summary.n_volumes} volumes"
        if has_bands
        else f"; {TOO_FEW_VOLUMES}"
    )
    note = " If an interval includes zero, this evaluation does not distinguish the policy "
    note = f"{note}from {reference}." if has_bands else ""
    paired = f"each policy's SSIM minus that of {reference} on the same slices{interval}"
    at_end = Drawing(
        partial(draw_final_differences, curves, reference=reference, styles=styles),
        f"{stem}differences",
        f"After the last of {summary.steps} steps: {paired}.{note}",
    )
    if len(curves[0].mean) < 2:
        return (at_end,)
    by_step = Drawing(
        partial(draw_differences, curves, reference=reference, styles=styles),
        f"{stem}differences-by-step",
        f"After every acquired column: {paired}.",
    )
    return (at_end, by_step)


def _ranking(summary: Summary, styles: dict[str, LineStyle], stem: str) -> tuple[Block, ...]:
    ranked = summary.ranked
    if len(ranked) < 3:
        return ()
    figure = partial(
        draw_ranking,
        [policy.policy for policy in ranked],
        np.array([policy.ssim for policy in ranked]),
        np.array([policy.final["psnr"].mean for policy in ranked]),
        oracles=[policy.policy for policy in ranked if policy.is_oracle],
        styles=styles,
    )
    caption = (
        "Final SSIM against final PSNR. The two metrics may disagree: policies are trained with "
        "SSIM and oracles maximize it, while PSNR favors low frequencies."
    )
    return (Drawing(figure, f"{stem}ssim-psnr", caption),)
