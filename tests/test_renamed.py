"""Names of version 0.2 that changed: rejected where they are typed, resolved in files."""

import tomllib
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from command_line import kscout
from kscout import policies
from kscout.apps.campaign.grid import read_grid
from kscout.config import PolicyConfig, of_0_2, read_file, settle
from kscout.config.bounds import OneOf
from kscout.errors import ConfigError
from kscout.names import ANALYSES, ESTIMATORS, POLICIES
from kscout.names.renamed import RENAMED
from kscout.policies.ensemble import EnsemblePolicy

WRITTEN = Path(__file__).parent / "written_by_0_2"
WHERE = ("--data", str(WRITTEN / "images"), "--reconstructor", "zero-filled", "--out", "unused")


@pytest.fixture(autouse=True)
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename an option; no real one changed."""
    monkeypatch.setitem(RENAMED, "option", {"--old-steps": "--steps"})


def test_new_names_exist() -> None:
    tables: dict[str, Collection[str]] = {"policy": POLICIES, "estimator": ESTIMATORS}
    for kind, table in (tables | {"analysis": ANALYSES}).items():
        assert set(RENAMED[kind].values()) <= set(table) and not set(RENAMED[kind]) & set(table)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: POLICIES["weighed"], "the policy 'weighed' is called 'ensemble'"),
        (
            lambda: OneOf("method", ESTIMATORS).check("weigh", "training.method"),
            "the estimator 'weigh' is called 'ensemble'",
        ),
        (
            lambda: kscout("train", "policy", *WHERE, "--method", "imagine"),
            "the estimator 'imagine' is called 'posterior'",
        ),
        (
            lambda: kscout("evaluate", *WHERE, "--policy", "imagine"),
            "the policy 'imagine' is called 'posterior'",
        ),
        (
            lambda: kscout("analyze", "overlooked"),
            "the analysis 'overlooked' is called 'unexplored'",
        ),
        (
            lambda: settle(PolicyConfig.of("greedy"), None, ["training.n_memory=3"], {}),
            "the setting 'training.n_memory' is called 'training.buffer_size'",
        ),
        (
            lambda: kscout("train", "policy", "--old-steps", "3"),
            "the option '--old-steps' is called '--steps'",
        ),
    ],
)
def test_the_error_for_an_old_name_prints_the_new_one(ask: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{told} since version 0.3; use that name$"):
        ask()


def test_members_that_0_2_saved_are_found_under_their_new_names() -> None:
    in_file = policies.load(WRITTEN / "runs" / "weigh")
    assert isinstance(in_file, EnsemblePolicy)
    assert [one["component"] for one in in_file.members] == ["column", "posterior"]


def test_settings_of_runs_have_new_names_and_campaigns_hash_the_old(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'kind = "policy"\n[policy]\nname = "weighed"\nmembers = ["knee-base-column", "runs/a"]\n'
        '[training]\nmethod = "weigh"\nsplit = "train"\nn_prior_slices = 3\nfollows = "runs/b"\n'
    )
    found = read_file(file)
    assert found == {
        "kind": "policy",
        "policy": {"name": "ensemble", "members": ["knee-base-column", "runs/a"]},
        "training": {"method": "ensemble", "n_baseline_slices": 3, "follows": "runs/b"},
    }
    assert of_0_2(found) == tomllib.loads(file.read_text())


def test_campaign_files_of_0_2_are_read_under_new_names(tmp_path: Path) -> None:
    old = (
        '[grid]\nmethods = ["imagine"]\n[stores.a]\npath = "a"\n[reconstructions.b]\npath = "b"\n'
        "[horizons.short]\nn_initial = 4\nsteps = 2\n[training.imagine]\nn_prior_slices = 3\n"
        '[evaluation]\npolicies = ["fixed"]\n'
    )
    new = old.replace("imagine", "posterior").replace("n_prior_slices", "n_baseline_slices")
    grids = []
    for text in (old, new):
        (tmp_path / "c.toml").write_text(text)
        grids.append(read_grid(tmp_path / "c.toml"))
    assert grids[0] == grids[1]
