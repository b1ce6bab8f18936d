"""Train an agent of another reinforcement learning library in kscout's Gymnasium environment.

Needs the extra `gym` and the package sb3-contrib. Takes less than a minute on a CPU, which is far
too short to exceed the classical orders.
"""

# %% A small dataset of procedural knees
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
from sb3_contrib import MaskablePPO

from kscout.data import MakeSettings, make_store
from kscout.gym_env import ENVIRONMENT

folder = Path(tempfile.mkdtemp()) / "knees"
settings = MakeSettings(kind="knee", volumes=(3, 1, 1), slices=4, size=64, workers=1)
store = make_store(folder, settings)
print("slices:", store.manifest.splits)

# %% An episode acquires one slice: 8 central columns, then 8 selected ones
sizes = {"n_initial": 8, "horizon": 8}
env = gymnasium.make(ENVIRONMENT, data=folder, split="train", **sizes)
observation, info = env.reset(seed=0)
print({name: value.shape for name, value in observation.items()}, info)

# %% Train; `action_masks()` excludes measured columns
model = MaskablePPO(
    "MultiInputPolicy", env, n_steps=256, batch_size=64, learning_rate=1e-3, seed=0, device="cpu"
)
model.learn(512)

# %% Compare on the test split, all slices in one batch
n_slices = store.manifest.splits["test"]
many = gymnasium.make_vec(ENVIRONMENT, num_envs=n_slices, data=folder, split="test", **sizes)
random = np.random.default_rng(0)


def final_ssim(name: str) -> float:
    """Acquire every test slice once and return the mean SSIM at the end."""
    seen, info = many.reset(options={"rows": range(n_slices)})
    for _ in range(sizes["horizon"]):
        legal = many.unwrapped.action_masks()
        if name == "ppo":
            columns, _ = model.predict(seen, action_masks=legal, deterministic=True)
        elif name == "center-out":
            distance = np.abs(np.arange(legal.shape[1]) - legal.shape[1] // 2)
            columns = np.where(legal, distance, distance.max() + 1).argmin(axis=1)
        else:
            columns = np.array([random.choice(np.flatnonzero(row)) for row in legal])
        seen, _, _, _, info = many.step(columns)
    return float(info["ssim"].mean())


for name in ("random", "ppo", "center-out"):
    print(f"{name:>10}: SSIM {final_ssim(name):.4f}")
