"""The U-Net for CPUs computes what the network computes, compiled or not, at any size."""

from functools import partial

import pytest
import torch
from torch import Tensor

from golden_numbers import Golden
from kscout.core import Measurement, Reconstructor
from kscout.kernels.registry import compiled_kernels
from kscout.reconstruction import RECONSTRUCTORS
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.reconstruction.unet import InferenceReconstructor, UNet
from kscout.reconstruction.unet_inference import InferenceUNet
from kscout.training.convolution import can_compile


def unet(golden: Golden) -> UNet:
    found = RECONSTRUCTORS["unet"]()
    assert isinstance(found, UNet)
    found.network.load_state_dict(golden.state("unet_trained", "trained_state"))
    return found.eval().requires_grad_(False)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("n_cols", [64, 128])
def test_outputs_are_golden_in_both_layouts(
    layout: torch.memory_format, n_cols: int, golden: Golden
) -> None:
    network = InferenceUNet(unet(golden).network).to(memory_format=layout)
    with compiled_kernels(enabled=False):
        found = network(golden("inputs", f"zf_r{n_cols}_a8")[:, None])
    expected = golden("unet", f"trained_out_r{n_cols}")
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("n_rows", "n_cols"), [(16, 16), (37, 52), (70, 47), (16, 35)])
def test_odd_sizes_pools_and_widths_agree_with_the_network(
    layout: torch.memory_format, n_rows: int, n_cols: int, generator: torch.Generator
) -> None:
    torch.manual_seed(1)
    network = UNet(n_channels=6, n_pools=3).network.eval()
    image = torch.randn(5, 1, n_rows, n_cols, generator=generator)
    found = InferenceUNet(network).to(memory_format=layout)(image)
    torch.testing.assert_close(found, network(image), atol=1e-4, rtol=0)


@pytest.mark.parametrize("n_cols", [64, 128])
def test_compiled_outputs_are_golden(n_cols: int, golden: Golden) -> None:
    found = InferenceUNet(unet(golden).network)(golden("inputs", f"zf_r{n_cols}_a8")[:, None])
    expected = golden("unet", f"trained_out_r{n_cols}")
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("n_rows", "n_cols", "n_channels", "n_pools"),
    [(16, 16, 16, 3), (37, 52, 16, 4), (70, 47, 32, 3), (9, 11, 48, 2), (8, 6, 16, 1)],
)
def test_compiled_odd_sizes_agree_with_the_network(
    n_rows: int, n_cols: int, n_channels: int, n_pools: int, generator: torch.Generator
) -> None:
    torch.manual_seed(1)
    network = UNet(n_channels=n_channels, n_pools=n_pools).network.eval()
    image = torch.randn(7, 1, n_rows, n_cols, generator=generator)
    found, expected = InferenceUNet(network)(image), network.double()(image.double())
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("enabled", "tolerance"), [(False, 1e-5), (True, 0.0)])
def test_parts_do_not_change_the_images(
    enabled: bool, tolerance: float, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = InferenceUNet(unet(golden).network)
    image = golden("inputs", "zf_r64_a8")[:, None]
    with compiled_kernels(enabled=enabled):
        whole = network(image)
        monkeypatch.setattr("kscout.reconstruction.unet_inference._N_PIXELS_AT_ONCE", 2 * 64 * 64)
        parts = network(image)
    if not can_compile():
        tolerance = 1e-5
    torch.testing.assert_close(parts, whole, atol=tolerance, rtol=0)


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_a_frozen_unet_on_a_cpu_takes_the_fast_path(precision: str, golden: Golden) -> None:
    slow: Reconstructor = unet(golden)
    fast = slow.frozen(precision=precision, n_rows=64, n_cols=64, device="cpu")
    assert isinstance(fast, InferenceReconstructor)
    kspace = torch.randn(2, 1, 64, 64, dtype=torch.complex64)
    mask = torch.arange(64).expand(2, -1) % 3 == 0
    found, expected = fast(kspace, mask), slow(kspace, mask)
    torch.testing.assert_close(found.image, expected.image, atol=1e-4, rtol=0)
    assert torch.equal(found.mean, expected.mean) and torch.equal(found.std, expected.std)


def test_the_copy_holds_no_parameters_and_keeps_the_protocol() -> None:
    unet = UNet(n_channels=4, n_pools=2, protocol="blind")
    found = unet.frozen(precision="auto", n_rows=18, n_cols=25, device="cpu")
    assert isinstance(found, InferenceReconstructor)
    assert not list(found.parameters()) and found.protocol == "blind"


# What a compiler is given counts here, and how it normalizes, not what it makes of it.
@pytest.mark.parametrize("kind", [UNet, FastMRIUNet])
def test_images_and_gradients_stay_when_passes_are_compiled(
    kind: type[Reconstructor], monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    torch.manual_seed(0)
    model = kind(n_channels=4, n_pools=2)
    kspace = torch.randn(3, 1, 32, 32, dtype=torch.complex64, generator=generator)
    measured = Measurement.of(kspace, torch.arange(32).expand(3, -1) % 3 == 0)
    calls = []
    monkeypatch.setattr(torch.nn.functional, "instance_norm", counted(calls))

    def passed() -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        image = model.reconstruct(measured).image
        image.square().mean().backward()
        return image.detach(), [p.grad for p in model.parameters() if p.grad is not None]

    image, gradients = passed()
    n_plain = len(calls)
    model.compile_passes()
    found = passed()
    assert len(calls) == n_plain > 0
    torch.testing.assert_close(found[0], image, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1], gradients, rtol=1e-3, atol=1e-5)


def counted(calls: list[None]) -> object:
    """Return instance norm that notes its calls."""
    plain = torch.nn.functional.instance_norm

    def norm(features: Tensor) -> Tensor:
        calls.append(None)
        return plain(features)

    return norm
