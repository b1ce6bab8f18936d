"""The sections of one evaluation: sentences on differences and their significance, and figures."""

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import PurePath

import numpy as np

from kscout.evaluation.statistics import TOO_FEW_VOLUMES
from kscout.evaluation.summaries.overview import curves_of
from kscout.evaluation.summaries.summary import (
    Comparison,
    EvaluationFolder,
    PolicySummary,
    Summary,
    policy_table,
)
from kscout.figures.blocks import Block, Drawing, Prose, Widget, under_protocol
from kscout.figures.curves import draw_differences, draw_final_differences, draw_ssim_by_step
from kscout.figures.series import Curve, LineStyle
from kscout.figures.tables import Column

LEVEL = 0.05
TIE = 1e-6
"""SSIM differences up to this are rounding, as for the oracles; a test checks that both agree."""


def describe_comparison(summary: Summary) -> str:
    """State the difference between the headline policy and the reference, with its interval."""
    policy = summary.headline_policy
    if policy is None:
        return describe_winner(summary)
    steps = summary.steps
    end = "after one acquired column" if steps == 1 else f"after {steps} acquired columns"
    opening = f"**{policy.policy}** reaches SSIM {policy.ssim:.4f} {end}"
    compared = summary.comparison(policy.policy)
    if compared is None:
        return f"{opening}."
    side = "above" if compared.difference >= 0 else "below"
    distance = f"{_distance(abs(compared.difference))} {side} **{summary.reference}**"
    return f"{opening}, {distance}: {_verdict(summary, compared)}"


def describe_comparisons(evaluations: Sequence[EvaluationFolder]) -> str:
    """State the same difference in each of several evaluations, with intervals."""
    parts = []
    for one in evaluations:
        policy = one.summary.headline_policy
        compared = None if policy is None else one.summary.comparison(policy.policy)
        if compared is None:
            continue
        ends = compared.interval
        words = f" ({_signed(ends[0])} to {_signed(ends[1])})" if ends else ""
        pair = f"**{compared.policy}** minus {compared.reference}"
        parts.append((pair, f"{_signed(compared.difference)}{words} in {one.label}"))
    if not parts:
        return "No policy was compared with another."
    by_pair: dict[str, list[str]] = {}
    for pair, words in parts:
        by_pair.setdefault(pair, []).append(words)
    text = "; ".join(f"{pair}: {', '.join(words)}" for pair, words in by_pair.items())
    return f"Paired differences of the final SSIM with 95 % intervals. {text}."


def describe_winner(summary: Summary) -> str:
    """Name the best feasible policy (or several tied ones) and the next."""
    first, rest = _leaders(summary)
    if not first:
        return "Only oracles were evaluated: no policy in the table can run on a scanner."
    names = [policy.policy for policy in first]
    opening = f"{_come(names)} first with SSIM {first[0].ssim:.4f}"
    if not rest:
        return f"{opening}. No other feasible policy was evaluated."
    gap = _distance(first[0].ssim - rest[0].ssim)
    text = f"{opening}; next is {rest[0].policy}, {gap} behind."
    if summary.reference in (*names, rest[0].policy):
        return text
    return f"{text} That pair was not tested: tests are against the reference, {summary.reference}."


def _leaders(summary: Summary) -> tuple[list[PolicySummary], list[PolicySummary]]:
    """Return the best feasible policies, several where SSIM is tied, and the rest."""
    feasible = [policy for policy in summary.ranked if not policy.is_oracle]
    n_first = sum(policy.ssim >= feasible[0].ssim - TIE for policy in feasible)
    return feasible[:n_first], feasible[n_first:]


def _come(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"**{names[0]}** comes"
    *others, last = (f"**{name}**" for name in names)
    within = np.format_float_scientific(TIE, trim="-", exp_digits=1)
    return f"{', '.join(others)} and {last} are tied (within {within}) and come"


def describe_headroom(summary: Summary) -> str | None:
    """State the distance of the best feasible policy from the oracle."""
    oracles = [policy for policy in summary.ranked if policy.is_oracle]
    feasible = [policy for policy in summary.ranked if not policy.is_oracle]
    if not oracles or not feasible:
        return None
    scores = " and ".join(f"{oracle.policy} {oracle.ssim:.4f}" for oracle in oracles[:3])
    text = f"Oracles, which use the ground truth, reach {scores}: bounds, not methods."
    best, closed = feasible[0].policy, feasible[0].gap_closed
    if closed is None:
        return text
    share = f"{best} closes {100 * closed:.0f} % of it"
    if closed < 0:
        share = f"{best} does not reach the lower end of it"
    return (
        f"{text} Adaptive policies can gain at most the gap between the best fixed order on the "
        f"test data (na-oracle) and full adaptivity (oracle); {share}."
    )


def opening(summary: Summary) -> tuple[str, ...]:
    """Return the first sentences of a report: the comparison, and what casts doubt on it."""
    headline, notes = summary.headline_policy, []
    first, _ = _leaders(summary) if headline else ([], [])
    if first and headline not in first and summary.reference not in [x.policy for x in first]:
        notes.append(f"**{first[0].policy}** is higher: SSIM {first[0].ssim:.4f}.")
    if summary.note:
        notes.append(f"Note: {summary.note}.")
    return (describe_comparison(summary), *notes)


def sentences(summary: Summary) -> tuple[str, ...]:
    """Return the comparison, the best policy and the bounds."""
    parts = [say(summary) for say in (describe_comparison, describe_winner, describe_headroom)]
    return tuple(dict.fromkeys(sentence for sentence in parts if sentence))


_COLUMNS = {
    "measured": "of coils, as a scanner measured it",
    "simulated": "of coils, simulated",
    "computed": "of coils, cropped, transposed or computed from images: not measured by a scanner",
}


def facts(summary: Summary) -> dict[str, str]:
    """Return the protocol and the sizes of an evaluation, by label."""
    n_initial, n_cols = summary.n_initial, summary.n_cols
    ends = {"Start": n_initial, "End": n_initial + summary.steps}
    n_seeds = max(one.n_seeds for one in summary.policies)
    return {
        "Protocol": summary.protocol,
        "Data": f"{summary.store}, {summary.split} split",
        **({"k-space": _COLUMNS.get(summary.columns, summary.columns)} if summary.columns else {}),
        "Scored on": summary.scored_on,
        **{name: f"{n} of {n_cols} columns ({n_cols / n:.3g}×)" for name, n in ends.items()},
        **_pace(summary),
        "Reconstruction": PurePath(summary.reconstructor).name,
        "Trajectories": f"{max(one.n_trajectories for one in summary.policies)} per slice",
        **({"Seeds": f"up to {n_seeds}"} if n_seeds > 1 else {}),
    }


def _pace(summary: Summary) -> dict[str, str]:
    """Return deviations from acquiring one column at a time around the center."""
    pace = {
        "Start from": summary.initial and summary.initial[0],
        "Columns per step": summary.columns_per_step > 1 and str(summary.columns_per_step),
    }
    return {name: words for name, words in pace.items() if words}


def _verdict(summary: Summary, compared: Comparison) -> str:
    if compared.interval is None:
        return f"the uncertainty is unknown: {TOO_FEW_VOLUMES}."
    (low, high), p_value = compared.interval, compared.p_value_corrected
    ends = f"{_signed(low)} to {_signed(high)}"
    unit = f"95 % interval over {summary.n_volumes} volumes"
    if low <= 0 <= high:
        return (
            f"the interval of the paired difference, {ends}, includes zero, so this "
            f"evaluation does not distinguish the two ({unit})."
        )
    opening = f"the interval of the paired difference, {ends}, excludes zero ({unit}"
    n_tests = len(summary.comparisons)
    p_words = f"p {'< 0.001' if p_value < 0.001 else f'= {p_value:.3f}'}"
    if p_value < LEVEL:
        return f"{opening}; {p_words} corrected for {_comparisons(n_tests)})."
    if n_tests * 2.0 ** (1 - summary.n_volumes) >= LEVEL:
        return (
            f"{opening}). With so few volumes the test corrected for {_comparisons(n_tests)} "
            "cannot confirm any difference, of any size."
        )
    return (
        f"{opening}), but the test corrected for {_comparisons(n_tests)} does not confirm the "
        f"difference ({p_words})."
    )


def _comparisons(n: int) -> str:
    return "one comparison" if n == 1 else f"{n} comparisons"


def _distance(value: float) -> str:
    text = f"{value:.4f}"
    return text if float(text) else "less than 0.0001"


_signed = Column("difference", is_signed=True).number


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
