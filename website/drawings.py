"""Drawings of the pages on concepts, made while the site is built.

A page has the line `<!-- drawing NAME: what it shows -->` where one stands. One drawing serves
light and dark: its colors are variables, with the values that reports have.
"""

import re
from collections.abc import Callable
from functools import cache
from html import escape
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kscout import policies, reconstruction
from kscout.acquisition import Simulator
from kscout.acquisition.episode import State
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.evaluation.statistics import confidence_interval
from kscout.figures.series import GRID, INK, QUIET, SERIES
from kscout.figures.style import house_style, new_axes, to_inline_svg

SIZE, N_INITIAL = 128, 16
SEED = 15
"""Chosen so that the two intervals of the drawing on statistics disagree about zero."""
MARKER = re.compile(r"<!-- drawing ([\w.-]+): (.+?) -->")


class Scene(NamedTuple):
    """One knee after its central columns were measured."""

    simulator: Simulator
    state: State


@cache
def scene() -> Scene:
    """Return the knee that all drawings show; no network saw it in training."""
    # Test volumes of seed 0 are drawn with 3 * 0 + 2 (kscout.data.generate).
    volume = draw_knee_volume(seed=2, volume=24, n_slices=18, size=SIZE)
    slices = SliceSet.from_images(torch.from_numpy(volume.stored), ["knee"] * 18)
    simulator = Simulator(slices.batch(torch.tensor([8])), reconstruction.load("knee-general-unet"))
    return Scene(simulator, simulator.start(N_INITIAL))


def _picture(axes: Axes, picture: np.ndarray, title: str) -> None:
    axes.imshow(picture, cmap="gray", vmin=0, vmax=float(np.quantile(picture, 0.999)))
    axes.set_axis_off()
    axes.set_title(title)


def draw_kspace() -> Figure:
    """Draw an image, its k-space with what was measured, and what that gives."""
    simulator, state = scene()
    kspace = simulator.batch.kspace[0, 0].abs().log1p().numpy()
    with house_style():
        figure, (left, middle, right) = new_axes(1, 3, width=8.4, height=3.1)
        _picture(left, simulator.batch.target[0].numpy(), "the image")
        _picture(middle, kspace, "its k-space (logarithm)")
        measured = np.flatnonzero(state.mask[0].numpy())
        for edge in (measured[0] - 0.5, measured[-1] + 0.5):
            middle.axvline(edge, color=SERIES[1])
        zero_filled = state.zero_filled[0, 0].abs().numpy()
        _picture(right, zero_filled, f"from {len(measured)} columns")
    return figure


def _bars(axes: Axes, heights: np.ndarray, color: str, label: str) -> None:
    measured = np.flatnonzero(scene().state.mask[0].numpy())
    axes.axvspan(measured[0] - 0.5, measured[-1] + 0.5, color=GRID, label="measured")
    axes.bar(np.arange(SIZE), heights, width=0.9, color=color)
    best = int(np.argmax(heights))
    axes.plot(best, heights[best], "v", color=INK, label=f"best: column {best}")
    axes.set_xlim(-0.5, SIZE - 0.5)
    axes.set_ylabel(label)
    axes.legend(loc="upper left")


@torch.no_grad()
def draw_policies() -> Figure:
    """Draw what a trained policy thinks of every column of one knee."""
    simulator, state = scene()
    policy = policies.load("knee-base-greedy")
    scores = policy(simulator.observe(policy, state, n_left=16))[0].numpy()
    free = ~simulator.blocked(state)[0].numpy()
    with house_style():
        figure, (axes,) = new_axes(width=7.2, height=2.8)
        _bars(axes, np.where(free, scores - scores[free].min(), 0.0), SERIES[0], "score")
        axes.set_xlabel("column of k-space")
    return figure


@torch.no_grad()
def draw_oracles() -> Figure:
    """Draw what every column of one knee would truly gain."""
    simulator, state = scene()
    gains = (simulator.score_every_column(state) - state.score[:, None])[0].numpy()
    with house_style():
        figure, (axes,) = new_axes(width=7.2, height=2.8)
        _bars(axes, np.where(np.isfinite(gains), gains, 0.0), SERIES[2], "gain in SSIM")
        axes.set_xlabel("column of k-space")
    return figure


def draw_protocols() -> Figure:
    """Draw where the brightness of a reconstruction comes from before it is scored."""
    rows = {
        "paper": ("mean and std\nof the ground truth", SERIES[1]),
        "blind": ("mean and std\nof the measured data", SERIES[0]),
    }
    with house_style():
        figure, (axes,) = new_axes(width=7.2, height=2.5)
        axes.set(xlim=(0, 10), ylim=(-0.6, 1.6))
        axes.set_axis_off()
        for height, (name, (source, color)) in zip((1, 0), rows.items(), strict=True):
            texts = (name, "reconstruction,\nnormalized", source, "image that\nis scored")
            for place, text in zip((0.6, 2.9, 6.0, 9.0), texts, strict=True):
                edge = {"edgecolor": color if text == source else QUIET, "facecolor": "none"}
                box = None if text == name else {"boxstyle": "round,pad=0.5", **edge}
                axes.text(place, height, text, ha="center", va="center", bbox=box)
            for start, end in ((4.05, 4.5), (7.5, 7.95)):
                arrow = {"arrowstyle": "->", "color": QUIET}
                axes.annotate("", (end, height), (start, height), arrowprops=arrow)
    return figure


def made_up_differences() -> tuple[np.ndarray, list[str]]:
    """Return differences whose volumes differ more than the slices of each, and the volumes."""
    generator = np.random.default_rng(SEED)
    centers = generator.normal(0.002, 0.004, 9)
    values = (centers[:, None] + generator.normal(0, 0.0015, (9, 12))).ravel()
    return values, np.repeat([f"{volume}" for volume in range(9)], 12).tolist()


def draw_statistics() -> Figure:
    """Draw synthetic differences of slices in volumes, and two intervals of their mean."""
    values, volumes = made_up_differences()
    alone = [f"{place}" for place in range(len(values))]
    with house_style():
        figure, (axes,) = new_axes(width=7.2, height=3.4)
        axes.axvline(0, color=INK, linewidth=1.1)
        axes.plot(values, np.repeat(np.arange(9), 12), "o", color=SERIES[0], alpha=0.6)
        for place, units, color in ((10, volumes, SERIES[1]), (11, alone, QUIET)):
            interval = confidence_interval(values, units)
            assert interval is not None
            axes.plot(interval, (place, place), "|-", color=color, linewidth=2.4, markersize=10)
            axes.plot(values.mean(), place, "D", color=color)
        names = [f"volume {volume + 1}" for volume in range(9)]
        ticks = [*range(9), 10, 11]
        axes.set_yticks(ticks, [*names, "interval over volumes", "as if slices were independent"])
        axes.invert_yaxis()
        axes.set_xlabel("difference in SSIM (synthetic numbers)")
    return figure


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "kspace": draw_kspace,
    "policies": draw_policies,
    "oracles": draw_oracles,
    "protocols": draw_protocols,
    "statistics": draw_statistics,
}


def with_drawings(html: str, find: Callable[[str], Figure]) -> str:
    """Return a page with its drawings in place of their markers."""

    def drawn(match: re.Match[str]) -> str:
        name, label = match.groups()
        svg = to_inline_svg(find(name), name=name, label=label)
        return f'<figure class="drawing">{svg}<figcaption>{escape(label)}</figcaption></figure>'

    return MARKER.sub(drawn, html)


def palette() -> str:
    """Return the colors of drawings as a style sheet: those of reports, light and dark."""
    text = files("kscout.apps.player").joinpath("templates/base.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", text, flags=re.DOTALL)[:2]
    schemes = zip(("default", "slate"), blocks, strict=True)
    return "".join(
        f'[data-md-color-scheme="{scheme}"] :is(.drawing, .player) {{ {" ".join(colors)} }}\n'
        for scheme, colors in (
            (name, re.findall(r"--[\w-]+: #\w+;", block)) for name, block in schemes
        )
    )
