"""Dense gains: many columns are tried at each visited state, and all their gains are targets.

A policy's scores f are the gains that it expects, in units u of the step: the standard deviation,
over columns, of the mean gain along a fixed order. At a state the columns with the highest scores
and some random ones are measured by the simulator, so that every column is tried at times. With
their gains y in the same units the loss is

    mean_c (f_c - y_c)^2 - sum_c softmax(f)_c y_c,

a regression minus the expected gain of a column that is sampled from the scores. The acquisition
continues with the best column by score, at times with another candidate. A moving average of the
weights is validated and saved, and it takes the best column.

Each batch is followed by `training.n_repeats` steps on states of a replay buffer, which cost one
image each: a state is stored as its slice, whether it is mirrored, its mask and the gains of
its candidates, none of which depends on the policy.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kscout.acquisition.choose import column_log_probabilities, draw_columns
from kscout.acquisition.episode import how_many_at_once
from kscout.acquisition.loop import Acquisition
from kscout.acquisition.plan import training_plan
from kscout.config import DenseTraining
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import RunError
from kscout.json_types import StateDict
from kscout.physics.sampling import start_mask
from kscout.policies.column import ColumnPolicy
from kscout.policies.views import View
from kscout.training.algorithm import PolicyLearner
from kscout.training.algorithms.gradient import (
    Batch,
    Draws,
    EpochDraws,
    GeneratorFor,
    Tensors,
    WarmedEstimator,
)
from kscout.training.augmentation import mirrored
from kscout.training.fixed_order import filled_gains, fit_fixed_order
from kscout.training.starting import is_resized
from kscout.training.states import Memory, Rows, joined, observation_of, observe, rows_of

_OLD_BUFFERS = ("memory", "buffers")
"""Keys of checkpoints of versions 0.2 and 0.3."""
GAINS = "ssim"
"""The metric whose gains evaluations stop by."""
_N_DRAWN = 4
"""Random numbers of a slice, of which one is used: version 0.2 sampled this number, and a seed has
the same effect."""
_EXPLORE_BEST, _EXPLORE_ANY = 0.23, 0.07
"""Probabilities that an acquisition continues with one of the columns of highest score instead of
the best, and with any candidate."""
N_AT_ONCE = {"cpu": 16, "cuda": 1024}
"""States whose gradients are computed together, by kind of device."""
_N_PIXELS = 128 * 128
"""Of the images of these states; fewer states of larger images take as much memory."""


@final
class Dense(WarmedEstimator):
    """Trains a policy to predict the gain of every column."""

    settings = DenseTraining
    training: DenseTraining
    is_pure = True

    def __init__(
        self, learner: PolicyLearner, slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(learner, slices, reconstructor)
        learner.module.is_stochastic = False
        average = get_ema_multi_avg_fn(self.training.average)
        self.average = AveragedModel(learner.module, multi_avg_fn=average)
        self.horizon = learner.config.acquisition.horizon
        self.units = torch.ones(self.horizon, device=self.device)
        self.buffer = Memory(self.training.buffer_size)
        self.labeled: dict[int, Rows] = {}
        """Labeled states of the last batch by its number of slices, steps first. A CUDA graph
        writes in place."""

    def restore(self, state: StateDict) -> None:
        """Restore a checkpoint, or begin with the mean gains along a fixed order."""
        policy = self.learner.module
        if state:
            self._restore(state)
        else:
            self._set_units()
        for one in (policy, self.evaluated()):
            # Evaluations stop by gains in SSIM, which gains in another metric do not determine.
            one.gain_units = tuple(self.units.tolist()) if self.training.metric == GAINS else ()
            one.labels = self.training.metric
            if isinstance(one, ColumnPolicy) and not state and self._takes_baseline():
                one.start_from(filled_gains(self.baseline / self.units[:, None]))

    def state(self) -> StateDict:
        return {
            "units": self.units.cpu(),
            "average": self.average.state_dict(),
            "buffer": {name: x.cpu() for name, x in self.buffer.rows.items()},
        }

    def is_validated_first(self) -> bool:
        return isinstance(self.learner.module, ColumnPolicy) or super().is_validated_first()

    def evaluated(self) -> Policy:
        return cast(Policy, self.average.module)

    def draw(self, n_slices: int, n_batches: int, generator: GeneratorFor) -> Draws:
        shape, training = (n_slices, self.horizon), self.training
        numbers = torch.rand(n_slices, _N_DRAWN, generator=generator("varied"))
        per_slice = {
            "tried": torch.rand(*shape, training.n_random, generator=generator("tried")),
            "followed": torch.rand(*shape, 2, generator=generator("followed")),
            "is_mirrored": numbers[:, 0] < 0.5,
        }
        if not training.n_repeats:
            return Draws(per_slice)
        repeats = (n_batches, training.n_repeats, training.n_seen_again(*shape))
        return Draws(per_slice, {"replayed": torch.rand(repeats, generator=generator("recalled"))})

    def update(self, batch: Batch) -> Float[Tensor, ""]:
        """Try columns of each state of an acquisition, and regress scores on their gains."""
        draws, labeled = batch.draws, []
        acquisition = Acquisition(self.simulator(batch.slices), training_plan(self.config))
        with torch.no_grad():
            while acquisition.n_next:
                labeled.append(self._label(acquisition, draws))
        if self.training.n_repeats:
            stored = [_stored(rows, batch.slices.index, draws["is_mirrored"]) for rows in labeled]
            stacked = {name: torch.stack([one[name] for one in stored]) for name in stored[0]}
            self.labeled[len(stored[0]["index"])] = stacked
        add_gradients(self.view, labeled)
        return acquisition.state.score.mean()

    def _label(self, acquisition: Acquisition, draws: Tensors) -> Rows:
        """Try columns, and continue with one; return what the policy sees, candidates and gains."""
        simulator, state, step = acquisition.simulator, acquisition.state, acquisition.n_acquired
        n_best, blocked = self.training.n_best, acquisition.blocked
        n_left = torch.full((len(state),), self.horizon - step, device=self.device)
        seen = observe(self.view, simulator, state, n_left)
        scores = self.view(seen).float()
        columns = columns_to_try(scores, blocked, draws["tried"][:, step], n_best)
        # Columns that stand in where too few are left to try do not count.
        is_valid = ~blocked.gather(-1, columns)
        choice = choice_of(draws["followed"][:, step], is_valid, n_best)
        candidates = acquisition.try_columns(columns)
        gains = (candidates.score - state.score[:, None]) / self.units[step]
        acquisition.follow(candidates, choice)
        return rows_of(seen, columns=columns, is_valid=is_valid, gains=gains)

    def after_step(self, drawn: EpochDraws, step: int) -> None:
        """Move the average, and take steps on states from the replay buffer."""
        self.average.update_parameters(self.learner.module)
        if not self.training.n_repeats:
            return
        labeled = self.labeled[len(self.batch_order(drawn, step))]
        self.buffer.add({name: x.flatten(0, 1) for name, x in labeled.items()})
        for uniforms in drawn.per_batch["replayed"][step]:
            states = self.buffer.draw(uniforms)
            index = states["index"].to(self.slices.index_device, torch.int64)
            self.run_update("repeat", self._again, Batch(self.slices.batch(index), states))
            self.limit_gradients()
            self.learner.optimizer.step()
            self.average.update_parameters(self.learner.module)

    def _again(self, batch: Batch) -> Float[Tensor, ""]:
        """Regress scores of stored states on their gains; return the mean score of the states."""
        shape = batch.slices.kspace.shape[1:]
        at_once = how_many_at_once(self.reconstructor, shape, self.device)
        with torch.no_grad():
            parts = zip(*(x.split(at_once) for x in batch.tensors()), strict=True)
            seen = [self._seen_again(batch.with_tensors(part)) for part in parts]
        rows = {name: torch.cat([part[name] for part in seen]) for name in seen[0]}
        score = rows.pop("score")
        add_gradients(self.view, [rows])
        return score.mean()

    def _seen_again(self, batch: Batch) -> Rows:
        """Reconstruct stored states; return observations, candidates, their gains and scores."""
        draws, mask, step = batch.draws, batch.draws["mask"], batch.draws["step"].int()
        simulator = self.simulator(self.augmented(batch.slices, draws))
        start = start_mask(self.config.acquisition.start, mask.shape, self.device)
        state = simulator.start_from(mask, maps=simulator.calibrate(start))
        n_left = (self.horizon - step).long()
        seen = replace(observe(self.view, simulator, state, n_left), step=step)
        columns = draws["columns"].long()
        is_valid = ~simulator.blocked(state).gather(-1, columns)
        labels = {"columns": columns, "gains": draws["gains"], "is_valid": is_valid}
        return rows_of(seen, **labels, score=state.score)

    def augmented(self, batch: SliceBatch, draws: Tensors) -> SliceBatch:
        return mirrored(batch, draws["is_mirrored"]) if self.training.flips else batch

    @cached_property
    def baseline(self) -> Float[Tensor, "step col"]:
        """Mean gains along a fixed order; NaN for columns that the order has measured."""
        order = fit_fixed_order(
            *(self.slices, self.reconstructor, training_plan(self.config)),
            n_slices_per_step=self.training.n_baseline_slices,
            device=self.device,
        )
        return order.gains.to(self.device)

    def _restore(self, state: StateDict) -> None:
        if not state.keys().isdisjoint(_OLD_BUFFERS):
            raise RunError(
                "the checkpoint was written by an older version, which stored the replay buffer "
                "differently; finish the training with that version, or name another --out"
            )
        self.units = state["units"].to(self.device)
        self.average.load_state_dict(state["average"])
        if state["buffer"]:
            self.buffer.add({name: x.to(self.device) for name, x in state["buffer"].items()})

    def _takes_baseline(self) -> bool:
        """Return whether the policy begins with baseline gains, as it has none for this metric."""
        start = self.learner.start
        if start is None or is_resized(self.learner.module, start):
            return True
        metric = start.labels or (GAINS if start.gain_units else "")
        return metric not in ("", self.training.metric)

    def _set_units(self) -> None:
        """Take the units of the policy that the training starts from, or measure them."""
        start = self.learner.start
        if (
            start is not None
            and not is_resized(self.learner.module, start)
            and self.training.metric == GAINS
            # A network without steps of its own may be for another budget.
            and len(start.gain_units) == self.horizon
        ):
            self.units = torch.tensor(start.gain_units, device=self.device)
        else:
            units = [row[~row.isnan()].std(correction=0) for row in self.baseline]
            self.units = torch.stack(units).clamp(min=1e-8)


def columns_to_try(
    scores: Float[Tensor, "state col"],
    blocked: Bool[Tensor, "state col"],
    uniforms: Float[Tensor, "state draw"],
    n_best: int,
) -> Int[Tensor, "state candidate"]:
    """Return the columns with the highest scores, best first, then random others.

    If too few are left, blocked columns or repeated ones take their places.
    """
    n_best = min(n_best, scores.shape[1])
    best = scores.masked_fill(blocked, -torch.inf).topk(n_best, dim=-1).indices
    rest = column_log_probabilities(torch.zeros_like(scores), blocked.scatter(-1, best, True))
    return torch.cat([best, draw_columns(rest, uniforms)], dim=-1)


def choice_of(
    uniforms: Float[Tensor, "state 2"], is_valid: Bool[Tensor, "state candidate"], n_best: int
) -> Int[Tensor, " state"]:
    """Return the candidate to continue with: the best, another of the best, or any."""
    which, place = uniforms.unbind(dim=-1)
    n_tried = is_valid.shape[1]
    n_best = min(n_best, n_tried)
    other = torch.where(which < _EXPLORE_ANY, place * n_tried, place * n_best).long()
    explores = which < _EXPLORE_ANY + _EXPLORE_BEST
    choice = torch.where(explores, other, torch.zeros_like(other))
    return torch.where(is_valid.gather(-1, choice[:, None])[:, 0], choice, torch.zeros_like(choice))


def dense_loss(
    scores: Float[Tensor, "state candidate"],
    gains: Float[Tensor, "state candidate"],
    is_valid: Bool[Tensor, "state candidate"],
) -> Float[Tensor, " state"]:
    """Return the loss of each state: `mean_c (f_c - y_c)^2 - sum_c softmax(f)_c y_c`."""
    counts, gains = is_valid.sum(dim=-1), gains.masked_fill(~is_valid, 0.0)
    errors = (scores - gains).square().masked_fill(~is_valid, 0.0).sum(dim=-1) / counts
    chances = scores.masked_fill(~is_valid, -torch.inf).softmax(dim=-1)
    return errors - (chances * gains).sum(dim=-1)


def add_gradients(view: View, steps: Sequence[Rows]) -> None:
    """Add the gradients of the mean loss over states, some states at a time."""
    n_states, begin = sum(len(rows["mask"]) for rows in steps), 0
    images = steps[0]["image"]
    n_most = N_AT_ONCE[images.device.type]
    n_at_once = max(1, min(n_most, n_most * _N_PIXELS // images[0].numel()))
    for rows in joined(steps, n_at_once):
        scores = view.recall(observation_of(rows), begin).float().gather(-1, rows["columns"])
        loss = dense_loss(scores, rows["gains"], rows["is_valid"]).sum()
        (loss / n_states).backward()
        begin += len(scores)


def _stored(rows: Rows, index: Int[Tensor, " state"], is_mirrored: Bool[Tensor, " state"]) -> Rows:
    """Return the part of labeled states that the replay buffer stores, in small types."""
    short = torch.int16 if rows["mask"].shape[1] <= torch.iinfo(torch.int16).max else torch.int32
    return {
        "index": index.int(),
        "is_mirrored": is_mirrored,
        "step": rows["step"].to(short),
        "columns": rows["columns"].to(short),
        "gains": rows["gains"],
        "mask": rows["mask"],
    }
