"""Tissues and sequences: how bright each tissue is in each kind of MR image."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np


@final
@dataclass(frozen=True)
class Tissue:
    """Proton density (1 is water) and relaxation times of one tissue at about 3 tesla."""

    density: float
    t1_ms: float
    t2_ms: float
    is_fat: bool = False
    """Fat is dimmed by sequences with fat suppression."""


@final
@dataclass(frozen=True)
class Sequence:
    """Timing of one pulse sequence; an inversion time makes it an inversion recovery."""

    repetition_ms: float
    echo_ms: float
    fat_gain: float = 1.0
    """What is left of the signal of fat."""
    inversion_ms: float | None = None


TISSUES: dict[str, Tissue] = {
    "fat": Tissue(0.95, 370.0, 110.0, is_fat=True),
    "scalp-fat": Tissue(0.62, 390.0, 100.0, is_fat=True),
    "marrow": Tissue(0.85, 380.0, 90.0, is_fat=True),
    "muscle": Tissue(0.78, 1300.0, 34.0),
    "cortical-bone": Tissue(0.06, 400.0, 2.0),
    "cartilage": Tissue(0.82, 1200.0, 38.0),
    "fluid": Tissue(1.0, 3000.0, 500.0),
    "meniscus": Tissue(0.35, 900.0, 11.0),
    "ligament": Tissue(0.30, 900.0, 12.0),
    "skin": Tissue(0.55, 900.0, 30.0),
    "blood": Tissue(0.9, 1600.0, 150.0),
    "flow-void": Tissue(0.10, 1600.0, 20.0),
    "edema": Tissue(0.9, 1700.0, 140.0),
    "white-matter": Tissue(0.70, 800.0, 72.0),
    "gray-matter": Tissue(0.82, 1520.0, 97.0),
    "deep-gray": Tissue(0.78, 1250.0, 82.0),
    "pallidum": Tissue(0.74, 1000.0, 66.0),
    "csf": Tissue(1.0, 4000.0, 1400.0),
    "vitreous": Tissue(1.0, 3800.0, 1000.0),
    "diploe": Tissue(0.5, 420.0, 80.0, is_fat=True),
    "mucosa": Tissue(0.9, 1700.0, 110.0),
    "lesion": Tissue(0.88, 1500.0, 150.0),
}

SEQUENCES: dict[str, Sequence] = {
    "pd": Sequence(2800.0, 30.0),
    "pd-fs": Sequence(2800.0, 33.0, fat_gain=0.13),
    "t1": Sequence(520.0, 12.0),
    "t2": Sequence(3800.0, 90.0, fat_gain=0.8),
    "t2-fs": Sequence(3800.0, 70.0, fat_gain=0.12),
    "t1-ir": Sequence(1900.0, 3.0, fat_gain=0.9, inversion_ms=900.0),
    "flair": Sequence(9000.0, 110.0, fat_gain=0.8, inversion_ms=2500.0),
}


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
    """Draw every tissue's signal for one subject, who differs a little from the table.

    Args:
        rng: The subject's random numbers; always the same count is drawn.
        sequence: A name in `SEQUENCES`.
        spread: Relative standard deviation of density and relaxation times.
    """
    factors = np.exp(spread * rng.standard_normal((len(TISSUES), 3)))
    return {
        name: signal(
            Tissue(t.density * f[0], t.t1_ms * f[1], t.t2_ms * f[2], t.is_fat),
            SEQUENCES[sequence],
        )
        for (name, t), f in zip(TISSUES.items(), factors.tolist(), strict=True)
    }
