"""AlphaZero for acquisition: searches choose columns, and the network learns what they chose.

Jin, Unser and Yi, arXiv 1901.04547, with a frozen reconstructor and SSIM as the value, as in
arXiv 2010.16262. In a round, slices are acquired by tree search (`tree_search`); every decision is
remembered as the share of searches that passed each column. Then the network takes optimizer steps
on remembered decisions: the cross-entropy of its distribution with those shares. The truth is used
in searches alone, hence in training alone: at test the network chooses by itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.choose import column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.config import AlphaZeroTraining, PolicyConfig
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.names import metric_word
from kscout.physics.sampling import start_mask
from kscout.randomness import keyed_generator
from kscout.runs import Progress
from kscout.training.distributed import n_processes, share
from kscout.training.estimators import EpochResult, Estimator, OnStep, PolicyTrainee
from kscout.training.estimators.search_trees import SearchRule
from kscout.training.estimators.tree_search import Episodes, SearchDraws, search_episodes
from kscout.training.replay import Memory, Rows, step_on
from kscout.training.rounds import slices_of_round

N_TREES = {"cpu": 16, "cuda": 256}
"""Slices searched at once, by kind of device; does not change results."""

_N_SEEN, _N_REMEMBERED = 8, 5
"""How often a decision is learned from, and for how many rounds, where settings do not tell."""
KEPT = ("index", "mask", "step", "visits")
"""What is remembered of a decision: its slice, what was measured before it, its step, and how many
searches passed each column."""


@final
@dataclass(frozen=True)
class Sizes:
    """How much a round does, with what the settings leave to the data."""

    n_episodes: int
    n_searches: int
    n_updates: int
    n_memory: int

    @classmethod
    def of(cls, config: PolicyConfig, n_slices: int, n_cols: int) -> "Sizes":
        """Return the sizes of a round on so many training slices of so many columns."""
        training, horizon = _training(config), config.acquisition.horizon
        n_episodes = min(training.n_episodes or 64, n_slices)
        n_decisions = n_episodes * horizon
        n_updates = math.ceil(_N_SEEN * n_decisions / training.batch_size)
        return cls(
            n_episodes,
            training.n_searches or max(4, n_cols // 16),
            training.n_updates or n_updates,
            training.n_memory or _N_REMEMBERED * n_decisions,
        )


@final
class AlphaZero(Estimator):
    """Trains policies to foresee a tree search; several take turns."""

    settings = AlphaZeroTraining

    def __init__(
        self, trainees: Sequence[PolicyTrainee], slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(trainees, slices, reconstructor)
        self.sizes = Sizes.of(trainees[0].config, len(slices), slices.n_cols)
        self.memories = [Memory(self.sizes.n_memory) for _ in trainees]
        horizon = trainees[0].config.acquisition.horizon
        n_parts = math.ceil(self.sizes.n_episodes / self._n_trees)
        self.n_steps = len(trainees) * (n_parts * horizon + self.sizes.n_updates)

    @property
    def _n_trees(self) -> int:
        """Episodes searched at once, over all processes."""
        return N_TREES[self.device.type] * n_processes()

    def state(self, number: int) -> dict[str, Any]:
        return {**self.memories[number].rows}

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Remember what was remembered."""
        if state:
            self.memories[number].add(state)

    def train_epoch(self, epoch: int, on_step: OnStep) -> list[EpochResult]:
        """Run a round of every policy: episodes, then optimizer steps on what is remembered."""
        n_epochs, n_done, results = self.trainees[0].config.training.n_epochs, 0, []
        n_reconstructions = 0

        def tell() -> None:
            nonlocal n_done
            n_done += 1
            on_step(Progress(epoch, n_epochs, n_done, self.n_steps))

        for number, trainee in enumerate(self.trainees):
            training = _training(trainee.config)
            trainee.begin(epoch)
            order = slices_of_round(
                training.seed, epoch, self.sizes.n_episodes, n_slices=len(self.slices)
            )
            found = self._episodes(number, epoch, order, tell)
            self.memories[number].add(decisions_of(order, found))
            replayed = self.memories[number].drawn(
                self.sizes.n_updates, training.batch_size, seed=training.seed, epoch=epoch
            )
            losses = []
            for rows in replayed:
                loss_of = partial(self._loss, number)
                losses.append(step_on(rows, trainee, self.views[number], loss_of))
                tell()
            word = metric_word(training.metric)
            scores = {
                f"search_{word}": float(found.score.mean()),
                f"tree_{word}": float(found.best_score.mean()),
                "loss": float(torch.stack(losses).mean()),
                "label_entropy": float(label_entropy(found.visits)),
            }
            results.append(scores)
            # An image that was not kept is made again wherever it is learned from.
            n_reconstructions += found.n_reconstructions + replayed.numel()
        n_decisions = self.sizes.n_episodes * self.trainees[0].config.acquisition.horizon
        facts = {"n_reconstructions": n_reconstructions, "n_decisions": n_decisions}
        return [EpochResult(scores, facts) for scores in results]

    def _episodes(
        self, number: int, epoch: int, order: Int[Tensor, " episode"], tell: Callable[[], None]
    ) -> Episodes:
        """Acquire slices by search, each process its share of them; all get all that was found."""
        view, config = self.views[number], self.trainees[number].config
        training, setting = _training(config), config.acquisition
        rule = SearchRule(
            self.sizes.n_searches,
            training.maximum_weight,
            training.noise_share,
            training.exploration,
            training.added_visits,
            training.unvisited,
            training.scales_values,
        )
        view.refresh()
        parts = []
        for places in torch.arange(len(order)).split(self._n_trees):
            mine = share(places)
            # A process without a slice of its own searches one that does not count.
            taken = mine if len(mine) else places[:1]
            batch = self.slices.batch(order[taken].to(self.slices.index_device))
            found = search_episodes(
                view,
                Simulator(
                    batch,
                    self.reconstructor,
                    protocol=training.protocol,
                    metric=training.metric,
                ),
                rule,
                self._draws(config, epoch, taken),
                n_initial=setting.start,
                horizon=setting.horizon,
                on_decision=tell,
            )
            parts.append(found.gathered(mine - places[0], len(places)))
        return Episodes.joined(parts)

    def _draws(
        self, config: PolicyConfig, epoch: int, places: Int[Tensor, " episode"]
    ) -> SearchDraws:
        """Draw the numbers of some of a round's episodes, on the CPU, each from its own key."""
        training, horizon = _training(config), config.acquisition.horizon
        shape, n_cols = (horizon, self.sizes.n_searches), self.slices.n_cols
        uniforms, gammas = [], []
        for place in places.tolist():
            key = keyed_generator("search", training.seed, epoch, place)
            random = np.random.default_rng(key.initial_seed())
            uniforms.append(random.random((*shape, horizon), dtype=np.float32))
            size = (*shape, n_cols)
            drawn = random.standard_gamma(training.noise_concentration, size, dtype=np.float32)
            gammas.append(drawn)
        return SearchDraws(
            *(torch.from_numpy(np.stack(part)).to(self.device) for part in (uniforms, gammas))
        )

    def _loss(self, number: int, rows: Int[Tensor, " decision"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of the network on remembered decisions."""
        view, protocol = self.views[number], self.trainees[number].config.training.protocol
        index, *kept = (self.memories[number].rows[name][rows] for name in KEPT)
        mask, step, visits = (values.to(self.device) for values in kept)
        batch = self.slices.batch(index.to(self.slices.index_device))
        simulator = Simulator(batch, self.reconstructor, protocol=protocol)
        start = start_mask(self.trainees[number].config.acquisition.start, mask.shape, self.device)
        state = simulator.start_from(mask, maps=simulator.calibrate(start))
        seen = simulator.observe(view.chooser, state)
        logits = view.recall(replace(seen, step=step), 0)
        chances = column_log_probabilities(logits.float(), simulator.blocked(state))
        return imitation_loss(chances, visits)


def decisions_of(index: Int[Tensor, " episode"], found: Episodes) -> Rows:
    """Return what is remembered of the episodes of some slices, on the CPU."""
    n_episodes, horizon, _ = found.mask.shape
    steps = torch.arange(horizon).repeat(n_episodes)
    mask, visits = found.mask.flatten(0, 1), found.visits.flatten(0, 1).int()
    kept = (index.repeat_interleave(horizon), mask, steps, visits)
    return {name: values.cpu() for name, values in zip(KEPT, kept, strict=True)}


def imitation_loss(
    log_probabilities: Float[Tensor, "decision col"], visits: Int[Tensor, "decision col"]
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy `-sum_a pi(a) log p(a)`, pi the shares of the visits."""
    shares = visits / visits.sum(dim=-1, keepdim=True)
    return -(shares * log_probabilities).sum(dim=-1).mean()


def label_entropy(visits: Int[Tensor, "*lead col"]) -> Float[Tensor, ""]:
    """Return the mean entropy of the shares of visits in nats: no loss comes below it."""
    shares = visits / visits.sum(dim=-1, keepdim=True)
    return -shares.xlogy(shares).sum(dim=-1).mean()


def _training(config: PolicyConfig) -> AlphaZeroTraining:
    assert isinstance(config.training, AlphaZeroTraining)
    return config.training
