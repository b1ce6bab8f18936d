"""The measurement of a batch of images: the only input of a reconstruction.

`measure_columns` adds one more column, for many (state, column) pairs at once.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.kernels.cuda import compile_kernel, count_on
from kscout.kernels.registry import Request, serving
from kscout.physics.fourier import fft2c, ifft2c
from kscout.physics.normalization import magnitude, normalize_with, statistics
from kscout.physics.sampling import acquire, apply_mask
from kscout.shapes import one_line

_N_WARPS = 32
Summary = tuple[Float[Tensor, "batch row col"], Float[Tensor, " batch"], Float[Tensor, " batch"]]
"""Magnitude of the zero-filled images, and its mean and standard deviation."""


@final
@dataclass(frozen=True, repr=False)
class Measurement:
    """Masked k-space of a batch of images, in the image domain, with what is derived from it.

    The zero-filled image x = F^-1 M y, with k-space y, column mask M and the unitary transform F,
    contains all that was measured: `kspace` is one transform of it. Derived tensors are computed at
    first use and stored, and gradients flow through them.
    """

    zero_filled: Complex[Tensor, "batch coil row col"]
    """Inverse transform of the masked k-space."""
    mask: Bool[Tensor, "batch col"]
    """True where a column is measured."""
    n_images: Int[Tensor, ""] | None = None
    """A count on the device: images from there on are padding. None means that all count."""
    summary: Summary | None = None
    """Magnitude, mean and standard deviation, if a kernel has computed them already."""
    maps: Complex[Tensor, "batch coil row col"] | None = None
    """Sensitivities that the reconstructor found at the start (`Reconstructor.calibrate`)."""

    __repr__ = one_line

    @classmethod
    def of(
        cls, kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
    ) -> "Measurement":
        """Measure the columns of a mask, of k-space that may contain others."""
        return cls(ifft2c(apply_mask(kspace, mask)), mask)

    def __len__(self) -> int:
        return self.mask.shape[0]

    @cached_property
    def _summary(self) -> Summary:
        if self.summary is not None:
            return self.summary
        image = magnitude(self.zero_filled)
        return image, *statistics(image)

    @property
    def magnitude(self) -> Float[Tensor, "batch row col"]:
        """Root of the sum of squares of the zero-filled images over coils."""
        return self._summary[0]

    @property
    def mean(self) -> Float[Tensor, " batch"]:
        """Mean of `magnitude`."""
        return self._summary[1]

    @property
    def std(self) -> Float[Tensor, " batch"]:
        """Standard deviation of `magnitude`."""
        return self._summary[2]

    @property
    def normalized(self) -> Float[Tensor, "batch row col"]:
        """`magnitude` normalized by its own statistics, clamped to ±6."""
        return normalize_with(*self._summary)

    @property
    def kspace(self) -> Complex[Tensor, "batch coil row col"]:
        """The measured k-space; columns that are not measured are zero."""
        return apply_mask(fft2c(self.zero_filled), self.mask)


class Pairs(NamedTuple):
    """States and a column to measure in each."""

    parent: Int[Tensor, " pair"]
    """The state of each pair."""
    column: Int[Tensor, " pair"]
    owner: Int[Tensor, " pair"]
    """The slice of each pair."""
    n_pairs: Int[Tensor, ""] | None = None
    """Number of valid pairs, on the device: results after it are undefined. None means all."""

    def part(self, begin: int, end: int) -> "Pairs":
        """Return the pairs in [begin, end), with `n_pairs` counted from `begin`."""
        n_pairs = None if self.n_pairs is None else self.n_pairs - begin if begin else self.n_pairs
        parent, column, owner = (x[begin:end] for x in self[:3])
        return Pairs(parent, column, owner, n_pairs)


def measure_columns(
    zero_filled: Complex[Tensor, "state coil row col"],
    mask: Bool[Tensor, "state col"],
    column_images: Complex[Tensor, "slice coil col row"],
    ramps: Complex[Tensor, "col col"],
    pairs: Pairs,
    maps: Complex[Tensor, "state coil row col"] | None = None,
) -> Measurement:
    """Add the contribution of a new column, x + column_images * ramp, to the state of each pair."""
    kind, n_coils = frozenset({zero_filled.dtype}), zero_filled.shape[1]
    request = Request(zero_filled.device, kind, n_coils=n_coils)
    if maps is None and serving("measure", request) == "cuda":
        return _measure_on_cuda(zero_filled, mask, column_images, ramps, pairs)
    parent, column, owner, _ = pairs
    profiles = column_images[owner, :, column]
    grown = torch.addcmul(zero_filled[parent], profiles[..., None], ramps[column][:, None, None, :])
    pair_maps = None if maps is None else maps[parent]
    return Measurement(grown, acquire(mask[parent], column), pairs.n_pairs, maps=pair_maps)


def _measure_on_cuda(
    zero_filled: Tensor, mask: Tensor, column_images: Tensor, ramps: Tensor, pairs: Pairs
) -> Measurement:
    n, (n_rows, n_cols), device = len(pairs.parent), zero_filled.shape[-2:], zero_filled.device
    grown, taken = zero_filled.new_empty(n, 1, n_rows, n_cols), mask.new_empty(n, n_cols)
    image = torch.empty(n, n_rows, n_cols, device=device)
    mean, std = torch.empty(2, n, device=device)
    made = [grown, taken, image, mean, std]
    given = [zero_filled, mask, column_images, ramps, pairs.parent, pairs.owner, pairs.column]
    count = count_on(device, n) if pairs.n_pairs is None else pairs.n_pairs
    compile_kernel("candidates.cu", "measure", _N_WARPS)(
        (n, 1, 1),
        (32 * _N_WARPS, 1, 1),
        [*(x.contiguous() for x in given), *made, count, n_rows, n_cols],
    )
    return Measurement(grown, taken, pairs.n_pairs, (image, mean, std))
