"""Made-up records of joint trainings."""

from types import ModuleType
from typing import Any

import numpy as np

MIRRORED = {"a": 1, "training": {"flips": True}}
"""Settings under which slices are mirrored, as by default."""


def record(records: ModuleType, arm: str, seed: int, ssim: list[float], **changes: Any) -> Any:
    """Return a record with these scores of three volumes of one, two and three slices."""
    volumes = {
        name: records.Volume(n, value, 30.0)
        for name, n, value in zip("abc", (1, 2, 3), ssim, strict=True)
    }
    mean, bounds = (
        float(np.average(ssim, weights=[1, 2, 3])),
        records.Bounds(2, 0.8, 0.79, 0.7, 0.9),
    )
    own: dict[str, Any] = {
        **{"arm": arm, "seed": seed, "horizon": "knee-base", "n_updates": 6000},
        **{"n_sampler_updates": 3, "n_slices_seen": 5, "n_parameters": 837635},
        **{"sampler_share": 0.25, "train_s": 90.0, "ssim": mean, "psnr": 30.0},
        **{"curve": (0.5, mean), "psnr_curve": (20.0, 30.0), "area": (0.5 + mean) / 2},
        **{"volumes": volumes, "commands": ("train", "evaluate")},
        **{"settings": MIRRORED, "device": "cpu", "bounds": bounds},
        **{"sampler": {"n_repeats": 8} if arm == "dense" else {}},
    }
    return records.JointRecord(**{**own, **changes})
