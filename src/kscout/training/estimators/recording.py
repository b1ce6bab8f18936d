"""Columns are chosen now, and the gradients of their log-probabilities are computed later.

Parameters do not change within a batch. So columns are chosen without an autograd graph, what the
policies saw is stored, and log-probabilities are computed again, in chunks, once their weights in
the loss are known (arXiv 2010.16262, appendix B.1). Memory is bounded whatever the horizon.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import (
    Drawn,
    column_log_probabilities,
    draw_groups,
    draw_unmeasured,
    group_log_probabilities,
)
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.device import at_most_a_quarter
from kscout.policies.views import View
from kscout.training.estimators.visited import (
    joined,
    observation_of,
    observe,
    part_of,
    rows_of,
    score,
)
from kscout.training.replay import Rows

N_AT_ONCE = {"cpu": 16, "cuda": 512}
"""States of a policy whose gradients are computed together, by kind of device."""

KEPT_BYTES = {"cpu": 2**28, "cuda": 2**33}
"""Most memory that features of all policies take from the choice until the gradients, by kind of
device; those of later states are computed again. On a CPU, more states gain nothing by waiting for
the last. On an H200, a batch of 16 at 128 x 128 pixels keeps all features of 16 steps, greedy in
0.8 GiB and non-greedy in 6 GiB; the latter takes 9 % longer with 4 GiB and 15 % with 2 GiB."""

N_GRAPHED_ON_CPU = 64
"""States whose autograd graph may be held on a CPU from the choice until the reward of a step."""

Weigh = Callable[[Float[Tensor, "*step slice q"]], Float[Tensor, "*step slice q"]]
"""From rewards to the factor of each log-probability in the loss, summed over everything."""


@final
@dataclass(frozen=True)
class Estimate:
    """What one batch gave beside the gradients; slices of several policies lie in a row."""

    columns: Int[Tensor, "step slice q *member"]
    log_probs: Float[Tensor, "step slice q"]
    rewards: Float[Tensor, "step slice q"]
    weights: Float[Tensor, "step slice q"]
    """The factor of each log-probability in the loss."""
    final_score: Float[Tensor, " policy"]
    """Mean SSIM at the end of the acquisitions that were followed."""

    @property
    def losses(self) -> Float[Tensor, "step policy"]:
        """Each step's share of each policy's loss."""
        weighted = (self.log_probs * self.weights).unflatten(1, (len(self.final_score), -1))
        return weighted.sum(dim=(-2, -1))


@final
class Recording:
    """One batch of acquisitions: what the policies saw, drew and gained.

    For each step an estimator calls `choose`, acquires, and calls `reward`; then `finish` leaves
    the gradients of the loss in the policies' parameters.

    Args:
        policies: one, or several in lockstep: the simulator's slices are divided among them in
            equal consecutive parts.
        simulator: holds the slices.
        weigh: the estimator's weights of log-probabilities, from the rewards of all steps.
        is_by_step: whether `weigh` may be given the rewards of one step alone.
        n_states: states that will be scored, for which features are kept where a view can.
        kept_bytes: the most memory for that, by kind of device.
    """

    def __init__(
        self,
        policies: Sequence[View],
        simulator: Simulator,
        weigh: Weigh,
        *,
        is_by_step: bool = False,
        n_states: int = 0,
        kept_bytes: Mapping[str, int] = KEPT_BYTES,
    ) -> None:
        self.policies, self.simulator, self.weigh = policies, simulator, weigh
        device = simulator.batch.kspace.device
        n_own = n_states // len(policies)
        n_bytes = at_most_a_quarter(kept_bytes[device.type], device) // len(policies)
        # Every view is asked, so that none keeps features of the batch before.
        self.n_kept = min([policy.keep(n_own, n_bytes) for policy in policies])
        is_small = len(simulator.batch) <= N_GRAPHED_ON_CPU
        # A CPU holds a small step's graph more cheaply than it computes features again.
        self.goes_back_at_once = (
            is_by_step and is_small and device.type == "cpu" and self.n_kept < max(1, n_own)
        )
        self.visited: list[Rows] = []
        self.rewards: list[Float[Tensor, "slice q"]] = []
        self.logits: Float[Tensor, "state col"]

    def choose(
        self,
        state: State,
        uniforms: Float[Tensor, "state draw *member"],
        replay: Int[Tensor, "state draw *member"] | None = None,
    ) -> Int[Tensor, "state draw *member"]:
        """Draw columns from the policies' scores, or groups of different columns."""
        seen = observe(self.policies, self.simulator, state)
        with torch.set_grad_enabled(self.goes_back_at_once):
            self.logits = score(self.policies, seen)
        drawn = self._draw(state, uniforms, replay)
        self.visited.append(rows_of(seen, **drawn._asdict()))
        return drawn.columns

    def reward(self, gains: Float[Tensor, "slice q"]) -> None:
        """Take note of what the columns chosen last gained."""
        self.rewards.append(gains)
        if self.goes_back_at_once:
            _backward(self.logits, self.visited[-1], self.weigh(gains))

    def finish(self, state: State) -> Estimate:
        """Add the gradients of the loss to the policies' own."""
        rewards = torch.stack(self.rewards)
        weights = self.weigh(rewards)
        if not self.goes_back_at_once:
            for number in range(len(self.policies)):
                self._add_gradients(number, weights)
        columns, log_probs = (
            torch.stack(
                [x.view(*rewards.shape[1:], *x.shape[2:]) for x in (r[name] for r in self.visited)]
            )
            for name in ("columns", "log_probs")
        )
        final_score = state.score.view(len(self.policies), -1).mean(dim=-1)
        return Estimate(columns, log_probs, rewards, weights, final_score)

    @torch.no_grad()
    def _draw(
        self,
        state: State,
        uniforms: Float[Tensor, "state draw *member"],
        replay: Int[Tensor, "state draw *member"] | None,
    ) -> Drawn:
        logits = self.logits.detach()
        if replay is None and uniforms.ndim == 2:
            selectable = self.simulator.batch.selectable
            return draw_unmeasured(logits, state.mask, selectable, state.owner, uniforms)
        blocked, logits = self.simulator.blocked(state), logits.float()
        columns = draw_groups(logits, blocked, uniforms) if replay is None else replay
        return Drawn(blocked, columns, _log_probabilities(logits, blocked, columns))

    def _add_gradients(self, number: int, weights: Float[Tensor, "step slice q"]) -> None:
        """Compute a policy's log-probabilities again, with gradients, and add those of the loss.

        Steps are joined, so that a GPU has many images to work on at once.
        """
        n_policies, begin = len(self.policies), 0
        for alike in self._alike_steps():
            own = []
            for step in alike:
                weight = weights[step].reshape(self.visited[step]["log_probs"].shape)
                own.append(part_of({**self.visited[step], "weight": weight}, number, n_policies))
            for rows in joined(own, N_AT_ONCE[weights.device.type]):
                scores = self.policies[number].recall(observation_of(rows), begin)
                _backward(scores, rows, rows["weight"])
                begin += len(scores)

    def _alike_steps(self) -> list[list[int]]:
        """Group consecutive steps with as many draws per state whose features are kept, or not."""
        n_scored, kinds = 0, []
        for rows in self.visited:
            n_scored += len(rows["mask"]) // len(self.policies)
            kinds.append((rows["columns"].shape[1], n_scored <= self.n_kept))
        return [list(steps) for _, steps in groupby(range(len(kinds)), kinds.__getitem__)]


def _backward(
    scores: Float[Tensor, "state col"], rows: Rows, weights: Float[Tensor, "state draw"]
) -> None:
    """Add the gradients of the weighted log-probabilities' sum to the policies' own."""
    log_probs = _log_probabilities(scores.float(), rows["blocked"], rows["columns"])
    (log_probs * weights).sum().backward()


def _log_probabilities(
    scores: Float[Tensor, "state col"],
    blocked: Bool[Tensor, "state col"],
    columns: Int[Tensor, "state draw *member"],
) -> Float[Tensor, "state draw"]:
    """Return log-probabilities of columns, or of groups of columns."""
    if columns.ndim == 3:
        return group_log_probabilities(scores, blocked, columns)
    return column_log_probabilities(scores, blocked).gather(-1, columns)
