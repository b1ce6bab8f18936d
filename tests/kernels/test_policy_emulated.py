"""The fused policy, run thread by thread on the CPU, has the gradients of the network."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulated import Emulated
from torch import Tensor

from fused_policies import scores_from
from kscout.core import Observation
from kscout.layers.unet import UNetNetwork
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.reconstruction.unet_fused import FusedUNet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiler")]

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
