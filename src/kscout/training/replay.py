"""Learning from what was remembered of rounds before: a bounded memory, and steps on its rows."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.policies.views import View
from kscout.randomness import keyed_generator
from kscout.training.distributed import average_gradients, share, sum_over_processes
from kscout.training.estimators import PolicyTrainee

M = TypeVar("M", bound="Memory")


class Memory:
    """Rows that an estimator remembers, oldest first, on the CPU.

    A dataclass derives from it, whose fields are tensors with one row each per remembered thing.
    """

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def joined(self: M, others: Sequence[M], n_most: int) -> M:
        """Return these rows and others, without the oldest of too many."""
        parts = [vars(one) for one in (self, *others)]
        names = [*parts[0]]
        return type(self)(
            **{name: torch.cat([part[name].cpu() for part in parts])[-n_most:] for name in names}
        )

    def rows(self: M, selection: Int[Tensor, " n"], device: torch.device) -> M:
        """Return the chosen rows on a device."""
        return type(self)(**{name: x[selection].to(device) for name, x in vars(self).items()})

    def drawn(
        self, n_steps: int, n_rows: int, *, seed: int, epoch: int
    ) -> Int[Tensor, "{n_steps} {n_rows}"]:
        """Draw the rows of a round's optimizer steps."""
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
