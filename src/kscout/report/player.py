"""One slice, acquired column by column: a small player for the page, without any library."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float, Float64

from kscout.acquisition.rollout import Trajectory
from kscout.errors import DataError
from kscout.files import written_whole
from kscout.report.embedding import brightest_shown, gray_uri, heat_uri
from kscout.report.style import SERIES, LineStyle

_ERROR_QUANTILE = 0.998
"""Of the first step's errors: white in the error maps, so that one pixel does not set the scale."""


@final
@dataclass(frozen=True)
class PolicySteps:
    """How one policy acquired a slice; step 0 is the start."""

    name: str
    images: Float[np.ndarray, "step row col"]
    """Reconstructions from step 0 on, in the target's units."""
    ssim: Float[np.ndarray, " step"]
    columns: tuple[int, ...]
    """Acquired columns in order: one fewer than there are images."""
    is_oracle: bool = False


@final
@dataclass(frozen=True)
class Acquisition:
    """One slice acquired by several policies from the same start."""

    target: Float[np.ndarray, "row col"]
    start_columns: tuple[int, ...]
    policies: tuple[PolicySteps, ...]
    title: str = "One slice"

    def __post_init__(self) -> None:
        lengths = {len(policy.images) for policy in self.policies}
        if len(lengths) != 1:
            raise DataError(f"policies of one acquisition have {sorted(lengths)} images each")
        for policy in self.policies:
            if len(policy.columns) != len(policy.images) - 1:
                raise DataError(
                    f"{policy.name} has {len(policy.images)} images and {len(policy.columns)} "
                    "columns; expected one column fewer than images"
                )


def steps_of(
    name: str, trajectory: Trajectory, *, place: int = 0, is_oracle: bool = False
) -> PolicySteps:
    """Take the first trajectory of one slice from a rollout that kept its images.

    Args:
        name: what the policy is called.
        trajectory: of a batch, rolled out with `keep_images`.
        place: of the slice in the batch.
        is_oracle: whether the policy looks at the truth.
    """
    if trajectory.images is None:
        raise DataError(f"the rollout of {name} kept no images; ask for them with keep_images")
    return PolicySteps(
        name=name,
        images=trajectory.images[:, place, 0].float().cpu().numpy(),
        ssim=trajectory.ssim[place, 0].float().cpu().numpy(),
        columns=tuple(trajectory.columns[place, 0].tolist()),
        is_oracle=is_oracle,
    )


def save_acquisition(acquisition: Acquisition, path: Path) -> None:
    """Write one .npz file, which `report` finds by the name `acquisition*.npz`."""
    arrays = {"target": acquisition.target, "start_columns": np.array(acquisition.start_columns)}
    for index, policy in enumerate(acquisition.policies):
        arrays[f"images_{index}"] = policy.images.astype(np.float32)
        arrays[f"ssim_{index}"] = policy.ssim
        arrays[f"columns_{index}"] = np.array(policy.columns)
    about = {
        "title": acquisition.title,
        "policies": [
            {"name": policy.name, "is_oracle": policy.is_oracle} for policy in acquisition.policies
        ],
    }
    with written_whole(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def load_acquisition(path: Path) -> Acquisition:
    """Read what `save_acquisition` wrote."""
    try:
        with np.load(path) as arrays:
            about = json.loads(str(arrays["about"]))
            policies = tuple(
                PolicySteps(
                    name=policy["name"],
                    images=arrays[f"images_{index}"],
                    ssim=arrays[f"ssim_{index}"],
                    columns=tuple(int(column) for column in arrays[f"columns_{index}"]),
                    is_oracle=policy["is_oracle"],
                )
                for index, policy in enumerate(about["policies"])
            )
            start = tuple(int(column) for column in arrays["start_columns"])
            return Acquisition(arrays["target"], start, policies, about["title"])
    except (OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} is not a recorded acquisition ({error}); record it anew"
        ) from error


def acquisition_player(
    acquisition: Acquisition,
    *,
    name: str = "player",
    styles: Mapping[str, LineStyle] | None = None,
) -> str:
    """Return HTML that steps through an acquisition with a slider, a button and the keyboard.

    Without scripts, and in print, the last step is shown.

    Args:
        acquisition: what is shown.
        name: the widget's id, one per page.
        styles: looks of policies elsewhere on the page, so that colors agree.
    """
    kinds = [
        _kind(policy, index, styles or {}) for index, policy in enumerate(acquisition.policies)
    ]
    errors = [np.abs(policy.images - acquisition.target) for policy in acquisition.policies]
    limit = float(np.quantile(np.concatenate([error[0] for error in errors]), _ERROR_QUANTILE))
    top = brightest_shown(acquisition.target)
    cards = [
        _card(policy, error, (top, limit), kind)
        for policy, error, kind in zip(acquisition.policies, errors, kinds, strict=True)
    ]
    n_steps = len(acquisition.policies[0].columns)
    data = {
        "nCols": acquisition.target.shape[-1],
        "start": list(acquisition.start_columns),
        "policies": [card.data for card in cards],
    }
    # "</" would end the script element early.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    target = (
        '<figure class="card target"><figcaption><b>target</b><span>fully sampled</span>'
        '</figcaption><div class="strip full"></div>'
        f'<img class="shot" alt="Target image" src="{gray_uri(acquisition.target, top)}">'
        '<p class="key">Beside: measured columns, reconstruction, absolute error '
        "(black is none, yellow is large).</p></figure>"
    )
    key = (
        '<p class="key"><i class="start"></i>start<i class="old"></i>acquired'
        '<i class="new"></i>newest<span>line: SSIM by step</span></p>'
    )
    return (
        f'<div class="player" id="{escape(name)}" data-steps="{n_steps}">'
        f'<div class="controls"><button type="button" class="play" aria-label="Play">'
        f'<span aria-hidden="true">▶</span></button>'
        f'<input type="range" min="0" max="{n_steps}" value="{n_steps}" step="1" '
        f'aria-label="Acquisition step">'
        f'<output aria-live="off">step {n_steps} of {n_steps}</output></div>'
        f"{_chart(acquisition.policies, kinds)}{key}"
        f'<div class="cards">{target}{"".join(card.html for card in cards)}</div>'
        f'<script type="application/json" class="data">{text}</script></div>'
    )


def _kind(policy: PolicySteps, index: int, styles: Mapping[str, LineStyle]) -> str:
    """Return the name of the policy's color in the page's style sheet."""
    if policy.is_oracle:
        return "oracle"
    style = styles.get(policy.name)
    place = SERIES.index(style.color) if style and style.color in SERIES else index % len(SERIES)
    return f"series-{place + 1}"


@final
@dataclass(frozen=True)
class _Card:
    html: str
    data: dict[str, object]


def _card(
    policy: PolicySteps,
    error: Float[np.ndarray, "step row col"],
    limits: tuple[float, float],
    kind: str,
) -> _Card:
    images = [gray_uri(image, limits[0]) for image in policy.images]
    errors = [heat_uri(image, limits[1]) for image in error]
    scores = [round(float(score), 5) for score in policy.ssim]
    is_told = "oracle" in policy.name.lower()
    mark = " <small>oracle</small>" if policy.is_oracle and not is_told else ""
    html = (
        f'<figure class="card" data-kind="{kind}"><figcaption><b>{escape(policy.name)}</b>{mark}'
        f'<span>SSIM <output class="score">{scores[-1]:.4f}</output></span></figcaption>'
        f'<canvas class="strip" height="1" role="img" aria-label="Measured columns of '
        f'{escape(policy.name)}"></canvas>'
        f'<img class="shot" alt="Reconstruction by {escape(policy.name)}" src="{images[-1]}">'
        f'<img class="error" alt="Absolute error of {escape(policy.name)}" src="{errors[-1]}">'
        "</figure>"
    )
    data = {
        "images": images,
        "errors": errors,
        "ssim": scores,
        "columns": list(policy.columns),
    }
    return _Card(html, data)


def _chart(policies: Sequence[PolicySteps], kinds: Sequence[str]) -> str:
    """Draw SSIM by step as a strip of lines, with a cursor that the player moves."""
    width, height, edge = 600.0, 90.0, 6.0
    values = np.concatenate([policy.ssim for policy in policies]).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    lines = []
    for policy, kind in zip(policies, kinds, strict=True):
        up = height - edge - (policy.ssim - low) / ((high - low) or 1.0) * (height - 2 * edge)
        points = _points(np.linspace(edge, width - edge, len(up)), np.asarray(up, np.float64))
        look = (
            'stroke="var(--ink)" stroke-dasharray="5 4"'
            if policy.is_oracle
            else f'stroke="var(--{kind})"'
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke-width="2" {look}/>')
    cursor = f'<line class="cursor" x1="{width - edge}" x2="{width - edge}" y1="0" y2="{height}"/>'
    return (
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" '
        f'role="img" aria-label="SSIM by step, from {low:.3f} to {high:.3f}">{"".join(lines)}'
        f"{cursor}</svg>"
    )


def _points(across: Float64[np.ndarray, " n"], up: Float64[np.ndarray, " n"]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))


__all__ = [
    "Acquisition",
    "PolicySteps",
    "acquisition_player",
    "load_acquisition",
    "save_acquisition",
    "steps_of",
]
