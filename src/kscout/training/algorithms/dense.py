"""Dense gains: many columns are tried at each visited state, and all their gains are targets.

A policy's scores f are the gains that it expects, in units u of the step: the standard deviation,
over columns, of the mean gain along a fixed order. At a state the columns with the highest scores
and some random ones are measured by the simulator, so that every column is tried at times. With
their gains y in the same units the loss is

    mean_c (f_c - y_c)^2 - w sum_c softmax(f)_c y_c,

a regression minus the expected gain of a column that is sampled from the scores. The acquisition
continues with the best column by score, at times with another candidate. A moving average of the
weights is validated and saved, and it takes the best column.

Each batch is followed by `training.n_repeats` steps on states of a replay buffer, which cost one
image each: a state is stored as its slice, its augmentation, its mask and the gains of its
candidates, none of which depends on the policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kscout.acquisition.choose import column_log_probabilities, draw_columns
from kscout.acquisition.episode import how_many_at_once
from kscout.acquisition.loop import Acquisition
from kscout.acquisition.plan import Plan, training_plan
from kscout.columns import share_of
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, RunError
from kscout.json_types import StateDict
from kscout.physics.sampling import Initial, center_mask, start_mask
from kscout.policies.mean_gains import row_of
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
from kscout.training.augmentation import (
    N_VARIED,
    check_sizes,
    check_varied,
    coarser,
    coarser_slices,
    varied,
)
from kscout.training.fixed_order import filled_gains, fit_fixed_order
from kscout.training.starting import StartsFromGains, StartsFromManyGains, is_resized
from kscout.training.states import Memory, Rows, joined, observation_of, observe, rows_of

GAINS = "ssim"
"""The metric whose gains evaluations stop by."""
N_DRAWN = N_VARIED + 2
"""Random numbers of a slice: whether it is mirrored, its zoom, its budget, its start."""
_EXPLORE_BEST, _EXPLORE_ANY = 0.23, 0.07
"""Probabilities that an acquisition continues with one of the columns of highest score instead of
the best, and with any candidate."""
N_AT_ONCE = {"cpu": 16, "cuda": 1024}
"""States whose gradients are computed together, by kind of device."""
_N_PIXELS = 128 * 128
"""Of the images of these states; fewer states of larger images take as much memory."""
_MOST_COARSER = 256
"""Slices on which baseline gains of a smaller matrix are measured, unless more are configured."""


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
        self.augmentation = Augmentation(learner.config, slices.n_cols)
        self.augmentation.check(learner.module, slices)
        self.n_first, n_rows = learner.config.spanned
        self.units = torch.ones(n_rows, device=self.device)
        self.baseline = BaselineGains(learner.config, slices, reconstructor, self.device)
        self.sizes = self.training.sizes or (slices.n_cols,)
        self.buffers = {n: Memory(self.training.buffer_size) for n in self.sizes}
        """Replay buffers by the columns of the slices."""
        self.labeled: dict[tuple[int, int], Rows] = {}
        """Labeled states of the last batch, by its slices and their columns, steps first. A CUDA
        graph writes in place."""

    def restore(self, state: StateDict) -> None:
        """Restore a checkpoint, or begin with the mean gains along a fixed order."""
        policy = self.learner.module
        if state:
            self._restore(state)
        else:
            self._set_units()
        units = self.units[self.config.acquisition.n_initial - self.n_first :].tolist()
        for one in (policy, self.evaluated()):
            # Evaluations stop by gains in SSIM, which gains in another metric do not determine.
            one.gain_units = tuple(units) if self.training.metric == GAINS else ()
            one.labels = self.training.metric
            if isinstance(one, StartsFromGains) and not state and self._takes_baseline():
                self.baseline.give(one, self.units)

    def state(self) -> StateDict:
        buffers = {
            n: {name: x.cpu() for name, x in buffer.rows.items()}
            for n, buffer in self.buffers.items()
            if buffer.rows
        }
        return {
            "units": self.units.cpu(),
            "average": self.average.state_dict(),
            **({"buffers": buffers} if buffers else {}),
        }

    def is_validated_first(self) -> bool:
        return isinstance(self.learner.module, StartsFromGains) or super().is_validated_first()

    def evaluated(self) -> Policy:
        return cast(Policy, self.average.module)

    def draw(self, n_slices: int, n_batches: int, generator: GeneratorFor) -> Draws:
        shape, training = (n_slices, self.config.acquisition.horizon), self.training
        per_slice = {
            "tried": torch.rand(*shape, training.n_random, generator=generator("tried")),
            "followed": torch.rand(*shape, 2, generator=generator("followed")),
            "augmentation": torch.rand(n_slices, N_DRAWN, generator=generator("varied")),
        }
        if not training.n_repeats:
            return Draws(per_slice)
        repeats = (n_batches, training.n_repeats, training.n_seen_again(*shape))
        return Draws(per_slice, {"replayed": torch.rand(repeats, generator=generator("recalled"))})

    def update(self, batch: Batch) -> Float[Tensor, ""]:
        """Try columns of each state of an acquisition, and regress scores on their gains."""
        simulator, draws = self.simulator(batch.slices), batch.draws
        n_slices, n_cols = batch.slices.selectable.shape
        start = self.augmentation.initial(draws["augmentation"], n_cols)
        acquisition = Acquisition(simulator, Plan(start, self.augmentation.n_steps(n_cols)))
        labeled = []
        with torch.no_grad():
            while acquisition.n_next:
                labeled.append(self._label(acquisition, draws))
        if self.training.n_repeats:
            stored = [_stored(rows, batch.slices.index, draws["augmentation"]) for rows in labeled]
            stacked = {name: torch.stack([one[name] for one in stored]) for name in stored[0]}
            self.labeled[n_slices, n_cols] = stacked
        add_gradients(self.view, labeled, self.training.gain_weight, self.slices.n_cols)
        return acquisition.state.score.mean()

    def _label(self, acquisition: Acquisition, draws: Tensors) -> Rows:
        """Try columns, and continue with one; return what the policy sees, candidates and gains."""
        simulator, state, step = acquisition.simulator, acquisition.state, acquisition.n_acquired
        n_cols, n_best = simulator.batch.n_cols, self.training.n_best
        horizons = self.augmentation.horizons(draws["augmentation"], n_cols)
        seen = observe(self.view, simulator, state, (horizons - step).clamp(min=1))
        blocked = acquisition.blocked
        scores = self.view(seen).float()
        columns = columns_to_try(scores, blocked, draws["tried"][:, step], n_best)
        # Columns that stand in where too few are left to try do not count.
        is_valid = ~blocked.gather(-1, columns)
        choice = choice_of(draws["followed"][:, step], is_valid, n_best)
        candidates = acquisition.try_columns(columns)
        gains = candidates.score - state.score[:, None]
        gains = gains / self.units[self._row(seen.mask)][:, None]
        acquisition.follow(candidates, choice)
        return rows_of(seen, columns=columns, is_valid=is_valid, gains=gains)

    def after_step(self, drawn: EpochDraws, step: int) -> None:
        """Move the average, and take steps on states from the replay buffer."""
        self.average.update_parameters(self.learner.module)
        if not self.training.n_repeats:
            return
        n_cols, buffer = self._n_cols(step), self.buffers[self._n_cols(step)]
        labeled = self.labeled[len(self.batch_order(drawn, step)), n_cols]
        buffer.add({name: x.flatten(0, 1) for name, x in labeled.items()})
        for uniforms in drawn.per_batch["replayed"][step]:
            states = buffer.draw(uniforms)
            index = states["index"].to(self.slices.index_device, torch.int64)
            slices = self.resized(self.slices.batch(index), step)
            self.run_update("repeat", self._again, Batch(slices, states))
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
        add_gradients(self.view, [rows], self.training.gain_weight, self.slices.n_cols)
        return score.mean()

    def _seen_again(self, batch: Batch) -> Rows:
        """Reconstruct stored states; return observations, candidates, their gains and scores."""
        draws, n_cols = batch.draws, batch.slices.n_cols
        numbers, mask, step = draws["augmentation"], draws["mask"], draws["step"].int()
        simulator = self.simulator(self.augmented(batch.slices, draws))
        start = start_mask(self.augmentation.initial(numbers, n_cols), mask.shape, self.device)
        state = simulator.start_from(mask, maps=simulator.calibrate(start))
        n_left = (self.augmentation.horizons(numbers, n_cols) - step).clamp(min=1)
        seen = replace(observe(self.view, simulator, state, n_left), step=step)
        columns = draws["columns"].long()
        is_valid = ~simulator.blocked(state).gather(-1, columns)
        labels = {"columns": columns, "gains": draws["gains"], "is_valid": is_valid}
        return rows_of(seen, **labels, score=state.score)

    @property
    def share_acquired(self) -> float:
        n_slices, n_acquired, size = len(self.slices), 0, self.training.batch_size
        for step in range(self.n_steps):
            n_own = min(size, n_slices - step * size)
            n_acquired += n_own * self.augmentation.n_steps(self._n_cols(step))
        return n_acquired / n_slices / self.config.acquisition.horizon

    def resized(self, batch: SliceBatch, step: int) -> SliceBatch:
        """Return slices of the configured sizes, batch by batch in turn."""
        return coarser(batch, self._n_cols(step))

    def augmented(self, batch: SliceBatch, draws: Tensors) -> SliceBatch:
        return varied(batch, draws["augmentation"], self.training)

    def _n_cols(self, step: int) -> int:
        return self.sizes[step % len(self.sizes)]

    def _row(self, mask: Bool[Tensor, "state col"]) -> Int[Tensor, " state"]:
        share = self.slices.n_cols / mask.shape[1]
        return row_of(mask.sum(dim=-1), self.n_first, len(self.units), share=share)

    def _restore(self, state: StateDict) -> None:
        if "memory" in state:
            raise RunError(
                "the checkpoint was written by kscout 0.2, which stored the replay buffer "
                "differently; finish the training with 0.2, or name another --out"
            )
        self.units = state["units"].to(self.device)
        self.average.load_state_dict(state["average"])
        for n_cols, rows in state.get("buffers", {}).items():
            self.buffers[n_cols].add({name: x.to(self.device) for name, x in rows.items()})

    def _takes_baseline(self) -> bool:
        """Return whether the policy begins with baseline gains, as it has none for this metric."""
        start = self.learner.start
        if start is None or is_resized(self.learner.module, start):
            return True
        metric = start.labels or (GAINS if start.gain_units else "")
        return metric not in ("", self.training.metric)

    def _set_units(self) -> None:
        start = self.learner.start
        known: Sequence[float] = ()
        if start is not None and not is_resized(self.learner.module, start):
            known = start.gain_units if self.training.metric == GAINS else ()
        n_rows = len(self.units)
        # A file has units from its start on, not from earlier ones that were sampled in addition.
        # A network without steps of its own may be for another budget.
        has_steps = getattr(start, "horizon", None) == n_rows
        n_known = len(known) if has_steps or len(known) == n_rows else 0
        if n_known:
            self.units[n_rows - n_known :] = torch.tensor(known, device=self.device)
        if n_known < n_rows:
            self.units[: n_rows - n_known] = self.baseline.units()[: n_rows - n_known]


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
    gain_weight: float,
) -> Float[Tensor, " state"]:
    """Return the loss of each state: `mean_c (f_c - y_c)^2 - w sum_c softmax(f)_c y_c`."""
    counts, gains = is_valid.sum(dim=-1), gains.masked_fill(~is_valid, 0.0)
    errors = (scores - gains).square().masked_fill(~is_valid, 0.0).sum(dim=-1) / counts
    chances = scores.masked_fill(~is_valid, -torch.inf).softmax(dim=-1)
    return errors - gain_weight * (chances * gains).sum(dim=-1)


def add_gradients(view: View, steps: Sequence[Rows], gain_weight: float, n_cols: int) -> None:
    """Add the gradients of the mean loss over states, some states at a time.

    A column of a smaller matrix gains more, as it is a larger share of it; gains and scores are
    scaled in proportion, so that all sizes have equal weight.
    """
    n_states, begin = sum(len(rows["mask"]) for rows in steps), 0
    for rows in joined(steps, _n_at_once(steps[0]["image"])):
        scores = view.recall(observation_of(rows), begin).float().gather(-1, rows["columns"])
        share = rows["mask"].shape[1] / n_cols
        both = (share * scores, share * rows["gains"])
        loss = dense_loss(*both, rows["is_valid"], gain_weight).sum()
        (loss / n_states).backward()
        begin += len(scores)


def _n_at_once(images: Float[Tensor, "state row col"]) -> int:
    n_states = N_AT_ONCE[images.device.type]
    return max(1, min(n_states, n_states * _N_PIXELS // images[0].numel()))


def _stored(
    rows: Rows, index: Int[Tensor, " state"], augmentation: Float[Tensor, "state number"]
) -> Rows:
    """Return the part of labeled states that the replay buffer stores, in small types."""
    short = torch.int16 if rows["mask"].shape[1] <= torch.iinfo(torch.int16).max else torch.int32
    return {
        "index": index.int(),
        "augmentation": augmentation,
        "step": rows["step"].to(short),
        "columns": rows["columns"].to(short),
        "gains": rows["gains"],
        "mask": rows["mask"],
    }


@final
@dataclass(frozen=True)
class Augmentation:
    """Start and budget of each slice, which random numbers decide."""

    config: PolicyConfig
    n_cols: int
    """Columns of the slices as they are stored."""

    @property
    def training(self) -> DenseTraining:
        return _dense(self.config)

    def n_steps(self, n_cols: int) -> int:
        """Return the number of columns that are acquired: an equal share of each matrix."""
        return self._share(self.config.acquisition.horizon, n_cols)

    def horizons(
        self, numbers: Float[Tensor, "slice number"], n_cols: int
    ) -> Int[Tensor, " slice"]:
        drawn = self.training.horizons
        horizons = numbers.new_full((len(numbers),), self.n_steps(n_cols)).long()
        for at, horizon in enumerate(drawn):
            is_drawn = (numbers[:, 2] * len(drawn)).long() == at
            horizons = torch.where(is_drawn, self._share(horizon, n_cols), horizons)
        return horizons

    def initial(self, numbers: Float[Tensor, "slice number"], n_cols: int) -> Initial:
        if not self.training.starts and not self.training.sizes:
            return self.config.acquisition.start
        counts = [self._share(n, n_cols) for n in self.starts]
        masks = torch.stack([center_mask(n_cols, n, numbers.device) for n in counts])
        return masks[self.start(numbers)]

    @property
    def starts(self) -> tuple[int, ...]:
        """Numbers of columns at the start, for slices as stored."""
        return self.training.starts or (self.config.acquisition.n_initial,)

    def start(self, numbers: Float[Tensor, "slice number"]) -> Int[Tensor, " slice"]:
        """Return the index into `starts` for each slice."""
        return (numbers[:, 3] * len(self.starts)).long()

    def _share(self, n: int, n_cols: int) -> int:
        return share_of(n, n_cols, self.n_cols)

    def check(self, policy: Policy, slices: SliceSet) -> None:
        training = self.training
        check_sizes(training.sizes, slices.kind, slices.n_cols)
        check_varied(training, slices.kind)
        if training.sizes and not policy.serves_any_size:
            raise ConfigError(
                f"training.sizes are for networks of any size, and {type(policy).__name__} has "
                "one; use policy.name = 'column'"
            )


class _Span(NamedTuple):
    """The columns of an order: its matrix, its start and its length."""

    n_cols: int
    n_first: int
    """Columns measured at the start."""
    n_rows: int


@final
@dataclass(frozen=True)
class BaselineGains:
    """Mean gains along a fixed order, with which policies begin; measured on first use.

    Downsampled slices cost less, so more of them are used, the same ones at each step.
    """

    config: PolicyConfig
    slices: SliceSet
    reconstructor: Reconstructor
    device: torch.device
    measured: dict[_Span, Float[Tensor, "step col"]] = field(default_factory=dict)

    @property
    def _own(self) -> _Span:
        return _Span(self.slices.n_cols, *self.config.spanned)

    def units(self) -> Float[Tensor, " step"]:
        """Return the standard deviation over columns at each step, for slices as stored."""
        units = [row[~row.isnan()].std(correction=0) for row in self._gains(self._own)]
        return torch.stack(units).clamp(min=1e-8)

    def give(self, policy: StartsFromGains, units: Float[Tensor, " unit"]) -> None:
        """Set the scores of a new policy, for each size and start that it has a table for."""
        if not isinstance(policy, StartsFromManyGains):
            return policy.start_from(self._in_units(self._own, units))
        for one in policy.tables:
            # Tables of other sizes stay unchanged.
            if one.n_cols in (self.slices.n_cols, *_dense(self.config).sizes):
                span = _Span(one.n_cols, one.n_first, one.n_rows)
                policy.start_from(self._in_units(span, units), one)
        return None

    def _gains(self, span: _Span) -> Float[Tensor, "step col"]:
        """Return mean gains along an order fitted to slices of this size; NaN if measured."""
        if span not in self.measured:
            training, n_stored = _dense(self.config), self.slices.n_cols
            slices, n_each = self.slices, training.n_baseline_slices
            plan = replace(training_plan(self.config), horizon=span.n_rows)
            if span.n_cols != n_stored:
                n_each = max(n_each, min(_MOST_COARSER, n_each * n_stored**2 // span.n_cols**2))
                slices = coarser_slices(slices.sample(n_each), span.n_cols)
            if span.n_cols != n_stored or training.starts:
                plan = replace(plan, start=span.n_first)
            order = fit_fixed_order(
                slices, self.reconstructor, plan, n_slices_per_step=n_each, device=self.device
            )
            self.measured[span] = order.gains.to(self.device)
        return self.measured[span]

    def _in_units(self, span: _Span, units: Float[Tensor, " unit"]) -> Float[Tensor, "step col"]:
        measured = torch.arange(span.n_rows, device=self.device)
        share = self.slices.n_cols / span.n_cols
        row = row_of(measured + span.n_first, self.config.spanned[0], len(units), share=share)
        return filled_gains(self._gains(span) / units[row, None])


def _dense(config: PolicyConfig) -> DenseTraining:
    assert isinstance(config.training, DenseTraining)
    return config.training
