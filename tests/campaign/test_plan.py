"""What a file expands to, and that a run's name changes with all that determines it, no more."""

import hashlib
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_campaign import TABLE, PlanOf

from coil_data import coil_store
from kscout.campaign.grid import parse_grid, read_grid
from kscout.campaign.plan import Plan, make_plan
from kscout.campaign.state import write_index
from kscout.config import PolicyConfig, load, read, to_table
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError

CONFIGS = Path(__file__).parents[2] / "configs"
PAPER_GAMMAS = [0, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.99, 1]


def keys(plan: Plan, kind: str) -> set[str]:
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


def test_the_papers_knees_at_half_size_leave_out_no_method_and_no_analysis() -> None:
    whole, half = (read_grid(CONFIGS / f"{name}.toml") for name in ("paper-knee", "paper-half"))
    labels = [{one.training.label for one in grid.policies} for grid in (whole, half)]
    assert labels[0] == {*labels[1], "alphazero"}
    assert {one.training.seed for one in half.policies} == {0, 1, 2}
    assert set(half.analyses) == set(whole.analyses)
    assert half.evaluation is not None and whole.evaluation is not None
    assert half.evaluation.policies == whole.evaluation.policies
    columns = [[(x.n_initial, x.horizon) for x in grid.horizons.values()] for grid in (whole, half)]
    assert columns[0] == [(2 * start, 2 * steps) for start, steps in columns[1]]


def test_the_papers_brains_in_small_are_of_its_size() -> None:
    grid = read_grid(CONFIGS / "paper-half-brain.toml")
    assert list(grid.horizons) == ["brain-base", "brain-long"]
    assert {one.training.label for one in grid.policies} == {"greedy", "ngreedy-0.9"}
    assert to_table(grid.stores["brain"])["size"] == 256


def test_the_small_file_has_every_analysis_and_a_run_for_each_cell() -> None:
    plan = make_plan(read_grid(CONFIGS / "campaign-small.toml"), Path("unused"))
    kinds = Counter(node.kind for node in plan.nodes.values())
    n_policies = 2 * 3 * 2
    assert kinds == {
        "store": 1,
        "reconstructor": 1,
        "policy": n_policies,
        "evaluation": 2,
        "analysis": 2 * 7 + 1,
    }


def test_every_run_comes_after_what_it_needs(plan_of: PlanOf) -> None:
    seen: set[str] = set()
    for key, node in plan_of().nodes.items():
        assert set(node.inputs) <= seen
        seen.add(key)


def test_another_seed_changes_only_what_depends_on_it(plan_of: PlanOf) -> None:
    before, after = plan_of(), plan_of(grid={"seeds": [0, 4]})
    for kind in ("store", "reconstructor"):
        assert keys(before, kind) == keys(after, kind)
    kept = keys(before, "policy") & keys(after, "policy")
    assert {before.nodes[key].settings["training"]["seed"] for key in kept} == {0}
    assert len(kept) == len(before.of_kind("policy")) // 2
    for kind in ("evaluation", "analysis"):
        assert not keys(before, kind) & keys(after, kind)


def test_gradient_noise_chooses_among_all_seeds(plan_of: PlanOf) -> None:
    plan = plan_of()
    for node in plan.of_kind("analysis"):
        if node.group == "snr":
            read = [plan.nodes[key] for key in node.inputs if plan.nodes[key].kind == "policy"]
            assert {one.settings["training"]["seed"] for one in read} == {0, 3}


@pytest.mark.parametrize(
    ("section", "values", "kinds"),
    [
        ("stores", {"knee": {"make": "knee", "size": 64, "seed": 7}}, set()),
        ("reconstructions", {"unet": {"training": {"n_epochs": 4}}}, {"store"}),
        ("training", {"n_epochs": 7}, {"store", "reconstructor"}),
        ("evaluation", {"trajectories": 3}, {"store", "reconstructor", "policy"}),
    ],
)
def test_a_setting_changes_all_that_is_downstream_and_nothing_else(
    plan_of: PlanOf, section: str, values: dict[str, Any], kinds: set[str]
) -> None:
    before, after = plan_of(), plan_of(**{section: values})
    same = {
        kind
        for kind in ("store", "reconstructor", "policy", "evaluation")
        if keys(before, kind) == keys(after, kind)
    }
    assert same == kinds
    for kind in {"store", "reconstructor", "policy", "evaluation"} - kinds:
        assert not keys(before, kind) & keys(after, kind)


def test_names_in_the_file_do_not_change_names_of_runs(plan_of: PlanOf) -> None:
    other = {**TABLE, "stores": {"other": TABLE["stores"]["knee"]}}
    other["horizons"] = {"a": TABLE["horizons"]["short"], "b": TABLE["horizons"]["long"]}
    other["grid"] = {**TABLE["grid"], "horizons": ["a", "b"]}
    assert set(make_plan(parse_grid("x", other), Path("elsewhere")).nodes) == set(plan_of().nodes)


def test_commands_say_all_that_the_settings_say(plan_of: PlanOf, tmp_path: Path) -> None:
    for node in plan_of().of_kind("policy"):
        file = tmp_path / "settings.toml"
        file.write_text(node.files["settings.toml"])
        assert load(PolicyConfig, file) == read(PolicyConfig, node.settings)
        assert node.command[node.command.index("--seed") + 1] == node.label.rpartition("seed")[2]


def test_a_horizon_may_start_from_columns_of_its_own(plan_of: PlanOf) -> None:
    usual = plan_of()
    plan = plan_of(
        horizons={"short": {"initial": "0,3,28-33", "steps": 5}}, evaluation={"columns_per_step": 2}
    )
    (own,) = (node for node in plan.of_kind("evaluation") if "8own+5" in node.label)
    assert own.command[own.command.index("--initial") + 1] == "0,3,28-33"
    assert "--n-initial" not in own.command
    assert own.command[own.command.index("--columns-per-step") + 1] == "2"
    policies = [node for node in plan.of_kind("policy") if "8own+5" in node.title]
    assert policies and not {node.key for node in policies} & keys(usual, "policy")
    for node in policies:
        assert read(PolicyConfig, node.settings).acquisition.start == (0, 3, *range(28, 34))
    for node in plan.of_kind("analysis"):
        assert ("8own+5" in node.label) <= ("--n-initial" not in node.command)


def write_store(path: Path, pixel: float) -> Store:
    with StoreWriter(path, {"made": "by hand"}, name="hand-made") as writer:
        for split in ("train", "val", "test"):
            writer.append(split, "v", np.full((1, 9, 11), pixel, dtype=np.float32))
        return writer.finish()


def test_a_given_store_is_known_by_its_content(plan_of: PlanOf, tmp_path: Path) -> None:
    write_store(tmp_path / "one", 0.5)
    first = plan_of(stores={"knee": {"path": "one"}})
    (tmp_path / "one").rename(tmp_path / "moved")
    moved = plan_of(stores={"knee": {"path": "moved"}})
    assert set(moved.nodes) == set(first.nodes)
    write_store(tmp_path / "two", 0.25)
    other = plan_of(stores={"knee": {"path": "two"}})
    assert not set(other.nodes) & set(first.nodes)


def test_policies_of_the_zoo_are_evaluated_and_known_by_their_weights(
    plan_of: PlanOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"policies": ["random", "zoo=knee-base-greedy"]}
    before = plan_of(evaluation=wanted)
    for node in before.of_kind("evaluation"):
        assert "zoo=knee-base-greedy" in node.command
    newer = tmp_path / "newer.safetensors"
    newer.write_bytes(b"other weights")
    monkeypatch.setattr("kscout.campaign.plan.zoo_path", lambda _: newer)
    after = plan_of(evaluation=wanted)
    assert not set(keys(after, "evaluation")) & set(keys(before, "evaluation"))
    assert keys(after, "policy") == keys(before, "policy")


@pytest.mark.parametrize("of_coils", [False, True])
def test_runs_keep_their_names_when_a_given_store_is_gone(
    of_coils: bool, plan_of: PlanOf, tmp_path: Path
) -> None:
    coil_store(tmp_path / "one") if of_coils else write_store(tmp_path / "one", 0.5)
    before = plan_of(stores={"knee": {"path": "one"}})
    (tmp_path / "campaign").mkdir()
    write_index(before, "small.toml")
    (tmp_path / "one").rename(tmp_path / "gone")
    after = plan_of(stores={"knee": {"path": "one"}})
    assert keys(after, "policy") == keys(before, "policy")
    with pytest.raises(DataError, match="one is not there: make it"):
        after.check_sources()


COILS: list[dict[str, Any]] = [
    {"path": "coils"},
    {"make": "knee", "coils": 4, "size": 64},
    {"import": "scan.cfl"},
    {"import": "scans", "raw": True},
]
KINDS = ("store", "reconstructor", "policy", "evaluation")


@pytest.mark.parametrize("store", COILS)
def test_the_protocol_of_runs_follows_from_their_store_where_the_file_names_none(
    store: dict[str, Any], plan_of: PlanOf, tmp_path: Path
) -> None:
    coil_store(tmp_path / "coils")
    changes = {"stores": {"knee": store}, "analyses": {"reconstructions": True}}
    followed, plain = plan_of(**changes), plan_of()
    for plan, protocol in ((followed, "blind"), (plain, "paper")):
        for node in (*plan.of_kind("policy"), *plan.of_kind("reconstructor")):
            assert node.settings["training"]["protocol"] == protocol
        for node in plan.of_kind("evaluation"):
            assert f"--protocol {protocol}" in " ".join(node.command)
    named = make_plan(
        parse_grid("small", {**TABLE, **changes, "protocol": "blind"}), Path("campaign")
    )
    assert set(named.nodes) >= {key for kind in KINDS for key in keys(followed, kind)}


def test_reconstructions_of_coils_are_compared_where_the_start_tells_sensitivities(
    plan_of: PlanOf,
) -> None:
    coils = {"knee": {"make": "knee", "coils": 4, "size": 64}}
    for stores, told in (({}, {"8+5": False, "4+9": False}), (coils, {"8+5": True, "4+9": False})):
        plan = plan_of(stores=stores, analyses={"reconstructions": True})
        nodes = [node for node in plan.of_kind("analysis") if "reconstructions" in node.command]
        found = {node.label.rpartition("-")[2]: "sense" in node.command for node in nodes}
        assert found == told


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"methods": ["gredy"]}}, "unknown method 'gredy'"),
        ({"grid": {"seeds": ["a"]}}, "expected a list of whole numbers"),
        ({"grid": {"horizons": ["nowhere"]}}, "unknown horizon 'nowhere'"),
        ({"training": {"n_epoch": 3}}, "did you mean 'n_epochs'"),
        ({"training": {"seed": 3}}, "which the grid sets"),
        ({"training": {"seeds": [3]}}, r"move them to \[grid\]"),
        ({"training": {"greedy": {"seeds": 3}}}, r"training\.greedy\.seeds is 3; expected a list"),
        ({"training": {"greedy": {"seeds": ["a"]}}}, r"seeds is \['a'\]; expected a list"),
        ({"evaluation": {"policies": ["best"]}}, "unknown policy 'best'"),
        ({"evaluation": {"trajectories": "8"}}, "trajectories is '8'; expected a whole number"),
        ({"evaluation": {"seeds": 3}}, r"evaluation\.seeds is 3; expected a list of whole"),
        (
            {"evaluation": {"policies": "random"}},
            r"evaluation\.policies is 'random'; expected a list",
        ),
        ({"evaluation": {"split": "tset"}}, r"evaluation\.split is 'tset'; expected one of: train"),
        ({"grid": {"gammas": 0.9}}, r"grid\.gammas is 0\.9; expected a list of numbers"),
        ({"grid": {"gammas": ["a"]}}, r"grid\.gammas is \['a'\]; expected a list of numbers"),
        ({"grid": {"methods": 3}}, r"grid\.methods is 3; expected a list of strings"),
        ({"grid": {"stores": [[3]]}}, r"grid\.stores is \[\[3\]\]; expected a list of different"),
        (
            {"training": {"greedy": 3}},
            r"training\.greedy is 3; expected a section \[training.greedy",
        ),
        ({"stores": {"k": {"path": 3}}}, r"stores\.k\.path is 3; expected a string"),
        (
            {"stores": {"k": {"make": "elbow"}}},
            r"stores\.k\.make: unknown kind of images 'elbow'; .*knee",
        ),
        (
            {"stores": {"k": {"make": "knee", "size": "64"}}},
            r"stores\.k\.size is '64'; expected a wh",
        ),
        ({"stores": {"k": {"make": "knee", "volumes": [2]}}}, r"volumes is \[2\]; expected three"),
        (
            {"stores": {"k": {"make": "knee", "paper": True, "slices": 2}}},
            "slices, which paper decides",
        ),
        (
            {"stores": {"knee": {"import": "a", "size": "640x12"}}},
            "ends at .* columns, store 'a' has 12; lower its steps",
        ),
        ({"stores": {"k": {"import": "a", "splits": "b", "held_out": 0}}}, "which splits decides"),
        (
            {"reconstructions": {"unet": {"path": 3}}},
            r"reconstructions\.unet\.path is 3; expected a",
        ),
        (
            {"reconstructions": {"unet": {"training": 3}}},
            r"section \[reconstructions\.unet\.training",
        ),
        (
            {"horizons": {"long": {"n_initial": 0, "steps": 5}}},
            r"horizons\.long\.n_initial is 0; it must be 1 or more",
        ),
        ({"analyses": {"snr": {"seeds": 0}}}, r"analyses\.snr\.seeds is 0; expected a list"),
        ({"policy": {"kernel": 3, "name": 3}}, r"policy\.name is 3; expected a string"),
        ({"analyses": {"entrop": True}}, "unknown analysis 'entrop'"),
        ({"analyses": {"snr": {"methods": ["ngreedy-0.5"]}}}, "this campaign trains: greedy"),
        ({"stores": {"knee": {"make": "knee", "path": "x"}}}, "say one of"),
        ({"reconstructions": {"unet": {"epochs": 3}}}, "unknown setting"),
        ({"horizons": {"long": {"n_initial": 60, "steps": 5}}}, "ends at 65 columns"),
        (
            {"horizons": {"long": {"n_initial": 6, "initial": "0-5", "steps": 5}}},
            "either n_initial or initial",
        ),
        ({"horizons": {"long": {"steps": 5}}}, "n_initial"),
        (
            {"horizons": {"long": {"initial": "x", "steps": 5}}},
            "'x' is not a column",
        ),
        ({"surprise": {"a": 1}}, "unknown setting 'surprise'"),
    ],
)
def test_what_is_wrong_in_the_file_is_told(
    plan_of: PlanOf, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": "bling"}, "protocol is 'bling'; expected one of: paper, blind"),
        ({"name": 3}, "name is 3; expected a string"),
        ({"policy": 3}, r"policy is 3; expected a section \[policy\]"),
        ({"evaluation": 3}, r"evaluation is 3; expected a section \[evaluation\]"),
    ],
)
def test_what_is_wrong_outside_sections_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_grid("small", {**TABLE, **changes})


def test_every_command_is_told_the_modules_that_the_file_names(plan_of: PlanOf) -> None:
    plan = plan_of(
        policy={"name": "my_policies:Own"}, evaluation={"policies": ["x=other.module:Mine"]}
    )
    for node in plan.nodes.values():
        assert node.command[:4] == ("--use", "my_policies", "--use", "other.module")
    assert set(plan.nodes) & set(plan_of().nodes) == keys(plan, "store") | keys(
        plan, "reconstructor"
    )


def test_modules_named_in_the_file_are_used(plan_of: PlanOf) -> None:
    table = {**TABLE, "use": ["my_package.policies"]}
    plan = make_plan(parse_grid("x", table), Path("elsewhere"))
    assert all("my_package.policies" in node.command for node in plan.nodes.values())
    assert set(plan.nodes) == set(plan_of().nodes)


KEYS_OF_0_1 = {
    "configs/campaign-small.toml": "7223b4c3a68f5563",
    "configs/paper-brain.toml": "046ebfaf2da4fe68",
    "configs/paper-knee.toml": "0f7b2854d76b4f83",
    "tests/campaign/every_key.toml": "789b88e7e7150a2c",
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
    # Gradient noise was of the first seed then, and is now of the best.
    text = " ".join(sorted(key for key, node in plan.nodes.items() if node.group != "snr"))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == KEYS_OF_0_1[file]


@pytest.mark.slow
def test_planning_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from pathlib import Path; import kscout.cli.campaign_display as c; "
        f"c.plan_of(Path({str(CONFIGS / 'campaign-small.toml')!r}), None, 'cpu'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
