"""Least squares whose weights are not negative, for few weights."""

import torch
from jaxtyping import Float64
from torch import Tensor

_RIDGE = 1e-12
"""Of the mean square of what a weight belongs to, where others tell the same."""
_LEAST = 1e-300
"""Keeps what tells nothing from dividing by zero."""


def non_negative(
    products: Float64[Tensor, "weight weight"], moments: Float64[Tensor, " weight"]
) -> Float64[Tensor, " weight"]:
    """Return the weights that normal equations ask for; one that came out negative is zero.

    The lowest is left out, and the others are found anew, until none is negative. Where nothing
    tells, the first is one.

    Args:
        products: sums of the products of what the weights belong to.
        moments: sums of the products of these with what they shall tell.
    """
    products, moments = products.cpu(), moments.cpu()
    weights, kept = torch.zeros_like(moments), list(range(len(moments)))
    while kept:
        own = products[kept][:, kept]
        # In units of its own each counts alike, however large its numbers are.
        unit = own.diagonal().clamp(min=_LEAST).sqrt()
        own = own / (unit[:, None] * unit) + _RIDGE * torch.eye(len(kept), dtype=own.dtype)
        # Not by lstsq, which answers the same input differently from call to call.
        found, info = torch.linalg.solve_ex(own, moments[kept] / unit)
        if int(info) == 0 and bool((found >= 0).all()):
            weights[kept] = found / unit
            break
        del kept[int(found.nan_to_num().argmin())]
    if not bool((weights > 0).any()):
        weights[0] = 1.0
    return weights


__all__ = ["non_negative"]
