"""The campaigns that ship hold the paper's runs, and what is wrong in a file is told."""

import hashlib
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from small_campaign import PlanOf

from kscout.apps.campaign import grid
from kscout.apps.campaign.grid import parse_grid, read_grid
from kscout.apps.campaign.plan import CampaignPlan, make_plan
from kscout.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER_GAMMAS = [0, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99, 1]


def keys(plan: CampaignPlan, kind: str) -> set[str]:
    return {node.key for node in plan.of_kind(kind)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_policies"), [("paper-knee", 106), ("paper-brain", 30)])
def test_the_papers_files_expand_to_exactly_its_trainings(name: str, n_policies: int) -> None:
    plan = make_plan(read_grid(CONFIGS / f"{name}.toml"), Path("unused"))
    assert len(plan.of_kind("reconstructor")) == 1
    assert len(plan.of_kind("policy")) == n_policies
    horizons = {(16, 16), (4, 28)} if name == "paper-knee" else {(32, 16), (8, 28)}
    gammas = PAPER_GAMMAS if name == "paper-knee" else [0.9, 1]
    expected = {
        (start, steps, gamma, seed)
        for start, steps in horizons
        for gamma in [None, *gammas]
        for seed in range(5)
    }
    found, searched = set(), set()
    for node in plan.of_kind("policy"):
        acquisition, training = node.settings["acquisition"], node.settings["training"]
        start, steps = acquisition["n_initial"], acquisition["horizon"]
        if training["method"] == "alphazero":
            searched.add((start, steps, training["seed"]))
            continue
        found.add((start, steps, training.get("gamma"), training["seed"]))
        is_greedy = training["method"] == "greedy"
        assert training["decay_epochs"] == ([40] if is_greedy else [10, 20, 30, 40])
        assert (training["n_epochs"], training["batch_size"]) == (50, 16)
    assert found == expected
    of_search = {(*horizon, seed) for horizon in horizons for seed in range(3)}
    assert searched == (of_search if name == "paper-knee" else set())


def test_the_small_file_has_every_analysis_and_a_run_for_each_cell() -> None:
    plan = make_plan(read_grid(CONFIGS / "campaign-small.toml"), Path("unused"))
    kinds = Counter(node.kind for node in plan.nodes.values())
    n_policies = 2 * 3 * 2
    assert kinds == {
        "store": 1,
        "reconstructor": 1,
        "policy": n_policies,
        "evaluation": 2,
        "analysis": 2 * 6,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"methods": ["gredy"]}}, "unknown method 'gredy'"),
        ({"grid": {"horizons": ["nowhere"]}}, "unknown horizon 'nowhere'"),
        ({"training": {"n_epoch": 3}}, "did you mean 'n_epochs'"),
        ({"training": {"seed": 3}}, "which the grid sets"),
        ({"training": {"seeds": [3]}}, r"move them to \[grid\]"),
        ({"training": {"greedy": {"seeds": 3}}}, r"training\.greedy\.seeds is 3; expected a list"),
        ({"evaluation": {"policies": ["best"]}}, "unknown policy 'best'"),
        ({"evaluation": {"policies": ["greedy"]}}, "'greedy' is a training method and no policy"),
        ({"evaluation": {"policies": ["mine=fixed", "fixed=random"]}}, r"'fixed' .* \(random\)"),
        ({"grid": {"stores": [[3]]}}, r"grid\.stores is \[\[3\]\]; expected a list of different"),
        (
            {"stores": {"k": {"make": "elbow"}}},
            r"stores\.k\.make: unknown kind of images 'elbow'; .*knee",
        ),
        ({"stores": {"k": {"make": "knee", "volumes": [2]}}}, r"volumes is \[2\]; expected three"),
        (
            {"stores": {"k": {"make": "knee", "paper": True, "slices": 2}}},
            "slices, which paper determines",
        ),
        (
            {"stores": {"knee": {"import": "a", "size": "640x12"}}},
            "ends at .* columns, store 'a' has 12; lower its steps",
        ),
        (
            {"stores": {"k": {"import": "a", "splits": "b", "held_out": 0}}},
            "which splits determines",
        ),
        ({"analyses": {"entrop": True}}, "unknown analysis 'entrop'"),
        (
            {"analyses": {"ceiling": {"pool": 8}}},
            r"^analyses\.ceiling is .*; version 0\.3 removed this setting because its .*; leave",
        ),
        ({"analyses": {"snr": {"methods": ["ngreedy-0.5"]}}}, "this campaign trains: greedy"),
        ({"stores": {"knee": {"make": "knee", "path": "x"}}}, "give one of"),
        ({"horizons": {"long": {"n_initial": 60, "steps": 5}}}, "ends at 65 columns"),
        (
            {"horizons": {"long": {"n_initial": 6, "initial": "0-5", "steps": 5}}},
            "either n_initial or initial",
        ),
        ({"grid": {"seeds": [*range(10_001)]}}, "a list of whole numbers, at most 10000"),
        ({"training": {"greedy": {"seeds": [*range(10_001)]}}}, "more than 10000 policies"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(
    plan_of: PlanOf, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(**changes)


def test_the_policies_of_all_methods_are_limited(
    plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grid, "MOST_POLICIES", 20)
    # One greedy and two non-greedy policies per seed, each for two horizons.
    plan_of(grid={"seeds": [0, 1, 2]})
    with pytest.raises(ConfigError, match="more than 20 policies: each of 4 seeds"):
        plan_of(grid={"seeds": [0, 1, 2, 3]})


def test_removed_analyses_in_files_of_earlier_versions_are_left_out(plan_of: PlanOf) -> None:
    plan = plan_of(analyses={"cost": {"methods": ["greedy"]}, "ranking": True, "ceiling": False})
    assert keys(plan, "analysis") == keys(plan_of(), "analysis")


KEYS_OF_0_1 = {
    "configs/paper-brain.toml": "54127d02d688eaef",
    "configs/paper-knee.toml": "18f6819a8e4a4241",
    "tests/campaign/every_key.toml": "2e268d9c3fb8499e",
}


@pytest.mark.parametrize("file", KEYS_OF_0_1)
def test_names_of_runs_are_those_of_version_0_1(file: str) -> None:
    table = tomllib.loads((CONFIGS.parent / file).read_text())
    # AlphaZero came later, and what compares all methods has another name with it.
    methods = [one for one in table["grid"]["methods"] if one != "alphazero"]
    table.get("training", {}).pop("alphazero", None)
    whole = make_plan(read_grid(CONFIGS.parent / file), Path("unused"))
    plan = make_plan(
        parse_grid(Path(file).stem, {**table, "grid": {**table["grid"], "methods": methods}}),
        Path("unused"),
    )
    assert keys(plan, "policy") <= keys(whole, "policy")
    # Gradient noise was of the first seed then, and is now of the best; entropies were of protocol
    # `paper` whatever a campaign's was.
    others = {"snr", "entropy"} if table.get("protocol") == "blind" else {"snr"}
    text = " ".join(sorted(key for key, node in plan.nodes.items() if node.group not in others))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == KEYS_OF_0_1[file]


@pytest.mark.parametrize("place", ["name", "key", "string", "file"])
def test_names_that_control_a_terminal_are_rejected(tmp_path: Path, place: str) -> None:
    words = {place: "a\\u001b[31m\\u0000"}
    key, value = (words.get(one, "c") for one in ("key", "string"))
    path = tmp_path / ("a\x1b[31m.toml" if place == "file" else "a.toml")
    path.write_text(f"""name = "{words.get("name", "b")}"\n[stores."{key}"]\npath = "{value}"\n""")
    with pytest.raises(ConfigError, match=r"'a\\x1b\[31m.*' has characters that cannot be printed"):
        read_grid(path)
