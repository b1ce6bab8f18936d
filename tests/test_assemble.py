"""Components by name: arguments are checked by their types and sizes before anything is made."""

import math
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import kscout
from kscout.assemble import make_policy, make_reconstructor
from kscout.config import Component
from kscout.device import check_memory
from kscout.errors import ConfigError, KScoutError, RunError, WeightsError
from kscout.policies.fixed import FixedOrder
from kscout.training.training_run import load_checkpoint
from kscout.weights import Weights, save_weights


def refused(kind: str, name: str, arguments: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        if kind == "reconstructor":
            make_reconstructor(Component(name, arguments))
        else:
            make_policy(Component(name, arguments), n_cols=24, n_rows=20, n_initial=4, horizon=3)
    return str(caught.value)


OF_ANOTHER_TYPE = [
    ("reconstructor", "unet", {"n_pools": 2.5}),
    ("reconstructor", "unet", {"n_channels": "many"}),
    ("reconstructor", "unet", {"protocol": "other"}),
    ("reconstructor", "fastmri-unet", {"n_pools": [1]}),
    ("reconstructor", "total-variation", {"n_iterations": 1.5}),
    ("policy", "conv", {"n_hidden": "5"}),
    ("policy", "column", {"channels": ["a"]}),
]
IMPOSSIBLE = [
    ("reconstructor", "unet", {"dropout": 2.0}),
    ("reconstructor", "unet", {"n_channels": 0}),
    ("reconstructor", "unet", {"n_pools": 50}),
    ("reconstructor", "fastmri-unet", {"n_channels": 0}),
    ("reconstructor", "total-variation", {"weight": -1.0}),
    ("policy", "conv", {"n_hidden": 0}),
    ("policy", "conv", {"n_channels": 0}),
    ("policy", "column", {"channels": [0]}),
    ("policy", "column", {"n_heads": 0}),
]


@pytest.mark.parametrize(("kind", "name", "arguments"), [*OF_ANOTHER_TYPE, *IMPOSSIBLE])
def test_networks_that_cannot_exist_are_one_sentence(
    kind: str, name: str, arguments: dict[str, Any]
) -> None:
    told = refused(kind, name, arguments)
    is_type = (kind, name, arguments) in OF_ANOTHER_TYPE
    assert told.startswith(f"{kind}.{next(iter(arguments))}" if is_type else f"{kind} {name!r}")
    assert ("; expected " in told or not is_type) and "\n" not in told


@pytest.mark.parametrize("name", ["fixed", "na-oracle"])
def test_what_is_not_made_by_its_name_alone_is_told(name: str) -> None:
    message = refused("policy", name, {})
    assert message.startswith(f"policy {name!r} cannot be built without 'order'")


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("reconstructor", "unet", {"n_pools": 12}),
        ("reconstructor", "unet", {"n_channels": 2**20}),
        ("policy", "conv", {"n_hidden": 2**20}),
        ("policy", "column", {"channels": [2**20]}),
    ],
)
def test_networks_larger_than_memory_are_refused_before_they_are_made(
    kind: str, name: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kscout.device.free_memory", lambda _: 2**28)
    told = refused(kind, name, arguments)
    assert "GiB of memory or more, and 0.2 GiB are free; make it smaller" in told
    assert f"{next(iter(arguments))} = " in told


def test_arguments_change_neither_weights_nor_torchs_own_numbers() -> None:
    before = torch.get_rng_state()
    plain = make_reconstructor(Component("unet"), seed=3)
    named = make_reconstructor(Component("unet", {"n_channels": 16, "n_pools": 4}), seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(plain.parameters(), named.parameters(), strict=True):
        assert torch.equal(one, other)


def test_what_fits_into_memory_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kscout.device.free_memory", lambda _: 3 * 2**30)
    check_memory(3 * 2**30, "cpu", "it", "change it")
    with pytest.raises(ConfigError, match=r"it needs 4\.0 GiB .* 3\.0 GiB are free; change it"):
        check_memory(4 * 2**30, "cpu", "it", "change it")


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
