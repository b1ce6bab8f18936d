"""The whole fused U-Net, its kernels run thread by thread on the CPU, agrees with the network."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulated import Emulated
from torch import Tensor

from fused_policies import scores_from
from kscout.core import Measurement, Observation
from kscout.kernels.convolution import Features
from kscout.layers import UNetNetwork
from kscout.physics.fourier import fft2c
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
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


SIZE = 16


@pytest.fixture(params=[16, 8])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ConvPolicy:
    for module in ("kernels.convolution", "kernels.convolution_backward", "policies.conv_fused"):
        monkeypatch.setattr(f"kscout.{module}.compile_kernel", Emulated)
    few = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: few)
    multiply = torch.mm

    def mm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        return multiply(a.to(out_dtype), b.to(out_dtype))

    monkeypatch.setattr(torch, "mm", mm)
    torch.manual_seed(0)
    made = ConvPolicy(n_cols=SIZE, n_channels=request.param, n_blocks=2, n_hidden=32)
    return made


def test_fused_policy_has_the_gradients_of_the_network(
    policy: ConvPolicy, generator: torch.Generator
) -> None:
    n_images = 3
    image = 2 * torch.randn(n_images, SIZE, SIZE, generator=generator)
    seen = Observation(image=image, mask=torch.zeros(n_images, SIZE, dtype=torch.bool))
    weight = 1e-4 * torch.randn(n_images, SIZE, generator=generator)
    fused: Any = HalfPrecisionConvPolicy(policy)
    fused.keep(n_images, 2**30)
    with torch.no_grad():
        expected = policy(seen)
        assert (fused(seen) - expected).abs().max() < 2e-2 * expected.std()
    outputs = [features.values.clone() for features in fused.kept.features]
    flat, weights = fused.kept.flat[:n_images], fused.packed_dense.T
    dense = torch.mm(flat, weights, out_dtype=torch.float32) + fused.dense.bias
    found = []
    for scores in (scores_from(policy, image, outputs, dense), fused(seen), fused.recall(seen, 0)):
        policy.zero_grad()
        (scores.log_softmax(-1) * weight).sum().backward()
        found.append({name: p.grad for name, p in policy.named_parameters() if p.grad is not None})
    slow, *fast = found
    for name, gradient in slow.items():
        for own in fast:
            if name.endswith("layers.0.bias"):
                assert not own[name].any()
            else:
                assert (own[name] - gradient).norm() < 5e-3 * gradient.norm(), name


def test_many_batch_sizes_share_few_buffers(
    policy: ConvPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kscout.reconstruction.unet_fused.compile_kernel", Emulated)
    unet: Any = FusedUNet(UNetNetwork(n_channels=16, n_pools=1, dropout=0.0), SIZE, SIZE)
    fused: Any = HalfPrecisionConvPolicy(policy)
    for n_images in range(1, 34):
        assert all(len(x.values) == n_images for x in unet._buffers(n_images))
        assert len(fused._room(n_images).flat) == n_images
    assert sum(len(x[0].values) for x in unet.buffers.values()) == 127
    assert sum(len(x.flat) for x in fused.rooms.values()) == 127
