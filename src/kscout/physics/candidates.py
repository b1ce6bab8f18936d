"""Zero-filled images after one more column, for many (state, column) pairs at once."""

from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from kscout.kernels import compile_kernel
from kscout.physics.normalization import magnitude, statistics

_ROWS_PER_BLOCK = 8


class Measured(NamedTuple):
    """Zero-filled images and what a magnitude network is given of them."""

    zero_filled: Complex[Tensor, "pair coil row col"]
    magnitude: Float[Tensor, "pair row col"]
    mean: Float[Tensor, " pair"]
    std: Float[Tensor, " pair"]


def measure_columns(
    zero_filled: Complex[Tensor, "state coil row col"],
    column_images: Complex[Tensor, "slice coil col row"],
    ramps: Complex[Tensor, "col col"],
    parent: Int[Tensor, " pair"],
    owner: Int[Tensor, " pair"],
    column: Int[Tensor, " pair"],
    n_pairs: Int[Tensor, ""] | None = None,
) -> Measured:
    """Add to each pair's state the rank-one image of its column.

    Args:
        zero_filled: inverse transforms of the masked k-space.
        column_images: `ifft_rows` of the full k-space, columns before rows.
        ramps: `column_ramps`.
        parent: the state of each pair.
        owner: the slice of each pair.
        column: the column that each pair measures.
        n_pairs: a count on the device; what comes after is left undefined.
    """
    if zero_filled.is_cuda and zero_filled.shape[1] == 1 and zero_filled.dtype == torch.complex64:
        return _measure_on_cuda(zero_filled, column_images, ramps, parent, owner, column, n_pairs)
    profiles = column_images[owner, :, column]
    grown = torch.addcmul(zero_filled[parent], profiles[..., None], ramps[column][:, None, None, :])
    image = magnitude(grown)
    return Measured(grown, image, *statistics(image))


def _measure_on_cuda(
    zero_filled: Tensor,
    column_images: Tensor,
    ramps: Tensor,
    parent: Tensor,
    owner: Tensor,
    column: Tensor,
    n_pairs: Tensor | None,
) -> Measured:
    n, (n_rows, n_cols) = len(parent), zero_filled.shape[-2:]
    n_tiles = -(-n_rows // _ROWS_PER_BLOCK)
    if n_pairs is None:
        n_pairs = torch.full((), n, dtype=torch.int32, device=parent.device)
    grown = torch.empty(n, 1, n_rows, n_cols, dtype=zero_filled.dtype, device=parent.device)
    image = torch.empty(n, n_rows, n_cols, device=parent.device)
    # Zeros, so that pairs beyond the count hold no infinities.
    sums = torch.zeros(n, n_tiles, 2, device=parent.device)
    tensors = [zero_filled.contiguous(), column_images, ramps, parent, owner, column]
    compile_kernel("candidates.cu", "measure", _ROWS_PER_BLOCK)(
        (n_tiles, n, 1),
        (256, 1, 1),
        [*tensors, grown, image, sums, n_pairs, n_rows, n_cols],
    )
    n_pixels = n_rows * n_cols
    total, squares = sums.double().sum(dim=1).unbind(dim=-1)
    mean = total / n_pixels
    variance = (squares - n_pixels * mean.square()).clamp(min=0) / (n_pixels - 1)
    return Measured(grown, image, mean.float(), variance.sqrt().float())
