"""The leaderboard's records fit together, and the script enters one evaluation per horizon."""

import importlib.util
import json
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from kscout.cli import app
from kscout.errors import ConfigError
from kscout.evaluation.summary import gap_closed
from kscout.policies import POLICIES
from kscout.zoo import ZOO, zoo_card, zoo_names

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
    spec.loader.exec_module(module)
    return module


def test_the_leaderboard_has_one_record_per_store_horizon_and_method(leaderboard: Records) -> None:
    keys = [(record["store"], record["horizon"], record["method"]) for record in leaderboard]
    assert len(set(keys)) == len(keys)
    ssim = dict(zip(keys, (record["ssim_mean"] for record in leaderboard), strict=True))
    for record in leaderboard:
        place = record["store"], record["horizon"]
        low, high = (ssim[*place, name] for name in ("na-oracle", "oracle"))
        assert record["gap_closed"] == pytest.approx(gap_closed(record["ssim_mean"], low, high))
        # As precise as this only if both were scored in one evaluation.
        difference = record["ssim_mean"] - ssim[*place, "fixed"]
        assert record["difference_to_fixed"] == pytest.approx(difference, abs=1e-12)


def test_an_oracle_that_bounds_nothing_is_no_yardstick(leaderboard: Records) -> None:
    field = {one["method"]: one for one in leaderboard if one["horizon"] == "knee-long"}
    assert field["oracle"]["ssim_mean"] < field["fixed"]["ssim_mean"]
    assert all(record["gap_closed"] is None for record in field.values())
    assert "The oracle is no upper bound here" in zoo_card("knee-long-greedy")


def test_commands_of_the_leaderboard_can_be_typed(leaderboard: Records) -> None:
    command: Any = get_command(app)
    for record in leaderboard:
        name, *words = shlex.split(record["command"])[1:]
        with command.commands[name].make_context(name, words) as context:
            wanted = context.params
        assert str(wanted["out"]) == f"results/{record['horizon']}/{record['method']}"
        assert wanted["reconstructor"] in zoo_names("reconstructor")
        *own, _ = wanted["policy"] if record["method"] != "fixed" else ["fixed", "fixed"]
        assert len(own) == record["n_seeds"]
        labels = {one.partition("=")[0] for one in own}
        assert labels == {record["method"]}
        # What is no path is known to kscout by its name.
        assert all("=runs/" in one or one in {*POLICIES, *ZOO} for one in own)


def _summary(scores: dict[str, float], **changes: Any) -> dict[str, Any]:
    """Return the part of an evaluation's summary that the leaderboard reads."""
    shared = {
        **{"split": "test", "n_initial": 2, "steps": 3, "limit": None, "protocol": "paper"},
        **{"is_argmax": False, "draw_seeds": [4]},
    }
    entries = [
        {
            **{"policy": name, "n_seeds": 2 if name == "mine" else 1, "n_trajectories": 7},
            **{"final": {"ssim": {"mean": ssim, "std": None}}, "gap_closed": ssim / 2},
            "training": {"method": "greedy"} if name == "mine" else None,
        }
        for name, ssim in scores.items()
    ]
    comparisons = [
        {"policy": name, "difference": ssim - scores["fixed"], "interval": [-1.0, 1.0]}
        for name, ssim in scores.items()
        if name != "fixed"
    ]
    told = {"policies": entries, "comparisons": comparisons, "reference": "fixed"}
    return {**shared, **told, **changes}


def _records(
    script: ModuleType, summary: dict[str, Any], *sources: str
) -> dict[str, dict[str, Any]]:
    found = script.records_of(
        summary,
        store="s",
        horizon="h",
        data="DATA",
        reconstructor="NET",
        sources={"mine": sources},
    )
    return {record["method"]: record for record in found}


def test_records_tell_what_the_summary_tells_best_first(script: ModuleType) -> None:
    summary = _summary({"fixed": 0.5, "mine": 0.65, "oracle": 0.8})
    found = _records(script, summary, "runs/a", "runs/b")
    assert list(found) == ["oracle", "mine", "fixed"]
    mine, fixed = found["mine"], found["fixed"]
    assert (mine["n_seeds"], mine["gap_closed"], mine["interval"]) == (2, 0.325, [-1.0, 1.0])
    assert mine["difference_to_fixed"] == pytest.approx(0.15)
    assert (fixed["difference_to_fixed"], fixed["interval"]) == (0, None)
    policies_of_mine = "--policy mine=runs/a --policy mine=runs/b --policy fixed"
    assert f"{policies_of_mine} --trajectories 7 --seed 4" in mine["command"]
    assert mine["command"].endswith("--out results/h/mine")
    assert "--policy fixed --trajectories" in fixed["command"]


def test_a_command_names_a_policy_for_every_seed(script: ModuleType) -> None:
    with pytest.raises(ConfigError, match="2 seeds; name 2 policies"):
        _records(script, _summary({"fixed": 0.5, "mine": 0.65}), "runs/a")


def test_policies_are_renamed_and_left_out_as_one_asks(script: ModuleType) -> None:
    summary = _summary({"fixed": 0.5, "mine": 0.65, "twin": 0.65})
    named = script.with_names(summary, {"mine": "zoo-name"}, ["twin"])
    assert [entry["policy"] for entry in named["policies"]] == ["fixed", "zoo-name"]
    assert [entry["policy"] for entry in named["comparisons"]] == ["zoo-name"]
    assert summary["policies"][1]["policy"] == "mine"
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
        _records(script, _summary({"fixed": 0.5}, **change))


def test_another_evaluation_drives_out_all_records_of_its_horizon(script: ModuleType) -> None:
    old = [
        {"store": "s", "horizon": "h", "method": "mine", "ssim_mean": 0.9},
        {"store": "s", "horizon": "h", "method": "random", "ssim_mean": 0.3},
        {"store": "s", "horizon": "k", "method": "random", "ssim_mean": 0.4},
        {"store": "a", "horizon": "h", "method": "mine", "ssim_mean": 0.1},
    ]
    new = [{"store": "s", "horizon": "h", "method": "mine", "ssim_mean": 0.2}]
    assert script.entered(old, new) == [old[3], new[0], old[2]]


def test_an_evaluation_joins_where_the_fixed_order_scored_the_same(script: ModuleType) -> None:
    place = {"store": "s", "horizon": "h"}
    old = [
        {**place, "method": "oracle", "ssim_mean": 0.9, "gap_closed": 1.0},
        {**place, "method": "na-oracle", "ssim_mean": 0.7, "gap_closed": 0.0},
        {**place, "method": "fixed", "ssim_mean": 0.6, "gap_closed": -0.5},
    ]
    new = [
        {**place, "method": "mine", "ssim_mean": 0.75, "gap_closed": None},
        {**place, "method": "fixed", "ssim_mean": 0.6, "gap_closed": None},
    ]
    found = script.joined(old, new)
    assert [record["method"] for record in found] == ["oracle", "mine", "na-oracle", "fixed"]
    assert [record["gap_closed"] for record in found] == pytest.approx([1, 0.25, 0, -0.5])
    moved = [new[0], new[1] | {"ssim_mean": 0.6001}]
    with pytest.raises(ConfigError, match=r"'fixed' scores 0\.6001 here"):
        script.joined(old, moved)
    with pytest.raises(ConfigError, match="without --join"):
        script.joined([record | {"horizon": "k"} for record in old], new)
