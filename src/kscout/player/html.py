"""The widget of a page that steps through an acquisition: HTML without any library.

A page that holds one includes `base.css`, `player.css` and `player.js` of this package's templates.
The report has it, and the service's page, where it is also steered: it tells that page which step
it shows and which column was taken, by the events `step` and `column`.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
from jaxtyping import Float, Float64

from kscout.evaluation.records.acquisitions import Acquisition, PolicySteps
from kscout.figures.png import brightest_shown, gray_uri, heat_uri

_N_COLORS = 8
_N_SHOWN = 4
"""Policies that are shown at first where the record does not say which."""
_ERROR_QUANTILE = 0.998
"""Of the first step's errors: drawn brightest, so that one pixel does not set the scale."""
_FEWEST = 5
"""Steps that are left before images are made smaller instead."""
_RATING_ROWS = 32
"""Pixels that the highest score is drawn with."""
_TALLEST = 16_000
"""Pixels: what picture formats allow."""


def acquisition_player(
    acquisition: Acquisition,
    *,
    name: str = "player",
    colors: Mapping[str, int] | None = None,
    n_bytes: int | None = 1_600_000,
    is_steered: bool = False,
) -> str:
    """Return HTML that steps through an acquisition with a slider, a button and the keyboard.

    Every policy can be shown or hidden. It opens at the first step; print shows the last. Where
    one step alone was kept, the images stand without slider.

    Args:
        acquisition: what is shown.
        name: the widget's id, one per page.
        colors: number of a policy's color elsewhere on the page, from 1, so that they agree.
        n_bytes: that the images may take; steps are left out where they would take more. None
            keeps all that picture formats allow.
        is_steered: let columns be pointed at, and the speed be chosen.
    """
    n_cols = acquisition.target.shape[-1]
    acquisition, is_exact = _fitted(acquisition, n_bytes)
    policies, steps = acquisition.policies, acquisition.steps
    kinds = [_kind(policy, index, colors or {}) for index, policy in enumerate(policies)]
    shown = set(acquisition.shown) or {policy.name for policy in policies[:_N_SHOWN]}
    hidden = ["" if policy.name in shown else " hidden" for policy in policies]
    limits = limits_of(acquisition)
    cards = "".join(
        _card(
            policy,
            acquisition,
            _uris(policy, acquisition, limits, is_exact),
            f'data-kind="{kind}"{off}',
        )
        for policy, kind, off in zip(policies, kinds, hidden, strict=True)
    )
    data = {
        "nCols": n_cols,
        "start": acquisition.start_columns,
        "steps": steps,
        "policies": [_played(one) for one in policies],
    }
    # "</" would end the script element early.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    moving = ""
    if len(steps) > 1:
        moving = _controls(steps[-1], is_steered)
        moving += _chart(acquisition, kinds, hidden, is_steered)
    kind = "player steered" if is_steered else "player"
    return (
        f'<div class="{kind}" id="{escape(name)}">{moving}{_choice(policies, kinds, hidden)}'
        f'{_KEY}<div class="cards">{_target(acquisition, limits[0])}{cards}</div>'
        f'<script type="application/json" class="data">{text}</script></div>'
    )


def _played(policy: PolicySteps) -> dict[str, Any]:
    """Return what the script shows of a policy beside its pictures."""
    found: dict[str, Any] = {
        # Shown with four digits, as elsewhere: fewer here would be rounded twice.
        "ssim": [round(float(x), 7) for x in policy.ssim],
        "columns": policy.columns,
    }
    if policy.ratings is not None:
        found["ratings"] = base64.b64encode(policy.ratings.tobytes()).decode()
    return found


_KEY = (
    '<p class="key"><i class="start"></i>start<i class="old"></i>acquired'
    '<i class="new"></i>newest</p>'
)


def limits_of(acquisition: Acquisition) -> tuple[float, float]:
    """Return what is drawn white in images, and brightest in error maps."""
    errors = [np.abs(policy.images[0] - acquisition.target) for policy in acquisition.policies]
    limit = float(np.quantile(np.concatenate(errors), _ERROR_QUANTILE))
    return brightest_shown(acquisition.target), limit


def _fitted(acquisition: Acquisition, n_bytes: int | None) -> tuple[Acquisition, bool]:
    """Bring images below a number of bytes, and return whether their pixels are kept exactly.

    First pixels are encoded with some loss, then steps are left out, then images are made smaller.
    """
    is_exact = True
    if n_bytes is None:
        return acquisition.thinned(max(2, _TALLEST // acquisition.target.shape[0])), is_exact
    while True:
        n_frames, n_rows = len(acquisition.steps), acquisition.target.shape[0]
        uris = _uris(acquisition.policies[0], acquisition, limits_of(acquisition), is_exact)
        taken = len(acquisition.policies) * sum(map(len, uris))
        most = min(_TALLEST // n_rows, n_frames * n_bytes // max(taken, 1))
        if n_frames <= most or (n_frames <= _FEWEST and n_rows < 32):
            return acquisition, is_exact
        if is_exact:
            is_exact = False
        elif n_frames > _FEWEST:
            acquisition = acquisition.thinned(max(_FEWEST, most))
        else:
            acquisition = _halved(acquisition)


def _halved(acquisition: Acquisition) -> Acquisition:
    policies = tuple(replace(one, images=_half(one.images)) for one in acquisition.policies)
    return replace(acquisition, target=_half(acquisition.target), policies=policies)


def _half(images: Float[np.ndarray, "*lead row col"]) -> Float[np.ndarray, "*lead half narrow"]:
    *_, n_rows, n_cols = images.shape
    even = images[..., : n_rows // 2 * 2, : n_cols // 2 * 2]
    return (
        even[..., ::2, ::2] + even[..., 1::2, ::2] + even[..., ::2, 1::2] + even[..., 1::2, 1::2]
    ) / 4


def _uris(
    policy: PolicySteps, acquisition: Acquisition, limits: tuple[float, float], is_exact: bool
) -> tuple[str, str]:
    """Return the reconstructions and the error maps of all steps, each as one tall picture."""
    n_cols = acquisition.target.shape[-1]
    errors = np.abs(policy.images - acquisition.target)
    return (
        gray_uri(policy.images.reshape(-1, n_cols), limits[0], is_exact=is_exact),
        heat_uri(errors.reshape(-1, n_cols), limits[1], is_exact=is_exact),
    )


def _kind(policy: PolicySteps, index: int, colors: Mapping[str, int]) -> str:
    """Return the name of the policy's color in the page's style sheet."""
    if policy.is_oracle:
        return "oracle"
    return f"series-{colors.get(policy.name, index % _N_COLORS + 1)}"


_SPEEDS = {600: "slow", 200: "5 a second", 50: "20 a second"}
"""Milliseconds that a step is shown, and words."""


def _controls(n_steps: int, is_steered: bool) -> str:
    speeds = "".join(f'<option value="{ms}">{words}</option>' for ms, words in _SPEEDS.items())
    speed = f'<select class="speed" aria-label="Speed">{speeds}</select>' if is_steered else ""
    return (
        '<div class="controls"><button type="button" class="play" aria-label="Play">'
        '<span aria-hidden="true">▶</span></button>'
        '<input type="range" min="0" max="0" value="0" step="1" aria-label="Acquisition step">'
        f'<output aria-live="off">step 0 of {n_steps}</output>{speed}</div>'
    )


def _choice(policies: Sequence[PolicySteps], kinds: Sequence[str], hidden: Sequence[str]) -> str:
    boxes = "".join(
        f'<label data-kind="{kind}"><input type="checkbox"{"" if off else " checked"}>'
        f"{escape(policy.name)}</label>"
        for policy, kind, off in zip(policies, kinds, hidden, strict=True)
    )
    return f'<fieldset class="choice"><legend>Policies shown</legend>{boxes}</fieldset>'


_SPACE = '<div class="ratings"></div>'
"""In place of scores where there are none, so that pictures stand side by side."""


def _target(acquisition: Acquisition, top: float) -> str:
    uri, kspace, more = gray_uri(acquisition.target, top), "", ""
    if acquisition.kspace is not None:
        full = gray_uri(acquisition.kspace, 1.0)
        picture = _picture("kspace", "All of k-space", full, acquisition)
        kspace = f'{_SPACE}{picture}<div class="pointed"></div>'
        more = "scores of those that are left, k-space, "
    return (
        '<figure class="card target"><figcaption><b>target</b><span>fully sampled</span>'
        f'</figcaption><div class="strip full"></div>{kspace}'
        f"{_picture('shot', 'Target image', uri, acquisition)}"
        f'<p class="key">Beside, from above: measured columns, {more}reconstruction, absolute '
        "error (black is none, yellow is large).</p></figure>"
    )


def _picture(kind: str, words: str, uri: str, acquisition: Acquisition) -> str:
    n_rows, n_cols = acquisition.target.shape
    return (
        f'<img class="{kind}" alt="{escape(words)}" style="aspect-ratio:{n_cols}/{n_rows}" '
        f'src="{uri}">'
    )


def _card(
    policy: PolicySteps, acquisition: Acquisition, uris: tuple[str, str], attributes: str
) -> str:
    images, errors = uris
    is_told = "oracle" in policy.name.lower()
    mark = " <small>oracle</small>" if policy.is_oracle and not is_told else ""
    name, more = escape(policy.name), _more(policy, acquisition)
    shot = _picture("shot", f"Reconstruction by {policy.name}", images, acquisition)
    return (
        f'<figure class="card" {attributes}><figcaption><b>{name}</b>{mark}'
        f'<span>SSIM <output class="score">{policy.ssim[0]:.4f}</output></span></figcaption>'
        f'<canvas class="strip" height="1" role="img" aria-label="Measured columns of {name}">'
        f"</canvas>{more}{shot}"
        f"{_picture('error', f'Absolute error of {policy.name}', errors, acquisition)}</figure>"
    )


def _more(policy: PolicySteps, acquisition: Acquisition) -> str:
    """Return what only a page that computes shows: k-space as it fills, and the policy's scores."""
    name, (n_rows, n_cols) = escape(policy.name), acquisition.target.shape
    if acquisition.kspace is None:
        return ""
    ratings = _SPACE
    if policy.ratings is not None:
        ratings = (
            f'<canvas class="ratings" height="{_RATING_ROWS}" role="img" '
            f'aria-label="Scores of {name} over the columns"></canvas>'
        )
    return (
        f'{ratings}<canvas class="kspace" width="{n_cols}" height="{n_rows}" tabindex="0" '
        f'role="slider" aria-label="k-space of {name}: a column to measure" aria-valuemin="0" '
        f'aria-valuemax="{n_cols - 1}" aria-valuenow="{n_cols // 2}"></canvas>'
        '<output class="pointed" aria-live="off"></output>'
    )


def _chart(
    acquisition: Acquisition, kinds: Sequence[str], hidden: Sequence[str], is_steered: bool
) -> str:
    """Draw SSIM by step as a strip of lines, with a cursor that the player moves.

    A policy that stopped keeps its last score; whoever steers has not stopped, but may go on.
    """
    width, height, edge = 600.0, 90.0, 6.0
    policies, steps = acquisition.policies, np.array(acquisition.steps, dtype=np.float64)
    values = np.concatenate([policy.ssim for policy in policies]).astype(np.float64)
    low, high = float(values.min()), float(values.max())
    across = edge + steps / steps[-1] * (width - 2 * edge)
    lines = []
    for policy, kind, off in zip(policies, kinds, hidden, strict=True):
        up = height - edge - (policy.ssim - low) / ((high - low) or 1.0) * (height - 2 * edge)
        look = (
            'stroke="var(--ink)" stroke-dasharray="5 4"'
            if policy.is_oracle
            else f'stroke="var(--{kind})"'
        )
        n_points = int((steps <= len(policy.columns)).sum()) if is_steered else len(steps)
        points = _points(across[:n_points], np.asarray(up, np.float64)[:n_points])
        visible = ' class="off"' if off else ""
        lines.append(f'<polyline{visible} points="{points}" fill="none" stroke-width="2" {look}/>')
    cursor = f'<line class="cursor" x1="{edge}" x2="{edge}" y1="0" y2="{height}"/>'
    return (
        f'<p class="scale">SSIM, {low:.3f} to {high:.3f}</p>'
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none" '
        f'role="img" aria-label="SSIM by step, from {low:.3f} to {high:.3f}">{"".join(lines)}'
        f"{cursor}</svg>"
    )


def _points(across: Float64[np.ndarray, " n"], up: Float64[np.ndarray, " n"]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, up, strict=True))
