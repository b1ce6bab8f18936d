"""The widget of a page that steps through an acquisition: HTML without libraries.

A page with the widget includes `base.css`, `player.css` and `player.js` of these templates.
The report uses it, and the service's page, which also controls it: the events `step` and `column`
report the displayed step and the selected column.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from jaxtyping import Float
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from kscout.evaluation.records.acquisitions import (
    PolicySteps,
    SliceRecord,
    load_acquisition,
    save_acquisition,
)
from kscout.figures.png import brightest_shown, gray_uri, heat_uri
from kscout.json_types import JsonObject

_N_COLORS = 8
_N_SHOWN = 4
"""Number of policies shown at first, if the record does not specify them."""
_ERROR_QUANTILE = 0.998
"""Quantile of the first step's errors with full brightness; outliers do not set the scale."""
_FEWEST = 5
"""Smallest number of steps."""
_TALLEST = 16_000
"""Largest side in pixels, a limit of picture formats."""
_WIDTH, _HEIGHT, _EDGE = 600, 90, 6
"""Size of the chart, and its margin."""


@cache
def templates(package: str) -> Environment:
    """Return the templates of a package, and those of this one."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("kscout.apps.player")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


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

    `colors` are the color numbers of policies elsewhere on the page, from 1. Above `n_bytes` of
    images steps are omitted; None means the limit of picture formats. With `is_steered`, a user can
    point at columns and select the speed.
    """
    n_cols = acquisition.target.shape[-1]
    acquisition, is_exact = _fitted(acquisition, n_bytes)
    limits, steps = _limits(acquisition), acquisition.steps
    data = {
        "nCols": n_cols,
        "start": acquisition.start_columns,
        "steps": steps,
        "policies": [_played(one) for one in acquisition.policies],
    }
    # "</" would end the script element.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    kspace = acquisition.kspace
    return (
        templates("kscout.apps.player")
        .get_template("player.html.j2")
        .render(
            name=name,
            is_steered=is_steered,
            n_steps=steps[-1],
            n_rows=acquisition.target.shape[0],
            n_cols=acquisition.target.shape[1],
            target=gray_uri(acquisition.target, limits[0]),
            kspace=None if kspace is None else gray_uri(kspace, 1.0),
            cards=_cards(acquisition, colors or {}, is_exact, is_steered),
            chart=_chart(acquisition) if len(steps) > 1 else None,
            data=Markup(text),
        )
    )


def _cards(
    acquisition: SliceRecord, colors: Mapping[str, int], is_exact: bool, is_steered: bool
) -> list[JsonObject]:
    """Return what the template needs of each policy."""
    shown = set(acquisition.shown) or {one.name for one in acquisition.policies[:_N_SHOWN]}
    cards = []
    for index, policy in enumerate(acquisition.policies):
        images, errors = _uris(policy, acquisition, _limits(acquisition), is_exact)
        series = f"series-{colors.get(policy.name, index % _N_COLORS + 1)}"
        cards.append(
            {
                "name": policy.name,
                "is_oracle": policy.is_oracle,
                "is_hidden": policy.name not in shown,
                "kind": "oracle" if policy.is_oracle else series,
                "ssim": f"{policy.ssim[0]:.4f}",
                "has_ratings": policy.ratings is not None,
                "images": images,
                "errors": errors,
                "points": _points(policy, acquisition, is_steered),
            }
        )
    return cards


def _scale(acquisition: SliceRecord) -> tuple[float, float]:
    """Return the lowest and the highest SSIM."""
    values = np.concatenate([policy.ssim for policy in acquisition.policies])
    return float(values.min()), float(values.max())


def _chart(acquisition: SliceRecord) -> JsonObject:
    low, high = _scale(acquisition)
    scale = f"{low:.3f} to {high:.3f}"
    return {"width": _WIDTH, "height": _HEIGHT, "edge": _EDGE, "scale": scale}


def _points(policy: PolicySteps, acquisition: SliceRecord, is_steered: bool) -> str:
    """Return SSIM by step as a line of the chart.

    A policy that stopped keeps its last score; a manual acquisition may still continue.
    """
    low, high = _scale(acquisition)
    steps = np.array(acquisition.steps, dtype=np.float64)
    across = _EDGE + steps / (steps[-1] or 1.0) * (_WIDTH - 2 * _EDGE)
    shares = (policy.ssim.astype(np.float64) - low) / ((high - low) or 1.0)
    up = _HEIGHT - _EDGE - shares * (_HEIGHT - 2 * _EDGE)
    n_points = int((steps <= len(policy.columns)).sum()) if is_steered else len(steps)
    points = zip(across[:n_points], up[:n_points], strict=True)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


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


def _limits(acquisition: SliceRecord) -> tuple[float, float]:
    """Return the white level of images, and the full brightness of error maps."""
    errors = [np.abs(policy.images[0] - acquisition.target) for policy in acquisition.policies]
    limit = float(np.quantile(np.concatenate(errors), _ERROR_QUANTILE))
    return brightest_shown(acquisition.target), limit


def _fitted(acquisition: SliceRecord, n_bytes: int | None) -> tuple[SliceRecord, bool]:
    """Reduce images to a number of bytes, and return whether pixels are exact.

    First pixels are compressed with some loss, then steps omitted.
    """
    n_frames, n_most = len(acquisition.steps), max(2, _TALLEST // acquisition.target.shape[0])
    if n_bytes is None:
        return acquisition.thinned(n_most), True
    for is_exact in (True, False):
        uris = _uris(acquisition.policies[0], acquisition, _limits(acquisition), is_exact)
        n_taken = len(acquisition.policies) * sum(map(len, uris))
        if n_taken <= n_bytes:
            return acquisition.thinned(n_most), is_exact
    n_fitting = max(_FEWEST, n_frames * n_bytes // n_taken)
    return acquisition.thinned(min(n_most, n_fitting)), False


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
