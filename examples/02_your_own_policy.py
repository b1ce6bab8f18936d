"""Write a policy, check its contract, and evaluate it next to policies of the package.

Takes a few seconds on a CPU. docs/how-to/extend.md explains its name on the command line.
"""

# %% A small dataset of procedural knees
import tempfile
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

import kscout
from kscout import check_policy
from kscout.core import Observation, Policy
from kscout.data import MakeSettings, make_store
from kscout.evaluation import EvaluationSetting
from kscout.physics import fft2c

folder = Path(tempfile.mkdtemp())
settings = MakeSettings(kind="knee", volumes=(3, 1, 3), slices=3, size=64, workers=1)
store = make_store(folder / "knees", settings)


# %% A policy scores columns; masking, sampling and counting the budget are done for it
@final
class StrongestEdges(Policy):
    """Acquires the column in which the edges of the current reconstruction have the most energy."""

    is_stochastic = False

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        """Return the energy of the image's derivative along the columns, by column of k-space."""
        n_cols = seen.mask.shape[1]
        frequency = torch.arange(n_cols, device=seen.image.device) - n_cols // 2
        return (fft2c(seen.image) * frequency).abs().square().sum(dim=-2)


# %% The contract: shapes, finite values, independent images of a batch, no use of the ground truth
check_policy(StrongestEdges(), n_rows=64, n_cols=64)
print("contract: kept")

# %% Comparison with other policies, paired by slice, volumes as the unit
setting = EvaluationSetting(n_initial=8, steps=6, trajectories=4, reference="random")
compared = kscout.evaluate(
    ["random", "center-out", ("edges", StrongestEdges()), "oracle"], store, "zero-filled", setting
)
for entry in compared.summary["policies"]:
    print(f"{entry['policy']:>10}: SSIM {entry['final']['ssim']['mean']:.4f}")
for entry in compared.summary["comparisons"]:
    low, high = entry["interval"]
    print(f"{entry['policy']} minus random: {entry['difference']:+.4f}, {low:+.4f} to {high:+.4f}")
