"""Names of version 0.2 that changed: rejected where they are typed, resolved in files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kscout import policies
from kscout.cli import app
from kscout.config import PolicyConfig, of_0_2, read_file, settle
from kscout.config.bounds import OneOf
from kscout.errors import ConfigError
from kscout.names import ESTIMATORS, POLICIES
from kscout.names.renamed import RENAMED
from kscout.policies.weighed import WeighedPolicy, entry
from kscout.weights import fingerprint
from kscout.zoo import zoo_path

WRITTEN = Path(__file__).parent / "written_by_0_2"
TOLD = json.loads((WRITTEN / "told.json").read_text())


@pytest.fixture(autouse=True)
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rename things of every kind."""
    monkeypatch.setitem(POLICIES.entries, "new-column", POLICIES.entries["column"])
    monkeypatch.delitem(POLICIES.entries, "column")
    changes = {
        "policy": {"column": "new-column"},
        "estimator": {"old-dense": "dense"},
        "zoo entry": {"old-fixed": "knee-base-fixed"},
        "setting": {"training.old_warm": "training.n_warm"},
        "option": {"--old-steps": "--steps"},
    }
    for kind, names in changes.items():
        monkeypatch.setitem(RENAMED, kind, names)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: POLICIES["column"], "the policy 'column' is called 'new-column'"),
        (lambda: zoo_path("old-fixed"), "the zoo entry 'old-fixed' is called 'knee-base-fixed'"),
        (
            lambda: OneOf("method", ESTIMATORS).check("old-dense", "grid.methods[0]"),
            "the estimator 'old-dense' is called 'dense'",
        ),
        (
            lambda: settle(PolicyConfig.of("greedy"), None, ["training.old_warm=3"], {}),
            "the setting 'training.old_warm' is called 'training.n_warm'",
        ),
        (
            lambda: CliRunner().invoke(
                app, ["train", "policy", "--old-steps", "3"], catch_exceptions=False
            ),
            "the option '--old-steps' is called '--steps'",
        ),
    ],
)
def test_the_error_for_an_old_name_prints_the_new_one(ask: Callable[[], object], told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{told} since version 0.3; use that name$"):
        ask()


@pytest.mark.parametrize("name", ["dense", "weigh"])
def test_weights_that_tell_an_old_name_load_with_the_same_fingerprint(name: str) -> None:
    policy = policies.load(WRITTEN / "runs" / name)
    assert fingerprint(policy) == TOLD["policies"][name]
    if isinstance(policy, WeighedPolicy):
        assert [one["component"] for one in policy.members] == ["new-column", "imagine"]


def test_members_of_the_zoo_are_found_by_old_and_new_names() -> None:
    new = entry("knee-base-fixed")
    old = {**new, "zoo": "old-fixed"}
    found = [WeighedPolicy(members=[one, one]) for one in (old, new)]
    assert fingerprint(found[0]) == fingerprint(found[1])


def test_settings_of_runs_have_new_names_and_campaigns_hash_the_old(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'kind = "policy"\n[policy]\nname = "column"\nmembers = ["old-fixed", "runs/a"]\n'
        '[training]\nmethod = "old-dense"\nold_warm = 3\n'
    )
    found = read_file(file)
    assert found == {
        "kind": "policy",
        "policy": {"name": "new-column", "members": ["knee-base-fixed", "runs/a"]},
        "training": {"method": "dense", "n_warm": 3},
    }
    old = {"method": "old-dense", "old_warm": 3}
    assert of_0_2(found)["training"].items() >= old.items()
    assert of_0_2(found)["policy"] == {"name": "column", "members": ["old-fixed", "runs/a"]}
