"""Double deep Q-learning for acquisition: scores estimate discounted gains to the end.

Pineda, Basu, Romero, Calandra and Drozdzal, arXiv 2007.10469, on a frozen reconstructor. In a
round, slices are acquired, each column the best by score or, with a chance that falls from round
to round, any. Every step is remembered as mask, column and gain. Then the network takes optimizer
steps on remembered ones towards

    gain + discount * Q'(next, argmax over unmeasured columns of Q(next)),

where Q' is a copy of the network of some steps before; after the last column nothing follows.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import best_columns, choose_columns
from kscout.acquisition.episode import Simulator
from kscout.config import DdqnTraining, PolicyConfig
from kscout.core import Observation, Reconstructor
from kscout.data.slices import SliceSet
from kscout.names import metric_word
from kscout.physics.sampling import start_mask
from kscout.policies.random import Random
from kscout.randomness import keyed_generator
from kscout.runs import Progress
from kscout.training.estimators import EpochResult, Estimator, OnStep, PolicyTrainee
from kscout.training.replay import Memory, step_on
from kscout.training.rounds import slices_of_round

N_AT_ONCE = {"cpu": 16, "cuda": 256}
"""Slices acquired at once, by kind of device; does not change results."""

KEPT = ("index", "mask", "number", "column", "gain")
"""What is remembered of a step: its slice, what was measured before it, how many columns had been
acquired by then, the column and what it gained."""


@final
class Ddqn(Estimator):
    """Trains policies to estimate what columns gain in the long run; several take turns."""

    settings = DdqnTraining

    def __init__(
        self, trainees: Sequence[PolicyTrainee], slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(trainees, slices, reconstructor)
        for trainee in trainees:
            trainee.module.is_stochastic = False
        self.memories = [Memory(_training(x.config).n_memory) for x in trainees]
        self.targets = [copy.deepcopy(x.module).requires_grad_(False) for x in trainees]
        training = _training(trainees[0].config)
        self.n_episodes = min(training.n_episodes, len(slices))
        n_parts = -(-self.n_episodes // N_AT_ONCE[self.device.type])
        self.n_steps = len(trainees) * (n_parts + training.n_updates)

    def state(self, number: int) -> dict[str, Any]:
        memory, target = self.memories[number], self.targets[number]
        return {"memory": {**memory.rows}, "target": target.state_dict()}

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Remember what was remembered."""
        if state:
            self.memories[number].add(state["memory"])
            self.targets[number].load_state_dict(state["target"])

    def train_epoch(self, epoch: int, on_step: OnStep) -> list[EpochResult]:
        """Run a round of every policy: acquisitions, then optimizer steps."""
        n_epochs, n_done, results = self.trainees[0].config.training.n_epochs, 0, []

        def tell() -> None:
            nonlocal n_done
            n_done += 1
            on_step(Progress(epoch, n_epochs, n_done, self.n_steps))

        for number, trainee in enumerate(self.trainees):
            training = _training(trainee.config)
            trainee.begin(epoch)
            score = self._acquire(number, epoch, tell)
            replayed = self.memories[number].drawn(
                training.n_updates, training.batch_size, seed=training.seed, epoch=epoch
            )
            losses = []
            for step, rows in enumerate(replayed):
                n_before = (epoch - 1) * training.n_updates + step
                if n_before % training.n_target == 0:
                    self.targets[number].load_state_dict(trainee.module.state_dict())
                losses.append(
                    step_on(rows, trainee, self.views[number], partial(self._loss, number))
                )
                tell()
            word = metric_word(training.metric)
            scores = {f"train_{word}": score, "loss": float(torch.stack(losses).mean())}
            n_decisions = self.n_episodes * trainee.config.acquisition.horizon
            n_own = self.n_episodes + n_decisions + 2 * replayed.numel()
            # As for all estimators: the decisions of one policy, what all in lockstep took.
            n_all = len(self.trainees) * n_own
            facts = {"n_reconstructions": n_all, "n_decisions": n_decisions}
            results.append(EpochResult(scores, facts))
        return results

    @torch.no_grad()
    def _acquire(self, number: int, epoch: int, tell: Callable[[], None]) -> float:
        """Acquire the slices of a round and remember every step; return the mean final score."""
        view, config = self.views[number], self.trainees[number].config
        training, horizon = _training(config), config.acquisition.horizon
        order = slices_of_round(training.seed, epoch, self.n_episodes, n_slices=len(self.slices))
        generator = keyed_generator("explored", training.seed, epoch)
        draws = torch.rand(len(order), horizon, 2, generator=generator).to(self.device)
        view.refresh()
        taken, total, size = [], 0.0, N_AT_ONCE[self.device.type]
        for index, uniforms in zip(order.split(size), draws.split(size), strict=True):
            simulator = self._simulator(config, index)
            state = simulator.start(config.acquisition.start)
            for step in range(horizon):
                blocked = simulator.blocked(state)
                scores = view(simulator.observe(view.chooser, state)).float()
                column = explored(scores, blocked, uniforms[:, step], training.chance(epoch))
                after = simulator.acquire(state, column)
                gain = (after.score - state.score).float()
                new = (index, state.mask, torch.full_like(index, step), column, gain)
                taken.append(dict(zip(KEPT, new, strict=True)))
                state = after
            total += float(state.score.sum())
            tell()
        self.memories[number].add(*({x: new[x].cpu() for x in KEPT} for new in taken))
        return total / len(order)

    def _simulator(self, config: PolicyConfig, index: Int[Tensor, " slice"]) -> Simulator:
        batch = self.slices.batch(index.to(self.slices.index_device))
        training = config.training
        return Simulator(
            batch, self.reconstructor, protocol=training.protocol, metric=training.metric
        )

    def _loss(self, number: int, rows: Int[Tensor, " step"]) -> Float[Tensor, ""]:
        config, view = self.trainees[number].config, self.views[number]
        training = _training(config)
        index, *kept = (self.memories[number].rows[name][rows] for name in KEPT)
        mask, step, column, gain = (values.to(self.device) for values in kept)
        simulator = self._simulator(config, index)
        maps = simulator.calibrate(start_mask(config.acquisition.start, mask.shape, self.device))

        def look(mask: Bool[Tensor, "step col"], step: Int[Tensor, " step"]) -> Observation:
            seen = simulator.observe(view.chooser, simulator.start_from(mask, maps=maps))
            return replace(seen, step=step)

        after = mask.scatter(-1, column[:, None], True)
        with torch.no_grad():
            seen = look(after, step + 1)
            target = double_target(
                gain * training.scale,
                view(seen).float(),
                self.targets[number](seen).float(),
                after | ~simulator.batch.selectable,
                training.discount * (step + 1 < config.acquisition.horizon),
            )
        scores = view.recall(look(mask, step), 0).float()
        found = scores.gather(-1, column[:, None])[:, 0]
        return torch.nn.functional.smooth_l1_loss(found, target)


def explored(
    scores: Float[Tensor, "slice col"],
    blocked: Bool[Tensor, "slice col"],
    uniforms: Float[Tensor, "slice 2"],
    chance: float,
) -> Int[Tensor, " slice"]:
    """Return the best column of each slice, or with a chance any that is not blocked.

    Args:
        scores: of the columns.
        blocked: columns that may not be chosen.
        uniforms: decide whether, and which.
        chance: of any column.
    """
    drawn = choose_columns(Random(), torch.zeros_like(scores), blocked, uniforms[:, 1])
    return torch.where(uniforms[:, 0] < chance, drawn, best_columns(scores, blocked))


def double_target(
    gain: Float[Tensor, " step"],
    scores: Float[Tensor, "step col"],
    copied: Float[Tensor, "step col"],
    blocked: Bool[Tensor, "step col"],
    discount: Float[Tensor, " step"],
) -> Float[Tensor, " step"]:
    """Return what scores shall become: a gain and, discounted, the copy's score of the next best.

    Args:
        gain: of the column that was taken.
        scores: of the next columns by the network, which says which is best.
        copied: of the next columns by its copy, which says what it is worth.
        blocked: next columns that may not be chosen.
        discount: 0 where no column follows.
    """
    best = best_columns(scores, blocked)[:, None]
    worth = torch.where(discount > 0, copied.gather(-1, best)[:, 0], 0.0)
    return gain + discount * worth


def _training(config: PolicyConfig) -> DdqnTraining:
    assert isinstance(config.training, DdqnTraining)
    return config.training
