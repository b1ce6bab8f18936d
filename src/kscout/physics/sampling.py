"""Column masks: the columns of k-space that are measured."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Complex, Int
from torch import Tensor

from kscout.columns import center_columns, column_ranges

Initial = int | Sequence[int]
"""Where acquisitions start: a number of central columns, or a list of columns."""


def center_mask(
    n_cols: int, n_center: int, device: torch.device | str = "cpu"
) -> Bool[Tensor, " col"]:
    """Return the mask of the `n_center` central columns, where every acquisition starts."""
    columns, center = torch.arange(n_cols, device=device), center_columns(n_cols, n_center)
    return (columns >= center.start) & (columns < center.stop)


def start_mask(
    initial: Initial, shape: tuple[int, int] | torch.Size, device: torch.device | str = "cpu"
) -> Bool[Tensor, "batch col"]:
    """Return the columns of each slice that are measured before the first choice.

    Columns are compared on the device, nothing is copied there: a CUDA graph may hold it.
    """
    n_slices, n_cols = shape
    if isinstance(initial, int):
        return center_mask(n_cols, initial, device).expand(n_slices, -1)
    columns = torch.arange(n_cols, device=device)
    mask = torch.zeros(n_cols, dtype=torch.bool, device=device)
    for begin, end in column_ranges(initial):
        mask |= (columns >= begin) & (columns <= end)
    return mask.expand(n_slices, -1)


def apply_mask(
    kspace: Complex[Tensor, "*lead coil row col"], mask: Bool[Tensor, "*#lead col"]
) -> Complex[Tensor, "*lead coil row col"]:
    """Return M y: k-space with the columns that are not measured set to zero."""
    # Not a product, which keeps signs of unmeasured values, and the NaN among them.
    return torch.where(mask[..., None, None, :], kspace, 0)


def acquire(
    mask: Bool[Tensor, "*lead col"], column: Int[Tensor, "*lead"]
) -> Bool[Tensor, "*lead col"]:
    """Return the mask with one more column measured in each image."""
    return mask.scatter(-1, column.unsqueeze(-1), True)
