"""Learning curves: training and validation SSIM per epoch, over the seeds of a method."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from jaxtyping import Float64

from kscout.errors import RunError
from kscout.evaluation.run_names import grouped_runs
from kscout.runs import RunRecord

SERIES = ("train_ssim", "val_ssim")
"""Keys of `metrics.jsonl`; reconstructors have the second alone."""


@final
@dataclass(frozen=True)
class LearningCurve:
    """One series of one method, epoch by epoch."""

    name: str
    series: str
    epochs: tuple[int, ...]
    """Epochs that all seeds have reached."""
    values: Float64[np.ndarray, "seed epoch"]
    seeds: tuple[int, ...]

    @property
    def mean(self) -> Float64[np.ndarray, " epoch"]:
        return self.values.mean(axis=0)

    @property
    def std(self) -> Float64[np.ndarray, " epoch"] | None:
        """Deviation over seeds (ddof 1), None for one seed."""
        return self.values.std(axis=0, ddof=1) if len(self.values) > 1 else None


def learning_curves(runs: Sequence[Path]) -> list[LearningCurve]:
    """Return the curves of runs, finished or not, grouped by method."""
    curves = []
    for name, records in grouped_runs(runs).items():
        for series in SERIES:
            logged = [_series(record, series) for record in records]
            epochs = sorted(set.intersection(*(set(values) for values in logged)))
            if not epochs:
                continue
            values = [[one[epoch] for epoch in epochs] for one in logged]
            seeds = tuple(int(record.config["training"]["seed"]) for record in records)
            curves.append(LearningCurve(name, series, tuple(epochs), np.array(values), seeds))
    if not curves:
        raise RunError(f"{runs[0]} has logged no epoch yet; wait for its first one")
    return curves


def _series(record: RunRecord, key: str) -> dict[int, float]:
    return {line["epoch"]: float(line[key]) for line in record.metrics if key in line}


def curve_rows(curves: Sequence[LearningCurve]) -> list[dict[str, Any]]:
    """Return a long table: policy, series, epoch, mean, std, n_seeds."""
    return [
        {
            "policy": curve.name,
            "series": curve.series,
            "epoch": epoch,
            "mean": float(curve.mean[i]),
            "std": None if curve.std is None else float(curve.std[i]),
            "n_seeds": len(curve.seeds),
        }
        for curve in curves
        for i, epoch in enumerate(curve.epochs)
    ]
