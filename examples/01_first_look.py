"""Acquire knees column by column, and compare ways to choose the columns.

Takes a few seconds on a laptop's CPU, needs no data and trains nothing.
"""

# %% A small dataset of procedural knees
import tempfile
from pathlib import Path

import torch

import kscout
from kscout import policies, reconstruction
from kscout.acquisition import Simulator
from kscout.data import MakeSettings, make_store
from kscout.evaluation import EvaluationSetting

folder = Path(tempfile.mkdtemp())
settings = MakeSettings(kind="knee", volumes=(3, 1, 3), slices=2, size=64, workers=1)
store = make_store(folder / "knees", settings)
print("slices:", store.manifest.splits)

# %% One batch, one reconstruction, one policy: 8 central columns, then 6 more
batch = store.split("test").batch(torch.arange(4))
simulator = Simulator(batch, reconstruction.load("zero-filled"), protocol="paper")
center_out = policies.build("center-out", n_cols=64, n_initial=8, horizon=6)
found = kscout.rollout(center_out, simulator, kscout.Plan(start=8, horizon=6))
print("columns:", found.columns[0, 0].tolist())
print("SSIM:   ", [round(value, 4) for value in found.ssim[0, 0].tolist()])

# %% The gain of each remaining column in the first slice
state = simulator.start(8)
scores = simulator.score_every_column(state)[0]
gain = scores - state.score[0]
best = gain.topk(3)
print("best next columns:", best.indices.tolist(), "gain", [f"{g:.4f}" for g in best.values])

# %% Policies over the whole test split, with paired differences; oracles use the ground truth
setting = EvaluationSetting(n_initial=8, steps=6, trajectories=4)
names = ["random", "equispaced-two", "center-out", "fixed", "na-oracle", "oracle"]
compared = kscout.evaluate(names, store, "zero-filled", setting, out=folder / "results")
for entry in compared.summary["policies"]:
    mark = " (oracle)" if entry["is_oracle"] else ""
    print(f"{entry['policy']:>15}: SSIM {entry['final']['ssim']['mean']:.4f}{mark}")
print("per slice and step:", (folder / "results" / "results.csv").name)
