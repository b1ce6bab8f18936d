"""The summary says who won, by how much, and whether it may be chance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kscout.evaluation.summary import EvaluationFolder, PolicySummary, Summary
from kscout.policies import oracle
from kscout.report.words import TIE, facts, sentences, tell_overall, tell_winner
from synthetic_results import make_summary

SUMMARY = make_summary()


def evaluation(**comparison: Any) -> Summary:
    compared = (
        replace(one, **comparison) if one.policy == "greedy" else one for one in SUMMARY.comparisons
    )
    return replace(SUMMARY, comparisons=tuple(compared))


def of(*policies: PolicySummary) -> Summary:
    return replace(SUMMARY, policies=policies)


def named(label: str, summary: Summary = SUMMARY) -> EvaluationFolder:
    return EvaluationFolder(label, Path(label), summary)


def test_the_best_feasible_policy_wins_not_the_oracle() -> None:
    told = tell_winner(evaluation())
    assert told.startswith("**greedy** comes first: SSIM 0.7")
    assert "above fixed, the reference" in told


@pytest.mark.parametrize(
    ("interval", "p_value", "words"),
    [
        ((0.01, 0.02), 0.004, "is statistically significant"),
        ((0.01, 0.02), 0.0, "p < 0.001"),
        ((-0.01, 0.02), 0.4, "may be chance (95 % interval −0.0100 to +0.0200"),
        (
            (0.01, 0.02),
            0.07,
            "with 8 volumes and 9 comparisons it could not have fallen below 0.07",
        ),
        (None, 0.07, "uncertainty is unknown"),
    ],
)
def test_significance_is_told_as_it_is(
    interval: tuple[float, float] | None, p_value: float, words: str
) -> None:
    assert words in tell_winner(evaluation(interval=interval, p_value_corrected=p_value))


def test_a_reference_that_wins_is_compared_with_the_next() -> None:
    kept = ("fixed", "center-out", "random")
    told = tell_winner(of(*(one for one in SUMMARY.policies if one.policy in kept)))
    assert told.startswith("**fixed** comes first") and "above center-out, the next" in told
    # The interval is of the lead, so it is turned round with the difference.
    assert "interval +0.01" in told


def tied(second: str, distance: float) -> Summary:
    """The evaluation with another policy this far below the best."""
    by_name = {one.policy: one for one in SUMMARY.policies}
    ssim = by_name["greedy"].final["ssim"]
    final = by_name[second].final | {"ssim": replace(ssim, mean=ssim.mean - distance)}
    changed = by_name | {second: replace(by_name[second], final=final)}
    return of(*changed.values())


@pytest.mark.parametrize(("second", "next_"), [("fixed", "the next"), ("random", "the reference")])
def test_rounding_names_no_winner(second: str, next_: str) -> None:
    told = tell_winner(tied(second, 4.5e-8))
    assert told.startswith(f"**greedy** and **{second}** are tied (within 1e-6) and come first")
    assert next_ in told and "0.0000" not in told
    assert "are tied" not in tell_winner(tied(second, 4.5e-6))
    both = [named("a", tied(second, 4.5e-8)), named("b")]
    assert tell_overall(both) == "**greedy** comes first in all 2 evaluations."
    assert "are tied" in tell_overall(both[:1] * 2)


def test_a_distance_that_rounds_to_zero_is_told_as_a_bound() -> None:
    told = tell_winner(evaluation(difference=4e-5, interval=(-1e-6, 6e-5)))
    assert "less than 0.0001 above fixed" in told and "interval 0.0000 to +0.0001" in told


def test_oracles_alone_win_nothing() -> None:
    assert "Only oracles" in tell_winner(of(*(one for one in SUMMARY.policies if one.is_oracle)))


def test_oracles_are_told_as_bounds_and_the_closed_gap_as_a_share() -> None:
    told = " ".join(sentences(evaluation()))
    assert "bounds, not methods" in told and "greedy closes" in told
    assert facts(evaluation())["Start"] == "6 of 48 columns (8×)"


def test_several_evaluations_are_told_together() -> None:
    same = [named("a"), named("b")]
    assert tell_overall(same) == "**greedy** comes first in all 2 evaluations."
    other = of(*(one for one in SUMMARY.policies if one.policy != "greedy"))
    told = tell_overall([same[0], named("b", other)])
    assert told == "No policy comes first everywhere: **greedy** in a; **ngreedy-0.9** in b."


def test_a_tie_is_what_the_oracles_take_for_one() -> None:
    assert TIE == oracle.TIE
