"""The summary of an evaluation in plain words: who won, by how much, and is it chance."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

import numpy as np

from kscout.evaluation.summary import Comparison, EvaluationFolder, PolicySummary, Summary
from kscout.figures.tables import Column

LEVEL = 0.05
TIE = 1e-6
"""Differences of SSIM up to this are rounding, as for the oracles; a test holds both together."""


def tell_winner(summary: Summary) -> str:
    """Name the best feasible policy, or those that are tied, and the distance to the reference."""
    first, rest = _leaders(summary)
    if not first:
        return "Only oracles were evaluated: no policy that a scanner could run is in the table."
    best, names = first[0], [policy.policy for policy in first]
    end = f"after {summary.steps} acquired columns"
    opening = f"{_come(names)} first: SSIM {best.ssim:.4f} {end}"
    if not rest:
        return f"{opening}. No other feasible policy was evaluated."
    if summary.reference in names:
        second = rest[0].policy
        lead = _distance(best.ssim - rest[0].ssim)
        verdict = _verdict(summary, _turned(summary.comparison(second)))
        return f"{opening}, {lead} above {second}, the next. {verdict}"
    compared = summary.comparison(names[0])
    if compared is None:
        return f"{opening}."
    distance = f"{_distance(compared.difference)} above {summary.reference}, the reference"
    return f"{opening}, {distance}. {_verdict(summary, compared)}"


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


def tell_overall(evaluations: Sequence[EvaluationFolder]) -> str:
    """Say which feasible policy comes first in how many evaluations."""
    firsts: dict[str, list[str]] = {}
    for one in evaluations:
        for policy in _leaders(one.summary)[0]:
            firsts.setdefault(policy.policy, []).append(one.label)
    everywhere = [name for name, labels in firsts.items() if len(labels) == len(evaluations)]
    if everywhere:
        return f"{_come(everywhere)} first in all {len(evaluations)} evaluations."
    told = "; ".join(f"**{name}** in {', '.join(labels)}" for name, labels in firsts.items())
    return f"No policy comes first everywhere: {told}." if told else "Only oracles were evaluated."


def tell_runner_up(summary: Summary) -> str | None:
    """Say how close the second feasible policy is, where it is not the reference itself."""
    first, rest = _leaders(summary)
    names = [policy.policy for policy in (*first, *rest[:1])]
    if len(first) + len(rest) < 3 or not rest or summary.reference in names:
        return None
    gap = _distance(first[0].ssim - rest[0].ssim)
    return (
        f"Next is {names[-1]} with {rest[0].ssim:.4f}, {gap} behind. That "
        "pair was not tested; only differences from the reference were."
    )


def tell_headroom(summary: Summary) -> str | None:
    """Say how far the best feasible policy is from what the truth would allow."""
    oracles = [policy for policy in summary.ranked if policy.is_oracle]
    feasible = [policy for policy in summary.ranked if not policy.is_oracle]
    if not oracles or not feasible:
        return None
    scores = " and ".join(f"{oracle.policy} {oracle.ssim:.4f}" for oracle in oracles[:3])
    text = f"Oracles, which look at the ground truth, reach {scores}: bounds, not methods."
    best, closed = feasible[0].policy, feasible[0].gap_closed
    if closed is None:
        return text
    share = f"{best} closes {100 * closed:.0f} % of it"
    if closed < 0:
        share = f"{best} does not reach the lower end of it"
    return (
        f"{text} Between the best fixed order on the test data (na-oracle) and full adaptivity "
        f"(oracle) lies the gap that adaptive policies compete for; {share}."
    )


def tell_limits(summary: Summary) -> str | None:
    """Say what limits the tests, where something does."""
    notes = {one.note for one in summary.comparisons if one.note}
    return f"Limits of the tests: {'; '.join(sorted(notes))}." if notes else None


def sentences(summary: Summary) -> tuple[str, ...]:
    """Return the sentences that open a report."""
    tellers = (tell_winner, tell_runner_up, tell_headroom, tell_limits)
    return tuple(sentence for teller in tellers if (sentence := teller(summary)))


def facts(summary: Summary) -> dict[str, str]:
    """Return the protocol and the sizes of an evaluation, by label."""
    n_initial, n_cols = summary.n_initial, summary.n_cols
    ends = {"Start": n_initial, "End": n_initial + summary.steps}
    return {
        "Protocol": summary.protocol,
        "Data": f"{summary.store}, {summary.split} split",
        "Scored on": f"{summary.n_slices} slices of {summary.n_volumes} volumes",
        **{name: f"{n} of {n_cols} columns ({n_cols / n:.3g}×)" for name, n in ends.items()},
        "Reconstruction": PurePath(summary.reconstructor).name,
        "Trajectories": f"{max(one.n_trajectories for one in summary.policies)} per slice",
        "Seeds": str(max(one.n_seeds for one in summary.policies)),
    }


def _turned(compared: Comparison | None) -> Comparison | None:
    """Return a comparison seen from the reference."""
    if compared is None or compared.interval is None:
        return compared
    low, high = compared.interval
    return replace(compared, difference=-compared.difference, interval=(-high, -low))


def _verdict(summary: Summary, compared: Comparison | None) -> str:
    """Say whether a difference is more than chance, with the numbers that say so."""
    if compared is None:
        return "The difference was not tested."
    if compared.interval is None:
        return "With one volume its uncertainty is unknown."
    (low, high), p_value = compared.interval, compared.p_value_corrected
    range_ = f"95 % interval {_signed(low)} to {_signed(high)}"
    p_words = f"p {'< 0.001' if p_value < 0.001 else f'= {p_value:.3f}'}"
    if low <= 0 <= high:
        return f"The difference may be chance ({range_}, corrected {p_words})."
    if p_value < LEVEL:
        return f"The difference is statistically significant ({range_}, corrected {p_words})."
    n_tests, n_volumes = len(summary.comparisons), summary.n_volumes
    least = min(1.0, n_tests * 2.0 ** (1 - n_volumes))
    limit = (
        f"; with {n_volumes} volumes and {n_tests} comparisons it could not have fallen below "
        f"{least:.2g}"
        if least >= LEVEL
        else ""
    )
    return (
        f"The {range_} excludes zero, but the test corrected for all comparisons does not confirm "
        f"the difference ({p_words}{limit})."
    )


def _distance(value: float) -> str:
    text = f"{value:.4f}"
    return text if float(text) else "less than 0.0001"


_signed = Column("difference", is_signed=True).number
