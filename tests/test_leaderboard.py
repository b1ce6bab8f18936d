"""The leaderboard's records fit together, and the script enters one evaluation per horizon."""

import importlib.util
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from kscout.cli import app
from kscout.errors import ConfigError
from kscout.evaluation.summaries.summarize import gap_closed
from kscout.evaluation.summaries.summary import Comparison, PolicySummary, Score, Summary, Training
from kscout.policies import POLICIES
from kscout.zoo import ZOO, zoo_card, zoo_names
from synthetic_results import make_summary

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"

Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def leaderboard() -> Records:
    return json.loads((BENCHMARKS / "leaderboard.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("leaderboard", BENCHMARKS / "leaderboard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_leaderboard_has_one_record_per_store_horizon_and_method(leaderboard: Records) -> None:
    names = ("store", "horizon", "reconstruction", "method")
    keys = [tuple(record[name] for name in names) for record in leaderboard]
    assert len(set(keys)) == len(keys)
    ssim = dict(zip(keys, (record["ssim_mean"] for record in leaderboard), strict=True))
    for record in leaderboard:
        place = tuple(record[name] for name in names[:-1])
        if record["reconstruction"] == "frozen":
            low, high = (ssim[*place, name] for name in ("na-oracle", "oracle"))
            gap = gap_closed(record["ssim_mean"], low, high)
            assert record["gap_closed"] == pytest.approx(gap)
            # As precise as this only if both were scored in one evaluation. Arms that learned
            # jointly are compared over the seeds that both have: test_joint_records.py.
            difference = record["ssim_mean"] - ssim[*place, "fixed"]
            assert record["difference_to_fixed"] == pytest.approx(difference, abs=1e-12)


def test_an_oracle_that_bounds_nothing_is_no_yardstick(leaderboard: Records) -> None:
    frozen = [one for one in leaderboard if one["reconstruction"] == "frozen"]
    field = {one["method"]: one for one in frozen if one["horizon"] == "knee-long"}
    assert field["oracle"]["ssim_mean"] < field["fixed"]["ssim_mean"]
    assert all(record["gap_closed"] is None for record in field.values())
    assert "The oracle is no upper bound here" in zoo_card("knee-long-greedy")


def test_commands_of_the_leaderboard_can_be_typed(leaderboard: Records) -> None:
    command: Any = get_command(app)
    for record in leaderboard:
        name, *words = shlex.split(record["command"])[1:]
        with command.commands[name].make_context(name, words) as context:
            wanted = context.params
        assert wanted["out"].name == record["method"]
        if record["reconstruction"] == "joint":
            assert wanted["policies"] == [f"{record['method']}={wanted['reconstructor']}"]
            continue
        assert str(wanted["out"]) == f"results/{record['horizon']}/{record['method']}"
        assert wanted["reconstructor"] in zoo_names("reconstructor")
        *own, _ = wanted["policies"] if record["method"] != "fixed" else ["fixed", "fixed"]
        assert len(own) == record["n_seeds"]
        labels = {one.partition("=")[0] for one in own}
        assert labels == {record["method"]}
        # What is no path is known to kscout by its name.
        assert all("=runs/" in one or one in {*POLICIES, *ZOO} for one in own)


def _summary(scores: dict[str, float], **changes: Any) -> Summary:
    """Return the summary of an evaluation with these final scores."""
    entries = tuple(
        PolicySummary(
            policy=name,
            is_oracle=False,
            n_seeds=2 if name == "mine" else 1,
            seeds=(0, 1) if name == "mine" else (0,),
            n_trajectories=7,
            final={"ssim": Score(ssim, None, None)},
            by_step={},
            gap_closed=ssim / 2,
            training=Training("greedy") if name == "mine" else None,
        )
        for name, ssim in scores.items()
    )
    comparisons = tuple(
        Comparison(name, "fixed", ssim - scores["fixed"], (-1.0, 1.0), 1.0, 1.0, "", "", None)
        for name, ssim in scores.items()
        if name != "fixed"
    )
    conditions = {"n_initial": 2, "steps": 3, "draw_seeds": (4,), "reference": "fixed"}
    found = {"policies": entries, "comparisons": comparisons}
    return replace(make_summary(), **{**conditions, **found, **changes})


def _rows(script: ModuleType, summary: Summary, *sources: str) -> dict[str, Any]:
    found = script.rows_of(
        summary,
        store="s",
        horizon="h",
        data="DATA",
        reconstructor="NET",
        sources={"mine": sources},
    )
    return {row.method: row for row in found}


def test_rows_tell_what_the_summary_tells_best_first(script: ModuleType) -> None:
    summary = _summary({"fixed": 0.5, "mine": 0.65, "oracle": 0.8})
    found = _rows(script, summary, "runs/a", "runs/b")
    assert list(found) == ["oracle", "mine", "fixed"]
    mine, fixed = found["mine"], found["fixed"]
    assert (mine.n_seeds, mine.gap_closed, mine.interval) == (2, 0.325, (-1.0, 1.0))
    assert mine.difference_to_fixed == pytest.approx(0.15)
    assert (fixed.difference_to_fixed, fixed.interval) == (0, None)
    policies_of_mine = "--policy mine=runs/a --policy mine=runs/b --policy fixed"
    assert f"{policies_of_mine} --trajectories 7 --seed 4" in mine.command
    assert mine.command.endswith("--out results/h/mine")
    assert "--policy fixed --trajectories" in fixed.command


def test_the_leaderboard_reads_back_as_it_was_written(script: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.json"
    script.write_leaderboard(script.read_leaderboard(), path)
    assert path.read_bytes() == (BENCHMARKS / "leaderboard.json").read_bytes()
    assert script.read_leaderboard(tmp_path / "none.json") == []


def test_a_command_names_a_policy_for_every_seed(script: ModuleType) -> None:
    with pytest.raises(ConfigError, match="2 seeds; name 2 policies"):
        _rows(script, _summary({"fixed": 0.5, "mine": 0.65}), "runs/a")


def test_policies_are_renamed_and_left_out_as_one_asks(script: ModuleType) -> None:
    summary = _summary({"fixed": 0.5, "mine": 0.65, "twin": 0.65})
    named = script.with_names(summary, {"mine": "zoo-name"}, ["twin"])
    assert [entry.policy for entry in named.policies] == ["fixed", "zoo-name"]
    assert [entry.policy for entry in named.comparisons] == ["zoo-name"]
    assert summary.policies[1].policy == "mine"
    with pytest.raises(ConfigError, match="has no yours"):
        script.with_names(summary, {"yours": "zoo-name"})
    with pytest.raises(ConfigError, match="called the same"):
        script.with_names(summary, {"mine": "twin"})


@pytest.mark.parametrize(
    ("change", "complaint"), [({"limit": 3}, "--limit"), ({"reference": "random"}, "--reference")]
)
def test_summaries_that_cannot_be_compared_are_refused(
    change: dict[str, Any], complaint: str, script: ModuleType
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        _rows(script, _summary({"fixed": 0.5}, **change))


def _row(
    script: ModuleType,
    method: str,
    ssim: float,
    gap: float | None = None,
    store: str = "s",
    horizon: str = "h",
) -> Any:
    return script.LeaderboardRow(store, horizon, method, 1, ssim, None, gap, 0.0, None, "")


def test_joint_rows_have_a_table_of_their_own(script: ModuleType) -> None:
    frozen = [_row(script, "fixed", 0.8), _row(script, "random", 0.7)]
    joint = [replace(_row(script, "fixed", 0.9), reconstruction="joint")]
    both = script.entered(frozen, joint)
    assert both == [*frozen, *joint]
    assert script.entered(both, [frozen[1]]) == [frozen[1], *joint]


def test_another_evaluation_drives_out_all_rows_of_its_horizon(script: ModuleType) -> None:
    old = [
        _row(script, "mine", 0.9),
        _row(script, "random", 0.3),
        _row(script, "random", 0.4, horizon="k"),
        _row(script, "mine", 0.1, store="a"),
    ]
    new = [_row(script, "mine", 0.2)]
    assert script.entered(old, new) == [old[3], new[0], old[2]]


def test_an_evaluation_joins_where_the_fixed_order_scored_the_same(script: ModuleType) -> None:
    scores = {"oracle": (0.9, 1.0), "na-oracle": (0.7, 0.0), "fixed": (0.6, -0.5)}
    old = [_row(script, name, ssim, gap) for name, (ssim, gap) in scores.items()]
    new = [_row(script, "mine", 0.75), _row(script, "fixed", 0.6)]
    found = script.joined(old, new)
    assert [row.method for row in found] == ["oracle", "mine", "na-oracle", "fixed"]
    assert [row.gap_closed for row in found] == pytest.approx([1, 0.25, 0, -0.5])
    moved = [new[0], _row(script, "fixed", 0.6001)]
    with pytest.raises(ConfigError, match=r"'fixed' scores 0\.6001 here"):
        script.joined(old, moved)
    with pytest.raises(ConfigError, match="without --join"):
        script.joined([replace(row, horizon="k") for row in old], new)
