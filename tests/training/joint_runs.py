"""Tiny joint trainings: settings of every sampler that take a fraction of a second each."""

from typing import Any

from training_stores import COLUMN

from kscout.config import JointConfig, merge, read, to_table
from kscout.names import SAMPLERS

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
