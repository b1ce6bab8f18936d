"""The checker passes sound policies and names what a broken one breaks."""

import pytest
import torch
from torch import Tensor, nn

from kscout.contracts import check_policy, check_reconstructor
from kscout.core import Measurement, Observation, Policy, Reconstruction, Reconstructor
from kscout.errors import ConfigError, KScoutError
from kscout.physics.normalization import magnitude, normalize
from kscout.policies.fixed import CenterOut
from kscout.reconstruction import RECONSTRUCTORS


class OneScorePerImage(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=(1, 2))[:, None]


class WholeNumbers(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return torch.zeros(seen.mask.shape, dtype=torch.long)


class NotATensor(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return [0.0]  # type: ignore[return-value]


class MasksItself(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1).masked_fill(seen.mask, -torch.inf)


class RollsDice(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return torch.rand(seen.mask.shape)


class ChangesTheMask(Policy):
    def forward(self, seen: Observation) -> Tensor:
        scores = seen.image.mean(dim=1)
        seen.mask[:, 0] = True
        return scores


class LooksAround(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1) - seen.image.mean(dim=(0, 1))


class Peeks(Policy):
    def forward(self, seen: Observation) -> Tensor:
        if seen.truth is None:
            return seen.image.mean(dim=1)
        return seen.truth.kspace_error


class DependsOnTruth(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.truth.kspace_error  # type: ignore[union-attr]


class AsksForTooMuch(Policy):
    needs_candidate_scores = True

    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1)


@pytest.mark.parametrize(
    "broken, sentence",
    [
        (OneScorePerImage, r"shape \(3, 1\); return floating point of \(3, 11\)"),
        (WholeNumbers, "torch.int64"),
        (NotATensor, "returned a list"),
        (MasksItself, "not finite"),
        (RollsDice, "different scores the second time"),
        (ChangesTheMask, "in place"),
        (LooksAround, "other images of its batch"),
        (Peeks, "uses the ground truth; set needs_target = True"),
        (DependsOnTruth, "raised AttributeError"),
        (AsksForTooMuch, "candidate scores without needs_target"),
    ],
)
def test_a_broken_policy_is_told_what_it_breaks(broken: type[Policy], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{broken.__name__} breaks the contract: .*{sentence}"):
        check_policy(broken(), n_rows=9, n_cols=11)


class ByImage(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1) - seen.mask.float() * seen.step


class NormalizesBatches(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, seen: Observation) -> Tensor:
        return self.norm(seen.image[:, None]).mean(dim=(1, 2))


class Renamed(Policy):
    def __init__(self, n_hidden: int = 2) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, n_hidden)

    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1)


@pytest.mark.parametrize(
    "broken, sentence",
    [
        (NormalizesBatches, "has a BatchNorm2d at 'norm'"),
        (Renamed, r"takes 'n_hidden' but the object does not store it; set self\.n_hidden"),
    ],
)
def test_what_training_rejects_is_rejected(broken: type[Policy], sentence: str) -> None:
    with pytest.raises(KScoutError, match=sentence):
        check_policy(broken(), n_rows=9, n_cols=11)


def test_a_sound_policy_passes_whatever_its_mode() -> None:
    check_policy(ByImage().train(), n_rows=9, n_cols=11)


def test_a_policy_for_another_width_is_refused_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match="for 8 columns was given images of 11"):
        check_policy(CenterOut(n_cols=8), n_rows=9, n_cols=11)


def test_images_too_narrow_to_check_with_are_refused() -> None:
    with pytest.raises(ConfigError, match="n_cols = 3"):
        check_policy(ByImage(), n_rows=9, n_cols=3)


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
        (BareTensor, ""),
    ],
)
def test_a_broken_promise_is_named(broken: type[Reconstructor], sentence: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{broken.__name__} breaks the contract: {sentence}"):
        check_reconstructor(broken(), n_rows=18, n_cols=25)


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
