"""Networks whose passes are compiled give the images and gradients that they gave before."""

from functools import partial

import pytest
import torch
from torch import Tensor

from kscout.core import Measurement, Reconstructor
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.reconstruction.unet import UNet


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
