"""A network and a policy that learned together: how evaluations and analyses run the pair."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kscout import policies, reconstruction
from kscout.compatibility import Use, network_notes
from kscout.config import AcquisitionSetting
from kscout.errors import ConfigError
from kscout.evaluation.analyses import run_analysis
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.setting import completed, trained_budget
from kscout.names import ANALYSES
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import WEIGHTS_NAME, fingerprint, joint_policy_path

TOLD = {"method": "dense", "seed": 0, "protocol": "blind", "n_initial": 3, "horizon": 2}
SMALL: dict[str, dict[str, Any]] = {
    "entropy": {"trajectories": 1},
    "unexplored": {},
    "policy": {},
    "examples": {},
}
"""Analyses that run policies, with options that take a fraction of a second."""


def save_pair(folder: Path, **told: Any) -> Path:
    """Write what a joint training leaves: a network, and beside it a policy that learned on it."""
    torch.manual_seed(0)
    model = UNet(n_channels=2, n_pools=1, protocol="blind")
    policy, extra = FixedOrder(n_cols=13, order=[1, 11, 3]), {**TOLD, **told}
    folder.mkdir()
    reconstruction.save(folder / WEIGHTS_NAME, model, extra={**extra, "joint": True})
    extra["reconstructor"] = fingerprint(model)
    policies.save(joint_policy_path(folder / WEIGHTS_NAME), policy, extra=extra)
    return folder


def _analyze(name: str, pair: Path, out: Path, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the rows of an analysis of a pair, and the settings that it noted."""
    how = {"reconstructor": str(pair), "device": "cpu", **SMALL[name], **options}
    analysis = ANALYSES.resolve(name)(**how)
    rows = run_analysis(analysis, [str(pair)], out=out)
    return rows, json.loads((out / f"{analysis.file}.settings.json").read_text())


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", SMALL)
def test_analyses_score_by_the_protocol_of_the_network_and_note_another_that_is_asked_for(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    pair = save_pair(tmp_path / "pair")
    _, settings = _analyze(name, pair, tmp_path / "default", data=store)
    (note,) = caplog.messages
    assert settings["protocol"] == "blind" and note.startswith("the reconstruction is worse than")
    caplog.clear()
    _, settings = _analyze(name, pair, tmp_path / "paper", data=store, protocol="paper")
    assert settings["protocol"] == "paper"
    _, of_network, of_policy = caplog.messages
    assert "was trained for protocol blind" in of_network
    assert "policy 'pair' was trained for 3 + 2 columns under protocol blind" in of_policy


@pytest.mark.usefixtures("undrawn")
def test_analyses_say_where_a_policy_meets_another_reconstruction(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair = save_pair(tmp_path / "pair")
    _analyze("unexplored", pair, tmp_path / "out", data=store, reconstructor="zero-filled")
    (note,) = caplog.messages
    assert note.endswith(
        "run here with another reconstruction: pair; train one by kscout train policy with this one"
    )


@pytest.mark.parametrize("told", [{}, {"initial": "4-6", "n_initial": 3}])
def test_the_budget_of_a_network_is_used_if_no_policy_has_one(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, told: dict[str, Any]
) -> None:
    pair = str(save_pair(tmp_path / "pair", **told))
    setting = completed(EvaluationSetting(), ["random"], pair, ZeroFilled())
    assert setting.steps == 2
    assert (setting.n_initial or setting.initial) == told.get("initial", 3)
    (note,) = caplog.messages
    assert f"those of the joint training of {pair} are used, 3" in note
    with pytest.raises(ConfigError, match="no policy has them"):
        completed(EvaluationSetting(), ["random"], "heads-unet", ZeroFilled())


def test_a_co_trained_network_of_the_zoo_has_a_budget() -> None:
    assert trained_budget(["random"], "knee-cotrained-4-unet") == AcquisitionSetting(4, 28)


def test_a_network_that_learned_from_another_start_is_noted(tmp_path: Path) -> None:
    pair = reconstruction.load(save_pair(tmp_path / "pair", initial="7,4-5"))
    central, own = (Use((1, 18, 13), 3, 2, start=start) for start in (None, "4-5,7"))
    assert network_notes(pair, own) == []
    (note,) = network_notes(pair, central)
    assert "for 3 (4-5,7) + 2 columns and is used here with 3 + 2" in note
    (note,) = network_notes(reconstruction.load(save_pair(tmp_path / "central")), own)
    assert "3 + 2 columns and is used here with 3 (4-5,7) + 2" in note
