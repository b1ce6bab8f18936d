"""Tissues and sequences: how bright each tissue is in each kind of MR image."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from kscout.data.makers import load_table


@final
@dataclass(frozen=True)
class Tissue:
    """Proton density (1 is water) and relaxation times of one tissue at about 3 tesla."""

    density: float
    t1_ms: float
    t2_ms: float
    is_fat: bool = False
    """Whether fat suppression reduces the signal."""


@final
@dataclass(frozen=True)
class Sequence:
    """Timing of one pulse sequence; an inversion time makes it an inversion recovery."""

    repetition_ms: float
    echo_ms: float
    fat_gain: float = 1.0
    """Fraction of the signal of fat that remains."""
    inversion_ms: float | None = None


_NUMBERS = load_table("tissue.toml")
TISSUES = {name: Tissue(**numbers) for name, numbers in _NUMBERS["tissues"].items()}
SEQUENCES = {name: Sequence(**numbers) for name, numbers in _NUMBERS["sequences"].items()}


def signal(tissue: Tissue, sequence: Sequence) -> float:
    """Return the magnitude of a tissue.

    Spin echo: `density (1 - exp(-TR/T1)) exp(-TE/T2)`; inversion recovery:
    `density |1 - 2 exp(-TI/T1) + exp(-TR/T1)| exp(-TE/T2)`.
    """
    remaining = math.exp(-sequence.repetition_ms / tissue.t1_ms)
    if sequence.inversion_ms is None:
        recovered = 1.0 - remaining
    else:
        inverted = 2.0 * math.exp(-sequence.inversion_ms / tissue.t1_ms)
        recovered = abs(1.0 - inverted + remaining)
    decayed = math.exp(-sequence.echo_ms / tissue.t2_ms)
    return tissue.density * recovered * decayed * (sequence.fat_gain if tissue.is_fat else 1.0)


def draw_signals(
    rng: np.random.Generator, sequence: str, *, spread: float = 0.07
) -> dict[str, float]:
    """Draw every tissue's signal for one subject, with small deviations from the table."""
    factors = np.exp(spread * rng.standard_normal((len(TISSUES), 3)))
    return {
        name: signal(
            Tissue(t.density * f[0], t.t1_ms * f[1], t.t2_ms * f[2], t.is_fat), SEQUENCES[sequence]
        )
        for (name, t), f in zip(TISSUES.items(), factors.tolist(), strict=True)
    }
