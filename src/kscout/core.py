"""The four core types; all other code consists of functions on them.

A `SliceBatch` contains data, a `Reconstructor` maps a `Measurement` to a `Reconstruction`, an
`Observation` is everything that a policy may see, and a `Policy` scores columns.

Axes: `batch` images (trajectories fold into it), `coil`, `row` (frequency encoding), `col` (phase
encoding, always last), `step` of an acquisition, `slice` of a dataset, `candidate` columns.
Symbols of the paper: N `n_cols`, L `n_initial`, M `budget`, T `horizon`, q `n_trajectories`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import ClassVar, NoReturn, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from kscout.errors import ConfigError, unknown_name
from kscout.names import PROTOCOLS, Protocol
from kscout.physics.fourier import fft2c
from kscout.physics.measurement import Measurement
from kscout.physics.normalization import EPSILON, denormalize, normalize, normalize_with, statistics
from kscout.shapes import one_line

PRECISIONS = ("auto", "fp32", "fp16")
"""Arithmetic of a frozen reconstructor; `auto` is `fp16` if it exists for network, image size and
device, otherwise `fp32`."""

DEFAULT_BYTES_PER_PIXEL = 512
"""Default memory per coil: 64 complex images in 32 bit."""
_RETIRED = {"needs_judge": "needs_gain_estimator"}
"""Attributes of policies under their names of 0.2."""
_LEAST_RANGE = 1e-9
"""Data range of an image without contrast, whose SSIM would be undefined."""


@final
@dataclass(frozen=True, repr=False)
class Reconstruction:
    """An image in normalized units, and the statistics that undo this under protocol `blind`."""

    image: Float[Tensor, "batch row col"]
    mean: Float[Tensor, " batch"]
    std: Float[Tensor, " batch"]

    __repr__ = one_line

    @classmethod
    def of(cls, image: Float[Tensor, "batch row col"]) -> "Reconstruction":
        """Normalize images in the scanner's units by their own statistics, without clamping."""
        mean, std = statistics(image)
        return cls((image - mean[:, None, None]) / (std[:, None, None] + EPSILON), mean, std)


@final
@dataclass(frozen=True, repr=False)
class SliceBatch:
    """Fully sampled slices with the data for acquisition and scoring."""

    kspace: Complex[Tensor, "batch coil row col"]
    """Full k-space; for stores of images the transform of the image, hence Hermitian."""
    target: Float[Tensor, "batch row col"]
    """Ground truth of all metrics: the magnitude image, clamped at six standard deviations."""
    target_mean: Float[Tensor, " batch"]
    target_std: Float[Tensor, " batch"]
    data_range: Float[Tensor, " batch"]
    """Maximum of the target over the slice's volume."""
    selectable: Bool[Tensor, "batch col"]
    """Columns inside the measured matrix; others cannot be acquired."""
    index: Int[Tensor, " batch"]
    """Position of each slice in its dataset; random draws depend on it."""

    __repr__ = one_line

    def __len__(self) -> int:
        return self.kspace.shape[0]

    @property
    def n_cols(self) -> int:
        return self.kspace.shape[-1]

    def tensors(self) -> list[Tensor]:
        """Return the fields in order, so that `SliceBatch(*tensors)` restores the batch."""
        return [getattr(self, field.name) for field in fields(self)]

    def rows(self, selection: Int[Tensor, " n"]) -> "SliceBatch":
        """Return the selected slices, in that order; duplicates are allowed."""
        return SliceBatch(*(tensor[selection] for tensor in self.tensors()))

    def to(self, device: torch.device | str) -> "SliceBatch":
        """Return the same slices on another device."""
        return SliceBatch(*(tensor.to(device, non_blocking=True) for tensor in self.tensors()))

    @classmethod
    def of_images(
        cls, images: Float[Tensor, "batch row col"], range_per_std: float | Float[Tensor, ""]
    ) -> "SliceBatch":
        """Return images as ground truth, without synchronization.

        Args:
            images: images without negative pixels.
            range_per_std: data range over standard deviation; that of the volume is unknown.
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
        """Return the mean and standard deviation that a protocol denormalizes images with.

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
    """Maps a measurement to an image.

    A new one implements only `reconstruct`, for any number of coils and any image size. One with
    parameters is trained with `loss`, so it must be differentiable. Images of
    a batch are independent of each other.
    """

    protocol: Protocol | None = None
    """Protocol of its training; None if images are normalized by their own statistics, which
    supports both."""
    precision: str = "fp32"
    """Arithmetic of `reconstruct`."""
    waits_for_device: bool = False
    """Whether it reads values back from the device, which a CUDA graph does not allow."""
    recorded: Mapping[str, object] = MappingProxyType({})
    """Metadata of its training in its weights file."""

    @property
    def original(self) -> "Reconstructor":
        """The reconstructor that this is a frozen view of; itself if it is no view."""
        return next(iter(getattr(self, "_viewed", ())), self)

    @abstractmethod
    def reconstruct(self, measured: Measurement) -> Reconstruction:
        """Return the images, in normalized units."""

    def calibrate(self, measured: Measurement) -> Complex[Tensor, "batch coil row col"] | None:
        """Return sensitivities for all steps of an acquisition, estimated at its start.

        They are passed as `Measurement.maps` with all later measurements. None without
        sensitivities.
        """
        return None

    def forward(
        self, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> Reconstruction:
        """Reconstruct from k-space; only the measured columns are used."""
        return self.reconstruct(Measurement.of(kspace, mask))

    def loss(self, found: Reconstruction, batch: SliceBatch) -> Float[Tensor, ""]:
        """Return the training loss: the mean absolute error.

        With a protocol, the error of normalized images: the target is normalized with the
        statistics of that protocol. Otherwise the error of denormalized images, in
        units of the target's standard deviation.

        Args:
            found: output of `reconstruct` for the slices of the batch, in order.
            batch: the ground truth.
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

    def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
        """Return the peak memory in bytes for each additional image, without gradients."""
        return DEFAULT_BYTES_PER_PIXEL * n_coils * n_rows * n_cols

    def frozen(
        self, *, precision: str, n_rows: int, n_cols: int, device: torch.device | str
    ) -> "Reconstructor":
        """Return a reconstructor of the same images for inference.

        It may be this one, moved and frozen, or a faster view of it.

        Args:
            precision: one of `PRECISIONS`.
            n_rows: expected rows of the images.
            n_cols: expected columns of the images.
            device: device of the reconstructor.
        """
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, list(PRECISIONS))
        if precision == "fp16":
            raise ConfigError(
                f"no 16-bit kernels for a {type(self).__name__} on {n_rows}x{n_cols} images on "
                f"{device}; they exist for U-Nets of 16, 32, ... channels on CUDA: use precision "
                "fp32"
            )
        return self.to(device).eval().requires_grad_(False)

    def compile_passes(self) -> None:
        """Compile the network with torch.compile if that is faster; weights are unchanged."""

    def refresh(self) -> None:
        """Load the weights of the viewed reconstructor, in place; nothing if both share them."""


@final
@dataclass(frozen=True, repr=False)
class Truth:
    """Additional inputs of oracles."""

    kspace_error: Float[Tensor, "batch col"]
    """Squared error of the reconstruction's k-space, summed over each column."""
    candidate_scores: Float[Tensor, "batch col"] | None = None
    """SSIM after measuring each column; only for policies that set `needs_candidate_scores`."""
    score: Float[Tensor, " batch"] | None = None
    """SSIM of the present reconstruction; only with `needs_candidate_scores`."""

    __repr__ = one_line


@dataclass(frozen=True)
class Context(ABC):
    """What a policy receives once, when acquisitions begin (`Policy.bind`); no data of them."""

    reconstructor: Reconstructor
    protocol: Protocol
    metric: str = "ssim"

    @abstractmethod
    def gains(
        self,
        truth: SliceBatch,
        mask: Bool[Tensor, "batch col"],
        columns: Int[Tensor, "batch candidate"],
    ) -> Float[Tensor, "batch candidate"]:
        """Return gains of columns of images used as ground truth; 0 for columns in the mask."""


@final
@dataclass(frozen=True, repr=False)
class Observation:
    """Everything that a policy may see when it selects the next column."""

    image: Float[Tensor, "batch row col"]
    """The current reconstruction in normalized units."""
    mask: Bool[Tensor, "batch col"]
    """True where a column is measured."""
    step: int | Int[Tensor, " batch"] = 0
    """Number of acquired columns since the start, for all images or one per image."""
    zero_filled: Complex[Tensor, "batch coil row col"] | None = None
    """Inverse transform of the measured k-space, which `fft2c` returns; coils are combined to one
    image without phase (`kscout.physics.coils.combined`). None, like `mean` and `std`, except for
    policies that set `needs_measurement`."""
    mean: Float[Tensor, " batch"] | None = None
    """The reconstructor's estimate of the image's mean, from the measurement."""
    std: Float[Tensor, " batch"] | None = None
    """The same for its standard deviation: `image * std + mean` is in the scanner's units."""
    truth: Truth | None = None
    """None, except for policies that set `needs_target`."""
    n_left: int | Int[Tensor, " batch"] | None = None
    """Number of columns that may still be acquired, including the next one; None if unlimited."""

    __repr__ = one_line

    @property
    def gain_estimator(self) -> NoReturn:
        """Reject policies for older versions, whose observations computed gains."""
        raise ConfigError(
            "an observation computes no gains: define bind(self, context) in the policy, which is "
            "called once when acquisitions begin, and use context.gains"
        )

    judge = gain_estimator

    def for_each(self, count: int | Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return a count such as `step` as one number per image, on their device."""
        if isinstance(count, Tensor):
            return count
        return torch.full((len(self.mask),), count, device=self.mask.device)


class Policy(nn.Module, ABC):
    """Scores columns; never masks, samples, counts budget or sees the target.

    A new one implements `forward`. Scores are logits if `is_stochastic`; otherwise the best
    unmeasured column is acquired. Scores of measured columns are ignored.
    """

    is_stochastic: bool = True
    """Whether scores are logits to sample from; an estimator may change it for its policy."""
    needs_measurement: ClassVar[bool] = False
    """Whether it uses the complex zero-filled image or the statistics, in addition to the image."""
    needs_coils: ClassVar[bool] = False
    """Whether the zero-filled image contains all coils; otherwise they are combined to one."""
    needs_gain_estimator: bool = False
    """Whether it tries columns on its own images, with the context of `bind`."""
    needs_target: ClassVar[bool] = False
    """Whether it is an oracle, which every table and figure marks."""
    needs_candidate_scores: ClassVar[bool] = False
    serves_any_size: bool = False
    """Whether it supports other matrix sizes than its `n_cols`."""
    changeable: ClassVar[tuple[str, ...]] = ()
    """Arguments that a training from its weights may change."""
    gain_units: Sequence[float] = ()
    """Gain in SSIM that a score of 1 predicts, by number of acquired columns; the last value is for
    all later steps. Empty if scores predict no gain."""
    labels: str = ""
    """Metric whose gain by the next column the scores predict; empty if unknown."""
    recorded: Mapping[str, object] = MappingProxyType({})
    """Metadata of its training in its weights file."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in _RETIRED.keys() & vars(cls).keys():
            raise ConfigError(f"{cls.__name__} sets {name}, which is {_RETIRED[name]} since 0.3")

    def bind(self, context: Context) -> "Policy":
        """Return the policy for one reconstruction, protocol and metric, with the same weights."""
        return self

    @abstractmethod
    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Return one score per column."""

    def __call__(self, seen: Observation) -> Float[Tensor, "batch col"]:
        scores = super().__call__(seen)
        # A shape is known without synchronization.
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
        """Return the gain that a score of 1 predicts at each state; 1 if none is predicted."""
        table = torch.tensor(self.gain_units or (1.0,), device=mask.device)
        return table[step.clamp(max=len(table) - 1)]

    def misfit(self, n_rows: int, n_cols: int) -> tuple[str, int] | None:
        """Return its size (`128 columns`) and that of a matrix if they differ; None if it fits."""
        for word, name, found in (("rows", "n_rows", n_rows), ("columns", "n_cols", n_cols)):
            wanted = getattr(self, name, None)
            if wanted is not None and wanted != found and not self.serves_any_size:
                return f"{wanted} {word}", found
        return None


__all__ = [
    "PRECISIONS",
    "PROTOCOLS",
    "Context",
    "Measurement",
    "Observation",
    "Policy",
    "Protocol",
    "Reconstruction",
    "Reconstructor",
    "SliceBatch",
    "Truth",
]
