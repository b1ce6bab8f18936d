"""The player of the home page: a generated knee, acquired while the site is built."""

import re
from functools import cache
from importlib.resources import files

import numpy as np
import torch

from kscout import Plan, policies, rollout
from kscout.apps.player import PolicySteps, SliceRecord, acquisition_player
from kscout.core import Policy
from website.drawings import N_INITIAL, SIZE, scene

MARKER = re.compile(r"<!-- player -->.*?<!-- /player -->", flags=re.DOTALL)
"""What the player replaces; other readers of the page see a picture there."""
_REPAINT = """new MutationObserver(() => {
  document.querySelector(".player input").dispatchEvent(new Event("input"));
}).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });"""
"""Paints the player again if a reader switches between light and dark."""
_OPEN = """const slider = document.querySelector(".player input[type=range]");
slider.value = slider.max;
slider.dispatchEvent(new Event("input"));"""
"""Opens the player at the last step, where policies differ."""
HORIZON = 16
_CAPTION = (
    "A generated knee, acquired by random columns, by one order for all patients, by a learned "
    "policy and by an oracle that uses the ground truth. The learned policy leads the fixed order "
    "by more on this slice than on average."
)
ENTRIES = {
    "random columns": "random",
    "fixed order": "knee-general-16-fixed",
    "learned policy": "knee-general-16-column",
    "oracle": "oracle",
}


def _policy(name: str) -> Policy:
    if name in policies.POLICIES:
        return policies.build(name, n_cols=SIZE, n_initial=N_INITIAL, horizon=HORIZON)
    return policies.load(name)


def _steps(label: str, name: str) -> PolicySteps:
    simulator, policy = scene().simulator, _policy(name)
    uniforms = torch.rand((1, 1, HORIZON), generator=torch.Generator().manual_seed(0))
    plan = Plan(N_INITIAL, HORIZON, is_argmax=True)
    drawn = uniforms if name == "random" else None
    done = rollout(policy, simulator, plan, uniforms=drawn, keep_images=True)
    assert done.images is not None
    return PolicySteps(
        label,
        done.images[:, 0, 0].numpy(),
        done.ssim[0, 0].numpy(),
        tuple(done.columns[0, 0].tolist()),
        is_oracle=policy.needs_target,
    )


@cache
@torch.no_grad()
def home_player() -> str:
    """Return the player with its style sheet and script."""
    simulator, state = scene()
    start = tuple(np.flatnonzero(state.mask[0].numpy()).tolist())
    steps = tuple(_steps(*entry) for entry in ENTRIES.items())
    acquisition = SliceRecord(
        simulator.batch.target[0].numpy(), start, steps, shown=tuple(ENTRIES)[1:]
    )
    folder = files("kscout.apps.player").joinpath("templates")
    style, script = (
        folder.joinpath(f"player.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")
    )
    player = acquisition_player(acquisition, n_bytes=600_000)
    script = f"<script>{script}{_REPAINT}{_OPEN}</script>"
    return f"<style>{style}</style>{player}<p><em>{_CAPTION}</em></p>{script}"


def with_player(html: str) -> str:
    """Return a page with the player in place of its marker."""
    return MARKER.sub(lambda _: home_player(), html)
