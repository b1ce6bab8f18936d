"""The four nouns that everything else is functions over.

A `SliceBatch` is data, a `Reconstructor` turns a `Measurement` into a `Reconstruction`, an
`Observation` is all that a policy may see, and a `Policy` scores columns.

Axes: `batch` images (trajectories fold into it), `coil`, `row` (frequency encoding), `col` (phase
encoding, always last), `step` of an acquisition, `slice` of a data set, `candidate` columns tried.
Symbols of the paper: N `n_cols`, L `n_initial`, M `budget`, T `horizon`, q `n_trajectories`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from kscout.errors import ConfigError, unknown_name
from kscout.names import PROTOCOLS, Protocol
from kscout.physics.fourier import fft2c
from kscout.physics.measurement import Measurement
from kscout.physics.normalization import EPSILON, denormalize, normalize, normalize_with, statistics

PRECISIONS = ("auto", "fp32", "fp16")
"""Arithmetic of a frozen reconstructor; `auto` is `fp16` where it exists for network, image size
and device, else `fp32`."""

DEFAULT_BYTES_PER_PIXEL = 512
"""Per coil: 64 complex images in 32 bit, where a reconstructor does not know better."""
_LEAST_RANGE = 1e-9
"""Of an image without any contrast, whose SSIM would be undefined."""


@final
@dataclass(frozen=True)
class Reconstruction:
    """An image in normalized units, and the statistics that undo that under protocol `blind`."""

    image: Float[Tensor, "batch row col"]
    mean: Float[Tensor, " batch"]
    std: Float[Tensor, " batch"]

    @classmethod
    def of(cls, image: Float[Tensor, "batch row col"]) -> "Reconstruction":
        """Normalize images in the scanner's units by their own statistics, without clamping."""
        mean, std = statistics(image)
        return cls((image - mean[:, None, None]) / (std[:, None, None] + EPSILON), mean, std)


@final
@dataclass(frozen=True)
class SliceBatch:
    """Fully sampled slices with all that is needed to acquire and to score them."""

    kspace: Complex[Tensor, "batch coil row col"]
    """Full k-space; for stores of images the transform of the image, hence Hermitian."""
    target: Float[Tensor, "batch row col"]
    """Ground truth of all metrics: the magnitude image, clamped at six standard deviations."""
    target_mean: Float[Tensor, " batch"]
    target_std: Float[Tensor, " batch"]
    data_range: Float[Tensor, " batch"]
    """Maximum of the target over the slice's volume."""
    selectable: Bool[Tensor, "batch col"]
    """Columns inside the measured matrix; no others may be acquired."""
    index: Int[Tensor, " batch"]
    """Position of each slice in its data set: keys the random draws."""

    def __len__(self) -> int:
        return self.kspace.shape[0]

    @property
    def n_cols(self) -> int:
        return self.kspace.shape[-1]

    def tensors(self) -> list[Tensor]:
        """Return the fields in their order: `SliceBatch(*tensors)` is the batch again."""
        return [getattr(self, field.name) for field in fields(self)]

    def rows(self, selection: Int[Tensor, " n"]) -> "SliceBatch":
        """Return the chosen slices, in that order; one may be chosen several times."""
        return SliceBatch(*(tensor[selection] for tensor in self.tensors()))

    def to(self, device: torch.device | str) -> "SliceBatch":
        """Return the same slices on another device."""
        return SliceBatch(*(tensor.to(device, non_blocking=True) for tensor in self.tensors()))

    @classmethod
    def of_images(
        cls, images: Float[Tensor, "batch row col"], range_per_std: float | Float[Tensor, ""]
    ) -> "SliceBatch":
        """Return images as if they were the truth, never waiting for the device.

        Args:
            images: no pixel below zero.
            range_per_std: data range over the deviation of an image: none tells its volume's.
        """
        normalized, (n_images, _, n_cols) = normalize(images), images.shape
        return cls(
            kspace=fft2c(images)[:, None],
            target=denormalize(*normalized),
            target_mean=normalized.mean,
            target_std=normalized.std,
            data_range=(normalized.std * range_per_std).clamp(min=_LEAST_RANGE),
            selectable=torch.ones(n_images, n_cols, dtype=torch.bool, device=images.device),
            index=torch.arange(n_images, device=images.device),
        )

    def units(
        self, found: Reconstruction, protocol: Protocol
    ) -> tuple[Float[Tensor, " _"], Float[Tensor, " _"]]:
        """Return the mean and standard deviation that a protocol un-normalizes images with.

        Under `paper` those of the targets, one per slice of this batch; under `blind` those of the
        reconstruction, one per image of `found`.
        """
        # Paper: scores use the target's statistics, which no scanner has.
        is_paper = protocol == "paper"
        return (self.target_mean, self.target_std) if is_paper else (found.mean, found.std)

    def unnormalized(
        self, found: Reconstruction, protocol: Protocol
    ) -> Float[Tensor, "batch row col"]:
        """Return one reconstruction per slice of this batch in the target's units."""
        return denormalize(found.image.float(), *self.units(found, protocol))


class Reconstructor(nn.Module, ABC):
    """Turns what was measured into an image.

    A new one implements `reconstruct` alone, for any number of coils and any image size. One with
    parameters is trained by `loss`, so gradients must flow from the image back to them. Images of
    a batch are independent of each other.
    """

    protocol: Protocol | None = None
    """The protocol that a learned one was trained for; None where images are normalized by their
    own statistics, which suits both."""
    precision: str = "fp32"
    """Arithmetic that `reconstruct` runs in."""
    waits_for_device: bool = False
    """Whether it reads values back from the device, so that no CUDA graph can hold it."""
    recorded: Mapping[str, Any] = MappingProxyType({})
    """What its weights file records about its training."""

    @property
    def original(self) -> "Reconstructor":
        """The reconstructor that this is a frozen view of; itself where it is no view."""
        return next(iter(getattr(self, "_viewed", ())), self)

    @abstractmethod
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        """Return the images, in normalized units."""

    def calibrate(self, measured: Measurement) -> Complex[Tensor, "batch coil row col"] | None:
        """Return sensitivities that are kept from the start of an acquisition to its end.

        They come back as `Measurement.maps` with whatever is measured later. None where there is
        nothing to keep.
        """
        return None

    def forward(
        self, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> Reconstruction:
        """Reconstruct from k-space, of which only the measured columns are looked at."""
        return self.reconstruct(Measurement.of(kspace, mask))

    def loss(self, found: Reconstruction, batch: SliceBatch) -> Float[Tensor, ""]:
        """Return what training minimizes: the mean absolute error.

        Where the reconstructor has a protocol, the error of normalized images, the target being
        normalized as that protocol un-normalizes. Elsewhere the error of un-normalized images, in
        units of the target's standard deviation.

        Args:
            found: what `reconstruct` returned for the slices of the batch, in their order.
            batch: the truth.
        """
        if self.protocol is None:
            error = batch.unnormalized(found, "blind") - batch.target
            return (error.abs() / batch.target_std[:, None, None]).mean()
        target = normalize_with(batch.target, *batch.units(found, self.protocol))
        return (found.image.float() - target).abs().mean()

    def protocol_for(self, chosen: Protocol | None = None) -> Protocol:
        """Return the protocol of scores: the chosen one, else that of its training, else `blind`.

        Trainings, evaluations and analyses all follow this rule.
        """
        return chosen or self.protocol or "blind"

    def target_note(self, rule: str, n_coils: int) -> str | None:
        """Return what to tell a user whose targets combine coils otherwise than its images do.

        Args:
            rule: of the targets, a name in `kscout.names.TARGETS`.
            n_coils: that are combined.
        """
        return None

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        """Return the peak memory in bytes that one more image takes, without gradients."""
        return DEFAULT_BYTES_PER_PIXEL * n_coils * n_rows * n_cols

    def frozen(
        self, *, precision: str, n_rows: int, n_cols: int, device: torch.device | str
    ) -> "Reconstructor":
        """Return a reconstructor of the same images that is not trained any more.

        It may be this one, moved and frozen, or a faster view of it.

        Args:
            precision: one of `PRECISIONS`.
            n_rows: of the images that it will see.
            n_cols: of the images that it will see.
            device: where it will run.
        """
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, list(PRECISIONS))
        if precision == "fp16":
            raise ConfigError(
                f"no 16-bit kernels for a {type(self).__name__} on {n_rows}x{n_cols} images on "
                f"{device}; they serve U-Nets of 16, 32, ... channels on CUDA: use precision fp32"
            )
        return self.to(device).eval().requires_grad_(False)

    def compile_passes(self) -> None:
        """Let torch.compile build the passes of its network where that serves; weights stay."""

    def refresh(self) -> None:
        """Take the present weights of what this is a frozen view of, in place.

        A CUDA graph that holds the view sees the change. Nothing to do where both share weights.
        """


@final
@dataclass(frozen=True)
class Truth:
    """What only an oracle is shown."""

    kspace_error: Float[Tensor, "batch col"]
    """Squared error of the reconstruction's k-space, summed over each column."""
    candidate_scores: Float[Tensor, "batch col"] | None = None
    """SSIM after measuring each column; only for policies that set `needs_candidate_scores`."""
    score: Float[Tensor, " batch"] | None = None
    """SSIM of the reconstruction as it is; likewise."""


class Judge(ABC):
    """Tries columns on images that are taken for the truth, as an acquisition does on its slices.

    It knows reconstruction, protocol and metric, and nothing of what is acquired.
    """

    @abstractmethod
    def gains(
        self,
        truth: SliceBatch,
        mask: Bool[Tensor, "batch col"],
        columns: Int[Tensor, "batch candidate"],
    ) -> Float[Tensor, "batch candidate"]:
        """Return what columns gain; 0 for those that a mask has."""


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
    zero_filled: Complex[Tensor, "batch coil row col"] | None = None
    """Inverse transform of the measured k-space, which `fft2c` gives back; coils are combined into
    one image without its phase (`kscout.physics.coils.combined`). None, as are `mean` and `std`,
    except for policies that set `needs_measurement`."""
    mean: Float[Tensor, " batch"] | None = None
    """The reconstructor's estimate of the image's mean, from the measurement."""
    std: Float[Tensor, " batch"] | None = None
    """The same of its standard deviation: `image * std + mean` is in the scanner's units."""
    truth: Truth | None = None
    """None, except for policies that set `needs_target`."""
    n_left: int | Int[Tensor, " batch"] | None = None
    """How many columns may still be acquired, the next one included; None where nobody counts."""
    judge: Judge | None = None
    """None, except for policies that set `needs_judge`."""

    def for_each(self, count: int | Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return a count such as `step` as one number per image, filled in on their device."""
        if isinstance(count, Tensor):
            return count
        return torch.full((len(self.mask),), count, device=self.mask.device)


class Policy(nn.Module, ABC):
    """Scores columns; never masks, samples, counts budget or sees the target.

    A new one implements `forward`. Scores are logits where `is_stochastic`, else the best
    unmeasured column is taken. Scores of measured columns are ignored.
    """

    is_stochastic: bool = True
    """Whether scores are logits to draw from; an estimator may change it for what it trains."""
    needs_measurement: ClassVar[bool] = False
    """Whether it looks at the complex zero-filled image or the statistics, not the image alone."""
    needs_coils: ClassVar[bool] = False
    """Whether that image is to have every coil; else they are combined to one."""
    needs_judge: bool = False
    """Whether it tries columns on images of its own, as the simulator does on the truth."""
    needs_target: ClassVar[bool] = False
    """An oracle: shown as such in every table and figure."""
    needs_candidate_scores: ClassVar[bool] = False
    serves_any_size: bool = False
    """Whether it scores the columns of other matrix sizes than its `n_cols`."""
    changeable: ClassVar[tuple[str, ...]] = ()
    """Arguments that a training which begins from its weights may have otherwise."""
    gain_units: Sequence[float] = ()
    """The gain in SSIM that a score of 1 predicts, by the number of columns acquired (the last for
    all that follow): what a stopping rule asks. Empty where scores predict no gain."""
    labels: str = ""
    """The metric whose gain by the next column scores were trained to predict, where that is
    known."""
    recorded: Mapping[str, Any] = MappingProxyType({})
    """What its weights file records about its training."""

    @abstractmethod
    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Return one score per column."""

    def __call__(self, seen: Observation) -> Float[Tensor, "batch col"]:
        scores = super().__call__(seen)
        # A shape is known without waiting for the device.
        if not isinstance(scores, Tensor) or scores.shape != seen.mask.shape:
            is_tensor = isinstance(scores, Tensor)
            found = f"shape {tuple(scores.shape)}" if is_tensor else f"type {type(scores).__name__}"
            raise ConfigError(
                f"{type(self).__name__} returned scores of {found}; return a tensor of shape "
                f"{tuple(seen.mask.shape)}, one score per image and column, and try the policy "
                "with kscout.contracts.check_policy"
            )
        return scores

    def units_at(self, mask: Bool[Tensor, "n col"], step: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the gain that a score of 1 predicts at each state; 1 where none is predicted."""
        table = torch.tensor(self.gain_units or (1.0,), device=mask.device)
        return table[step.clamp(max=len(table) - 1)]

    def misfit(self, n_rows: int, n_cols: int) -> tuple[str, int] | None:
        """Return what it was made for (`128 columns`) and what a matrix has; None where it fits."""
        for word, name, found in (("rows", "n_rows", n_rows), ("columns", "n_cols", n_cols)):
            wanted = getattr(self, name, None)
            if wanted is not None and wanted != found and not self.serves_any_size:
                return f"{wanted} {word}", found
        return None


__all__ = [
    "PRECISIONS",
    "PROTOCOLS",
    "Judge",
    "Measurement",
    "Observation",
    "Policy",
    "Protocol",
    "Reconstruction",
    "Reconstructor",
    "SliceBatch",
    "Truth",
]
