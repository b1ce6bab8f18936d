"""Gradients of a batch do not depend on the batch before, nor on how they are launched."""

import platform
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from kscout.errors import ConfigError
from kscout.kernels.graphs import Backward, BatchGradients, Capture, GraphPool
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


def network_and_backward(device: str) -> tuple[nn.Module, Backward]:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.InstanceNorm2d(4), nn.ReLU(), nn.Conv2d(4, 1, 1)
    ).to(device)
    data = torch.randn(50, 1, 9, 11).to(device)

    def backward(batch: Sequence[Tensor]) -> Tensor:
        index, target = batch
        loss = (network(data[index]) - target).square().mean()
        loss.backward()
        return loss

    return network, backward


def example(n_batch: int, device: str) -> list[Tensor]:
    return [torch.randperm(50)[:n_batch].to(device), torch.randn(n_batch, 1, 9, 11).to(device)]


def test_gradients_do_not_pile_up() -> None:
    batch = example(3, "cpu")
    fresh, backward = network_and_backward("cpu")
    expected = backward(batch)
    network, backward = network_and_backward("cpu")
    gradients = BatchGradients(backward, network.parameters())
    gradients(example(4, "cpu"))
    found = gradients(batch)
    for parameter, other in zip(network.parameters(), fresh.parameters(), strict=True):
        assert torch.equal(parameter.grad, other.grad)
    assert not found.requires_grad and found == expected


@pytest.mark.cuda
def test_graphs_that_share_memory_give_the_gradients_of_eager_passes() -> None:
    network, backward = network_and_backward("cuda")
    eager = BatchGradients(backward, network.parameters())
    pool = GraphPool(torch.device("cuda"))
    graphed = {
        n: BatchGradients(backward, network.parameters(), example(n, "cuda"), pool)
        for n in (6, 2, 4)
    }
    # One that a graph was not captured for is passed eagerly.
    for n_batch, n_captured in ((4, 4), (6, 6), (2, 2), (2, 2), (3, 4), (4, 4), (6, 6)):
        batch = example(n_batch, "cuda")
        found = graphed[n_captured](batch).item()
        gradients = [parameter.grad.clone() for parameter in network.parameters()]
        assert found == pytest.approx(eager(batch).item(), rel=1e-6)
        for gradient, parameter in zip(gradients, network.parameters(), strict=True):
            assert torch.allclose(gradient, parameter.grad, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.parametrize("is_shared", [True, False])
def test_a_smaller_graph_takes_no_memory_beside_what_a_larger_one_has(is_shared: bool) -> None:
    n_mib, pool, graphs, taken = 2**18, GraphPool(torch.device("cuda")), [], []

    def work(x: Tensor) -> tuple[Tensor, ...]:
        # Twice the memory of what is given, which lies outside of the pool.
        return ((x + 1).sin().sum(),)

    for n_numbers in (256 * n_mib, 128 * n_mib):
        torch.cuda.empty_cache()
        before, given = torch.cuda.memory_reserved(), torch.zeros(n_numbers, device="cuda")
        graphs.append(Capture(work, [given], pool if is_shared else None))
        del given
        torch.cuda.empty_cache()
        taken.append((torch.cuda.memory_reserved() - before) / (4 * n_numbers))
    assert taken[0] > 2.5
    assert taken[1] < 1.5 if is_shared else taken[1] > 2.5


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
