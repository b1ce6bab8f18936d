"""The slices behind a `SliceSet`: one array in memory, on a device, or mapped from a file."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Inexact, Int
from torch import Tensor

from kscout.data.kinds import Kind
from kscout.device import free_memory

CHUNK_SLICES, CHUNK_BYTES = 256, 64 * 2**20
"""Most slices, and most bytes of them, in memory at once when all slices are read."""
RESIDENT_SHARE = 0.5
"""Fraction of the free memory of a machine or device up to which a split is loaded completely."""


@final
@dataclass(frozen=True)
class Contents:
    """Slices of one kind, returned on one device.

    If `array` is on that device, reading is a single indexing operation, which a CUDA graph may
    contain. Otherwise `array` stays in host memory or in a memory-mapped file, and the selected
    slices are copied to the device. The index should then be on the CPU; an index on the device
    forces a synchronization.
    """

    kind: Kind
    array: Inexact[Tensor, "stored *axes"]
    device: torch.device
    rows: Int[Tensor, " slice"] | None = None
    """Indices of the slices of the array that belong to this object, on the CPU; None means all."""
    is_mapped: bool = False
    """Whether the array is a file that is read on access."""

    def __len__(self) -> int:
        return len(self.array) if self.rows is None else len(self.rows)

    @property
    def is_resident(self) -> bool:
        """Whether exactly these slices are in the memory of the device."""
        return not self.is_mapped and self.rows is None and self.array.device == self.device

    def read(self, index: Int[Tensor, " batch"]) -> Inexact[Tensor, "batch *axes"]:
        """Return the selected slices in their stored layout, on the device."""
        if self.is_resident:
            return self.array[index.to(self.device, non_blocking=True)]
        index = index.cpu()
        return self.array[index if self.rows is None else self.rows[index]].to(self.device)

    def chunks(self) -> Iterator[Inexact[Tensor, "chunk *axes"]]:
        """Yield all slices in order, in chunks."""
        n_fit = CHUNK_BYTES // max(self.array[:1].nbytes, 1)
        for index in torch.arange(len(self)).split(min(max(n_fit, 1), CHUNK_SLICES)):
            yield self.read(index)

    def take(self, index: Int[Tensor, " n"]) -> "Contents":
        """Return only the selected slices, without reading an array that is not resident."""
        if self.is_resident:
            return replace(self, array=self.read(index))
        index = index.cpu()
        return replace(self, rows=index if self.rows is None else self.rows[index])

    def to(self, device: torch.device | str) -> "Contents":
        """Return the slices on another device, and move the array there if it fits."""
        place = torch.empty(0, device=device).device
        moves = self.is_resident and place != self.device
        if moves and self.array.nbytes <= RESIDENT_SHARE * free_memory(place):
            return replace(self, array=self.array.to(place), device=place)
        return replace(self, device=place)


def read_contents(kind: Kind, file: Path, *, lazy: bool | None) -> Contents:
    """Open an array of slices; `lazy` maps the file instead of reading it.

    None maps files that would take more than `RESIDENT_SHARE` of the free memory.
    """
    device = torch.device("cpu")
    if lazy is None:
        lazy = file.stat().st_size > RESIDENT_SHARE * free_memory(device)
    # Copy-on-write: torch expects writable arrays, and no write reaches the file.
    array = np.load(file, mmap_mode="c" if lazy else None)
    return Contents(kind, torch.from_numpy(array), device, is_mapped=lazy)
