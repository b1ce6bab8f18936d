"""Arguments in a weights file are bounded, and no file that they name is opened."""

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import kscout
from kscout.errors import KScoutError, RunError, WeightsError
from kscout.policies.fixed import FixedOrder
from kscout.training.checkpointing import load_checkpoint
from kscout.weights import Weights, save_weights

SECTION = {"component": "fixed", "arguments": {"n_cols": 10**12, "order": []}, "gain_units": []}


@pytest.mark.parametrize(
    ("component", "arguments", "words"),
    [
        ("ensemble", {"order": [1], "order_cols": 10**12}, "arguments.order_cols is 10000"),
        ("ensemble", {"members": 7}, "members are 7; give two policies or more"),
        ("fixed", {"n_cols": 10**12, "order": []}, "arguments.n_cols is 10000"),
        ("center-out", {"n_cols": -(10**300)}, "arguments.n_cols is -10000"),
        ("conv", {"n_cols": 16, "n_hidden": 10**12}, "arguments.n_hidden is 10000"),
        ("ensemble", {"members": [SECTION] * 2}, "arguments.members.0.arguments.n_cols is 1000"),
        ("fixed", {"n_cols": 16, "order": [0] * 10**5}, "arguments.order has 100000 items"),
        ("conv", {"n_cols": [[[[[[[[9]]]]]]]]}, "at level 9"),
        (
            "column",
            {"n_cols": 4096, "n_initial": 1, "horizon": 4095, "n_layers": 10**6},
            "more than 5000 tensors",
        ),
        (
            "column",
            {
                "n_cols": 4096,
                "n_initial": 1,
                "horizon": 4095,
                "known_cols": [*range(2, 4000)],
                "known_starts": [*range(2, 4000)],
            },
            "combinations; expected at most 1000",
        ),
    ],
)
def test_arguments_in_a_file_are_bounded_before_a_constructor_receives_them(
    tmp_path: Path, component: str, arguments: dict[str, Any], words: str
) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, Weights("policy", component, arguments, {"a": torch.ones(2)}))
    with pytest.raises(WeightsError, match=words) as caught:
        kscout.policies.load(path)
    assert len(str(caught.value)) < 500


def test_arguments_that_no_file_may_contain_are_not_saved(tmp_path: Path) -> None:
    policy = FixedOrder(n_cols=16, order=[])
    policy.n_cols = 10**12
    with pytest.raises(KScoutError, match=r"fixed: arguments\.n_cols is 1000000000000"):
        kscout.policies.save(tmp_path / "w.safetensors", policy)


def test_a_file_cannot_name_files_as_members_of_a_member(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    os.mkfifo(secret)
    inner = {"members": [str(secret), str(secret)]}
    member = {"component": "ensemble", "arguments": inner, "gain_units": [1.0]}
    path = tmp_path / "w.safetensors"
    save_weights(path, Weights("policy", "ensemble", {"members": [member, member]}, {}))
    with pytest.raises(WeightsError, match="EnsemblePolicy cannot be a member of an ensemble"):
        kscout.policies.load(path)


def test_weights_that_are_nan_are_rejected(tmp_path: Path) -> None:
    state = {"logits": torch.tensor([0.0, math.nan])}
    save_weights(tmp_path / "w.safetensors", Weights("policy", "density", {"n_cols": 2}, state))
    with pytest.raises(WeightsError, match=r"w\.safetensors has weights that are NaN"):
        kscout.policies.load(tmp_path / "w.safetensors")


def deflated(path: Path, content: dict[str, Any]) -> None:
    torch.save(content, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in members.items():
            archive.writestr(name, value)


def test_checkpoints_with_memory_bombs_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("channel_layer.layers.0.weight", "fc_out.0.weight", "fc_out.4.weight")
    path = tmp_path / "a.pt"
    torch.save({"model": dict.fromkeys(names, torch.ones(1).expand(10**6, 10**6))}, path)
    with pytest.raises(WeightsError, match=r"a tensor of shape \[1000000, 1000000\] without its"):
        kscout.policies.load(path)
    with pytest.raises(RunError, match="without its values"):
        load_checkpoint(path)
    monkeypatch.setattr("kscout.files._UNPACKED", 2**20)
    deflated(path, {"model": dict.fromkeys(names, torch.zeros(2**20))})
    with pytest.raises(WeightsError, match="it unpacks to 419"):
        kscout.policies.load(path)
    with pytest.raises(RunError, match="it unpacks to 419"):
        load_checkpoint(path)
