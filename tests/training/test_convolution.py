"""Backends agree to rounding, are switched only inside the block, and are chosen by rule."""

import platform

import pytest
import torch
from torch import nn

from kscout.errors import ConfigError
from kscout.kernels.registry import Request, serving
from kscout.reconstruction import RECONSTRUCTORS
from kscout.training import convolution as module
from kscout.training.convolution import (
    BACKENDS,
    can_compile,
    choose_convolution,
    convolution,
    to_layout,
)

CPU = torch.device("cpu")


def tiny_network() -> nn.Module:
    torch.manual_seed(0)
    network = RECONSTRUCTORS["unet"](n_channels=3, n_pools=2).network
    assert isinstance(network, nn.Module)
    return network


def available() -> list[str]:
    return [name for name in BACKENDS if not BACKENDS[name].compiled or can_compile()]


@pytest.mark.parametrize("name", available())
def test_backends_differ_only_in_rounding(name: str, generator: torch.Generator) -> None:
    image = torch.randn(2, 1, 18, 22, generator=generator)
    expected = tiny_network()(image)
    network = tiny_network()
    to_layout(network, name)
    with convolution(name):
        found = network(image)
        found.sum().backward()
    assert torch.allclose(found, expected, atol=1e-5)


def test_the_backend_is_put_back_after_the_block() -> None:
    before = torch.backends.mkldnn.enabled
    with convolution("native"):
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled == before


def test_only_the_compiled_backend_uses_compiled_kernels() -> None:
    for name in available():
        with convolution(name):
            kind = serving("unet", Request(CPU, n_channels=16))
            assert kind == ("c" if BACKENDS[name].compiled else "torch")


def test_the_compiled_backend_asks_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_compile", lambda: False)
    with pytest.raises(ConfigError, match="onednn-last"), convolution("compiled"):
        pass


@pytest.mark.parametrize(
    ("machine", "compiles", "frozen", "training"),
    [
        ("x86_64", True, "compiled", "onednn"),
        ("x86_64", False, "onednn-last", "onednn"),
        ("aarch64", True, "compiled", "native"),
        ("arm64", False, "onednn-last", "native"),
        ("riscv64", False, "onednn-last", "onednn"),
    ],
)
def test_auto_is_a_rule_of_machine_compiler_and_use(
    machine: str, compiles: bool, frozen: str, training: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "can_compile", lambda: compiles)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert choose_convolution("auto", CPU, trains=False) == frozen
    assert choose_convolution("auto", CPU, trains=True) == training
    assert choose_convolution("auto", torch.device("cuda"), trains=False) == "onednn"
    assert choose_convolution("native-last", CPU, trains=True) == "native-last"
