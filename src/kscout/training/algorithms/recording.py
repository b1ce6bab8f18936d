"""Columns are chosen first, and the gradients of their log-probabilities are computed later.

Parameters do not change within a batch. Columns are chosen without an autograd graph, observations
are stored, and log-probabilities are computed again, in chunks, when their weights in the loss are
known (arXiv 2010.16262, appendix B.1). Memory is bounded for every horizon.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import Drawn, column_log_probabilities, draw_unmeasured
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.device import at_most_a_quarter
from kscout.policies.views import View
from kscout.training.states import Rows, joined, observation_of, observe, rows_of

N_AT_ONCE = {"cpu": 16, "cuda": 512}
"""States of a policy whose gradients are computed together, by kind of device."""

KEPT_BYTES = {"cpu": 2**28, "cuda": 2**33}
"""Most memory that cached features take from the choice until the gradients, by kind of device;
those of later states are computed again. On a CPU, more states gain nothing by waiting for the
last. On an H200, a batch of 16 at 128 x 128 pixels keeps all features of 16 steps, greedy in
0.8 GiB and non-greedy in 6 GiB; the latter takes 9 % longer with 4 GiB and 15 % with 2 GiB."""

N_GRAPHED_ON_CPU = 64
"""States whose autograd graph may be held on a CPU from the choice until the reward of a step."""

Weigh = Callable[[Float[Tensor, "*step slice q"]], Float[Tensor, "*step slice q"]]
"""From rewards to the factor of each log-probability in the loss, summed over everything."""


@final
@dataclass(frozen=True)
class Estimate:
    """Samples, rewards and weights of one batch, next to the gradients."""

    columns: Int[Tensor, "step slice q"]
    log_probs: Float[Tensor, "step slice q"]
    rewards: Float[Tensor, "step slice q"]
    weights: Float[Tensor, "step slice q"]
    """The factor of each log-probability in the loss."""
    final_score: Float[Tensor, ""]
    """Mean SSIM at the end of the acquisitions that were followed."""

    @property
    def losses(self) -> Float[Tensor, " step"]:
        """Each step's share of the loss."""
        return (self.log_probs * self.weights).sum(dim=(-2, -1))


@final
class Recording:
    """The observations, sampled columns and rewards of one batch of acquisitions.

    For each step an estimator calls `choose`, acquires, and calls `reward`; then `finish` leaves
    the gradients of the loss in the policy's parameters.

    Args:
        view: the policy in training.
        simulator: holds the slices.
        weigh: maps the rewards of all steps to the weights of log-probabilities in the loss.
        is_by_step: whether `weigh` may receive the rewards of a single step.
        n_states: states that will be scored, whose features are cached if the view can.
        kept_bytes: upper limit of the memory for that, by kind of device.
    """

    def __init__(
        self,
        view: View,
        simulator: Simulator,
        weigh: Weigh,
        *,
        is_by_step: bool = False,
        n_states: int = 0,
        kept_bytes: Mapping[str, int] = KEPT_BYTES,
    ) -> None:
        self.view, self.simulator, self.weigh = view, simulator, weigh
        device = simulator.batch.kspace.device
        self.n_kept = view.keep(n_states, at_most_a_quarter(kept_bytes[device.type], device))
        is_small = len(simulator.batch) <= N_GRAPHED_ON_CPU
        # A CPU holds a small step's graph more cheaply than it computes features again.
        self.is_immediate = (
            is_by_step and is_small and device.type == "cpu" and self.n_kept < max(1, n_states)
        )
        self.visited: list[Rows] = []
        self.rewards: list[Float[Tensor, "slice q"]] = []
        self.logits: Float[Tensor, "state col"]

    def choose(
        self,
        state: State,
        uniforms: Float[Tensor, "state draw"],
        replay: Int[Tensor, "state draw"] | None = None,
    ) -> Int[Tensor, "state draw"]:
        """Draw columns from the policy's scores."""
        seen = observe(self.view, self.simulator, state)
        with torch.set_grad_enabled(self.is_immediate):
            self.logits = self.view(seen)
        drawn = self._draw(state, uniforms, replay)
        self.visited.append(rows_of(seen, **drawn._asdict()))
        return drawn.columns

    def reward(self, gains: Float[Tensor, "slice q"]) -> None:
        """Add the rewards of the columns that were chosen last."""
        self.rewards.append(gains)
        if self.is_immediate:
            _backward(self.logits, self.visited[-1], self.weigh(gains))

    def finish(self, state: State) -> Estimate:
        """Add the gradients of the loss to the policy's own."""
        rewards = torch.stack(self.rewards)
        weights = self.weigh(rewards)
        if not self.is_immediate:
            self._add_gradients(weights)
        columns, log_probs = (
            torch.stack([rows[name].view(rewards.shape[1:]) for rows in self.visited])
            for name in ("columns", "log_probs")
        )
        return Estimate(columns, log_probs, rewards, weights, state.score.mean())

    @torch.no_grad()
    def _draw(
        self,
        state: State,
        uniforms: Float[Tensor, "state draw"],
        replay: Int[Tensor, "state draw"] | None,
    ) -> Drawn:
        logits = self.logits.detach()
        if replay is None:
            selectable = self.simulator.batch.selectable
            return draw_unmeasured(logits, state.mask, selectable, state.owner, uniforms)
        blocked, logits = self.simulator.blocked(state), logits.float()
        return Drawn(blocked, replay, _log_probabilities(logits, blocked, replay))

    def _add_gradients(self, weights: Float[Tensor, "step slice q"]) -> None:
        """Compute log-probabilities again, with gradients, and add the gradients of the loss.

        Steps are joined, so that a GPU has many images to work on at once.
        """
        begin = 0
        for alike in self._alike_steps():
            steps = []
            for step in alike:
                rows = self.visited[step]
                weight = weights[step].reshape(rows["log_probs"].shape)
                steps.append({**rows, "weight": weight})
            for rows in joined(steps, N_AT_ONCE[weights.device.type]):
                scores = self.view.recall(observation_of(rows), begin)
                _backward(scores, rows, rows["weight"])
                begin += len(scores)

    def _alike_steps(self) -> list[list[int]]:
        """Group consecutive steps with equal numbers of draws and, or without, cached features."""
        n_scored, kinds = 0, []
        for rows in self.visited:
            n_scored += len(rows["mask"])
            kinds.append((rows["columns"].shape[1], n_scored <= self.n_kept))
        return [list(steps) for _, steps in groupby(range(len(kinds)), kinds.__getitem__)]


def _backward(
    scores: Float[Tensor, "state col"], rows: Rows, weights: Float[Tensor, "state draw"]
) -> None:
    log_probs = _log_probabilities(scores.float(), rows["blocked"], rows["columns"])
    (log_probs * weights).sum().backward()


def _log_probabilities(
    scores: Float[Tensor, "state col"],
    blocked: Bool[Tensor, "state col"],
    columns: Int[Tensor, "state draw"],
) -> Float[Tensor, "state draw"]:
    return column_log_probabilities(scores, blocked).gather(-1, columns)
