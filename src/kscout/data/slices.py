"""Slices of one matrix size, in memory, on a device or in a file, read in batches."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.core import SliceBatch
from kscout.data.contents import Contents
from kscout.data.kinds import IMAGES, KSPACE, Kind, Stored
from kscout.errors import ConfigError, DataError
from kscout.physics.normalization import denormalize, normalize
from kscout.physics.sampling import Initial, center_mask, start_mask

LEAST_PEAK, MOST_PEAK = 1e-6, 1e9
"""Range of volume peaks that can be scored: below, the 1e-11 that normalization adds to standard
deviations changes SSIM from its fifth digit on; above, products in SSIM overflow."""


@final
@dataclass(frozen=True, repr=False)
class SliceSet:
    """Fully sampled slices of one matrix size and kind, returned on one device.

    A set may be larger than memory: then slices are read when a batch is requested.
    """

    contents: Contents
    """The stored slices; private to `kscout.data`."""
    data_range: Float[Tensor, " slice"]
    """Maximum of the clamped target over the stored slices of the slice's volume."""
    selectable: Bool[Tensor, "slice col"]
    """Columns inside the measured matrix."""
    position: Int[Tensor, " slice"]
    """Position in the split, unchanged by `subset`; random draws depend on it."""
    volumes: tuple[str, ...]
    """The volume of each slice."""
    slices: tuple[int, ...]
    """The number of each slice in its volume."""
    name: str = ""
    split: str = ""
    n_basis: int = 0
    """Central columns that defined the virtual coils of the stored slices, or 0."""

    def __len__(self) -> int:
        return len(self.contents)

    def __getitem__(self, number: int) -> dict[str, Tensor | str | int]:
        """Return one slice as a mapping, so that `torch.utils.data.DataLoader` accepts the set.

        `kspace` is `[coil, row, col]`, `target` `[row, col]`; `data_range`, `volume` and `slice`
        belong to metrics and tables.
        """
        if not -len(self) <= number < len(self):
            raise IndexError(f"slice {number} of {len(self)}")
        batch = self.batch(torch.tensor([number % len(self)]))
        return {
            "kspace": batch.kspace[0],
            "target": batch.target[0],
            "data_range": batch.data_range[0],
            "volume": self.volumes[number],
            "slice": self.slices[number],
        }

    def __repr__(self) -> str:
        named = " ".join(word for word in (self.name, self.split) if word)
        coils, rows, cols = self.shape
        size = f"{len(self)} slices of {coils} x {rows} x {cols}"
        place = "" if self.contents.is_resident else ", read on request"
        return f"SliceSet({named or 'unnamed'}: {size}, {self.kind}, on {self.device}{place})"

    @property
    def kind(self) -> str:
        """Kind of the slices: `images` or `kspace`."""
        return self.contents.kind.name

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of coils, rows and columns of each slice."""
        return self.contents.kind.shape(tuple(self.contents.array.shape))

    @property
    def n_cols(self) -> int:
        return self.shape[-1]

    @property
    def device(self) -> torch.device:
        """Device of the batches."""
        return self.contents.device

    @property
    def index_device(self) -> torch.device:
        """Device on which an index for `batch` causes no synchronization."""
        return self.device if self.contents.is_resident else torch.device("cpu")

    @property
    def fingerprint(self) -> str:
        """A hash of the content: equal for equal slices, regardless of their location."""
        digest = hashlib.sha256(repr((len(self), *self.contents.array.shape[1:])).encode())
        for part in (*self.contents.chunks(), self.data_range, self.selectable):
            digest.update(part.detach().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    @classmethod
    def from_images(
        cls,
        images: Tensor | np.ndarray,
        volumes: Sequence[str],
        *,
        slices: Sequence[int] | None = None,
        name: str = "",
        split: str = "",
    ) -> "SliceSet":
        """Build a set from images, with `data_range` taken over the given slices of each volume.

        Args:
            images: raw images [slice, row, col], such as a scanner's magnitude reconstruction.
            volumes: the volume of each slice.
            slices: number of each slice in its volume; by default counted from 0.
            name: name of the dataset in tables.
            split: train, val or test.
        """
        stored = _tensor(images)
        if stored.is_complex() or stored.ndim != 3:
            raise DataError(
                f"images are {stored.dtype} of shape {[*stored.shape]}; give real magnitudes "
                "[slice, row, col], or k-space of coils to SliceSet.from_kspace"
            )
        return cls._of(IMAGES, stored, volumes, slices, name, split)

    @classmethod
    def from_kspace(
        cls,
        kspace: Tensor | np.ndarray,
        volumes: Sequence[str],
        *,
        slices: Sequence[int] | None = None,
        name: str = "",
        split: str = "",
    ) -> "SliceSet":
        """Build a set from fully sampled k-space of coils, [slice, coil, row, col] (see `fft2c`).

        Targets are roots of the sums of squares. Arguments are those of `from_images`.
        """
        stored = _tensor(kspace)
        if not stored.is_complex() or stored.ndim != 4:
            raise DataError(
                f"k-space is {stored.dtype} of shape {[*stored.shape]}; give complex values "
                "[slice, coil, row, col], or images to SliceSet.from_images"
            )
        return cls._of(KSPACE, stored.to(torch.complex64), volumes, slices, name, split)

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
        if len(volumes) != len(stored) or (slices is not None and len(slices) != len(stored)):
            raise DataError(
                f"{len(stored)} images with {len(volumes)} volume names and "
                f"{'no' if slices is None else len(slices)} slice numbers; give one of each per "
                "image"
            )
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

    def batch(self, index: Int[Tensor, " batch"] | Sequence[int]) -> SliceBatch:
        """Return the slices at `index`, ready to be acquired and scored.

        An index on `index_device` avoids a synchronization. A CUDA graph can contain this call only
        if the slices are on the device.
        """
        index = torch.as_tensor(index)
        kind, stored = self.contents.kind, self.contents.read(index)
        normalized = normalize(kind.to_images(stored))
        index = index.to(self.device, non_blocking=True)
        return SliceBatch(
            kspace=kind.to_kspace(stored),
            target=denormalize(*normalized),
            target_mean=normalized.mean,
            target_std=normalized.std,
            data_range=self.data_range[index],
            selectable=self.selectable[index],
            index=self.position[index],
        )

    def check_start(self, initial: Initial) -> None:
        """Raise an error for a start without the central columns that define the virtual coils."""
        if not self.n_basis:
            return
        start = start_mask(initial, self.selectable.shape)
        if not start[:, center_mask(self.n_cols, self.n_basis)].all():
            raise ConfigError(
                f"coils were compressed by {self.n_basis} central columns, which an acquisition "
                "that starts without them has not measured; start from these or more, or compress "
                "by fewer (--compress-center)"
            )

    def check_protocol(self, protocol: str) -> None:
        """Raise an error for a protocol that does not support slices of this kind."""
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

    def subset(self, index: Int[Tensor, " n"] | Sequence[int]) -> "SliceSet":
        """Return the selected slices; ranges and positions stay those of the full set."""
        index = torch.as_tensor(index)
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
        """Return at most `n_slices` slices, spread evenly over the set and so over its volumes."""
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
        """Return the same slices on another device."""
        return replace(
            self,
            contents=self.contents.to(device),
            data_range=self.data_range.to(device),
            selectable=self.selectable.to(device),
            position=self.position.to(device),
        )


def _tensor(values: Tensor | np.ndarray) -> Tensor:
    """Return a tensor; real numbers of numpy arrays become 32-bit ones."""
    if isinstance(values, Tensor):
        return values
    values = np.asarray(values)
    # Torch reads neither foreign byte orders nor reversed axes.
    tensor = torch.as_tensor(np.ascontiguousarray(values, values.dtype.newbyteorder("=")))
    return tensor if tensor.is_complex() else tensor.float()


def slice_peaks(kind: Kind, stored: Stored) -> Float[Tensor, " slice"]:
    """Return the maximum of each scored target: the image clamped at six standard deviations."""
    # In chunks: all slices at once would need several times the memory of the dataset.
    peaks = [
        denormalize(*normalize(kind.to_images(part))).amax(dim=(-2, -1))
        for part in Contents(kind, stored, stored.device).chunks()
    ]
    return torch.cat(peaks) if peaks else stored.real.new_zeros(0)


def check_peak(volume: str, peak: float) -> None:
    """Raise an error for a volume whose units make scores inaccurate."""
    if not 0 < peak < math.inf:
        raise DataError(
            f"volume {volume!r} has pixels up to {peak:g}; all must be finite, and at least one "
            "above 0"
        )
    if not LEAST_PEAK <= peak <= MOST_PEAK:
        raise DataError(
            f"volume {volume!r} has pixels up to {peak:.3g}, and 32-bit scores need a maximum from "
            f"{LEAST_PEAK:g} to {MOST_PEAK:g}; divide all data that you compare by one number, "
            f"such as {float(f'{peak:.0e}'):g} (--divide)"
        )
