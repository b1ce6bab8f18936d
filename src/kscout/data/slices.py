"""Slices of one matrix size, in memory, on a device or in a file, handed out in batches."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.core import SliceBatch
from kscout.data.contents import Contents
from kscout.data.kinds import IMAGES, KSPACE, Kind, Stored
from kscout.errors import ConfigError, DataError
from kscout.physics.coils import check_compression, compress
from kscout.physics.normalization import denormalize, normalize
from kscout.physics.sampling import Initial, center_mask, start_mask

LEAST_PEAK, MOST_PEAK = 1e-6, 1e9
"""Peaks of volumes that can be scored: below, the 1e-11 that normalization adds to deviations
changes SSIM in its fifth digit and soon in its first; above, SSIM's products overflow."""


@final
@dataclass(frozen=True, repr=False)
class SliceSet:
    """Fully sampled slices of one matrix size and kind, handed out on one device.

    A set may be larger than memory: then its slices are read when a batch is asked for.
    """

    contents: Contents
    """The stored slices; only `kscout.data` looks at these."""
    data_range: Float[Tensor, " slice"]
    """Maximum of the clamped target over the stored slices of the slice's volume."""
    selectable: Bool[Tensor, "slice col"]
    """Columns inside the measured matrix."""
    position: Int[Tensor, " slice"]
    """Position in the split: keys the random draws, and survives `subset`."""
    volumes: tuple[str, ...]
    """The volume of each slice."""
    slices: tuple[int, ...]
    """The number of each slice in its volume."""
    name: str = ""
    split: str = ""
    virtual: tuple[int, int] | None = None
    """Virtual coils that batches are compressed to, and the central columns that tell how."""
    n_basis: int = 0
    """Central columns that virtual coils of the stored slices were found in."""

    def __len__(self) -> int:
        return len(self.contents)

    def __repr__(self) -> str:
        named = " ".join(word for word in (self.name, self.split) if word)
        coils, rows, cols = self.shape
        size = f"{len(self)} slices of {coils} x {rows} x {cols}"
        place = "" if self.contents.is_resident else ", read when asked for"
        return f"SliceSet({named or 'unnamed'}: {size}, {self.kind}, on {self.device}{place})"

    @property
    def kind(self) -> str:
        """What the slices are: `images` or `kspace`."""
        return self.contents.kind.name

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of coils, rows and columns of each slice."""
        n_coils, n_rows, n_cols = self.contents.kind.shape(tuple(self.contents.array.shape))
        n_coils = n_coils if self.virtual is None else min(n_coils, self.virtual[0])
        return n_coils, n_rows, n_cols

    @property
    def n_cols(self) -> int:
        return self.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where batches are handed out."""
        return self.contents.device

    @property
    def index_device(self) -> torch.device:
        """Where an index for `batch` should lie, so that nothing waits for the device."""
        return self.device if self.contents.is_resident else torch.device("cpu")

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal for equal slices, wherever they lie."""
        digest = hashlib.sha256(repr((len(self), *self.contents.array.shape[1:])).encode())
        digest.update(b"" if self.virtual is None else repr(self.virtual).encode())
        for part in (*self.contents.chunks(), self.data_range, self.selectable):
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @classmethod
    def from_images(
        cls,
        images: Float[Tensor, "slice row col"],
        volumes: Sequence[str],
        *,
        slices: Sequence[int] | None = None,
        name: str = "",
        split: str = "",
    ) -> "SliceSet":
        """Build a set from images, with `data_range` taken over the given slices of each volume.

        Args:
            images: raw images, as a scanner's magnitude reconstruction gives them.
            volumes: the volume of each slice.
            slices: the number of each slice in its volume; counted from 0 where not given.
            name: what tables call this data set.
            split: train, val or test.
        """
        return cls._of(IMAGES, images, volumes, slices, name, split)

    @classmethod
    def from_kspace(
        cls,
        kspace: Complex[Tensor, "slice coil row col"],
        volumes: Sequence[str],
        *,
        slices: Sequence[int] | None = None,
        name: str = "",
        split: str = "",
    ) -> "SliceSet":
        """Build a set from the full k-space of coils, as `fft2c` makes it, like `from_images`.

        Targets are roots of the sums of squares.
        """
        return cls._of(KSPACE, kspace.to(torch.complex64), volumes, slices, name, split)

    @classmethod
    def _of(
        cls,
        kind: Kind,
        stored: Stored,
        volumes: Sequence[str],
        slices: Sequence[int] | None,
        name: str,
        split: str,
    ) -> "SliceSet":
        _check_lengths(len(stored), len(volumes), None if slices is None else len(slices))
        peaks: dict[str, float] = {}
        numbers: list[int] = []
        counts: dict[str, int] = {}
        for volume, peak in zip(volumes, slice_peaks(kind, stored).tolist(), strict=True):
            peaks[volume] = max(peak, peaks.get(volume, peak))
            numbers.append(counts.get(volume, 0))
            counts[volume] = numbers[-1] + 1
        for volume, peak in peaks.items():
            check_peak(volume, peak)
        device = stored.device
        return cls(
            contents=Contents(kind, stored, device),
            data_range=torch.tensor(
                [peaks[volume] for volume in volumes], dtype=stored.real.dtype, device=device
            ),
            selectable=torch.ones(len(stored), stored.shape[-1], dtype=torch.bool, device=device),
            position=torch.arange(len(stored), device=device),
            volumes=tuple(volumes),
            slices=tuple(numbers if slices is None else slices),
            name=name,
            split=split,
        )

    def batch(self, index: Int[Tensor, " batch"]) -> SliceBatch:
        """Return the slices at `index`, ready to be acquired and scored.

        Give the index on `index_device`: then nothing waits for the device. A CUDA graph can
        contain this call only where the slices lie on the device.
        """
        kind, stored = self.contents.kind, self.contents.read(index)
        normalized = normalize(kind.to_images(stored))
        index = index.to(self.device, non_blocking=True)
        return SliceBatch(
            kspace=self._few_coils(kind.to_kspace(stored)),
            target=denormalize(*normalized),
            target_mean=normalized.mean,
            target_std=normalized.std,
            data_range=self.data_range[index],
            selectable=self.selectable[index],
            index=self.position[index],
        )

    def compressed(self, n_coils: int = 8, *, n_center: int) -> "SliceSet":
        """Return the same slices, of at most so many virtual coils; targets stay those of all.

        Args:
            n_coils: virtual coils (`kscout.physics.coils.compress`); where there are no more coils
                than that, they stay as they are stored.
            n_center: central columns that they are found in: no more than acquisitions start from.
        """
        check_compression(n_coils, n_center, self.n_cols)
        whole = replace(self, virtual=None)
        return whole if whole.shape[0] <= n_coils else replace(self, virtual=(n_coils, n_center))

    def _few_coils(
        self, kspace: Complex[Tensor, "batch coil row col"]
    ) -> Complex[Tensor, "batch virtual row col"]:
        if self.virtual is None:
            return kspace
        n_coils, n_center = self.virtual
        return compress(kspace, n_coils=n_coils, n_center=n_center)

    def check_start(self, initial: Initial) -> None:
        """Refuse a start without the central columns that virtual coils were found in.

        Args:
            initial: a number of central columns, columns, or a mask per slice.
        """
        n_basis = max(self.n_basis, self.virtual[1] if self.virtual else 0)
        if not n_basis:
            return
        start = start_mask(initial, self.selectable.shape)
        if not start[:, center_mask(self.n_cols, n_basis)].all():
            raise ConfigError(
                f"coils were compressed by {n_basis} central columns, which an acquisition that "
                "starts without them has not measured; start from these or more, or compress by "
                "fewer (--compress-center)"
            )

    def check_protocol(self, protocol: str) -> None:
        """Refuse a protocol that slices of this kind cannot be scored by."""
        self.contents.kind.check_protocol(protocol)

    def magnitudes(
        self, index: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch row col"]:
        """Return magnitude images before clamping, by default of all slices."""
        index = torch.arange(len(self)) if index is None else index
        return self.contents.kind.to_images(self.contents.read(index))

    def batches(self, batch_size: int) -> Iterator[SliceBatch]:
        """Yield all slices in order; the last batch may be small."""
        for index in torch.split(torch.arange(len(self)), min(batch_size, max(len(self), 1))):
            yield self.batch(index)

    def subset(self, index: Int[Tensor, " n"]) -> "SliceSet":
        """Return the chosen slices; ranges and positions stay those of the whole set."""
        chosen = index.tolist()
        index = index.to(self.device)
        return replace(
            self,
            contents=self.contents.take(index),
            data_range=self.data_range[index],
            selectable=self.selectable[index],
            position=self.position[index],
            volumes=tuple(self.volumes[i] for i in chosen),
            slices=tuple(self.slices[i] for i in chosen),
        )

    def sample(self, n_slices: int | None) -> "SliceSet":
        """Return at most so many slices, spread evenly over the set and so over its volumes."""
        if n_slices is None or n_slices >= len(self):
            return self
        if n_slices < 1:
            raise ConfigError(f"limit is {n_slices}; it must be 1 or more")
        return self.subset(torch.arange(n_slices) * len(self) // n_slices)

    def of_volumes(self, *volumes: str) -> "SliceSet":
        """Return the slices of the named volumes, in the order of the set."""
        missing = sorted(set(volumes) - set(self.volumes))
        if missing:
            raise DataError(
                f"no volume {missing[0]!r} among the {len(set(self.volumes))} volumes of "
                f"{self.split or 'this set'}; `kscout data info` lists them"
            )
        chosen = [i for i, volume in enumerate(self.volumes) if volume in volumes]
        return self.subset(torch.tensor(chosen, dtype=torch.int64))

    def to(self, device: torch.device | str) -> "SliceSet":
        """Return the same slices, handed out on another device."""
        return replace(
            self,
            contents=self.contents.to(device),
            data_range=self.data_range.to(device),
            selectable=self.selectable.to(device),
            position=self.position.to(device),
        )


def slice_peaks(kind: Kind, stored: Stored) -> Float[Tensor, " slice"]:
    """Return the maximum of each scored target: the image clamped at six deviations."""
    # In chunks: a whole data set would need several times its own memory.
    peaks = [
        denormalize(*normalize(kind.to_images(part))).amax(dim=(-2, -1))
        for part in Contents(kind, stored, stored.device).chunks()
    ]
    return torch.cat(peaks) if peaks else stored.real.new_zeros(0)


def check_peak(volume: str, peak: float) -> None:
    """Refuse a volume in units that spoil its scores.

    Args:
        volume: its name, for messages.
        peak: the largest of its `slice_peaks`; NaN where one is.
    """
    if not 0 < peak < math.inf:
        raise DataError(
            f"volume {volume!r} has pixels up to {peak:g}; they must be finite, and one of them "
            "above 0"
        )
    if not LEAST_PEAK <= peak <= MOST_PEAK:
        raise DataError(
            f"volume {volume!r} has pixels up to {peak:.3g}, and scores of 32 bit hold for units "
            f"in which that is {LEAST_PEAK:g} to {MOST_PEAK:g}; divide all data that are compared "
            f"by one number, such as {float(f'{peak:.0e}'):g} (--divide)"
        )


def _check_lengths(n_images: int, n_volumes: int, n_slices: int | None) -> None:
    if n_volumes != n_images or n_slices not in (None, n_images):
        raise DataError(
            f"{n_images} images with {n_volumes} volume names and "
            f"{'no' if n_slices is None else n_slices} slice numbers; give one of each per image"
        )
