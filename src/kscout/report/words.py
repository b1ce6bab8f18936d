"""The summary of an evaluation in plain words: who won, by how much, and is it chance."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from kscout.figures.tables import Column
from kscout.policies.oracle import TIE
from kscout.report.evaluations import Evaluation, final_of

LEVEL = 0.05


def tell_winner(evaluation: Evaluation) -> str:
    """Name the best feasible policy, or those that are tied, and the distance to the reference."""
    first, rest = _leaders(evaluation)
    if not first:
        return "Only oracles were evaluated: no policy that a scanner could run is in the table."
    best, names = first[0], [policy["policy"] for policy in first]
    reference = evaluation.summary.get("reference")
    opening = f"{_come(names)} first: SSIM {final_of(best):.4f} after {_columns(evaluation)}"
    if not rest:
        return f"{opening}. No other feasible policy was evaluated."
    if reference in names:
        second = rest[0]["policy"]
        lead = _distance(final_of(best) - final_of(rest[0]))
        verdict = _verdict(evaluation, _turned(evaluation.comparison(second)))
        return f"{opening}, {lead} above {second}, the next. {verdict}"
    compared = evaluation.comparison(names[0])
    if compared is None:
        return f"{opening}."
    distance = f"{_distance(compared['difference'])} above {reference}, the reference"
    return f"{opening}, {distance}. {_verdict(evaluation, compared)}"


def _leaders(evaluation: Evaluation) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the best feasible policies, several where SSIM is tied, and the rest."""
    feasible = [policy for policy in evaluation.policies if not policy["is_oracle"]]
    n_first = sum(final_of(policy) >= final_of(feasible[0]) - TIE for policy in feasible)
    return feasible[:n_first], feasible[n_first:]


def _come(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"**{names[0]}** comes"
    *others, last = (f"**{name}**" for name in names)
    within = np.format_float_scientific(TIE, trim="-", exp_digits=1)
    return f"{', '.join(others)} and {last} are tied (within {within}) and come"


def tell_overall(evaluations: Sequence[Evaluation]) -> str:
    """Say which feasible policy comes first in how many evaluations."""
    firsts: dict[str, list[str]] = {}
    for evaluation in evaluations:
        for policy in _leaders(evaluation)[0]:
            firsts.setdefault(policy["policy"], []).append(evaluation.label)
    everywhere = [name for name, labels in firsts.items() if len(labels) == len(evaluations)]
    if everywhere:
        return f"{_come(everywhere)} first in all {len(evaluations)} evaluations."
    told = "; ".join(f"**{name}** in {', '.join(labels)}" for name, labels in firsts.items())
    return f"No policy comes first everywhere: {told}." if told else "Only oracles were evaluated."


def tell_runner_up(evaluation: Evaluation) -> str | None:
    """Say how close the second feasible policy is, where it is not the reference itself."""
    first, rest = _leaders(evaluation)
    names = [policy["policy"] for policy in (*first, *rest[:1])]
    if len(first) + len(rest) < 3 or not rest or evaluation.summary.get("reference") in names:
        return None
    gap = _distance(final_of(first[0]) - final_of(rest[0]))
    return (
        f"Next is {names[-1]} with {final_of(rest[0]):.4f}, {gap} behind. That "
        "pair was not tested; only differences from the reference were."
    )


def tell_headroom(evaluation: Evaluation) -> str | None:
    """Say how far the best feasible policy is from what the truth would allow."""
    oracles = [policy for policy in evaluation.policies if policy["is_oracle"]]
    feasible = [policy for policy in evaluation.policies if not policy["is_oracle"]]
    if not oracles or not feasible:
        return None
    scores = " and ".join(f"{oracle['policy']} {final_of(oracle):.4f}" for oracle in oracles[:3])
    text = f"Oracles, which look at the ground truth, reach {scores}: bounds, not methods."
    closed = feasible[0].get("gap_closed")
    if closed is None:
        return text
    share = f"{feasible[0]['policy']} closes {100 * closed:.0f} % of it"
    if closed < 0:
        share = f"{feasible[0]['policy']} does not reach the lower end of it"
    return (
        f"{text} Between the best fixed order on the test data (na-oracle) and full adaptivity "
        f"(oracle) lies the gap that adaptive policies compete for; {share}."
    )


def tell_limits(evaluation: Evaluation) -> str | None:
    """Say what limits the tests, where something does."""
    notes = {c["note"] for c in evaluation.summary.get("comparisons") or [] if c.get("note")}
    return f"Limits of the tests: {'; '.join(sorted(notes))}." if notes else None


def summarize(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the sentences that open a report."""
    found = (
        tell_winner(evaluation),
        tell_runner_up(evaluation),
        tell_headroom(evaluation),
        tell_limits(evaluation),
    )
    return tuple(sentence for sentence in found if sentence)


def facts(evaluation: Evaluation) -> dict[str, str]:
    """Return the protocol and the sizes of an evaluation, by label."""
    summary = evaluation.summary
    found = {"Protocol": evaluation.protocol}
    if summary.get("store"):
        found["Data"] = f"{summary['store']}, {summary.get('split', 'test')} split"
    if "n_slices" in summary:
        found["Scored on"] = f"{summary['n_slices']} slices of {summary['n_volumes']} volumes"
    if evaluation.n_initial is not None:
        found["Start"] = _with_factor(evaluation.n_initial, evaluation.n_cols)
        found["End"] = _with_factor(evaluation.n_initial + evaluation.steps, evaluation.n_cols)
    if summary.get("reconstructor"):
        found["Reconstruction"] = _named(summary["reconstructor"])
    n_trajectories = max(int(policy.get("n_trajectories", 1)) for policy in evaluation.policies)
    found["Trajectories"] = f"{n_trajectories} per slice"
    found["Seeds"] = str(max(int(policy.get("n_seeds", 1)) for policy in evaluation.policies))
    return found


def _named(value: Any) -> str:  # noqa: ANN401 - a name, or an object that has one
    name = value.get("name", value) if isinstance(value, dict) else value
    return PurePath(str(name)).name


def _with_factor(n: int, n_cols: int | None) -> str:
    return f"{n} columns" if n_cols is None else f"{n} of {n_cols} columns ({n_cols / n:.3g}×)"


def _columns(evaluation: Evaluation) -> str:
    return f"{evaluation.steps} acquired columns"


def _turned(compared: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a comparison seen from the reference."""
    if compared is None or compared.get("interval") is None:
        return compared
    low, high = compared["interval"]
    return {**compared, "difference": -compared["difference"], "interval": (-high, -low)}


def _verdict(evaluation: Evaluation, compared: dict[str, Any] | None) -> str:
    """Say whether a difference is more than chance, with the numbers that say so."""
    if compared is None:
        return "The difference was not tested."
    interval, p_value = compared.get("interval"), float(compared["p_value_corrected"])
    if interval is None:
        return "With one volume its uncertainty is unknown."
    low, high = interval
    range_ = f"95 % interval {_signed(low)} to {_signed(high)}"
    p_words = f"p {'< 0.001' if p_value < 0.001 else f'= {p_value:.3f}'}"
    if low <= 0 <= high:
        return f"The difference may be chance ({range_}, corrected {p_words})."
    if p_value < LEVEL:
        return f"The difference is statistically significant ({range_}, corrected {p_words})."
    n_tests = len(evaluation.summary["comparisons"])
    least = min(1.0, n_tests * 2.0 ** (1 - int(evaluation.summary["n_volumes"])))
    limit = (
        f"; with {evaluation.summary['n_volumes']} volumes and {n_tests} comparisons it could not "
        f"have fallen below {least:.2g}"
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


__all__ = ["facts", "summarize", "tell_overall", "tell_winner"]
