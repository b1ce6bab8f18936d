"""Backends agree to rounding, are switched only inside the block, and the fastest is chosen."""

import pytest
import torch
from torch import Tensor, nn

from kscout.errors import ConfigError
from kscout.kernels.convolution_cpu import compiled_convolutions
from kscout.reconstruction import RECONSTRUCTORS
from kscout.training import convolution as module
from kscout.training.convolution import (
    BACKENDS,
    can_compile,
    choose_convolution,
    convolution,
    measure_convolutions,
    to_layout,
)


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


def test_measuring_times_every_backend_and_leaves_the_network_alone() -> None:
    network = tiny_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    times = measure_convolutions(network, torch.randn(3, 1, 16, 20), trains=True)
    # Compiled kernels have no part in the training of a U-Net.
    assert set(times) == set(BACKENDS) - {"compiled"}
    assert all(0 < value < 60 for value in times.values())
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_frozen_network_is_also_timed_with_compiled_kernels() -> None:
    times = measure_convolutions(tiny_network(), torch.randn(3, 1, 16, 20), trains=False)
    assert set(times) == set(available())


def test_only_the_compiled_backend_uses_compiled_kernels() -> None:
    for name in available():
        with convolution(name):
            assert (compiled_convolutions(16) is not None) == BACKENDS[name].compiled


def test_the_compiled_backend_asks_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "can_compile", lambda: False)
    with pytest.raises(ConfigError, match="onednn-last"), convolution("compiled"):
        pass
    times = measure_convolutions(tiny_network(), torch.randn(3, 1, 16, 20), trains=False)
    assert "compiled" not in times


def test_auto_takes_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    def times(*_: object, trains: bool) -> dict[str, float]:
        return {"onednn": 3.0, "onednn-last": 2.0, "native": 1.0 if trains else 4.0}

    monkeypatch.setattr(module, "measure_convolutions", times)
    sample: Tensor = torch.zeros(1, 1, 8, 8)
    assert choose_convolution("auto", nn.Identity(), sample, trains=True) == "native"
    assert choose_convolution("auto", nn.Identity(), sample, trains=False) == "onednn-last"
    assert choose_convolution("onednn", nn.Identity(), sample, trains=True) == "onednn"


def test_an_unknown_backend_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match="choose one of: auto, compiled, native, native-last"):
        choose_convolution("cudnn", nn.Identity(), torch.zeros(1, 1, 8, 8), trains=True)
