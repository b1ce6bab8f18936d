"""How a greedy batch's time grows with slices, q, horizon, image size and number of policies."""

from collections.abc import Iterator
from typing import Any

import torch

from kscout.acquisition.episode import Simulator
from kscout.bench.engine import Engine
from kscout.bench.limits import wait
from kscout.policies.conv import ConvPolicy
from kscout.training.convolution import convolution
from kscout.training.policy_gradient import greedy_gradients

BASE = {"n_slices": 2, "q": 4, "horizon": 2, "size": 64, "n_seeds": 1}
"""What does not vary in a row of the table."""

STEPS: dict[str, tuple[int, ...]] = {
    "n_slices": (2, 4, 8),
    "q": (2, 4, 8),
    "horizon": (2, 4, 8),
    "size": (64, 128, 256),
    "n_seeds": (1, 2, 4),
}


def measure_scaling(device: torch.device) -> Iterator[dict[str, Any]]:
    """Yield time per batch as one quantity varies at a time.

    `cost_growth` is the time over that of the row before, divided by the growth of the work
    (pixels, for the size): 1 is linear, less is better.
    """
    for varied, values in STEPS.items():
        before: dict[str, Any] | None = None
        for value in values:
            setting = {**BASE, varied: value}
            record: dict[str, Any] = {"varied": varied, **setting}
            record["seconds"] = _time_batch(device=device, **setting)
            if before is not None:
                work = (value / before[varied]) ** (2 if varied == "size" else 1)
                record["cost_growth"] = record["seconds"] / before["seconds"] / work
            yield record
            before = record


def _time_batch(
    *, n_slices: int, q: int, horizon: int, size: int, n_seeds: int, device: torch.device
) -> float:
    """Return the best of three times of one batch of every seed."""
    engine = Engine.build(size, n_slices, device)
    policies = [ConvPolicy(n_cols=size).to(device) for _ in range(n_seeds)]
    slices = engine.slices.batch(torch.arange(n_slices).repeat(n_seeds))
    uniforms, followed = engine.draws(horizon, q)
    best = float("inf")
    for _ in range(3):
        begun = wait(device)
        with convolution(engine.backend):
            greedy_gradients(
                policies,
                Simulator(slices, engine.frozen),
                n_initial=size // 8,
                uniforms=uniforms.repeat(n_seeds, 1, 1),
                followed=followed[:, None].expand(-1, n_seeds),
            )
        best = min(best, wait(device) - begun)
    return best
