"""AlphaZero for acquisition: searches choose columns, and the network learns what they chose.

Jin, Unser and Yi, arXiv 1901.04547, with a frozen reconstructor and SSIM as the value, as in
arXiv 2010.16262. In a round slices are acquired by tree search (`search_trees`); the replay buffer
stores each decision as the shares of searches that passed each column. Then the network takes
optimizer steps on stored decisions: the cross-entropy of its distribution with those shares. Only
searches use the ground truth, hence only training: at test the network chooses by itself.
"""

from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.names import metric_word
from kscout.physics.sampling import Initial
from kscout.policies.views import View
from kscout.randomness import keyed_generator
from kscout.training.baselines.episodic import Episodic
from kscout.training.baselines.search_trees import Trees
from kscout.training.baselines.settings import AlphaZeroTraining
from kscout.training.states import Rows

COLUMNS = ("index", "mask", "step", "visits")
"""The contents of the replay buffer for a decision: its slice, the mask before it, its step, and
the number of searches that passed each column."""


@final
class AlphaZero(Episodic):
    """Trains a policy to predict the visits of a tree search."""

    settings = AlphaZeroTraining
    training: AlphaZeroTraining
    columns = COLUMNS
    n_images = 1

    def acquire(
        self, epoch: int, places: Int[Tensor, " episode"], order: Int[Tensor, " all"]
    ) -> tuple[list[Rows], dict[str, Tensor], int]:
        training, setting = self.training, self.config.acquisition
        self.view.refresh()
        episodes = search_episodes(
            self.view,
            self.simulator(order[places]),
            training,
            self._draws(epoch, places),
            n_initial=setting.start,
            horizon=setting.horizon,
        )
        word = metric_word(training.metric)
        totals = {
            f"search_{word}": episodes.score.sum(),
            f"tree_{word}": episodes.best_score.sum(),
            "label_entropy": label_entropy(episodes.visits) * len(places),
        }
        return [decisions_of(order[places], episodes)], totals, episodes.n_reconstructions

    def _draws(self, epoch: int, places: Int[Tensor, " episode"]) -> "SearchDraws":
        """Draw the random numbers of some of a round's episodes, on the CPU, each from its seed."""
        training, horizon = self.training, self.config.acquisition.horizon
        n_cols = self.slices.n_cols
        shape = (horizon, training.searches(n_cols))
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

    def loss(self, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of the network on stored decisions."""
        replayed = self.replayed(rows)
        mask, step, visits = replayed.values
        logits = self.view.recall(replayed.observe(mask, step), 0)
        blocked = mask | ~replayed.simulator.batch.selectable
        return imitation_loss(column_log_probabilities(logits.float(), blocked), visits)


class SearchDraws(NamedTuple):
    """Random numbers of the searches before each decision."""

    uniforms: Float[Tensor, "slice step search depth"]
    """In [0, 1): columns drawn at new nodes."""
    gammas: Float[Tensor, "slice step search col"]
    """Of the Dirichlet distribution; normalized over the columns left."""


@final
@dataclass(frozen=True)
class Episodes:
    """The decisions for each slice, and the results of its searches."""

    mask: Bool[Tensor, "slice step col"]
    """Before each decision."""
    visits: Int[Tensor, "slice step col"]
    """Searches that passed each child of that mask."""
    score: Float[Tensor, " slice"]
    """SSIM at the budget of the columns that were decided on."""
    best_mask: Bool[Tensor, "slice col"]
    """The best mask at the budget that any search met."""
    best_score: Float[Tensor, " slice"]
    n_reconstructions: int


def search_episodes(
    policy: View,
    simulator: Simulator,
    rule: AlphaZeroTraining,
    draws: SearchDraws,
    *,
    n_initial: Initial,
    horizon: int,
) -> Episodes:
    """Acquire every slice of a simulator, each column decided on by searches.

    A decision takes the column that most searches passed, of equals that with the best mean value:
    few searches pass many columns once. Nodes stay for the slice's later decisions.
    """
    n_searches = draws.uniforms.shape[2]
    trees = Trees(
        policy, simulator, rule, n_searches=n_searches, n_initial=n_initial, horizon=horizon
    )
    ways, masks, visits = trees.ways_down(), [], []
    for step in range(horizon):
        for search in range(n_searches):
            trees.search(ways, draws.uniforms[:, step, search], draws.gammas[:, step, search])
        masks.append(trees.root.mask)
        visits.append(trees.decide())
    return Episodes(
        torch.stack(masks, dim=1),
        torch.stack(visits, dim=1),
        trees.best.gather(1, trees.root.node[:, None])[:, 0].float(),
        trees.best_mask,
        trees.high[:, 0].float(),
        int(trees.n_nodes.sum()),
    )


def decisions_of(index: Int[Tensor, " episode"], episodes: Episodes) -> Rows:
    """Return the rows of the replay buffer for the episodes of some slices, on the CPU."""
    n_episodes, horizon, _ = episodes.mask.shape
    steps = torch.arange(horizon).repeat(n_episodes)
    mask, visits = episodes.mask.flatten(0, 1), episodes.visits.flatten(0, 1).int()
    row = (index.repeat_interleave(horizon), mask, steps, visits)
    return {name: values.cpu() for name, values in zip(COLUMNS, row, strict=True)}


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
