"""The whole fused U-Net, its kernels run thread by thread on the CPU, agrees with the network."""

from typing import Any

import pytest
import torch
from emulated import Emulated

from kscout.layers.unet import UNetNetwork
from kscout.reconstruction.unet_fused import FusedUNet

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiler")]


def test_fused_unet_equals_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kscout.kernels.convolution", "kscout.reconstruction.unet_fused"):
        monkeypatch.setattr(f"{module}.compile_kernel", Emulated)
    torch.manual_seed(1)
    network = UNetNetwork(n_channels=16, n_pools=2, dropout=0.0)
    images, n_images = torch.rand(3, 16, 32), torch.tensor(2, dtype=torch.int32)
    mean, std = images.mean((1, 2)), images.std((1, 2))
    fused: Any = FusedUNet(network, 16, 32)
    found = fused(images, mean, std, n_images)[:2]
    normalized = (images - mean[:, None, None]) / std[:, None, None]
    expected = network(normalized[:2, None])[:, 0].detach()
    assert (found - expected).abs().max() < 0.02 * expected.std()
