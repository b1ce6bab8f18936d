"""Labeled states as rows of bytes: small enough to store and share hundreds of thousands.

A state is its slice, the augmentation, the mask, and the gains of its candidates. None of this
depends on a policy, and what can be computed from it is not stored.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Shaped, UInt8
from torch import Tensor

from kscout.training.distributed import gathered, share
from kscout.training.replay import Memory, Rows


@final
@dataclass(frozen=True)
class Layout:
    """Where the bytes of a state lie: about 180 of them for 128 columns of which 24 are tried."""

    n_cols: int
    n_tried: int
    n_uniforms: int
    """Numbers that decide how a slice is varied."""

    @property
    def fields(self) -> dict[str, tuple[torch.dtype, int]]:
        """Type and count of the numbers of each name, as they are kept."""
        short = torch.int16 if self.n_cols <= torch.iinfo(torch.int16).max else torch.int32
        return {
            "index": (torch.int32, 1),
            "uniforms": (torch.float32, self.n_uniforms),
            "step": (short, 1),
            "columns": (short, self.n_tried),
            "gains": (torch.float32, self.n_tried),
            "mask": (torch.uint8, math.ceil(self.n_cols / 8)),
        }

    @property
    def n_bytes(self) -> int:
        """Bytes of a state."""
        return sum(kind.itemsize * n for kind, n in self.fields.values())

    def pack(self, rows: Rows) -> UInt8[Tensor, "state byte"]:
        """Return states as bytes; nothing waits for the device."""
        plain = {**rows, "mask": _as_bits(rows["mask"])}
        parts = [
            _copied(plain[name].to(kind).reshape(-1, n)).view(torch.uint8)
            for name, (kind, n) in self.fields.items()
        ]
        return torch.cat(parts, dim=-1)

    def unpack(self, packed: UInt8[Tensor, "state byte"]) -> Rows:
        """Return the states of bytes."""
        sizes = [kind.itemsize * n for kind, n in self.fields.values()]
        parts = zip(packed.split(sizes, dim=-1), self.fields.items(), strict=True)
        rows = {name: _copied(part).view(kind) for part, (name, (kind, _)) in parts}
        return {
            **rows,
            "index": rows["index"][:, 0].long(),
            "step": rows["step"][:, 0].int(),
            "columns": rows["columns"].long(),
            "mask": _from_bits(rows["mask"], self.n_cols),
        }


@final
class Remembered:
    """The newest labelled states of a policy, in all processes alike.

    Args:
        layouts: by the number of columns of the slices; each has a memory of its own.
        n_most: states in each.
    """

    def __init__(self, layouts: Mapping[int, Layout], n_most: int) -> None:
        self.memories = {n_cols: Memory(n_most) for n_cols in layouts}

    def add(self, n_cols: int, mine: UInt8[Tensor, "slice step byte"], n_slices: int) -> None:
        """Take in what a batch labelled.

        Args:
            n_cols: columns of its slices.
            mine: of this process's share of the slices.
            n_slices: of all processes.
        """
        labelled = gathered(mine, n_slices).transpose(0, 1).flatten(0, 1)
        self.memories[n_cols].add({"states": labelled})

    def draw(self, n_cols: int, uniforms: Float[Tensor, " state"]) -> UInt8[Tensor, "mine byte"]:
        """Return this process's share of states that numbers in [0, 1) decide."""
        return share(self.memories[n_cols].draw(uniforms)["states"])

    def state(self) -> dict[int, Tensor]:
        """Return what was remembered, for a checkpoint."""
        return {n: own.rows["states"].cpu() for n, own in self.memories.items() if own.rows}

    def restore(self, state: Mapping[int, Tensor], device: torch.device) -> None:
        """Take back what `state` gave."""
        for n_cols, known in state.items():
            self.memories[n_cols].add({"states": known.to(device)})


def _copied(values: Shaped[Tensor, "state n"]) -> Shaped[Tensor, "state n"]:
    """Return numbers side by side, where such numbers may lie, so that bytes can be numbers."""
    return values.clone(memory_format=torch.contiguous_format)


def _as_bits(mask: Bool[Tensor, "state col"]) -> UInt8[Tensor, "state byte"]:
    padded = torch.nn.functional.pad(mask.to(torch.uint8), (0, -mask.shape[1] % 8))
    return (padded.unflatten(1, (-1, 8)) << _places(mask.device)).sum(dim=-1, dtype=torch.uint8)


def _from_bits(packed: UInt8[Tensor, "state byte"], n_cols: int) -> Bool[Tensor, "state {n_cols}"]:
    bits = (packed[..., None] >> _places(packed.device)) & 1
    return bits.flatten(1)[:, :n_cols].bool()


def _places(device: torch.device) -> UInt8[Tensor, " 8"]:
    return torch.arange(8, device=device, dtype=torch.uint8)
