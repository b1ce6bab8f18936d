"""Acquisitions as a loop over batches: start, choose, measure, reconstruct, score.

`kscout.rollout` runs a policy from the start to its budget; `Simulator` is what it runs on. A
`Session` acquires one slice of which the truth is not known; an `Advisor` answers its questions.
"""

from kscout.acquisition.advisor import Advisor
from kscout.acquisition.episode import Simulator
from kscout.acquisition.rollout import Trajectory, action_uniforms
from kscout.acquisition.scan import Advice, Scan
from kscout.acquisition.session import Session

__all__ = ["Advice", "Advisor", "Scan", "Session", "Simulator", "Trajectory", "action_uniforms"]
