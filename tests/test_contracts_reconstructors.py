"""Every registered reconstructor keeps the contract, and each way to break it is caught."""

import pytest
import torch
from torch import Tensor

from kscout.contracts import check_reconstructor
from kscout.core import Measurement, Reconstruction, Reconstructor
from kscout.errors import ConfigError
from kscout.physics.normalization import magnitude, normalize
from kscout.reconstruction import RECONSTRUCTORS

SMALL = {
    "unet": {"n_channels": 2, "n_pools": 2},
    "fastmri-unet": {"n_channels": 2, "n_pools": 2},
    "sense-tv": {"n_iterations": 6},
    "varnet": {"n_cascades": 2, "n_channels": 2, "sensitivity_channels": 2},
}

WIDE = ("sense", "sense-tv", "zero-filled-weighted")
"""Sensitivities need eight central columns, which the checks start from at 64."""


@pytest.mark.parametrize("n_coils", [1, 3])
@pytest.mark.parametrize("name", RECONSTRUCTORS)
def test_registered_reconstructors_keep_the_contract(name: str, n_coils: int) -> None:
    torch.manual_seed(0)
    reconstructor = RECONSTRUCTORS[name](**SMALL.get(name, {}))
    n_cols = 65 if name in WIDE else 25
    check_reconstructor(reconstructor, n_rows=18, n_cols=n_cols, n_coils=n_coils)


def plain(zero_filled: Tensor) -> Reconstruction:
    return Reconstruction(*normalize(magnitude(zero_filled)))


class WrongSize(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        return plain(measured.zero_filled[..., 1:])


class DoublePrecision(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        return plain(measured.zero_filled.to(torch.complex128))


class NotFinite(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        found = plain(measured.zero_filled)
        return Reconstruction(found.image / (found.image > 0), found.mean, found.std)


class Random(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        found = plain(measured.zero_filled)
        noise = 0.1 * torch.randn(found.image.shape)
        return Reconstruction(found.image + noise, found.mean, found.std)


class BatchNormalized(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image = magnitude(measured.zero_filled)
        std, mean = torch.std_mean(image)
        n_batch = len(image)
        return Reconstruction((image - mean) / std, mean.expand(n_batch), std.expand(n_batch))


class InPlace(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        found = plain(measured.zero_filled)
        measured.mask.logical_not_()
        return found


class NeedsGradient(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        image = magnitude(measured.zero_filled).requires_grad_()
        (slope,) = torch.autograd.grad(image.square().sum(), image)
        return Reconstruction(*normalize(image - 0.1 * slope))


class NoDeviation(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        found = plain(measured.zero_filled)
        return Reconstruction(found.image, found.mean, 0 * found.std)


class NotLearning(Reconstructor):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        return plain(measured.zero_filled * self.weight.detach())


class TakesNoMemory(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        return plain(measured.zero_filled)

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        return 0


class BareTensor(Reconstructor):
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        return plain(measured.zero_filled).image  # type: ignore[return-value]


@pytest.mark.parametrize(
    "broken, sentence",
    [
        (WrongSize, r"image has shape \(3, 18, 24\), expected \(3, 18, 25\)"),
        (DoublePrecision, r"image is torch.float64, expected torch.float32"),
        (NotFinite, r"image has values that are not finite"),
        (Random, r"the same k-space gave two different images"),
        (BatchNormalized, r"image 0 differs"),
        (InPlace, r"it wrote into its inputs"),
        (NeedsGradient, r"RuntimeError on k-space of 3x1x18x25 without gradients"),
        (NoDeviation, r"std is not above zero"),
        (NotLearning, r"the gradients of its loss are not finite"),
        (TakesNoMemory, r"n_bytes is 0"),
    ],
)
def test_a_broken_promise_is_named(broken: type[Reconstructor], sentence: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{broken.__name__} breaks the contract: {sentence}"):
        check_reconstructor(broken(), n_rows=18, n_cols=25)


def test_a_bare_tensor_is_refused() -> None:
    with pytest.raises(ConfigError, match="BareTensor breaks the contract"):
        check_reconstructor(BareTensor(), n_rows=18, n_cols=25)


def test_a_reconstructor_that_peeks_is_caught() -> None:
    class Peeking(Reconstructor):
        """Gets around the masking of `forward` by replacing the call."""

        def reconstruct(self, measured: Measurement) -> Reconstruction:
            return plain(measured.zero_filled)

        def __call__(self, kspace: Tensor, mask: Tensor) -> Reconstruction:
            return self.reconstruct(Measurement(torch.fft.ifft2(kspace), mask))

    with pytest.raises(ConfigError, match="depends on columns that are not measured"):
        check_reconstructor(Peeking(), n_rows=18, n_cols=25)


def test_a_reconstructor_left_in_training_mode_is_put_in_evaluation_mode() -> None:
    unet = RECONSTRUCTORS["unet"](n_channels=4, n_pools=2, dropout=0.5)
    check_reconstructor(unet, n_rows=18, n_cols=25)
    assert not unet.training


def test_sizes_that_a_network_cannot_take_keep_its_own_sentence() -> None:
    with pytest.raises(ConfigError, match="too small for 4 poolings"):
        check_reconstructor(RECONSTRUCTORS["unet"](n_channels=2), n_rows=18, n_cols=25)
