"""What a file expands to, and that a run's name changes with all that determines it, no more."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_campaign import TABLE, PlanOf

from coil_data import coil_store
from kscout.apps.campaign.grid import parse_grid
from kscout.apps.campaign.plan import CampaignPlan, make_plan
from kscout.apps.campaign.state import changed_inputs, write_index
from kscout.apps.cli.campaign_display import show_status
from kscout.config import PolicyConfig, load, read
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import DataError
from kscout.reconstruction import save
from kscout.reconstruction.unet import UNet


def keys(plan: CampaignPlan, kind: str) -> set[str]:
    return {node.key for node in plan.of_kind(kind)}


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
    with StoreWriter(path, {"made": "by hand"}) as writer:
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
    monkeypatch.setattr("kscout.apps.campaign.plan.zoo_path", lambda _: newer)
    after = plan_of(evaluation=wanted)
    assert not set(keys(after, "evaluation")) & set(keys(before, "evaluation"))
    assert keys(after, "policy") == keys(before, "policy")


@pytest.mark.parametrize("kind", ["images", "coils", "reconstruction"])
def test_runs_keep_their_names_when_a_given_source_is_gone(
    kind: str, plan_of: PlanOf, tmp_path: Path
) -> None:
    changes = {"stores": {"knee": {"path": "one"}}}
    if kind == "images":
        write_store(tmp_path / "one", 0.5)
    elif kind == "coils":
        coil_store(tmp_path / "one")
    else:
        save(tmp_path / "one", UNet(n_channels=2, n_pools=1, protocol="paper"))
        changes = {"reconstructions": {"unet": {"path": "one"}}}
    before = plan_of(**changes)
    (tmp_path / "campaign").mkdir()
    write_index(before, "small.toml")
    (tmp_path / "one").rename(tmp_path / "gone")
    after = plan_of(**changes)
    assert keys(after, "policy") == keys(before, "policy")
    with pytest.raises(DataError, match=r"one does not exist: (make|train) it"):
        after.check_sources()


@pytest.mark.parametrize(
    ("recipe", "protocol"),
    [
        ({}, "blind"),
        ({"preset": "paper-unet"}, "paper"),
        ({"training": {"protocol": "paper"}}, "paper"),
        ({"path": "knee-unet"}, "paper"),
        ({"path": "knee-cotrained-16-unet"}, "blind"),
    ],
)
def test_runs_follow_the_protocol_of_their_reconstruction_where_the_file_names_none(
    recipe: dict[str, Any], protocol: str, plan_of: PlanOf
) -> None:
    changes = {"reconstructions": {"unet": recipe}, "analyses": {"reconstructions": True}}
    plan = plan_of(**changes)
    for node in (*plan.of_kind("policy"), *plan.of_kind("reconstructor")):
        assert node.settings["training"]["protocol"] == protocol
    analyses = [one for one in plan.of_kind("analysis") if one.group in ("reconstructions", "snr")]
    for node in (*plan.of_kind("evaluation"), *analyses):
        assert f"--protocol {protocol}" in " ".join(node.command)


def test_reconstructions_of_coils_are_compared_where_the_start_tells_sensitivities(
    plan_of: PlanOf,
) -> None:
    coils = {"knee": {"make": "knee", "coils": 4, "size": 64}}
    for stores, told in (({}, {"8+5": False, "4+9": False}), (coils, {"8+5": True, "4+9": False})):
        plan = plan_of(stores=stores, analyses={"reconstructions": True})
        nodes = [node for node in plan.of_kind("analysis") if "reconstructions" in node.command]
        found = {node.label.rpartition("-")[2]: "sense" in node.command for node in nodes}
        assert found == told


def test_every_command_is_told_the_modules_that_the_file_names(plan_of: PlanOf) -> None:
    plan = plan_of(
        policy={"name": "my_policies:Own"}, evaluation={"policies": ["x=other.module:Mine"]}
    )
    for node in plan.nodes.values():
        assert node.command[:4] == ("--use", "my_policies", "--use", "other.module")
    assert set(plan.nodes) & set(plan_of().nodes) == keys(plan, "store") | keys(
        plan, "reconstructor"
    )


def test_modules_of_a_metric_and_those_that_the_file_names_are_used(plan_of: PlanOf) -> None:
    for node in plan_of(training={"metric": "my_metrics:sharpness"}).nodes.values():
        assert node.command[:2] == ("--use", "my_metrics")
    table = {**TABLE, "use": ["my_package.policies"]}
    plan = make_plan(parse_grid("x", table), Path("elsewhere"))
    assert all("my_package.policies" in node.command for node in plan.nodes.values())
    assert set(plan.nodes) == set(plan_of().nodes)


SMALL = {"horizons": ["short"], "methods": ["greedy"], "seeds": [0]}


def finish(plan: CampaignPlan) -> None:
    """Write what all runs of a plan leave."""
    for node in plan.nodes.values():
        (node.folder / node.label).mkdir(parents=True)
        (node.output / node.product).write_text("{}")
        (node.folder / "done.json").write_text(json.dumps({"seconds": 1}))


def touch(file: Path, seconds: float) -> None:
    """Let a file be older or newer than all runs."""
    os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns + int(1e9 * seconds)))


def test_changed_sources_of_a_dataset_are_named(
    plan_of: PlanOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    np.save(tmp_path / "mine" / "a.npy", np.ones((2, 9, 9)))
    plan = plan_of(grid=SMALL, stores={"knee": {"import": "mine"}})
    assert changed_inputs(plan) is None
    finish(plan)
    touch(tmp_path / "mine" / "a.npy", -60)
    assert changed_inputs(plan) is None
    touch(tmp_path / "mine" / "a.npy", 120)
    note = changed_inputs(plan)
    assert note is not None and note.startswith(f"{Path('mine', 'a.npy')} changed after a run")
    show_status(plan, keeps_looking=False)
    assert note in capsys.readouterr().err


@pytest.mark.parametrize("name", ["own", "own_package.part"])
def test_changed_modules_of_the_user_are_named(name: str, plan_of: PlanOf, tmp_path: Path) -> None:
    (tmp_path / "own_package").mkdir()
    for file in ("own.py", "own_package/__init__.py", "own_package/part.py"):
        (tmp_path / file).write_text("raise SystemExit\n")
    plan = plan_of(grid=SMALL)
    plan.use = (name,)
    nodes, plan.nodes = plan.nodes, {}
    for node in nodes.values():
        plan.add(node)
    finish(plan)
    file = tmp_path / f"{name.replace('.', '/')}.py"
    touch(file, -60)
    assert changed_inputs(plan) is None
    touch(file, 120)
    note = changed_inputs(plan)
    assert note is not None and note.startswith(f"{file} changed after {len(nodes)} finished runs")
