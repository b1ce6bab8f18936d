"""Acquisitions as a loop over batches: start, choose, measure, reconstruct, score.

A `Plan` defines where acquisitions start and end. An `Acquisition` measures the columns that a
caller chooses, and `kscout.rollout` those of a policy, from the start to the budget. Both use a
`Simulator`, which reconstructs and scores. A `Session` acquires one slice without ground truth; an
`Advisor` computes its decisions.
"""

from kscout.acquisition.advisor import Advisor
from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import Acquisition, Trajectory, action_uniforms
from kscout.acquisition.plan import Plan
from kscout.acquisition.scan import Advice, Scan
from kscout.acquisition.session import Session

__all__ = [
    "Acquisition",
    "Advice",
    "Advisor",
    "Plan",
    "Scan",
    "Session",
    "Simulator",
    "Trajectory",
    "action_uniforms",
]
