"""Small made-up results with the shape of real ones, for the tests of the report."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import policy_runs
from kscout.apps.player import PolicySteps, SliceRecord
from kscout.evaluation.records.results import Scores
from kscout.evaluation.request import Conditions
from kscout.evaluation.summaries.summarize import summarize
from kscout.evaluation.summaries.summary import Summary, write_summary

N_COLS, N_INITIAL, STEPS = 48, 6, 9
GAINS = {
    "random": 0.010,
    "equispaced-one": 0.013,
    "equispaced-two": 0.0125,
    "center-out": 0.019,
    "fixed": 0.0205,
    "untrained": 0.0098,
    "ngreedy-0.9": 0.0222,
    "greedy": 0.0225,
    "na-oracle": 0.0215,
    "oracle": 0.0262,
}
SEEDED = ("random", "untrained", "greedy", "ngreedy-0.9")


def make_scores(n_volumes: int = 8, n_seeds: int = 2, steps: int = STEPS) -> list[Scores]:
    volumes = tuple(f"volume{i:02d}" for i in range(n_volumes) for _ in range(3))
    slices = tuple(range(3)) * n_volumes
    draw = np.random.default_rng(0)
    base = 0.55 + 0.05 * np.repeat(draw.normal(size=n_volumes), 3)
    scores = []
    for name, gain in GAINS.items():
        for seed in range(n_seeds if name in SEEDED else 1):
            noise = 0.002 * draw.normal(size=(len(volumes), steps + 1))
            rise = gain * steps * (1 - np.exp(-0.35 * np.arange(steps + 1)))
            ssim = base[:, None] + rise + noise * (np.arange(steps + 1) > 0)
            values = np.stack([ssim, 20 + 14 * ssim, 0.3 * (1 - ssim)], axis=-1)
            scores.append(Scores(name, seed, volumes, slices, values, 4))
    return scores


def make_summary(steps: int = STEPS, **changes: Any) -> Summary:
    return replace(_summarized(steps), **changes)


@cache
def _summarized(steps: int) -> Summary:
    conditions = Conditions(
        protocol="paper",
        store="made-up knees",
        split="test",
        n_rows=N_COLS,
        n_cols=N_COLS,
        n_initial=N_INITIAL,
        steps=steps,
        reconstructor="unet",
    )
    return summarize(make_scores(steps=steps), conditions, oracles=("na-oracle", "oracle"))


def write_evaluation(folder: Path, *, steps: int = STEPS, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_summary(folder, make_summary(steps, **changes))
    return folder


def write_run(folder: Path, *, seed: int = 0) -> Path:
    provenance = {
        "date": "2020-10-30T12:00:00+00:00",
        "command": "kscout train policy --method greedy",
        "seed": seed,
        "device": "cpu",
        "commit": "0123456789abcdef",
        "inputs": {"store": "ab12"},
        "versions": {"python": "3.11.7", "torch": "2.9.0"},
        "hardware": {"machine": "x86_64", "n_cores": 2},
    }
    metrics = [
        {"epoch": x, "time_s": 1.5, "train_ssim": 0.6 + 0.01 * x, "val_ssim": 0.59 + 0.009 * x}
        for x in range(1, 8)
    ]
    return policy_runs.write_run(
        folder, seed=seed, metrics=metrics, provenance=provenance, protocol="paper"
    )


def make_phantom(n_rows: int = 40, n_cols: int = N_COLS) -> np.ndarray:
    y, x = np.mgrid[-1 : 1 : n_rows * 1j, -1 : 1 : n_cols * 1j]
    image = np.zeros((n_rows, n_cols))
    for cy, cx, ry, rx, level in (
        (0, 0, 0.85, 0.72, 0.5),
        (-0.25, 0.05, 0.42, 0.5, 0.35),
        (0.38, -0.1, 0.34, 0.42, 0.3),
        (0.03, 0.0, 0.05, 0.5, -0.45),
        (0.1, 0.45, 0.2, 0.12, 0.4),
    ):
        image += level * (((y - cy) / ry) ** 2 + ((x - cx) / rx) ** 2 < 1)
    return np.clip(image + 0.02 * np.sin(14 * x * y), 0, None)


def make_acquisition(names: tuple[str, ...] = ("random", "center-out", "oracle")) -> SliceRecord:
    target = make_phantom()
    kspace = np.fft.fftshift(np.fft.fft2(target))
    first = (N_COLS - N_INITIAL + 1) // 2
    start = tuple(range(first, first + N_INITIAL))
    free = [column for column in range(N_COLS) if column not in start]
    draw = np.random.default_rng(1)
    policies = []
    for name in names:
        center = N_COLS / 2 - (0.3 if name == "oracle" else 0)
        order = np.array(sorted(free, key=lambda column: abs(column - center)))
        order = draw.permutation(free) if name == "random" else order
        masks = [np.isin(np.arange(N_COLS), [*start, *order[:step]]) for step in range(STEPS + 1)]
        images = np.array([np.abs(np.fft.ifft2(np.fft.ifftshift(kspace * x))) for x in masks])
        scores = 1 - 4 * np.abs(images - target).mean(axis=(1, 2))
        columns = tuple(order[:STEPS].tolist())
        policies.append(PolicySteps(name, images, scores, columns, name == "oracle"))
    return SliceRecord(target, start, tuple(policies), "Slice 3 of volume02")
