"""The summary says what was compared, by how much they differ, and whether it may be chance."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kscout.apps.report.evaluations import (
    TIE,
    describe_comparison,
    describe_comparisons,
    describe_winner,
    facts,
    opening,
    sentences,
)
from kscout.evaluation.summaries.summary import EvaluationFolder, PolicySummary, Summary
from kscout.policies import oracle
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


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"interval": (0.01, 0.02), "p_value_corrected": 0.004}, "excludes zero.*p = 0.004"),
        ({"interval": (0.01, 0.02), "p_value_corrected": 0.0}, "p < 0.001"),
        ({"interval": (-0.01, 0.02)}, "above .*−0.0100 to [+]0.0200, includes zero"),
        ({"difference": -0.01, "interval": (-0.02, -0.004)}, "0.0100 below"),
        ({"interval": (0.01, 0.02), "p_value_corrected": 1.0}, "cannot confirm"),
        ({"interval": None}, "at least 3 volumes"),
        ({"difference": 4e-5, "interval": (-1e-6, 6e-5)}, "less than 0.0001 above.* 0.0000 to"),
    ],
)
def test_a_difference_is_reported_without_exaggeration(changes: dict[str, Any], words: str) -> None:
    told = describe_comparison(evaluation(**changes))
    assert re.search(words, told) and "p = 1" not in told


def test_the_page_is_about_the_best_trained_policy_even_where_another_wins() -> None:
    kept = [one for one in SUMMARY.policies if one.policy not in ("greedy", "ngreedy-0.9")]
    assert describe_comparison(of(*kept)).startswith("**center-out** reaches")
    greedy = next(one for one in SUMMARY.policies if one.policy == "greedy")
    low = {**greedy.final, "ssim": replace(greedy.final["ssim"], mean=0.3)}
    told = sentences(of(*kept, replace(greedy, final=low)))
    assert told[0].startswith("**greedy** reaches SSIM 0.3000")
    assert told[1].startswith("**fixed** comes first with SSIM 0.7")


def test_the_opening_names_another_policy_that_is_higher() -> None:
    best = max((one for one in SUMMARY.policies if not one.is_oracle), key=lambda one: one.ssim)
    center = next(one for one in SUMMARY.policies if one.policy == "center-out")
    high = {**center.final, "ssim": replace(center.final["ssim"], mean=best.ssim + 0.01)}
    others = [one for one in SUMMARY.policies if one.policy != "center-out"]
    changed = of(*others, replace(center, final=high))
    assert opening(changed)[1] == f"**center-out** is higher: SSIM {best.ssim + 0.01:.4f}."
    assert not any("is higher" in sentence for sentence in opening(SUMMARY))


def test_a_page_states_an_own_start_and_groups_of_columns() -> None:
    own = replace(SUMMARY, initial=("0,3-5",), columns_per_step=3)
    assert facts(own)["Start from"] == "0,3-5" and facts(own)["Columns per step"] == "3"
    assert own.paper_setting is None and "Columns per step" not in facts(SUMMARY)


def tied(second: str, distance: float) -> Summary:
    """The evaluation with another policy this far below the best."""
    by_name = {one.policy: one for one in SUMMARY.policies}
    ssim = by_name["greedy"].final["ssim"]
    final = by_name[second].final | {"ssim": replace(ssim, mean=ssim.mean - distance)}
    changed = by_name | {second: replace(by_name[second], final=final)}
    return of(*changed.values())


@pytest.mark.parametrize("second", ["fixed", "random"])
def test_rounding_names_no_winner(second: str) -> None:
    told = describe_winner(tied(second, 4.5e-8))
    assert told.startswith(f"**greedy** and **{second}** are tied (within 1e-6) and come first")
    assert "0.0000" not in told
    assert "are tied" not in describe_winner(tied(second, 4.5e-6))


def test_oracles_alone_win_nothing() -> None:
    oracles = [one for one in SUMMARY.policies if one.is_oracle]
    assert "Only oracles" in describe_winner(of(*oracles))


def test_several_evaluations_are_summarized_together() -> None:
    other = of(*(one for one in SUMMARY.policies if one.policy != "greedy"))
    told = describe_comparisons([named("a"), named("b", other)])
    assert re.search(
        r"\*\*greedy\*\* minus fixed: \+0\.0\d+ \(\+0\.0\d+ to \+0\.0\d+\) in a;", told
    )
    assert "**ngreedy-0.9** minus fixed: +0.0" in told


def test_a_tie_is_what_the_oracles_take_for_one() -> None:
    assert TIE == oracle.TIE
