"""The four nouns that everything else is functions over.

A `SliceBatch` is data, a `Reconstructor` turns masked k-space into an image, an `Observation` is
all that a policy may see, and a `Policy` scores columns.

Axes: `batch` images (trajectories fold into it), `coil`, `row` (frequency encoding), `col` (phase
encoding, always last), `step` of an acquisition, `slice` of a data set, `candidate` columns tried.
Symbols of the paper: N `n_cols`, L `n_initial`, M `budget`, T `horizon`, q `n_trajectories`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from kscout.names import PROTOCOLS, Protocol
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import magnitude, statistics
from kscout.physics.sampling import apply_mask


@final
@dataclass(frozen=True)
class SliceBatch:
    """Fully sampled slices with all that is needed to acquire and to score them."""

    kspace: Complex[Tensor, "batch coil row col"]
    """Full k-space; for stores of images the transform of the image, hence Hermitian."""
    target: Float[Tensor, "batch row col"]
    """What scores compare with: the image, clamped at six deviations from its mean."""
    target_mean: Float[Tensor, " batch"]
    target_std: Float[Tensor, " batch"]
    data_range: Float[Tensor, " batch"]
    """Maximum of the target over the slice's volume."""
    selectable: Bool[Tensor, "batch col"]
    """Columns inside the measured matrix: only these may be acquired."""
    index: Int[Tensor, " batch"]
    """Position of each slice in its data set: keys the random draws."""

    def __len__(self) -> int:
        return self.kspace.shape[0]

    @property
    def n_cols(self) -> int:
        return self.kspace.shape[-1]

    def rows(self, selection: Int[Tensor, " n"]) -> "SliceBatch":
        """Return the chosen slices, in that order; one may be chosen several times."""
        return SliceBatch(**{f.name: getattr(self, f.name)[selection] for f in fields(self)})

    def to(self, device: torch.device | str) -> "SliceBatch":
        """Return the same slices on another device."""
        return SliceBatch(
            **{f.name: getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)}
        )


@final
@dataclass(frozen=True)
class Reconstruction:
    """An image in normalized units, and the statistics that undo that under protocol `blind`."""

    image: Float[Tensor, "batch row col"]
    mean: Float[Tensor, " batch"]
    std: Float[Tensor, " batch"]


class Reconstructor(nn.Module, ABC):
    """Turns masked k-space into an image.

    A new one implements `from_zero_filled` alone. The complex zero-filled image is the masked
    k-space, one unitary transform away: nothing is lost, and measuring one more column is a
    rank-one update of it instead of a new transform. A method that works in k-space calls `fft2c`.
    """

    protocol: Protocol | None = None
    """The protocol that a learned one was trained for; None where both are alike."""

    @abstractmethod
    def from_zero_filled(
        self,
        zero_filled: Complex[Tensor, "batch coil row col"],
        mask: Bool[Tensor, "batch col"],
    ) -> Reconstruction:
        """Reconstruct from the inverse transform of masked k-space."""

    def forward(
        self, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> Reconstruction:
        """Reconstruct from k-space, of which only the measured columns are looked at."""
        return self.from_zero_filled(ifft2c(apply_mask(kspace, mask)), mask)


class MagnitudeReconstructor(Reconstructor, ABC):
    """A reconstructor that looks at nothing but the magnitude of the zero-filled image.

    A new one implements `from_magnitude` alone.
    """

    @abstractmethod
    def from_magnitude(
        self,
        magnitude: Float[Tensor, "batch row col"],
        mean: Float[Tensor, " batch"],
        std: Float[Tensor, " batch"],
        n_images: Int[Tensor, ""] | None = None,
    ) -> Float[Tensor, "batch row col"]:
        """Return images in normalized units.

        Args:
            magnitude: zero-filled magnitudes.
            mean: their means.
            std: their standard deviations, which undo the normalization under protocol `blind`.
            n_images: a count on the device: images from there on need not be made.
        """

    def from_zero_filled(
        self,
        zero_filled: Complex[Tensor, "batch coil row col"],
        mask: Bool[Tensor, "batch col"],
    ) -> Reconstruction:
        """Reconstruct from the coils' magnitude."""
        image = magnitude(zero_filled)
        mean, std = statistics(image)
        return Reconstruction(self.from_magnitude(image, mean, std), mean, std)


@final
@dataclass(frozen=True)
class Truth:
    """What only an oracle is shown."""

    kspace_error: Float[Tensor, "batch col"]
    """Squared error of the reconstruction's k-space, summed over each column."""
    candidate_scores: Float[Tensor, "batch col"] | None = None
    """SSIM after measuring each column; only for policies that set `needs_candidate_scores`."""


@final
@dataclass(frozen=True)
class Observation:
    """All that a policy may see when it chooses the next column."""

    image: Float[Tensor, "batch row col"]
    """The current reconstruction in normalized units."""
    mask: Bool[Tensor, "batch col"]
    """True where a column is measured."""
    step: int | Int[Tensor, " batch"] = 0
    """How many columns were acquired since the start, one number for all or one per image."""
    truth: Truth | None = None
    """None, except for policies that set `needs_target`."""


class Policy(nn.Module, ABC):
    """Scores columns; never masks, samples, counts budget or sees the target.

    A new one implements `forward`. Scores are logits where `is_stochastic`, else the best
    unmeasured column is taken. Scores of measured columns are ignored.
    """

    is_stochastic: ClassVar[bool] = True
    needs_target: ClassVar[bool] = False
    """An oracle: shown as such in every table and figure."""
    needs_candidate_scores: ClassVar[bool] = False

    @abstractmethod
    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Return one score per column."""

    def __call__(self, seen: Observation) -> Float[Tensor, "batch col"]:
        return super().__call__(seen)


__all__ = [
    "PROTOCOLS",
    "MagnitudeReconstructor",
    "Observation",
    "Policy",
    "Protocol",
    "Reconstruction",
    "Reconstructor",
    "SliceBatch",
    "Truth",
]
