"""The U-Net is the reference's: names, sizes, outputs, gradients."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastmri_definition import expected_output
from golden_numbers import Golden
from kscout.core import Measurement, Reconstructor
from kscout.errors import ConfigError
from kscout.kernels.registry import compiled_kernels
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import normalize
from kscout.physics.sampling import apply_mask
from kscout.reconstruction import RECONSTRUCTORS
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.reconstruction.unet import InferenceReconstructor, UNet
from kscout.reconstruction.unet_inference import InferenceUNet
from kscout.training.convolution import can_compile

TOLERANCE = 1e-4


def zero_filled(golden: Golden, size: int = 128) -> Tensor:
    return golden("inputs", f"zf_r{size}_a8")[:, None]


def test_the_default_is_the_papers_size(golden: Golden) -> None:
    count = sum(p.numel() for p in UNet().network.parameters())
    assert count == 837_635 == int(golden("unet", "params_unet"))


def test_the_same_seed_initializes_the_reference_weights(golden: Golden) -> None:
    torch.manual_seed(0)
    state = UNet(n_channels=4).network.state_dict()
    expected = golden.state("unet", "small_state")
    assert list(state) == list(expected)
    assert all(torch.equal(state[name], expected[name]) for name in expected)


@pytest.mark.parametrize("size", [64, 128])
def test_trained_network_gives_the_reference_output(golden: Golden, size: int) -> None:
    output = unet(golden).network(zero_filled(golden, size))
    expected = golden("unet", f"trained_out_r{size}")
    torch.testing.assert_close(output, expected, atol=TOLERANCE, rtol=0)


def test_statistics_are_those_of_the_zero_filled_image(generator: torch.Generator) -> None:
    kspace = torch.randn(2, 1, 18, 35, dtype=torch.complex64, generator=generator)
    mask = torch.rand(2, 35, generator=generator) < 0.5
    unet = UNet(n_channels=2, n_pools=2).eval()
    with torch.no_grad():
        reconstruction = unet(kspace, mask)
    image = ifft2c(apply_mask(kspace, mask))[:, 0].abs()
    expected = (
        [float(np.mean(one.numpy())) for one in image],
        [float(np.std(one.numpy(), ddof=1)) for one in image],
    )
    torch.testing.assert_close(reconstruction.mean, torch.tensor(expected[0]))
    torch.testing.assert_close(reconstruction.std, torch.tensor(expected[1]))
    with torch.no_grad():
        direct = unet.network(normalize(image).image[:, None])[:, 0]
    torch.testing.assert_close(reconstruction.image, direct)


def test_too_small_images_are_refused_with_the_smallest_size() -> None:
    with pytest.raises(ConfigError, match=r"16x31 are too small for 4 poolings.*32x16"):
        UNet(n_channels=2).network(torch.randn(1, 1, 16, 31))


def test_channels_last_changes_nothing() -> None:
    torch.manual_seed(0)
    network = UNet(n_channels=3, n_pools=2).network
    image = torch.randn(2, 1, 12, 20)
    with torch.no_grad():
        plain = network(image)
        last = network.to(memory_format=torch.channels_last)(image)
    torch.testing.assert_close(last, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ({"n_channels": 1}, "n_channels must be at least 2"),
        ({"n_pools": 0}, "n_pools at least 1"),
        ({"n_pools": 10**6}, "n_pools is 1000000; use at most 12"),
    ],
)
def test_impossible_networks_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        UNet(**arguments)


@pytest.mark.parametrize("n_rows, n_cols", [(16, 24), (17, 23), (18, 29)])
@pytest.mark.parametrize("n_pools", [1, 3])
def test_the_network_is_fastmris(n_pools: int, n_rows: int, n_cols: int) -> None:
    torch.manual_seed(0)
    network = FastMRIUNet(n_channels=3, n_pools=n_pools).network.eval()
    image = torch.randn(2, 1, n_rows, n_cols)
    with torch.no_grad():
        found = network(image)
        expected = expected_output(dict(network.state_dict()), image, n_pools)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


def test_the_default_has_as_many_parameters_as_fastmris_default() -> None:
    widths = [32, 64, 128, 256, 512]
    pairs = [(1, 32), (32, 64), (64, 128), (128, 256), (256, 512)]
    down = sum(9 * (n_in * n_out + n_out * n_out) for n_in, n_out in pairs)
    up = sum(4 * 2 * w * w + 9 * (2 * w * w + w * w) for w in widths[:-1])
    assert sum(p.numel() for p in FastMRIUNet().parameters()) == down + up + 32 + 1 == 7_756_097


def test_the_image_is_the_output_undone_with_the_zero_filled_statistics(
    generator: torch.Generator,
) -> None:
    kspace = 30 * torch.randn(2, 1, 12, 17, dtype=torch.complex64, generator=generator)
    mask = torch.rand(2, 17, generator=generator) < 0.6
    reconstructor = FastMRIUNet(n_channels=2, n_pools=2).eval()
    with torch.no_grad():
        found = reconstructor(kspace, mask)
        zero_filled = ifft2c(apply_mask(kspace, mask))[:, 0].abs()
        for index, image in enumerate(zero_filled):
            scaled = ((image - image.mean()) / image.std()).clamp(-6, 6)
            output = reconstructor.network(scaled[None, None])[0, 0]
            expected = output * image.std() + image.mean()
            undone = found.image[index] * found.std[index] + found.mean[index]
            torch.testing.assert_close(undone, expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(found.image.mean(dim=(1, 2)), torch.zeros(2), atol=1e-4, rtol=0)
    torch.testing.assert_close(found.image.std(dim=(1, 2)), torch.ones(2), atol=1e-4, rtol=0)


def test_impossible_networks_of_fastmri_are_refused() -> None:
    with pytest.raises(ConfigError, match="both must be at least 1"):
        FastMRIUNet(n_pools=0)


def unet(golden: Golden) -> UNet:
    found = RECONSTRUCTORS["unet"]()
    assert isinstance(found, UNet)
    found.network.load_state_dict(golden.state("unet_trained", "trained_state"))
    return found.eval().requires_grad_(False)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("n_cols", [64, 128])
def test_outputs_are_golden_in_both_layouts_and_compiled(
    layout: torch.memory_format, n_cols: int, compiles: bool, golden: Golden
) -> None:
    network = InferenceUNet(unet(golden).network).to(memory_format=layout)
    with compiled_kernels(enabled=compiles):
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
    slow = unet(golden)
    fast = slow.frozen(precision=precision, n_rows=64, n_cols=64, device="cpu")
    assert isinstance(fast, InferenceReconstructor)
    assert not list(fast.parameters()) and fast.protocol == slow.protocol
    kspace = torch.randn(2, 1, 64, 64, dtype=torch.complex64)
    mask = torch.arange(64).expand(2, -1) % 3 == 0
    found, expected = fast(kspace, mask), slow(kspace, mask)
    torch.testing.assert_close(found.image, expected.image, atol=1e-4, rtol=0)
    assert torch.equal(found.mean, expected.mean) and torch.equal(found.std, expected.std)


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
