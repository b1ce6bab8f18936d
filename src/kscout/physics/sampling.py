"""Column masks: which columns of k-space are measured."""

import torch
from jaxtyping import Bool, Complex, Int
from torch import Tensor


def center_columns(n_cols: int, n_center: int) -> range:
    """Return the `n_center` columns around DC, at `n_cols // 2`.

    Where they cannot lie symmetrically, one more column stays free on the left than on the right.
    """
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
    """Return M y: k-space with the columns that are not measured set to zero."""
    return kspace * mask[:, None, None, :]


def acquire(
    mask: Bool[Tensor, "*lead col"], column: Int[Tensor, "*lead"]
) -> Bool[Tensor, "*lead col"]:
    """Return the mask with one more column measured in each image."""
    return mask.scatter(-1, column.unsqueeze(-1), True)
