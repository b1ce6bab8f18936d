"""Column masks: which columns of k-space are measured, and what measuring one more changes."""

import torch
from jaxtyping import Bool, Complex, Int
from torch import Tensor


def center_columns(n_cols: int, n_center: int) -> range:
    """Return the central columns; an odd remainder leaves one more free column on the left."""
    start = (n_cols - n_center + 1) // 2
    return range(start, start + n_center)


def center_mask(
    n_cols: int, n_center: int, device: torch.device | str = "cpu"
) -> Bool[Tensor, " col"]:
    """Return the mask of the `n_center` central columns, where every acquisition starts."""
    columns, center = torch.arange(n_cols, device=device), center_columns(n_cols, n_center)
    return (columns >= center.start) & (columns < center.stop)


def apply_mask(
    kspace: Complex[Tensor, "batch coil row col"], mask: Bool[Tensor, "batch col"]
) -> Complex[Tensor, "batch coil row col"]:
    """Set the columns that are not measured to zero."""
    return kspace * mask[:, None, None, :]


def acquire(
    mask: Bool[Tensor, "*lead col"], column: Int[Tensor, "*lead"]
) -> Bool[Tensor, "*lead col"]:
    """Return the mask with one more column measured in each image."""
    return mask.scatter(-1, column.unsqueeze(-1), True)


def add_columns(
    zero_filled: Complex[Tensor, "batch coil row col"],
    column_images: Complex[Tensor, "batch coil row col"],
    ramps: Complex[Tensor, "col col"],
    columns: Int[Tensor, "batch candidate"],
) -> Complex[Tensor, "batch candidate coil row col"]:
    """Return the zero-filled images after measuring each candidate column.

    A column changes the complex image by a rank-one term, so no transform is needed.

    Args:
        zero_filled: inverse transforms of the masked k-space.
        column_images: `ifft_rows` of the full k-space.
        ramps: `column_ramps` of the same number of columns.
        columns: candidates, none of which is measured yet.
    """
    n_coils, n_rows = column_images.shape[1:3]
    index = columns[:, None, None, :].expand(-1, n_coils, n_rows, -1)
    profiles = column_images.gather(-1, index).permute(0, 3, 1, 2)
    return zero_filled[:, None] + profiles[..., None] * ramps[columns][:, :, None, None, :]
