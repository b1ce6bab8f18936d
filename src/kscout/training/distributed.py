"""Data-parallel training under `torchrun`, equal to one process with the same batches.

Every process walks through the same batches and works on its share of each. Gradients are summed
with the share's part of the batch as weight, so that a batch which does not divide evenly, even
one smaller than the number of processes, gives the gradient of its mean all the same. Alone, all
functions here do nothing.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor, nn

from kscout.device import resolve_device
from kscout.errors import ConfigError

Value = TypeVar("Value")


@contextmanager
def process_group(device: str = "auto") -> Iterator[torch.device]:
    """Join the processes that `torchrun` started, if any, and yield this one's device.

    No process continues before all have joined, and none leaves while another still works: gloo
    fails in the others where one is gone too early (it was so in 10 of 300 joins whose first
    process left at once, and in none after this), and may abort them (pytorch/gloo issue 514).
    """
    chosen = resolve_device(device)
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        yield chosen
        return
    if chosen.type == "cuda":
        chosen = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        _meet(chosen)
        yield chosen
        # Not after a failure: the others may never come, and torchrun ends them.
        _meet(chosen)
    finally:
        dist.destroy_process_group()


def refuse_processes(what: str) -> None:
    """Raise an error under torchrun, for work that runs in one process."""
    n_started = int(os.environ.get("WORLD_SIZE", "1"))
    if "TORCHELASTIC_RUN_ID" in os.environ and n_started > 1:
        raise ConfigError(
            f"{what} runs in one process, and torchrun started {n_started}; start it without "
            "torchrun, and other seeds or methods as processes of their own"
        )


def _meet(device: torch.device) -> None:
    """Wait for all processes; unlike `barrier`, this does not guess the device."""
    dist.all_reduce(torch.zeros(1, device=device))


def n_processes() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Return whether this process writes files and messages."""
    return rank() == 0


def share(batch: Shaped[Tensor, "batch *_"]) -> Shaped[Tensor, "part *_"]:
    """Return this process's part of a batch: every n-th slice; it may be empty."""
    return batch[rank() :: n_processes()]


def average_gradients(parameters: Iterable[nn.Parameter], weight: float = 1.0) -> None:
    """Replace each gradient by its weighted sum over processes.

    The weight is this process's part of the batch, `len(share(index)) / len(index)`, as its loss is
    a mean over its own share. A missing gradient counts as zero.
    """
    if n_processes() == 1:
        return
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    # One flat message: many small ones would spend their time on latency.
    flat = torch.cat([gradient.flatten() for gradient in gradients]).mul_(weight)
    dist.all_reduce(flat)
    for parameter, part in zip(
        trained, flat.split([parameter.numel() for parameter in trained]), strict=True
    ):
        parameter.grad = part.view_as(parameter)


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes."""
    if n_processes() == 1:
        return value
    total = value.clone()
    dist.all_reduce(total)
    return total


def from_main(value: Value) -> Value:
    """Return the value of the main process in all processes."""
    if n_processes() == 1:
        return value
    box: list[Value] = [value]
    dist.broadcast_object_list(box)
    return box[0]
