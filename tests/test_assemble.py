"""Components by name: arguments are checked by their types and sizes before anything is made."""

from typing import Any

import pytest
import torch

from kscout.assemble import make_policy, make_reconstructor
from kscout.config import Component
from kscout.core import Policy, Reconstructor
from kscout.device import check_memory
from kscout.errors import ConfigError


def refused(kind: str, name: str, arguments: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        if kind == "reconstructor":
            make_reconstructor(Component(name, arguments))
        else:
            make_policy(Component(name, arguments), n_cols=24, n_rows=20, n_initial=4, horizon=3)
    return str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("reconstructor", "unet", {"n_pools": 2.5}),
        ("reconstructor", "unet", {"n_channels": "many"}),
        ("reconstructor", "unet", {"protocol": "other"}),
        ("reconstructor", "fastmri-unet", {"n_pools": [1]}),
        ("reconstructor", "total-variation", {"n_iterations": 1.5}),
        ("policy", "conv", {"n_hidden": "5"}),
        ("policy", "column", {"channels": ["a"]}),
    ],
)
def test_arguments_of_another_type_are_told_by_name(
    kind: str, name: str, arguments: dict[str, Any]
) -> None:
    told = refused(kind, name, arguments)
    assert told.startswith(f"{kind}.{next(iter(arguments))}")
    assert "; expected " in told


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


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("reconstructor", "unet", {"dropout": 2.0}),
        ("reconstructor", "unet", {"n_channels": 0}),
        ("reconstructor", "unet", {"n_pools": 50}),
        ("reconstructor", "fastmri-unet", {"n_channels": 0}),
        ("reconstructor", "total-variation", {"weight": -1.0}),
        ("policy", "conv", {"n_hidden": 0}),
        ("policy", "conv", {"n_channels": 0}),
        ("policy", "column", {"channels": [0]}),
        ("policy", "column", {"n_heads": 0}),
    ],
)
def test_networks_that_cannot_exist_are_one_sentence(
    kind: str, name: str, arguments: dict[str, Any]
) -> None:
    told = refused(kind, name, arguments)
    assert told.startswith(f"{kind} {name!r}")
    assert "\n" not in told


def test_arguments_change_neither_weights_nor_torchs_own_numbers() -> None:
    before = torch.get_rng_state()
    plain = make_reconstructor(Component("unet"), seed=3)
    named = make_reconstructor(Component("unet", {"n_channels": 16, "n_pools": 4}), seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(plain.parameters(), named.parameters(), strict=True):
        assert torch.equal(one, other)


def test_arguments_that_fit_are_taken() -> None:
    made = make_policy(Component("conv", {"n_channels": 2}), n_cols=24, n_rows=20)
    assert isinstance(made, Policy)
    solved = make_reconstructor(Component("total-variation", {"weight": 1.0}))
    assert isinstance(solved, Reconstructor)


def test_what_fits_into_memory_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kscout.device.free_memory", lambda _: 3 * 2**30)
    check_memory(3 * 2**30, "cpu", "it", "change it")
    with pytest.raises(ConfigError, match=r"it needs 4\.0 GiB .* 3\.0 GiB are free; change it"):
        check_memory(4 * 2**30, "cpu", "it", "change it")
