"""Acquisitions as a loop over batches: start, choose, measure, reconstruct, score.

`kscout.rollout` runs a policy from the start to its budget; `Simulator` is what it runs on.
"""

from kscout.acquisition.budget import check_budget
from kscout.acquisition.choose import (
    best_columns,
    choose_columns,
    column_distribution,
    column_log_probabilities,
    draw_columns,
)
from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import Trajectory, action_uniforms
from kscout.acquisition.state import Branches, State

__all__ = [
    "Branches",
    "Simulator",
    "State",
    "Trajectory",
    "action_uniforms",
    "best_columns",
    "check_budget",
    "choose_columns",
    "column_distribution",
    "column_log_probabilities",
    "draw_columns",
]
