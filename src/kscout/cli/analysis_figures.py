"""Figures of the analyses: from their tables to PNG, SVG and PDF files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from kscout.evaluation.average_policy import AveragePolicy, start_columns
from kscout.evaluation.curves import LearningCurve
from kscout.evaluation.examples import Example
from kscout.figures import pictures
from kscout.figures.curves import (
    Curve,
    draw_curves,
    draw_entropies,
    draw_gammas,
    draw_ranking,
    draw_snr,
)
from kscout.figures.style import save_figure

Row = Mapping[str, Any]


def _curve(
    name: str, x: Sequence[int | float], mean: Sequence[float], std: Sequence[float | None] | None
) -> Curve:
    """Return a curve with a band of one deviation, where there is one."""
    middle = _array(mean)
    if std is None or any(value is None for value in std):
        return Curve(name, _array(x), middle)
    spread = _array([value for value in std if value is not None])
    return Curve(name, _array(x), middle, middle - spread, middle + spread)


def _array(values: Sequence[int | float]) -> Float64[np.ndarray, " value"]:
    return np.array(values, dtype=np.float64)


def save_average_policies(out: Path, found: Mapping[str, AveragePolicy]) -> None:
    """Draw step by column, start columns white, policies side by side."""
    start = start_columns(list(found.values()))
    shown = {name: one.sampled.double().numpy() for name, one in found.items()}
    figure = pictures.draw_average_policy(shown, start_columns=start)
    save_figure(figure, out, "average_policy")


def save_entropies(out: Path, rows: Sequence[Row]) -> None:
    """Draw the three quantities side by side, with bands over seeds."""
    titles = {
        "marginal": "marginal entropy",
        "conditional": "conditional entropy",
        "mutual_information": "mutual information",
    }
    names = list(dict.fromkeys(row["policy"] for row in rows))
    panels = {}
    for key, title in titles.items():
        panels[title] = [
            _curve(
                name,
                [row["step"] for row in rows if row["policy"] == name],
                [row[key] for row in rows if row["policy"] == name],
                [row[f"{key}_std"] for row in rows if row["policy"] == name],
            )
            for name in names
        ]
    save_figure(draw_entropies(panels), out, "entropies")


def save_snr(out: Path, rows: Sequence[Row], formula: str) -> None:
    """Draw the ratio against the epoch, with the deviation over passes."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["policy"], row["seed"]), []).append(row)
    many = {name for name, _ in groups if sum(name == other for other, _ in groups) > 1}
    curves = [
        _curve(
            f"{name}, seed {seed}" if name in many else name,
            [row["epoch"] for row in own],
            [row[f"snr_{formula}"] for row in own],
            [row[f"std_{formula}"] for row in own],
        )
        for (name, seed), own in groups.items()
    ]
    save_figure(draw_snr(curves), out, "snr")


def save_learning_curves(out: Path, found: Sequence[LearningCurve]) -> None:
    """Draw training and validation SSIM, with bands over seeds."""
    by_series: dict[str, list[Curve]] = {"train_ssim": [], "val_ssim": []}
    for one in found:
        std = None if one.std is None else one.std.tolist()
        by_series[one.series].append(_curve(one.name, one.epochs, one.mean.tolist(), std))
    figure = draw_curves(by_series["train_ssim"], by_series["val_ssim"])
    save_figure(figure, out, "curves")


def save_gammas(out: Path, rows: Sequence[Row]) -> None:
    """Draw the final SSIM against gamma, one figure per horizon; nothing where no gamma is."""
    horizons = list(dict.fromkeys((row["n_initial"], row["steps"]) for row in rows))
    for n_initial, steps in horizons:
        own = [row for row in rows if (row["n_initial"], row["steps"]) == (n_initial, steps)]
        discounted = [row for row in own if row["gamma"] is not None]
        if not discounted:
            continue
        greedy = [row["ssim_mean"] for row in own if row["gamma"] is None]
        stds = [row["ssim_std"] for row in discounted]
        figure = draw_gammas(
            _array([row["gamma"] for row in discounted]),
            _array([row["ssim_mean"] for row in discounted]),
            None if None in stds else _array(stds),
            greedy=greedy[0] if greedy else None,
        )
        save_figure(figure, out, "gammas" if len(horizons) == 1 else f"gammas-{n_initial}+{steps}")


def save_example_pictures(out: Path, found: Sequence[Example]) -> None:
    """Draw one row per slice and policy."""
    shown = [
        pictures.Example(
            title=f"{one.policy}\n{one.volume}:{one.slice}",
            mask=one.mask,
            image=one.image,
            target=one.target,
            ssim=one.ssim,
        )
        for one in found
    ]
    save_figure(pictures.draw_examples(shown), out, "examples")


def save_rankings(out: Path, found: Mapping[str, dict[str, Any]]) -> None:
    """Draw SSIM against PSNR, one figure per evaluation."""
    for label, one in found.items():
        rows = one["rows"]
        figure = draw_ranking(
            [row["policy"] for row in rows],
            _array([row["ssim"] for row in rows]),
            _array([row["psnr"] for row in rows]),
            oracles=[row["policy"] for row in rows if row["is_oracle"]],
        )
        name = "ranking" if len(found) == 1 else f"ranking-{label.replace('/', '-')}"
        save_figure(figure, out, name)
