"""The simulator, which reconstructs and scores (slice, mask) pairs.

Training, evaluation, oracles and the Gymnasium environment all use `Simulator`. Measuring
column v changes the zero-filled image x by a rank-one term,

    x[r, c] += p_v[r] * e_v[c],

where p_v is column v of `ifft_rows(kspace)` and e_v its phase ramp (`column_ramps`). A candidate
column therefore costs this update, one reconstruction and one SSIM; terms that only depend on the
slice are computed once per batch. No step synchronizes with the device.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.acquisition.state import Branches, State, list_candidates, shown_to
from kscout.core import (
    Context,
    Measurement,
    Observation,
    Policy,
    Protocol,
    Reconstruction,
    Reconstructor,
    SliceBatch,
    Truth,
)
from kscout.device import at_most_a_quarter
from kscout.metrics import MetricScorer, SsimScorer, ssim
from kscout.names import METRICS, check_protocol
from kscout.physics.fourier import column_ramps, fft2c, ifft_rows
from kscout.physics.measurement import Pairs, measure_columns
from kscout.physics.normalization import denormalize
from kscout.physics.sampling import Initial, start_mask

MEMORY_LIMIT = {"cpu": 64 * 2**20, "cuda": 16 * 2**30}
"""Default memory in bytes for candidates that are reconstructed together, by type of device.

Larger values are slower on a CPU: the features of 8 images of 128x128 fit into the caches, and the
throughput is twice that of 64 images."""


@final
class Simulator:
    """Acquires, reconstructs and scores the slices of one batch with one reconstructor.

    Args:
        batch: fully sampled slices, on the device where all work is done.
        reconstructor: frozen, on the same device.
        protocol: how images are un-normalized before they are scored; None for the one of the
            reconstructor.
        metric: metric of the scores: a name of `kscout.names.METRICS`, or `module:function`.
        memory_limit: bytes for candidates that are reconstructed together; by default
            `MEMORY_LIMIT`.
    """

    def __init__(
        self,
        batch: SliceBatch,
        reconstructor: Reconstructor,
        *,
        protocol: Protocol | None = None,
        metric: str = "ssim",
        memory_limit: int | None = None,
    ) -> None:
        self.protocol = reconstructor.protocol_for(protocol)
        check_protocol(self.protocol)
        self.batch, self.reconstructor = batch, reconstructor
        device = batch.kspace.device
        self.column_images = ifft_rows(batch.kspace).transpose(-2, -1).contiguous()
        self.ramps = column_ramps(batch.n_cols, device)
        self.metric, data_range = metric, batch.data_range
        self.scorer: SsimScorer | MetricScorer
        if metric == "ssim":
            self.scorer = SsimScorer(batch.target, data_range=data_range)
        else:
            self.scorer = MetricScorer(METRICS.resolve(metric), batch.target, data_range=data_range)
        shape = batch.kspace.shape[1:]
        self.n_at_once = how_many_at_once(reconstructor, shape, device, memory_limit)

    @property
    def context(self) -> Context:
        """Reconstruction, protocol and metric, which `Policy.bind` receives."""
        return SimulatedContext(self.reconstructor, self.protocol, self.metric)

    def start(self, initial: Initial, *, n_trajectories: int = 1) -> State:
        """Measure the first columns and reconstruct; trajectories of a slice are adjacent."""
        mask = start_mask(initial, self.batch.selectable.shape, self.batch.kspace.device)
        n_measured = initial if isinstance(initial, int) else len(initial)
        return self.start_from(mask, n_measured=n_measured).repeated(n_trajectories)

    def start_from(
        self,
        mask: Bool[Tensor, "state col"],
        *,
        owner: Int[Tensor, " state"] | None = None,
        n_measured: int = 0,
        step: int = 0,
        maps: Complex[Tensor, "state coil row col"] | None = None,
        n_images: Int[Tensor, ""] | None = None,
    ) -> State:
        """Measure the columns of arbitrary masks, and reconstruct.

        Args:
            mask: measured columns of each state.
            owner: the slice of each state; by default one state per slice, in their order.
            n_measured: columns known to be measured in every mask; not used as candidates.
            step: how many of them were acquired since the start.
            maps: sensitivities of each state; by default those that the reconstructor finds in
                the columns of its mask.
            n_images: a count on the device; states from there on are padding, whose images and
                scores are left undefined.
        """
        kspace = self.batch.kspace if owner is None else self.batch.kspace[owner]
        owner = torch.arange(len(mask), device=mask.device) if owner is None else owner
        measured = Measurement.of(kspace, mask)
        maps = self._calibrated(measured) if maps is None else maps
        measured = replace(measured, maps=maps, n_images=n_images)
        return self._state(measured, owner, n_left=mask.shape[1] - n_measured, step=step)

    def calibrate(
        self, start: Bool[Tensor, "batch col"]
    ) -> Complex[Tensor, "batch coil row col"] | None:
        """Return the sensitivities from these columns, reused by acquisitions; None without any."""
        return self._calibrated(Measurement.of(self.batch.kspace, start))

    @torch.no_grad()
    def _calibrated(self, measured: Measurement) -> Complex[Tensor, "_ coil row col"] | None:
        return self.reconstructor.calibrate(measured)

    def acquire(self, state: State, column: Int[Tensor, " state"]) -> State:
        """Measure one more column in every state."""
        if self._n_per_slice(state) > 1:
            return self.branch(state, column[:, None]).every()
        parent = torch.arange(len(state), device=column.device)
        return State.joined(list(self._children(state, Pairs(parent, column, state.owner))))

    def branch(self, state: State, columns: Int[Tensor, "state candidate *group"]) -> Branches:
        """Measure each candidate column of every state; equal masks of a slice are computed once.

        A candidate may be a group of columns, which are measured before one reconstruction.
        """
        if columns.ndim == 3:
            return self._branch_groups(state, columns)
        slot, pairs, n_distinct = list_candidates(columns, state, self._n_per_slice(state))
        if columns.device.type == "cpu":
            # On other devices the number stays there; kernels that support it skip the rest.
            pairs = pairs.part(0, int(n_distinct))
        return Branches(State.joined(list(self._children(state, pairs))), slot)

    def score_columns(
        self, state: State, columns: Int[Tensor, "state candidate"]
    ) -> Float[Tensor, "state candidate"]:
        """Return SSIM after each candidate column, without storing the states."""
        parent = torch.arange(len(state), device=columns.device)
        parent = parent.repeat_interleave(columns.shape[1])
        pairs = Pairs(parent, columns.reshape(-1), state.owner[parent])
        children = self._children(state, pairs)
        return torch.cat([child.score for child in children]).view(columns.shape)

    def score_every_column(self, state: State) -> Float[Tensor, "state col"]:
        """Return SSIM after each selectable column; -inf for blocked columns."""
        blocked = self.blocked(state)
        columns = blocked.to(torch.int8).argsort(dim=-1, stable=True)[:, : state.n_left]
        scores = self.score_columns(state, columns).masked_fill(
            blocked.gather(-1, columns), -torch.inf
        )
        every = torch.full(blocked.shape, -torch.inf, device=scores.device, dtype=scores.dtype)
        return every.scatter(-1, columns, scores)

    def observe(
        self, policy: Policy, state: State, *, n_left: int | Int[Tensor, " state"] | None
    ) -> Observation:
        """Return the observation of a policy; only oracles receive the ground truth.

        `n_left`, the columns left to acquire, is None if there is no limit.
        """
        found = Reconstruction(state.image, state.mean, state.std)
        given = (policy, found, state.zero_filled, state.mask)
        seen = shown_to(*given, step=state.step, n_left=n_left)
        if not policy.needs_target:
            return seen
        error = fft2c(self.images(state)) - fft2c(self.batch.target)[state.owner]
        truth = Truth(
            kspace_error=error.abs().square().sum(dim=-2),
            candidate_scores=self.score_every_column(state)
            if policy.needs_candidate_scores
            else None,
            score=state.score if policy.needs_candidate_scores else None,
        )
        return replace(seen, truth=truth)

    def blocked(self, state: State) -> Bool[Tensor, "state col"]:
        """Return the columns that must not be chosen: measured, or outside the matrix."""
        return state.mask | ~self.batch.selectable[state.owner]

    def images(self, state: State) -> Float[Tensor, "state row col"]:
        """Return the reconstructions in the units of the target, according to the protocol."""
        shift, scale = self.batch.units(
            Reconstruction(state.image, state.mean, state.std), self.protocol
        )
        if self.protocol == "paper":
            shift, scale = shift[state.owner], scale[state.owner]
        return denormalize(state.image, shift, scale)

    def ssim(self, state: State) -> Float[Tensor, " state"]:
        """Return SSIM, independent of the metric of the scores."""
        if self.metric == "ssim":
            return state.score
        target, data_range = self.batch.target[state.owner], self.batch.data_range[state.owner]
        return ssim(self.images(state), target, data_range=data_range)

    @torch.no_grad()
    def _state(
        self, measured: Measurement, owner: Int[Tensor, " state"], *, n_left: int, step: int = 0
    ) -> State:
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
            measured.maps,
        )

    def _branch_groups(
        self, state: State, columns: Int[Tensor, "state candidate member"]
    ) -> Branches:
        n_candidates, n_members = columns.shape[1:]
        before = state.mask[:, None].expand(-1, n_candidates, -1)
        masks = before.scatter(-1, columns, True).flatten(0, 1)
        owners = state.owner.repeat_interleave(n_candidates)
        slot = torch.arange(len(masks), device=masks.device)
        start = partial(
            self.start_from,
            n_measured=masks.shape[1] - state.n_left + n_members,
            step=state.step + n_members,
        )
        found = []
        for part in slot.split(self.n_at_once):
            maps = None if state.maps is None else state.maps[part // n_candidates]
            found.append(start(masks[part], owner=owners[part], maps=maps))
        return Branches(State.joined(found), slot.view(columns.shape[:2]))

    def _children(self, state: State, pairs: Pairs) -> Iterator[State]:
        """Yield the states after measuring the columns of the pairs, in parts."""
        for begin in range(0, len(pairs.parent), self.n_at_once):
            part = pairs.part(begin, begin + self.n_at_once)
            measured = measure_columns(
                state.zero_filled, state.mask, self.column_images, self.ramps, part, state.maps
            )
            yield self._state(measured, part.owner, n_left=state.n_left - 1, step=state.step + 1)

    def _n_per_slice(self, state: State) -> int:
        """Return the number of adjacent states per slice; 1 if unknown."""
        n_slices = len(self.batch)
        return len(state) // n_slices if len(state) % n_slices == 0 else 1


@final
@dataclass(frozen=True)
class SimulatedContext(Context):
    """Simulates the measurement of columns of images that are used as ground truth."""

    def gains(
        self,
        truth: SliceBatch,
        mask: Bool[Tensor, "batch col"],
        columns: Int[Tensor, "batch candidate"],
    ) -> Float[Tensor, "batch candidate"]:
        is_measured = mask.gather(-1, columns)
        # An unmeasured column replaces each measured one; its gain is discarded.
        some = (~mask).to(torch.int8).argmax(dim=-1, keepdim=True)
        columns = torch.where(is_measured, some, columns)
        most = how_many_at_once(self.reconstructor, truth.kspace.shape[1:], mask.device)
        gains = []
        for rows in torch.arange(len(truth), device=mask.device).split(most):
            simulator = Simulator(
                truth.rows(rows), self.reconstructor, protocol=self.protocol, metric=self.metric
            )
            state = simulator.start_from(mask[rows])
            gains.append(simulator.score_columns(state, columns[rows]) - state.score[:, None])
        return torch.cat(gains).masked_fill(is_measured, 0.0)


def how_many_at_once(
    reconstructor: Reconstructor,
    shape: tuple[int, ...],
    device: torch.device,
    memory_limit: int | None = None,
) -> int:
    """Return the number of k-spaces of a shape (coil, row, col) to reconstruct together."""
    if memory_limit is None:
        memory_limit = at_most_a_quarter(MEMORY_LIMIT[device.type], device)
    # Scoring needs less memory than reconstruction, and runs after it.
    return max(1, memory_limit // reconstructor.n_bytes(*shape))
