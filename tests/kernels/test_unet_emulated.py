"""The whole fused U-Net, its kernels run thread by thread on the CPU, agrees with the network."""

from typing import Any

import pytest
import torch
from emulated import Emulated

from kscout.core import Measurement
from kscout.kernels.convolution import Features
from kscout.layers.unet import UNetNetwork
from kscout.physics.fourier import fft2c
from kscout.reconstruction.unet import HalfPrecisionUNet, UNet
from kscout.reconstruction.unet_fused import FusedUNet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiler")]


def test_fused_unet_equals_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    n_rows, n_cols = 48, 32
    for module in ("kscout.kernels.convolution", "kscout.reconstruction.unet_fused"):
        monkeypatch.setattr(f"{module}.compile_kernel", Emulated)
    torch.manual_seed(1)
    network = UNetNetwork(n_channels=16, n_pools=2, dropout=0.0)
    images, n_images = torch.rand(3, n_rows, n_cols), torch.tensor(2, dtype=torch.int32)
    mean, std = images.mean((1, 2)), images.std((1, 2))
    fused: Any = FusedUNet(network, n_rows, n_cols)
    found = fused(images, mean, std, n_images)[:2]
    normalized = (images - mean[:, None, None]) / std[:, None, None]
    expected = network(normalized[:2, None])[:, 0].detach()
    assert (found - expected).abs().max() < 0.02 * expected.std()


def test_networks_of_several_sizes_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kscout.kernels.convolution", "kscout.reconstruction.unet_fused"):
        monkeypatch.setattr(f"{module}.compile_kernel", Emulated)
    torch.manual_seed(2)
    unet = UNet(n_channels=16, n_pools=1, dropout=0.0).eval()
    shared = HalfPrecisionUNet(unet, n_rows=16, n_cols=32, make_kernels=FusedUNet)
    images = {n: torch.rand(2, 16, n) for n in (32, 16)}
    measured = {
        n: Measurement.of(fft2c(x + 0j), torch.ones(2, n).bool()) for n, x in images.items()
    }
    for n_cols in (32, 16, 32):
        found = shared.reconstruct(measured[n_cols]).image
        alone = HalfPrecisionUNet(unet, n_rows=16, n_cols=n_cols, make_kernels=FusedUNet)
        assert torch.equal(found, alone.reconstruct(measured[n_cols]).image)
    (block,) = shared.workspace.blocks
    assert {x[0].values.untyped_storage().data_ptr() for x in _buffers(shared)} == {
        block.untyped_storage().data_ptr()
    }


def _buffers(shared: HalfPrecisionUNet) -> list[list[Features]]:
    return [x for fused in shared.by_size.values() if fused for x in fused.buffers.values()]


def test_sizes_that_kernels_do_not_serve_go_through_the_plain_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("kscout.kernels.convolution", "kscout.reconstruction.unet_fused"):
        monkeypatch.setattr(f"{module}.compile_kernel", Emulated)
    asked = []

    def make_kernels(network: UNetNetwork, *size: Any) -> FusedUNet | None:
        asked.append(size[:2])
        return None if size[1] == 24 else FusedUNet(network, *size)

    torch.manual_seed(3)
    unet = UNet(n_channels=16, n_pools=1, dropout=0.0).eval().requires_grad_(False)
    view = HalfPrecisionUNet(unet, n_rows=16, n_cols=24, make_kernels=make_kernels)
    assert view.precision == "fp32"
    for n_cols in (24, 32, 24):
        image = torch.rand(2, 16, n_cols)
        measured = Measurement.of(fft2c(image + 0j), torch.ones(2, n_cols).bool())
        found, expected = (one.reconstruct(measured).image for one in (view, unet))
        assert torch.equal(found, expected) == (n_cols == 24)
        assert (found - expected).abs().max() < 0.02 * expected.std()
    view.refresh()
    assert asked == [(16, 24), (16, 32)]
    assert (
        HalfPrecisionUNet(unet, n_rows=16, n_cols=32, make_kernels=make_kernels).precision == "fp16"
    )
