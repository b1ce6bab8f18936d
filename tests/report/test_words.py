"""The summary says who won, by how much, and whether it may be chance."""

import copy
from typing import Any

import pytest

from kscout.report.evaluations import Evaluation
from kscout.report.words import facts, summarize, tell_overall, tell_winner
from synthetic_results import make_summary

SUMMARY = make_summary()


def evaluation(**comparison: Any) -> Evaluation:
    summary = copy.deepcopy(SUMMARY)
    for entry in summary["comparisons"]:  # type: ignore[attr-defined]
        if entry["policy"] == "greedy":
            entry.update(comparison)
    return Evaluation("e", summary)


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
    summary = copy.deepcopy(SUMMARY)
    kept = ("fixed", "center-out", "random")
    summary["policies"] = [p for p in summary["policies"] if p["policy"] in kept]  # type: ignore[attr-defined]
    told = tell_winner(Evaluation("e", summary))
    assert told.startswith("**fixed** comes first") and "above center-out, the next" in told
    # The interval is of the lead, so it is turned round with the difference.
    assert "interval +0.01" in told


def tied(second: str, distance: float) -> Evaluation:
    """The evaluation with another policy this far below the best."""
    summary = copy.deepcopy(SUMMARY)
    by_name = {entry["policy"]: entry for entry in summary["policies"]}  # type: ignore[attr-defined]
    score = by_name["greedy"]["by_step"]["ssim"]["mean"][-1] - distance
    by_name[second]["by_step"]["ssim"]["mean"][-1] = score
    return Evaluation("e", summary)


@pytest.mark.parametrize(("second", "next_"), [("fixed", "the next"), ("random", "the reference")])
def test_rounding_names_no_winner(second: str, next_: str) -> None:
    told = tell_winner(tied(second, 4.5e-8))
    assert told.startswith(f"**greedy** and **{second}** are tied (within 1e-6) and come first")
    assert next_ in told and "0.0000" not in told
    assert "are tied" not in tell_winner(tied(second, 4.5e-6))
    both = [tied(second, 4.5e-8), Evaluation("b", SUMMARY)]
    assert tell_overall(both) == "**greedy** comes first in all 2 evaluations."
    assert "are tied" in tell_overall(both[:1] * 2)


def test_a_distance_that_rounds_to_zero_is_told_as_a_bound() -> None:
    told = tell_winner(evaluation(difference=4e-5, interval=(-1e-6, 6e-5)))
    assert "less than 0.0001 above fixed" in told and "interval 0.0000 to +0.0001" in told


def test_oracles_alone_win_nothing() -> None:
    summary = copy.deepcopy(SUMMARY)
    summary["policies"] = [p for p in summary["policies"] if p["is_oracle"]]  # type: ignore[attr-defined]
    assert "Only oracles" in tell_winner(Evaluation("e", summary))


def test_oracles_are_told_as_bounds_and_the_closed_gap_as_a_share() -> None:
    told = " ".join(summarize(evaluation()))
    assert "bounds, not methods" in told and "greedy closes" in told
    assert facts(evaluation())["Start"] == "6 of 48 columns (8×)"


def test_several_evaluations_are_told_together() -> None:
    same = [Evaluation("a", SUMMARY), Evaluation("b", SUMMARY)]
    assert tell_overall(same) == "**greedy** comes first in all 2 evaluations."
    summary = copy.deepcopy(SUMMARY)
    summary["policies"] = [p for p in summary["policies"] if p["policy"] != "greedy"]  # type: ignore[attr-defined]
    told = tell_overall([same[0], Evaluation("b", summary)])
    assert told == "No policy comes first everywhere: **greedy** in a; **ngreedy-0.9** in b."
