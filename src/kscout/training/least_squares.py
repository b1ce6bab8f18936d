"""Least squares whose weights are not negative: how much to trust what tells gains, by step."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from kscout.training.distributed import sum_over_processes

_NEAR = 2
"""Steps before and after one whose states tell its weights, too."""

_RIDGE = 1e-12
"""Of the mean square of what a weight belongs to, where others tell the same."""
_LEAST = 1e-300
"""Keeps what tells nothing from dividing by zero."""


@final
@dataclass(frozen=True)
class Sums:
    """What least squares need, by step."""

    products: Float64[Tensor, "step member member"]
    moments: Float64[Tensor, "step member"]
    totals: Float64[Tensor, "step told"]
    """Of what each member expects, of gains, and how many they are."""

    @classmethod
    def empty(cls, n_steps: int, n_members: int, device: torch.device) -> "Sums":
        """Return sums of nothing."""
        shapes = ((n_members, n_members), (n_members,), (n_members + 2,))
        nothing = torch.zeros((), dtype=torch.float64, device=device)
        return cls(*(nothing.new_zeros((n_steps, *shape)) for shape in shapes))

    def add(
        self,
        step: int,
        expected: Float[Tensor, "member state column"],
        gains: Float[Tensor, "state column"],
    ) -> None:
        """Add states of a step, and of those nearby."""
        told = torch.cat([expected, gains[None]]).double()
        about = (told - told.mean(dim=-1, keepdim=True)).flatten(1)
        count = told.new_full((1,), gains.numel())
        near = slice(max(0, step - _NEAR), step + _NEAR + 1)
        self.products[near] += about[:-1] @ about[:-1].T
        self.moments[near] += about[:-1] @ about[-1]
        self.totals[near] += torch.cat([told.flatten(1).sum(dim=-1), count])

    def over_processes(self) -> "Sums":
        """Return the sums of all processes."""
        return Sums(*(sum_over_processes(x) for x in vars(self).values()))

    def solved(self) -> tuple[Float[Tensor, "step member"], Float[Tensor, " step"]]:
        """Return weights, none of which is negative, and constants; of nothing, the first alone."""
        found = [non_negative(*both) for both in zip(self.products, self.moments, strict=True)]
        weights = torch.stack(found).to(self.totals.device)
        means = self.totals[:, :-1] / self.totals[:, -1:].clamp(min=1)
        constants = means[:, -1] - (weights * means[:, :-1]).sum(dim=-1)
        return weights.float(), constants.float()


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
