"""How much imagined columns must promise to be taken before those of a fixed order.

Training slices are acquired as the policy would, all of them step by step. At each step the column
that is worth most on imagined images is tried on the truth. It is taken from that promise on from
which such columns were worth most in sum, less the standard error of the sum; where no promise was
kept, the order goes on. What was found at a step decides how slices go to the next one.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.config import PolicyConfig
from kscout.core import Reconstructor, SliceBatch
from kscout.policies.imagine import ImaginePolicy
from kscout.training.distributed import gathered

NEVER = 1e6
"""More than any column is worth."""


@torch.no_grad()
def least_worth(
    policy: ImaginePolicy,
    batches: Sequence[SliceBatch],
    reconstructor: Reconstructor,
    config: PolicyConfig,
    n_slices: int,
) -> list[float]:
    """Return what columns must be worth at each step, as `ImaginePolicy.least` takes it.

    Args:
        policy: with an order.
        batches: training slices, this process's share of them.
        reconstructor: frozen.
        config: of the training.
        n_slices: of all processes.
    """
    training, setting, least = config.training, config.acquisition, []
    simulators = [
        Simulator(batch, reconstructor, protocol=training.protocol, metric=training.metric)
        for batch in batches
    ]
    states = [simulator.start(setting.start) for simulator in simulators]
    device = next(policy.parameters()).device
    for step in range(setting.horizon):
        tried = []
        for simulator, state in zip(simulators, states, strict=True):
            n_left = setting.horizon - step
            seen = simulator.observe(policy, state, n_left=n_left)
            worth, blocked = policy.expected(seen), simulator.blocked(state)
            # What the order takes anyway is worth 0.
            promised, best = worth.masked_fill(blocked | (worth == 0), -torch.inf).max(dim=-1)
            follows = policy.places(blocked).argmin(dim=-1)
            assert seen.judge is not None
            kept = seen.judge.values(
                simulator.batch, state.mask, best[:, None], policy.order, seen.for_each(n_left)
            )
            tried.append((promised, kept[:, 0], best, follows))
        told = [torch.cat([x[at] for x in tried]) if tried else _nothing(device) for at in (0, 1)]
        least.append(from_which(*(gathered(x, n_slices) for x in told)))
        states = [
            simulator.acquire(state, torch.where(promised > least[-1], best, follows))
            for simulator, state, (promised, _, best, follows) in zip(
                simulators, states, tried, strict=True
            )
        ]
    return least


def from_which(promised: Float[Tensor, " slice"], kept: Float[Tensor, " slice"]) -> float:
    """Return from which promise on columns are surely worth something in sum; `NEVER` if none are.

    Args:
        promised: what the best column of each slice is worth on imagined images.
        kept: what it is worth in truth.
    """
    order = promised.argsort(descending=True)
    promised, kept = promised[order].double(), kept[order].double()
    kept = kept.masked_fill(promised == -torch.inf, 0.0)
    surely = kept.cumsum(dim=0) - kept.square().cumsum(dim=0).sqrt()
    if not len(surely) or float(surely.max()) <= 0:
        return NEVER
    last = int(surely.argmax())
    if last + 1 < len(promised) and bool(promised[last + 1].isfinite()):
        return float((promised[last] + promised[last + 1]) / 2)
    return min(0.0, float(promised[last]))


def _nothing(device: torch.device) -> Float[Tensor, "0"]:
    return torch.zeros(0, device=device)


__all__ = ["NEVER", "from_which", "least_worth"]
