"""One engine that reconstructs and scores (slice, mask) pairs: the inner loop of everything.

Training, evaluation, oracles and the Gymnasium environment all go through `Simulator`. Trying a
column costs a rank-one update of the complex zero-filled image, one reconstruction and one score;
the transform of the slice, its columns' images and the target's half of SSIM are computed once
per batch. No step waits for the device.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.core import (
    PROTOCOLS,
    Measurement,
    Observation,
    Policy,
    Protocol,
    Reconstruction,
    Reconstructor,
    SliceBatch,
    Truth,
)
from kscout.errors import ConfigError, unknown_name
from kscout.kernels.choosing import follow, list_distinct
from kscout.kernels.registry import Request, serving
from kscout.metrics import SsimScorer
from kscout.physics.candidates import Pairs, measure_columns
from kscout.physics.fourier import column_ramps, fft2c, ifft_rows
from kscout.physics.normalization import denormalize
from kscout.physics.sampling import center_mask

MEMORY_LIMIT = {"cpu": 64 * 2**20, "cuda": 16 * 2**30}
"""Default bytes that candidates reconstructed at once may take, by kind of device.

On a CPU more is slower: the features of 8 images of 128x128 stay near the caches, and twice as many
images per second come out as with 64 of them."""


@final
@dataclass(frozen=True)
class State:
    """Where a batch of acquisitions stands; several may belong to one slice."""

    owner: Int[Tensor, " state"]
    """The slice of the batch that each state acquires."""
    zero_filled: Complex[Tensor, "state coil row col"]
    mask: Bool[Tensor, "state col"]
    image: Float[Tensor, "state row col"]
    """The reconstruction in normalized units: what a policy sees."""
    mean: Float[Tensor, " state"]
    std: Float[Tensor, " state"]
    score: Float[Tensor, " state"]
    """SSIM of the reconstruction under the simulator's protocol."""
    n_left: int
    """No state has more columns than this to acquire; known without asking the device."""
    step: int = 0
    n_per_slice: int = 1
    """Where over 1, so many states of one slice lie side by side, for every slice."""
    shared: "tuple[State, Tensor] | None" = None
    """Fewer states and where each of these is found among them, where some are equal."""

    def __len__(self) -> int:
        return self.mask.shape[0]

    def rows(self, selection: Int[Tensor, " n"]) -> "State":
        """Return the chosen states, in that order; one may be chosen several times."""
        return replace(_follow(self, selection[:, None]), n_per_slice=1, shared=None)


_PER_STATE = ("owner", "zero_filled", "mask", "image", "mean", "std", "score")


@final
class Simulator:
    """Acquires, reconstructs and scores the slices of one batch with one reconstructor."""

    def __init__(
        self,
        batch: SliceBatch,
        reconstructor: Reconstructor,
        *,
        protocol: Protocol = "paper",
        memory_limit: int | None = None,
    ) -> None:
        check_protocol(protocol)
        self.batch, self.reconstructor, self.protocol = batch, reconstructor, protocol
        device = batch.kspace.device
        self.column_images = ifft_rows(batch.kspace).transpose(-2, -1).contiguous()
        self.ramps = column_ramps(batch.n_cols, device)
        self.scorer = SsimScorer(batch.target, data_range=batch.data_range)
        limit = _memory_limit(device) if memory_limit is None else memory_limit
        # Scoring takes less than reconstructing, and comes when that is done.
        self.n_at_once = max(1, limit // reconstructor.n_bytes(*batch.kspace.shape[1:]))

    def start(self, n_initial: int, *, n_trajectories: int = 1) -> State:
        """Measure the central columns and reconstruct."""
        n_slices, n_cols = self.batch.selectable.shape
        mask = center_mask(n_cols, n_initial, self.batch.kspace.device)
        state = self.start_from(mask.expand(n_slices, -1), n_measured=n_initial)
        if n_trajectories == 1:
            return state
        slot = state.owner.repeat_interleave(n_trajectories)
        return replace(state.rows(slot), n_per_slice=n_trajectories, shared=(state, slot))

    def start_from(self, mask: Bool[Tensor, "batch col"], *, n_measured: int = 0) -> State:
        """Measure the columns of any mask at once, one mask per slice, and reconstruct.

        Args:
            mask: one mask per slice.
            n_measured: columns known to be measured in every mask; saves trying them again.
        """
        owner = torch.arange(len(mask), device=mask.device)
        measured = Measurement.of(self.batch.kspace, mask)
        return self._state(measured, owner, n_left=mask.shape[1] - n_measured)

    def acquire(self, state: State, column: Int[Tensor, " state"]) -> State:
        """Measure one more column in every state."""
        if state.n_per_slice > 1:
            return self.branch(state, column[:, None]).every()
        parent = torch.arange(len(state), device=column.device)
        return self._together(self._children(state, Pairs(parent, column, state.owner)))

    def branch(self, state: State, columns: Int[Tensor, "state candidate"]) -> "Branches":
        """Measure each candidate column of every state; equal masks of a slice are tried once."""
        slot, pairs, n_distinct = _distinct(columns, state)
        if columns.device.type == "cpu":
            # Elsewhere the number stays on the device: kernels that know it skip the rest.
            pairs = pairs.part(0, int(n_distinct))
        return Branches(self._together(self._children(state, pairs)), slot, state.n_per_slice)

    def score_columns(
        self, state: State, columns: Int[Tensor, "state candidate"]
    ) -> Float[Tensor, "state candidate"]:
        """Return SSIM after measuring each candidate column, keeping nothing else."""
        parent = torch.arange(len(state), device=columns.device)
        parent = parent.repeat_interleave(columns.shape[1])
        pairs = Pairs(parent, columns.reshape(-1), state.owner[parent])
        children = self._children(state, pairs)
        return torch.cat([child.score for child in children]).view(columns.shape)

    def score_every_column(self, state: State) -> Float[Tensor, "state col"]:
        """Return SSIM after measuring each column that is left; -inf for the others."""
        blocked = self.blocked(state)
        columns = blocked.to(torch.int8).argsort(dim=-1, stable=True)[:, : state.n_left]
        scores = self.score_columns(state, columns).masked_fill(
            blocked.gather(-1, columns), -torch.inf
        )
        every = torch.full(blocked.shape, -torch.inf, device=scores.device, dtype=scores.dtype)
        return every.scatter(-1, columns, scores)

    def observe(self, policy: Policy, state: State) -> Observation:
        """Return what the policy may see: what it asks for, and the truth for oracles only."""
        seen = Observation(image=state.image, mask=state.mask, step=state.step)
        if policy.needs_measurement:
            seen = replace(seen, zero_filled=state.zero_filled, mean=state.mean, std=state.std)
        if not policy.needs_target:
            return seen
        error = fft2c(self.images(state)) - fft2c(self.batch.target)[state.owner]
        truth = Truth(
            kspace_error=error.abs().square().sum(dim=-2),
            candidate_scores=self.score_every_column(state)
            if policy.needs_candidate_scores
            else None,
        )
        return replace(seen, truth=truth)

    def scores(self, policy: Policy, state: State) -> Float[Tensor, "state col"]:
        """Return the policy's scores; it looks at equal states once."""
        if state.shared is None:
            return policy(self.observe(policy, state))
        fewer, slot = state.shared
        return policy(self.observe(policy, fewer))[slot]

    def blocked(self, state: State) -> Bool[Tensor, "state col"]:
        """Return the columns that may not be chosen: measured, or outside the matrix."""
        return state.mask | ~self.batch.selectable[state.owner]

    def images(self, state: State) -> Float[Tensor, "state row col"]:
        """Return the reconstructions in the target's units, as the protocol says."""
        shift, scale = self.batch.units(
            Reconstruction(state.image, state.mean, state.std), self.protocol
        )
        if self.protocol == "paper":
            shift, scale = shift[state.owner], scale[state.owner]
        return denormalize(state.image, shift, scale)

    @torch.no_grad()
    def _state(
        self, measured: Measurement, owner: Int[Tensor, " state"], *, n_left: int, step: int = 0
    ) -> State:
        """Reconstruct and score what was measured of each owner's slice."""
        found = self.reconstructor.reconstruct(measured)
        shift, scale = self.batch.units(found, self.protocol)
        score = self.scorer.score(
            found.image,
            owner,
            scale=scale,
            shift=shift,
            is_by_target=self.protocol == "paper",
            n_images=measured.n_images,
        )
        return State(
            owner,
            measured.zero_filled,
            measured.mask,
            found.image,
            found.mean,
            found.std,
            score,
            n_left,
            step,
        )

    def _children(self, state: State, pairs: Pairs) -> Iterator[State]:
        """Yield the states after measuring the pairs' columns, a part at a time."""
        for begin in range(0, len(pairs.parent), self.n_at_once):
            part = pairs.part(begin, begin + self.n_at_once)
            measured = measure_columns(
                state.zero_filled, state.mask, self.column_images, self.ramps, part
            )
            yield self._state(measured, part.owner, n_left=state.n_left - 1, step=state.step + 1)

    def _together(self, children: Iterator[State]) -> State:
        """Join the parts of a generation of states."""
        parts = list(children)
        if len(parts) == 1:
            return parts[0]
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in _PER_STATE}
        return replace(parts[0], **joined)  # type: ignore[arg-type]


@final
@dataclass(frozen=True)
class Branches:
    """What became of the candidates of every state."""

    state: State
    """One state for each distinct (slice, mask)."""
    slot: Int[Tensor, "parent candidate"]
    """Where each candidate is found there."""
    n_per_slice: int = 1
    """Parents of one slice that lie side by side."""

    @property
    def score(self) -> Float[Tensor, "parent candidate"]:
        """SSIM after each candidate."""
        return self.state.score[self.slot]

    def follow(self, choice: Int[Tensor, " parent"]) -> State:
        """Go on from one candidate of every state."""
        return replace(_follow(self.state, self.slot, choice), n_per_slice=self.n_per_slice)

    def every(self) -> State:
        """Go on from all candidates: those of one state lie side by side."""
        n_per_slice, slot = self.n_per_slice * self.slot.shape[1], self.slot.reshape(-1)
        # On CUDA the list is padded to the number of candidates, so sharing it would save nothing.
        shared = (self.state, slot) if len(self.state) < len(slot) else None
        return replace(self.state.rows(slot), n_per_slice=n_per_slice, shared=shared)


def _distinct(
    columns: Int[Tensor, "state candidate"], state: State
) -> tuple[Int[Tensor, "state candidate"], Pairs, Int[Tensor, ""]]:
    """List each (slice, mask after a column) once, without asking the device how many there are.

    States of one slice that lie side by side may come to the same mask in different orders.

    Returns:
        Where each candidate stands in the list; the list, as long as if all were distinct; and how
        many there are.
    """
    if serving("distinct", Request(columns.device, n_per_slice=state.n_per_slice)) == "cuda":
        slot, listed, n_distinct = list_distinct(columns, state.owner)
        parent, column, owner = listed
        return slot, Pairs(parent, column, owner, n_distinct), n_distinct
    n_states, n_candidates = columns.shape
    keys = columns[:, :, None]
    if state.n_per_slice > 1:
        before = state.mask[:, None].expand(-1, n_candidates, -1)
        keys = before.scatter(-1, columns[:, :, None], True)
    n_together = state.n_per_slice * n_candidates
    keys = keys.reshape(-1, n_together, keys.shape[-1])
    same = (keys[:, :, None] == keys[:, None]).all(dim=-1)
    order = torch.arange(n_together, device=columns.device)
    first = torch.where(same, order, n_together).amin(dim=-1)
    is_new = (first == order).reshape(-1)
    place = is_new.cumsum(dim=0) - 1
    slot = place.view(first.shape).gather(-1, first).view(columns.shape)
    # Repeats are written to one place too many, which is cut off.
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
    """Return the state that each row of `slot` names at `choice`, by default its only one."""
    values = [getattr(state, name) for name in _PER_STATE]
    kinds = frozenset(x.dtype for x in values)
    if serving("follow", Request(slot.device, kinds)) == "cuda":
        taken = follow(slot, choice, values)
    else:
        selection = slot[:, 0] if choice is None else slot.gather(-1, choice[:, None])[:, 0]
        taken = [x[selection] for x in values]
    return replace(state, **dict(zip(_PER_STATE, taken, strict=True)))  # type: ignore[arg-type]


def _memory_limit(device: torch.device) -> int:
    """Return the default, on CUDA at most a quarter of what the device has."""
    limit = MEMORY_LIMIT[device.type]
    if device.type != "cuda":
        return limit
    return min(limit, torch.cuda.get_device_properties(device).total_memory // 4)


def check_protocol(protocol: str) -> None:
    """Refuse a protocol that there is not: every word but `paper` would act as `blind`."""
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, list(PROTOCOLS))


def protocol_note(reconstructor: Reconstructor, protocol: Protocol) -> str | None:
    """Return what to say where a reconstructor was trained for the other protocol."""
    if reconstructor.protocol in (None, protocol):
        return None
    return (
        f"the {type(reconstructor).__name__} was trained for protocol {reconstructor.protocol}, "
        f"and protocol {protocol} un-normalizes its images otherwise: expect poor scores, or train "
        f"one with --protocol {protocol}"
    )


def check_budget(selectable: Bool[Tensor, "batch col"], *, n_initial: int, horizon: int) -> None:
    """Refuse a budget that some slice cannot meet."""
    n_cols = selectable.shape[1]
    if not 0 < n_initial <= n_cols:
        raise ConfigError(
            f"cannot start from {n_initial} of {n_cols} columns; set n_initial to 1..{n_cols}"
        )
    if horizon < 0:
        raise ConfigError(f"cannot acquire {horizon} columns; set the number of steps to 0 or more")
    left = (selectable & ~center_mask(n_cols, n_initial, selectable.device)).sum(dim=-1)
    n_short = int((left < horizon).sum())
    if n_short:
        raise ConfigError(
            f"no column left to acquire in {n_short} of {len(left)} slices: {n_initial} + "
            f"{horizon} columns were asked of {n_cols}, of which {int(left.min()) + n_initial} "
            f"can be measured; lower the number of steps to {int(left.min())} or less"
        )
