"""The part of an acquisition step between the networks, on CUDA, in three kernels.

`acquisition_step.cu` describes them. The plain versions are in `kscout.acquisition`.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.kernels.cuda import compile_kernel

FILE = "acquisition_step.cu"
_N_WARPS = 8
_N_FOLLOW_BLOCKS = 16


def choose(
    scores: Float[Tensor, "state col"],
    mask: Bool[Tensor, "state col"],
    selectable: Bool[Tensor, "slice col"],
    owner: Int[Tensor, " state"],
    uniforms: Float[Tensor, "state draw"],
) -> tuple[Bool[Tensor, "state col"], Int[Tensor, "state draw"], Float[Tensor, "state draw"]]:
    """Sample unmeasured, selectable columns; return the blocked and sampled columns, and log p."""
    (n_states, n_cols), n_draws = scores.shape, uniforms.shape[1]
    blocked = torch.empty_like(mask, memory_format=torch.contiguous_format)
    columns = torch.empty(n_states, n_draws, dtype=torch.int64, device=scores.device)
    log_probs = torch.empty(n_states, n_draws, device=scores.device)
    given = [x.contiguous() for x in (scores.float(), mask, selectable, owner, uniforms)]
    compile_kernel(FILE, "choose")(
        (n_states, 1, 1),
        (32, 1, 1),
        [*given, blocked, columns, log_probs, n_cols, n_draws],
        12 * n_cols,
    )
    return blocked, columns, log_probs


def list_distinct(
    columns: Int[Tensor, "state draw"], owner: Int[Tensor, " state"]
) -> tuple[Int[Tensor, "state draw"], Int[Tensor, "3 pair"], Int[Tensor, ""]]:
    """List each (state, column) once: index of each sample; states, columns, slices; number."""
    slot = torch.empty(columns.shape, dtype=torch.int64, device=columns.device)
    listed = torch.empty(3, columns.numel(), dtype=torch.int64, device=columns.device)
    count = torch.empty((), dtype=torch.int32, device=columns.device)
    given = [columns.contiguous(), owner.contiguous()]
    compile_kernel(FILE, "distinct", _N_WARPS)(
        (1, 1, 1), (32 * _N_WARPS, 1, 1), [*given, slot, *listed, count, *columns.shape]
    )
    return slot, listed, count


def follow(
    slot: Int[Tensor, "state choice"],
    choice: Int[Tensor, " state"] | None,
    states: Sequence[Tensor],
) -> list[Tensor]:
    """Copy the state in each row of `slot` at index `choice`; the only one if `choice` is None.

    States are owner, zero-filled image (complex64), mask, image, mean, std and score of each.
    """
    given = [x.contiguous() for x in states]
    taken = [x.new_empty(len(slot), *x.shape[1:]) for x in given]
    slot = slot.contiguous()
    picks = [slot, slot if choice is None else choice.contiguous(), slot.shape[1]]
    sizes = [given[i][0].numel() for i in (1, 3, 2)]
    compile_kernel(FILE, "follow")(
        (len(slot), _N_FOLLOW_BLOCKS, 1), (256, 1, 1), [*picks, *given, *taken, *sizes]
    )
    return taken
