"""AlphaZero for acquisition: searches choose columns, and the network learns what they chose.

Jin, Unser and Yi, arXiv 1901.04547, with a frozen reconstructor and SSIM as the value, as in
arXiv 2010.16262. In a round slices are acquired by tree search (`search_trees`); the replay buffer
stores each decision as the shares of searches that passed each column. Then the network takes
optimizer steps on stored decisions: the cross-entropy of its distribution with those shares. Only
searches use the ground truth, hence only training: at test the network chooses by itself.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.choose import column_log_probabilities
from kscout.acquisition.episode import Simulator
from kscout.config import PolicyConfig
from kscout.names import metric_word
from kscout.physics.sampling import Initial
from kscout.policies.views import View
from kscout.randomness import keyed_generator
from kscout.training.baselines.episodic import Episodic
from kscout.training.baselines.search_trees import Trees
from kscout.training.baselines.settings import AlphaZeroTraining
from kscout.training.distributed import n_processes, share, sum_over_processes
from kscout.training.replay import Rows

COLUMNS = ("index", "mask", "step", "visits")
"""What the replay buffer stores of a decision: its slice, the mask before it, its step, and the
number of searches that passed each column."""


@final
class AlphaZero(Episodic):
    """Trains policies to predict the visits of a tree search."""

    settings = AlphaZeroTraining
    columns = COLUMNS
    n_images = 1

    @property
    def n_at_once(self) -> int:
        return super().n_at_once * n_processes()

    def acquire(
        self, number: int, epoch: int, places: Int[Tensor, " episode"], order: Int[Tensor, " all"]
    ) -> tuple[list[Rows], dict[str, Tensor], int]:
        """Acquire slices by search, each process its share; all processes get all episodes."""
        view, config = self.views[number], self.trainees[number].config
        training, setting = _training(config), config.acquisition
        view.refresh()
        mine, word = share(places), metric_word(training.metric)
        # A process without a slice of its own searches one that does not count.
        taken = mine if len(mine) else places[:1]
        episodes = search_episodes(
            view,
            self.simulator(config, order[taken]),
            training,
            self._draws(config, epoch, taken),
            n_initial=setting.start,
            horizon=setting.horizon,
        ).gathered(mine - places[0], len(places))
        totals = {
            f"search_{word}": episodes.score.sum(),
            f"tree_{word}": episodes.best_score.sum(),
            "label_entropy": label_entropy(episodes.visits) * len(places),
        }
        return [decisions_of(order[places], episodes)], totals, episodes.n_reconstructions

    def _draws(
        self, config: PolicyConfig, epoch: int, places: Int[Tensor, " episode"]
    ) -> "SearchDraws":
        """Draw the random numbers of some of a round's episodes, on the CPU, each from its seed."""
        training, horizon = _training(config), config.acquisition.horizon
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

    def loss(self, number: int, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Return the mean cross-entropy of the network on stored decisions."""
        replayed = self.replayed(number, rows)
        mask, step, visits = replayed.values
        logits = self.views[number].recall(replayed.observe(mask, step), 0)
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
    """What was decided for each slice, and what the searches found."""

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

    def gathered(self, places: Int[Tensor, " place"], n_slices: int) -> "Episodes":
        """Return the episodes of all processes in each of them.

        Args:
            places: where this process's episodes belong; as many as count, from the first.
            n_slices: of all processes.
        """
        if n_processes() == 1:
            return self
        found = {}
        for name in _PER_SLICE:
            own = getattr(self, name)
            every = own.new_zeros((n_slices, *own.shape[1:]), dtype=_SUMMED.get(own.dtype))
            every[places] = own[: len(places)].to(every.dtype)
            found[name] = sum_over_processes(every).to(own.dtype)
        counted = self.n_reconstructions if len(places) else 0
        n_found = sum_over_processes(torch.tensor(counted, device=self.score.device))
        return replace(self, **found, n_reconstructions=int(n_found))


_PER_SLICE = ("mask", "visits", "score", "best_mask", "best_score")
_SUMMED = {torch.bool: torch.int32}
"""What is summed over processes in another type."""


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

    Args:
        policy: its scores are the logits of pi.
        simulator: slices, frozen reconstructor and protocol.
        rule: constants of the search.
        draws: random numbers of all searches.
        n_initial: central columns measured at the start, or columns.
        horizon: columns to acquire.
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


def _training(config: PolicyConfig) -> AlphaZeroTraining:
    assert isinstance(config.training, AlphaZeroTraining)
    return config.training
