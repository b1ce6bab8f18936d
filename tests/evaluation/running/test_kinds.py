"""A policy in the place of a reconstruction is told before anything else is asked for."""

from pathlib import Path

import pytest
import torch

from kscout import policies, reconstruction
from kscout.apps.cli import app
from kscout.errors import ConfigError, WeightsError
from kscout.evaluation.running.kinds import check_kinds
from kscout.policies.fixed import FixedOrder
from kscout.policies.random import Random
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import WEIGHTS_NAME, joint_policy_path

EXCHANGED = "--reconstructor .* is a policy, and .* is a reconstruction; exchange the two"
NO_NETWORK = "^--reconstructor .* is a policy; give it as one, and a reconstruction"
NO_POLICY = "was given as a policy and is a reconstruction; give it as --reconstructor"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make folders of a network, a policy, and both, and work beside them."""
    monkeypatch.chdir(tmp_path)
    for name in ("network", "policy", "both"):
        (tmp_path / name).mkdir()
    torch.manual_seed(0)
    for name in ("network", "both"):
        reconstruction.save(tmp_path / name / WEIGHTS_NAME, UNet(n_channels=2, n_pools=1))
    order = FixedOrder(n_cols=9, order=[3, 1])
    policies.save(tmp_path / "policy" / WEIGHTS_NAME, order)
    policies.save(joint_policy_path(tmp_path / "both" / WEIGHTS_NAME), order)
    return tmp_path


@pytest.mark.parametrize(
    ("wanted", "reconstructor", "complaint"),
    [
        ("knee-unet", "knee-base-column", EXCHANGED),
        ("network", "policy", EXCHANGED),
        ("mine=network", "random", EXCHANGED),
        (f"network/{WEIGHTS_NAME}", f"policy/{WEIGHTS_NAME}", EXCHANGED),
        ("random", "fixed", NO_NETWORK),
        ("both", "policy", NO_NETWORK),
        ("mine=zero-filled", "both", NO_POLICY),
        ("unet", "zero-filled", NO_POLICY),
    ],
)
def test_what_is_of_the_other_kind_is_rejected(
    runs: Path, wanted: str, reconstructor: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check_kinds(["random", wanted], reconstructor)


def test_a_folder_of_several_runs_is_rejected_with_the_name_of_one(runs: Path) -> None:
    for wanted, reconstructor in ((".", "network"), ("mine=.", "network"), ("policy", Path())):
        with pytest.raises(
            WeightsError, match=r"^\. holds several runs; give one of both, network"
        ):
            check_kinds([wanted], reconstructor)
    # A name goes before a folder.
    (runs / "random" / "seed-0").mkdir(parents=True)
    (runs / "random" / "seed-0" / WEIGHTS_NAME).touch()
    check_kinds(["random"], "network")


def test_what_may_be_right_is_left_to_be_loaded(runs: Path) -> None:
    (runs / "knee-unet").mkdir()
    pairs = [("policy", "network"), ("both", "both"), ("a=policy", "knee-unet"), ("nox", "nix")]
    pairs += [("own:Policy", "own:Network"), ("mine=random", "zero-filled"), ("knee-unet", "unet")]
    for wanted, reconstructor in pairs:
        check_kinds([wanted], reconstructor)
    check_kinds([("mine", Random()), Path("policy")], ZeroFilled())


@pytest.mark.parametrize("words", [["evaluate", "--policy"], ["analyze", "entropy"]])
def test_commands_tell_it_before_they_ask_for_columns(words: list[str], tmp_path: Path) -> None:
    words = [*words, "knee-unet", "--data", "none", "--reconstructor", "knee-base-column"]
    with pytest.raises(ConfigError, match=EXCHANGED):
        app([*words, "--out", str(tmp_path / "out")], standalone_mode=False)
    assert not (tmp_path / "out").exists()
