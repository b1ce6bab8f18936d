"""The widget of a page that steps through an acquisition: HTML without libraries.

A page with the widget includes `base.css`, `player.css` and `player.js` of these templates.
The report uses it, and the service's page, which also controls it: the events `step` and `column`
report the displayed step and the selected column.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

import numpy as np
from jaxtyping import Float, Float64

from kscout.evaluation.records.acquisitions import PolicySteps, SliceRecord
from kscout.figures.png import brightest_shown, gray_uri, heat_uri
from kscout.json_types import JsonObject

_N_COLORS = 8
_N_SHOWN = 4
"""Number of policies shown at first, if the record does not specify them."""
_ERROR_QUANTILE = 0.998
"""Quantile of the first step's errors with full brightness; outliers do not set the scale."""
_FEWEST = 5
"""Smallest number of steps, below which images are made smaller instead."""
_RATING_ROWS = 32
"""Height of the largest score in pixels."""
_TALLEST = 16_000
"""Largest side in pixels, a limit of picture formats."""


def acquisition_player(
    acquisition: SliceRecord,
    *,
    name: str = "player",
    colors: Mapping[str, int] | None = None,
    n_bytes: int | None = 1_600_000,
    is_steered: bool = False,
) -> str:
    """Return HTML that steps through an acquisition with a slider, a button and the keyboard.

    Every policy can be shown or hidden. The first step is shown at first, and the last in print. If
    only one step was recorded, there is no slider.

    Args:
        acquisition: the recorded acquisition.
        name: the widget's id, one per page.
        colors: color number of each policy elsewhere on the page, from 1.
        n_bytes: limit for the images, above which steps are omitted; None means the limit of
            picture formats.
        is_steered: allow to point at columns, and to select the speed.
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
    # "</" would end the script element.
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


def _played(policy: PolicySteps) -> JsonObject:
    """Return the data of a policy for the script, without its pictures."""
    data: JsonObject = {
        # With four digits, as elsewhere: fewer here would be rounded twice.
        "ssim": [round(float(x), 7) for x in policy.ssim],
        "columns": policy.columns,
    }
    if policy.ratings is not None:
        data["ratings"] = base64.b64encode(policy.ratings.tobytes()).decode()
    return data


_KEY = (
    '<p class="key"><i class="start"></i>start<i class="old"></i>acquired'
    '<i class="new"></i>newest</p>'
)


def limits_of(acquisition: SliceRecord) -> tuple[float, float]:
    """Return the white level of images, and the full brightness of error maps."""
    errors = [np.abs(policy.images[0] - acquisition.target) for policy in acquisition.policies]
    limit = float(np.quantile(np.concatenate(errors), _ERROR_QUANTILE))
    return brightest_shown(acquisition.target), limit


def _fitted(acquisition: SliceRecord, n_bytes: int | None) -> tuple[SliceRecord, bool]:
    """Reduce images to a number of bytes, and return whether pixels are exact.

    First pixels are compressed with some loss, then steps omitted, then images made smaller.
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


def _halved(acquisition: SliceRecord) -> SliceRecord:
    policies = tuple(replace(one, images=_half(one.images)) for one in acquisition.policies)
    return replace(acquisition, target=_half(acquisition.target), policies=policies)


def _half(images: Float[np.ndarray, "*lead row col"]) -> Float[np.ndarray, "*lead half narrow"]:
    *_, n_rows, n_cols = images.shape
    even = images[..., : n_rows // 2 * 2, : n_cols // 2 * 2]
    return (
        even[..., ::2, ::2] + even[..., 1::2, ::2] + even[..., ::2, 1::2] + even[..., 1::2, 1::2]
    ) / 4


def _uris(
    policy: PolicySteps, acquisition: SliceRecord, limits: tuple[float, float], is_exact: bool
) -> tuple[str, str]:
    """Return the reconstructions and the error maps of all steps, each as one tall picture."""
    n_cols = acquisition.target.shape[-1]
    errors = np.abs(policy.images - acquisition.target)
    return (
        gray_uri(policy.images.reshape(-1, n_cols), limits[0], is_exact=is_exact),
        heat_uri(errors.reshape(-1, n_cols), limits[1], is_exact=is_exact),
    )


def _kind(policy: PolicySteps, index: int, colors: Mapping[str, int]) -> str:
    """Return the class of the policy's color in the page's style sheet."""
    if policy.is_oracle:
        return "oracle"
    return f"series-{colors.get(policy.name, index % _N_COLORS + 1)}"


_SPEEDS = {600: "slow", 200: "5 a second", 50: "20 a second"}
"""Milliseconds per step, and labels."""


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
"""Placeholder for missing scores, so that pictures are aligned."""


def _target(acquisition: SliceRecord, top: float) -> str:
    uri, kspace, more = gray_uri(acquisition.target, top), "", ""
    if acquisition.kspace is not None:
        full = gray_uri(acquisition.kspace, 1.0)
        picture = _picture("kspace", "All of k-space", full, acquisition)
        kspace = f'{_SPACE}{picture}<div class="pointed"></div>'
        more = "scores of the remaining columns, k-space, "
    return (
        '<figure class="card target"><figcaption><b>target</b><span>fully sampled</span>'
        f'</figcaption><div class="strip full"></div>{kspace}'
        f"{_picture('shot', 'Target image', uri, acquisition)}"
        f'<p class="key">Next to it, from top: measured columns, {more}reconstruction, absolute '
        "error (black is none, yellow is large).</p></figure>"
    )


def _picture(kind: str, words: str, uri: str, acquisition: SliceRecord) -> str:
    n_rows, n_cols = acquisition.target.shape
    return (
        f'<img class="{kind}" alt="{escape(words)}" style="aspect-ratio:{n_cols}/{n_rows}" '
        f'src="{uri}">'
    )


def _card(
    policy: PolicySteps, acquisition: SliceRecord, uris: tuple[str, str], attributes: str
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


def _more(policy: PolicySteps, acquisition: SliceRecord) -> str:
    """Return the parts of a computing page: k-space as it fills, and the policy's scores."""
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
    acquisition: SliceRecord, kinds: Sequence[str], hidden: Sequence[str], is_steered: bool
) -> str:
    """Draw SSIM by step as a strip of lines, with a cursor that the player moves.

    A policy that stopped keeps its last score; a manual acquisition may still continue.
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
