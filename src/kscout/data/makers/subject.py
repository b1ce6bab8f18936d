"""Subjects: dataclasses whose fields define their random distributions, in order."""

import math
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, TypeAlias, TypeVar

import numpy as np

from kscout.data.makers.noise_fields import SmoothNoise

S = TypeVar("S")
Declared: TypeAlias = Any
"""A declared field, of the type of its annotation as that of `dataclasses.field`."""


def drawn(how: Callable[[np.random.Generator, Mapping[str, object]], object]) -> Declared:
    """Declare a field that is drawn from random numbers and the previous fields."""
    return field(metadata={"how": how})


def uniform(low: float, high: float) -> Declared:
    """Declare a uniformly distributed number."""
    return drawn(lambda rng, _: rng.uniform(low, high))


def normal(mean: float, deviation: float) -> Declared:
    """Declare a normally distributed number."""
    return drawn(lambda rng, _: rng.normal(mean, deviation))


def normals(*moments: tuple[float, float]) -> Declared:
    """Declare several normally distributed numbers, each with its mean and standard deviation."""
    return drawn(lambda rng, _: tuple(rng.normal(mean, spread) for mean, spread in moments))


def factor(spread: float, usual: float = 1.0) -> Declared:
    """Declare a number `usual * f` with a random factor f."""
    return drawn(lambda rng, _: math.exp(rng.normal(0.0, spread)) * usual)


def choice(shares: Mapping[str, float]) -> Declared:
    """Declare a word with the given probabilities."""
    return drawn(lambda rng, _: str(rng.choice(list(shares), p=list(shares.values()))))


def smooth(cells: int, depth_cells: int) -> Declared:
    """Declare a random field; see `SmoothNoise.draw`."""
    return drawn(lambda rng, _: SmoothNoise.draw(rng, cells, depth_cells))


def draw_subject(kind: type[S], rng: np.random.Generator, **given: object) -> S:
    """Draw a dataclass field by field, except for the given ones."""
    values = dict(given)
    for item in fields(kind):  # type: ignore[arg-type]
        if item.name not in values:
            values[item.name] = item.metadata["how"](rng, values)
    return kind(**values)
