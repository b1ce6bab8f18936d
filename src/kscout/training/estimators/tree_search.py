"""Acquisitions whose columns are decided on by tree search (`search_trees`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.physics.sampling import Initial
from kscout.policies.views import View
from kscout.training.distributed import n_processes, sum_over_processes
from kscout.training.estimators.search_trees import SearchRule, Trees


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

    @classmethod
    def joined(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """Join the episodes of several batches of slices."""
        every = {name: torch.cat([getattr(part, name) for part in parts]) for name in _PER_SLICE}
        n_found = sum(part.n_reconstructions for part in parts)
        return replace(parts[0], **every, n_reconstructions=n_found)


_PER_SLICE = ("mask", "visits", "score", "best_mask", "best_score")
_SUMMED = {torch.bool: torch.int32}
"""What is summed over processes in another type."""


def search_episodes(
    policy: View,
    simulator: Simulator,
    rule: SearchRule,
    draws: SearchDraws,
    *,
    n_initial: Initial,
    horizon: int,
    on_decision: Callable[[], None] = lambda: None,
) -> Episodes:
    """Acquire every slice of a simulator, each column decided on by searches.

    A decision takes the column that most searches passed, of equals that with the best mean value:
    few searches pass many columns once. Nodes stay for the slice's later decisions.

    Args:
        policy: its scores are the logits of pi.
        simulator: slices, frozen reconstructor and protocol.
        rule: constants of the search.
        draws: random numbers for as many searches as the rule says.
        n_initial: central columns measured at the start, or columns.
        horizon: columns to acquire.
        on_decision: called after each decision.
    """
    trees = Trees(policy, simulator, rule, n_initial=n_initial, horizon=horizon)
    ways, masks, visits = trees.ways_down(), [], []
    for step in range(horizon):
        for search in range(rule.n_searches):
            trees.search(ways, draws.uniforms[:, step, search], draws.gammas[:, step, search])
        masks.append(trees.root.mask)
        visits.append(trees.decide())
        on_decision()
    return Episodes(
        torch.stack(masks, dim=1),
        torch.stack(visits, dim=1),
        trees.best.gather(1, trees.root.node[:, None])[:, 0].float(),
        trees.best_mask,
        trees.high[:, 0].float(),
        int(trees.n_nodes.sum()),
    )
