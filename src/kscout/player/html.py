"""The widget of the page that steps through an acquisition: HTML without any library.

A page that holds one includes `player.css` and `player.js` of this package's templates, and
defines the colors `--series-1` to `--series-8` that its figures use.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

import numpy as np
from jaxtyping import Float, Float64

from kscout.figures.png import brightest_shown, gray_uri, heat_uri
from kscout.player.records import Acquisition, PolicySteps

_N_COLORS = 8
_ERROR_QUANTILE = 0.998
"""Of the first step's errors: drawn brightest, so that one pixel does not set the scale."""


def acquisition_player(
    acquisition: Acquisition,
    *,
    name: str = "player",
    colors: Mapping[str, int] | None = None,
) -> str:
    """Return HTML that steps through an acquisition with a slider, a button and the keyboard.

    Without scripts, and in print, the last step is shown.

    Args:
        acquisition: what is shown.
        name: the widget's id, one per page.
        colors: number of a policy's color elsewhere on the page, from 1, so that they agree.
    """
    kinds = [
        _kind(policy, index, colors or {}) for index, policy in enumerate(acquisition.policies)
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


def _kind(policy: PolicySteps, index: int, colors: Mapping[str, int]) -> str:
    """Return the name of the policy's color in the page's style sheet."""
    if policy.is_oracle:
        return "oracle"
    return f"series-{colors.get(policy.name, index % _N_COLORS + 1)}"


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


__all__ = ["acquisition_player"]
