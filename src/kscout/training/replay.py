"""Learning from what was remembered of rounds before: a bounded memory, and steps on its rows."""

from collections.abc import Callable
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.policies.views import View
from kscout.randomness import keyed_generator
from kscout.training.distributed import average_gradients, share, sum_over_processes
from kscout.training.estimators import PolicyTrainee

Rows = dict[str, Tensor]
"""Tensors by name with one row for each remembered thing: a state, a decision, an acquisition."""


@final
class Memory:
    """The newest rows, oldest first, where they lay when they were added.

    Args:
        n_most: how many.
    """

    def __init__(self, n_most: int) -> None:
        self.n_most = n_most
        self.rows: Rows = {}

    def __len__(self) -> int:
        return len(next(iter(self.rows.values()))) if self.rows else 0

    def add(self, *new: Rows) -> None:
        """Take rows in, all with the same names, and let the oldest of too many go."""
        parts = [self.rows, *new] if self.rows else new
        names = [*new[0]]
        self.rows = {x: torch.cat([part[x] for part in parts])[-self.n_most :] for x in names}

    def draw(self, uniforms: Float[Tensor, " n"]) -> Rows:
        """Return some rows, with replacement, by numbers in [0, 1)."""
        which = (uniforms * len(self)).long().clamp(max=len(self) - 1)
        return {name: value[which] for name, value in self.rows.items()}

    def drawn(
        self, n_steps: int, n_rows: int, *, seed: int, epoch: int
    ) -> Int[Tensor, "{n_steps} {n_rows}"]:
        """Draw the rows of a round's optimizer steps, by number."""
        generator = keyed_generator("replay", seed, epoch)
        return torch.randint(len(self), (n_steps, n_rows), generator=generator)


def step_on(
    rows: Int[Tensor, " n"],
    trainee: PolicyTrainee,
    view: View,
    loss_of: Callable[[Int[Tensor, " mine"]], Float[Tensor, ""]],
) -> Float[Tensor, ""]:
    """Take an optimizer step on remembered rows, each process on its share; return their mean loss.

    Args:
        rows: of all processes.
        trainee: what learns.
        view: the policy as it learns.
        loss_of: the mean loss of some rows.
    """
    trainee.optimizer.zero_grad()
    view.refresh()
    parameters = list(trainee.module.parameters())
    mine, loss = share(rows), torch.zeros((), device=parameters[0].device)
    if len(mine):
        loss = loss_of(mine)
        loss.backward()
    weight = len(mine) / len(rows)
    average_gradients(parameters, weight)
    trainee.optimizer.step()
    return sum_over_processes(loss.detach() * weight)
