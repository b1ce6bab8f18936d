"""States of acquisitions, and detection of equal ones without device synchronization."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.core import Observation, Policy, Reconstruction
from kscout.kernels.acquisition_step import follow, list_distinct
from kscout.kernels.registry import Request, serving
from kscout.physics.coils import combined
from kscout.physics.measurement import Pairs
from kscout.shapes import one_line


@final
@dataclass(frozen=True, repr=False)
class State:
    """States of a batch of acquisitions; several may belong to one slice."""

    owner: Int[Tensor, " state"]
    """The slice of the batch that each state acquires."""
    zero_filled: Complex[Tensor, "state coil row col"]
    mask: Bool[Tensor, "state col"]
    image: Float[Tensor, "state row col"]
    """The reconstruction in normalized units, as in observations."""
    mean: Float[Tensor, " state"]
    std: Float[Tensor, " state"]
    score: Float[Tensor, " state"]
    """The simulator's metric, SSIM by default, of the reconstruction under its protocol."""
    n_left: int
    """An upper bound of the columns left to acquire in any state, known on the host."""
    step: int = 0
    maps: Complex[Tensor, "state coil row col"] | None = None
    """Sensitivities estimated from the columns of the start, if the reconstructor uses them."""

    __repr__ = one_line

    def __len__(self) -> int:
        return self.mask.shape[0]

    def rows(self, selection: Int[Tensor, " n"]) -> "State":
        """Return the selected states, in this order; repeats are allowed."""
        return _follow(self, selection[:, None])

    def repeated(self, n_times: int) -> "State":
        """Return the states with adjacent repeats."""
        if n_times == 1:
            return self
        return self.rows(
            torch.arange(len(self), device=self.mask.device).repeat_interleave(n_times)
        )

    @classmethod
    def joined(cls, parts: "Sequence[State]") -> "State":
        """Join states that have acquired the same number of columns."""
        if len(parts) == 1:
            return parts[0]
        has_maps = parts[0].maps is not None
        names = (*_PER_STATE, "maps") if has_maps else _PER_STATE
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **joined)  # type: ignore[arg-type]


_PER_STATE = ("owner", "zero_filled", "mask", "image", "mean", "std", "score")


@final
@dataclass(frozen=True, repr=False)
class Branches:
    """The results of the candidates of every state; equal (slice, mask) pairs are stored once."""

    state: State
    """One state for each distinct (slice, mask)."""
    slot: Int[Tensor, "parent candidate"]
    """Index of each candidate in `state`."""

    __repr__ = one_line

    @property
    def score(self) -> Float[Tensor, "parent candidate"]:
        """SSIM after each candidate."""
        return self.state.score[self.slot]

    def follow(self, choice: Int[Tensor, " parent"]) -> State:
        """Continue from one candidate of every state."""
        return _follow(self.state, self.slot, choice)

    def every(self) -> State:
        """Continue from all candidates; those of one state are adjacent."""
        return self.state.rows(self.slot.reshape(-1))


def shown_to(
    policy: Policy,
    found: Reconstruction,
    zero_filled: Complex[Tensor, "state coil row col"],
    mask: Bool[Tensor, "state col"],
    *,
    step: int | Int[Tensor, " state"],
    n_left: int | Int[Tensor, " state"] | None,
) -> Observation:
    """Return the observation of a policy, limited to the fields that it needs."""
    seen = Observation(image=found.image, mask=mask, step=step, n_left=n_left)
    if not policy.needs_measurement:
        return seen
    shown = zero_filled if policy.needs_coils else combined(zero_filled, mask)
    return replace(seen, zero_filled=shown, mean=found.mean, std=found.std)


def list_candidates(
    columns: Int[Tensor, "state candidate"], state: State, n_per_slice: int
) -> tuple[Int[Tensor, "state candidate"], Pairs, Int[Tensor, ""]]:
    """List each distinct (slice, mask after a column) once, without a device synchronization.

    Adjacent states of one slice may reach the same mask in different orders.

    Returns:
        The index of each candidate in the list; the list, padded to the number of candidates; and
        the number of distinct pairs.
    """
    if serving("distinct", Request(columns.device, n_per_slice=n_per_slice)) == "cuda":
        slot, listed, n_distinct = list_distinct(columns, state.owner)
        parent, column, owner = listed
        return slot, Pairs(parent, column, owner, n_distinct), n_distinct
    n_states, n_candidates = columns.shape
    keys = columns[:, :, None]
    if n_per_slice > 1:
        before = state.mask[:, None].expand(-1, n_candidates, -1)
        keys = before.scatter(-1, columns[:, :, None], True)
    n_together = n_per_slice * n_candidates
    keys = keys.reshape(-1, n_together, keys.shape[-1])
    owner = state.owner.repeat_interleave(n_candidates).view(-1, n_together)
    same = (keys[:, :, None] == keys[:, None]).all(dim=-1)
    same &= owner[:, :, None] == owner[:, None]
    order = torch.arange(n_together, device=columns.device)
    first = torch.where(same, order, n_together).amin(dim=-1)
    is_new = (first == order).reshape(-1)
    place = is_new.cumsum(dim=0) - 1
    slot = place.view(first.shape).gather(-1, first).view(columns.shape)
    # Repeats are written to an extra entry, which is removed.
    to = torch.where(is_new, place, columns.numel())
    parent = torch.arange(n_states, device=columns.device).repeat_interleave(n_candidates)
    listed = torch.zeros(2, columns.numel() + 1, dtype=torch.int64, device=columns.device)
    listed = listed.scatter(1, to.expand(2, -1), torch.stack([parent, columns.reshape(-1)]))
    parent, column = listed[:, :-1]
    n_distinct = is_new.sum(dtype=torch.int32)
    return slot, Pairs(parent, column, state.owner[parent], n_distinct), n_distinct


def _follow(
    state: State, slot: Int[Tensor, "new choice"], choice: Int[Tensor, " new"] | None = None
) -> State:
    """Return the states at `slot[:, choice]`; by default `slot` has one column."""
    values = [getattr(state, name) for name in _PER_STATE]
    kinds, maps = frozenset(x.dtype for x in values), state.maps
    is_served = serving("follow", Request(slot.device, kinds)) == "cuda"
    taken = follow(slot, choice, values) if is_served else []
    if maps is not None or not is_served:
        selection = slot[:, 0] if choice is None else slot.gather(-1, choice[:, None])[:, 0]
        taken = taken or [x[selection] for x in values]
        maps = None if maps is None else maps[selection]
    found = dict(zip(_PER_STATE, taken, strict=True))
    return replace(state, maps=maps, **found)  # type: ignore[arg-type]
