"""A metric of a user's own: how much of the target's gradient energy an image has, at most 1."""

import torch
from torch import Tensor


def edges(image: Tensor, target: Tensor, *, data_range: Tensor) -> Tensor:
    """Return minus the relative error of differences between neighboring columns."""
    wrong = (image.diff(dim=-1) - target.diff(dim=-1)).square().sum(dim=(-2, -1))
    return -wrong / target.diff(dim=-1).square().sum(dim=(-2, -1)).clamp(min=1e-12)


def one_number(image: Tensor, target: Tensor, *, data_range: Tensor) -> Tensor:
    """Return a mean over images, which no metric may."""
    return (image - target).square().mean()


def plain_number(image: Tensor, target: Tensor, *, data_range: Tensor) -> float:
    """Return what is no tensor."""
    return edges(image, target, data_range=data_range).mean().item()


def detached(image: Tensor, target: Tensor, *, data_range: Tensor) -> Tensor:
    """Return a metric that passes no gradient on."""
    return edges(image.detach(), target, data_range=data_range)


def without_range(image: Tensor, target: Tensor) -> Tensor:
    """Return a metric, but not as it is asked for."""
    return -(image - target).square().mean(dim=(-2, -1))


NO_FUNCTION = torch.zeros(3)
