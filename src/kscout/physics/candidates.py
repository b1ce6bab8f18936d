"""Zero-filled images after one additional column, for many (state, column) pairs at once."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Complex, Int
from torch import Tensor

from kscout.kernels.cuda import compile_kernel, count_on
from kscout.kernels.registry import Request, serving
from kscout.physics.measurement import Measurement
from kscout.physics.sampling import acquire

_N_WARPS = 32


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
    """Add the contribution of a new column, x + column_images * ramp, to the state of each pair.

    Args:
        zero_filled: inverse transforms of the masked k-space.
        mask: the columns measured there.
        column_images: `ifft_rows` of the full k-space, columns before rows.
        ramps: `column_ramps`.
        pairs: states and their new columns.
        maps: sensitivities of each state, passed to the result.
    """
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
