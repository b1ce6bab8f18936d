"""Tiny joint trainings: settings of every sampler that take a fraction of a second each."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from training_stores import COLUMN

from kscout import policies, reconstruction
from kscout.config import JointConfig, merge, read, to_table
from kscout.core import SliceBatch
from kscout.names import SAMPLERS
from kscout.training.joint.sampler import acquire

UNET = {"name": "unet", "n_channels": 2, "n_pools": 2}
VARNET = {
    **{"name": "varnet", "n_cascades": 1, "n_channels": 2, "n_pools": 1},
    **{"sensitivity_channels": 2, "sensitivity_pools": 1},
}
LEARNABLE = {"unet": UNET, "fastmri-unet": UNET, "varnet": VARNET}
LEARNED = {"sampler_every": 2, "sampler_batch": 3}
REPEATS = {"n_repeats": 3, "n_repeated": 5}
OWN: dict[str, dict[str, Any]] = {
    "fixed": {"n_fit_slices": 4},
    "dense": {**LEARNED, "n_best": 2, "n_tried_at_random": 2, "n_baseline_slices": 2, **REPEATS},
    "loupe": LEARNED,
    "straight-through": LEARNED,
    "random": {},
}
METHODS = list(SAMPLERS.entries)


def check_sees_what_was_measured(run: Path, config: JointConfig, batch: SliceBatch) -> None:
    """Check that no column of a run's policy, with other weights, depends on unmeasured k-space."""
    policy, network = policies.load(run), reconstruction.load(run)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))
    n_slices, horizon = len(batch.index), config.acquisition.horizon
    uniforms = torch.rand(n_slices, horizon, generator=torch.Generator().manual_seed(2))
    view = network if SAMPLERS.resolve(config.training.method).looks else None
    chosen = acquire(policy, batch, config, uniforms, view)
    assert (chosen.sum(dim=-1) == torch.arange(2, horizon + 3)).all()
    hidden = ~chosen[:, -1][:, None, None, :].expand_as(batch.kspace)
    noise = torch.randn(batch.kspace.shape, dtype=torch.complex64) * 100
    for other in (noise, torch.zeros_like(noise), -torch.zeros_like(noise), -batch.kspace):
        changed = replace(batch, kspace=torch.where(hidden, other, batch.kspace))
        assert torch.equal(acquire(policy, changed, config, uniforms, view), chosen)


def joint_config(
    method: str, *, model: dict[str, Any] = UNET, horizon: int = 3, **training: Any
) -> JointConfig:
    """Return settings for three of the columns that a small store has."""
    wanted = {
        "reconstructor": model,
        "policy": COLUMN if SAMPLERS[method].policy == "column" else {},
        "acquisition": {"n_initial": 2, "horizon": horizon},
        "training": {
            **{"n_updates": 6, "n_checkpoints": 3, "batch_size": 4, "n_warm": 1, "n_pool": 7},
            **{"random_share": 0.3, "n_refill": 4, "refill_every": 2, "seed": 3},
            **{"convolution": "native", "keep_epochs": (2,)},
            **OWN[method],
            **training,
        },
    }
    return read(JointConfig, merge(to_table(JointConfig.of(method)), wanted))
