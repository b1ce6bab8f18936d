"""Acquisitions as a loop over batches: start, choose, measure, reconstruct, score.

`kscout.rollout` runs a policy from the start to its budget; `Simulator` is what it runs on.
"""

from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import Trajectory, action_uniforms

__all__ = ["Simulator", "Trajectory", "action_uniforms"]
