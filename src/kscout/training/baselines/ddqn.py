"""Double deep Q-learning for acquisition: scores estimate discounted gains to the end.

Pineda, Basu, Romero, Calandra and Drozdzal, arXiv 2007.10469, on a frozen reconstructor. In a
round slices are acquired; each column is the best by score or, with a probability that falls from
round to round, any. The replay buffer stores every step as mask, column and gain. Optimizer steps
move scores towards

    gain + discount * Q'(next, argmax over unmeasured columns of Q(next)),

where Q' is a copy of the network of some steps before; after the last column nothing follows.
"""

import copy
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import best_columns, choose_columns
from kscout.acquisition.loop import Acquisition
from kscout.acquisition.plan import training_plan
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.json_types import StateDict
from kscout.names import metric_word
from kscout.policies.random import Random
from kscout.randomness import keyed_generator
from kscout.training.algorithm import PolicyLearner
from kscout.training.baselines.episodic import Episodic
from kscout.training.baselines.settings import DdqnTraining
from kscout.training.states import Rows

_SCALE = 100.0
"""Factor of gains, which are thousandths of SSIM, so that scores are of the order of one."""


@final
class Ddqn(Episodic):
    """Trains a policy to estimate the discounted gains of a column and of those after it."""

    settings = DdqnTraining
    training: DdqnTraining
    columns = ("index", "mask", "number", "column", "gain")
    n_images = 2

    def __init__(
        self, learner: PolicyLearner, slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(learner, slices, reconstructor)
        learner.module.is_stochastic = False
        self.target = copy.deepcopy(learner.module).requires_grad_(False)

    def state(self) -> StateDict:
        return {"memory": super().state(), "target": self.target.state_dict()}

    def restore(self, state: StateDict) -> None:
        if state:
            super().restore(state["memory"])
            self.target.load_state_dict(state["target"])

    @torch.no_grad()
    def acquire(
        self, epoch: int, places: Int[Tensor, " episode"], order: Int[Tensor, " all"]
    ) -> tuple[list[Rows], dict[str, Tensor], int]:
        view, config = self.view, self.config
        training, horizon = self.training, config.acquisition.horizon
        generator = keyed_generator("explored", training.seed, epoch)
        draws = torch.rand(len(order), horizon, 2, generator=generator)
        index, uniforms, new = order[places], draws[places].to(self.device), []
        view.refresh()
        simulator = self.simulator(index)
        acquisition = Acquisition(simulator, training_plan(config))
        for step in range(horizon):
            state, blocked = acquisition.state, acquisition.blocked
            scores = view(simulator.observe(view.chooser, state, n_left=None)).float()
            column = explored(scores, blocked, uniforms[:, step], training.chance(epoch))
            acquisition.measure(column[:, None])
            gain = (acquisition.state.score - state.score).float()
            row = (index, state.mask, torch.full_like(index, step), column, gain)
            new.append({x: y.cpu() for x, y in zip(self.columns, row, strict=True)})
        acquisition.finish()
        total = {f"train_{metric_word(training.metric)}": acquisition.state.score.double().sum()}
        return new, total, len(places) * (1 + horizon)

    def update(self, n_before: int, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Renew the copy of the network if it is due, then take an optimizer step."""
        if n_before % self.training.n_target == 0:
            self.target.load_state_dict(self.learner.module.state_dict())
        return super().update(n_before, rows)

    def loss(self, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        config, view = self.config, self.view
        training, replayed = self.training, self.replayed(rows)
        mask, step, column, gain = replayed.values
        after = mask.scatter(-1, column[:, None], True)
        with torch.no_grad():
            seen = replayed.observe(after, step + 1)
            target = double_target(
                gain * _SCALE,
                view(seen).float(),
                self.target(seen).float(),
                after | ~replayed.simulator.batch.selectable,
                training.discount * (step + 1 < config.acquisition.horizon),
            )
        scores = view.recall(replayed.observe(mask, step), 0).float()
        return torch.nn.functional.smooth_l1_loss(scores.gather(-1, column[:, None])[:, 0], target)


def explored(
    scores: Float[Tensor, "slice col"],
    blocked: Bool[Tensor, "slice col"],
    uniforms: Float[Tensor, "slice 2"],
    chance: float,
) -> Int[Tensor, " slice"]:
    """Return the best column of each slice, or with a chance any that is not blocked."""
    drawn = choose_columns(Random(), torch.zeros_like(scores), blocked, uniforms[:, 1])
    return torch.where(uniforms[:, 0] < chance, drawn, best_columns(scores, blocked))


def double_target(
    gain: Float[Tensor, " step"],
    scores: Float[Tensor, "step col"],
    copied: Float[Tensor, "step col"],
    blocked: Bool[Tensor, "step col"],
    discount: Float[Tensor, " step"],
) -> Float[Tensor, " step"]:
    """Return the target of scores: a gain and, discounted, the copy's score of the next best.

    The network says which column is best, its copy evaluates it; the last step has discount 0.
    """
    best = best_columns(scores, blocked)[:, None]
    later = torch.where(discount > 0, copied.gather(-1, best)[:, 0], 0.0)
    return gain + discount * later
