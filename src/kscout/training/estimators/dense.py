"""Dense gains: at each visited state many columns are tried, and all their gains are labels.

A policy's scores f are the gains that it expects, in units u of the step: the standard deviation,
over columns, of the mean gain along a fixed order. At a state the columns with the highest scores
and some at random are measured by the simulator, so that no column is overlooked for good. With
their gains y in the same units the loss is

    mean_c (f_c - y_c)^2 - w sum_c softmax(f)_c y_c,

the first term a regression, the second minus the gain that the policy may expect of its draw. The
acquisition goes on with the best column by score, at times with another one that was tried. A
moving mean of the weights is what is validated and kept, and it takes the best column.

Where `training.completion` says so, labels are not gains of the next column, but what it is worth
at the end of the budget (`labels`).
"""

from collections.abc import Sequence
from typing import Any, Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kscout.acquisition.choose import column_log_probabilities, draw_columns
from kscout.acquisition.episode import Simulator
from kscout.acquisition.state import State
from kscout.config import DenseTraining, PolicyConfig, PolicyTraining, learning_rate_at
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.physics.sampling import center_mask, start_mask
from kscout.policies.views import View
from kscout.training.augmentation import coarser, mirrored, zoomed
from kscout.training.estimators import PolicyTrainee
from kscout.training.estimators.gradient import Batch, Draws, GeneratorFor, GradientEstimator
from kscout.training.estimators.labels import Completion, carried_on, mean_values
from kscout.training.estimators.visited import (
    Rows,
    joined,
    observation_of,
    observe,
    part_of,
    rows_of,
    score,
)
from kscout.training.fixed_order import fit_fixed_order

N_AT_ONCE = {"cpu": 16, "cuda": 1024}
"""States of a policy whose gradients are computed together, by kind of device."""


@runtime_checkable
class StartsFromGains(Protocol):
    """A policy that can begin with the mean gains of a fixed order as its scores."""

    def start_from(self, gains: Float[Tensor, "step col"]) -> None:
        """Take mean gains, in the units of its scores."""


@final
class Dense(GradientEstimator):
    """Trains policies to expect the gain of every column."""

    settings = DenseTraining
    is_pure = True

    def __init__(
        self, trainees: Sequence[PolicyTrainee], slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(trainees, slices, reconstructor)
        for trainee in trainees:
            trainee.module.is_stochastic = False
        self.averages = [
            AveragedModel(x.module, multi_avg_fn=get_ema_multi_avg_fn(_training(x.config).average))
            for x in trainees
        ]
        _check_varied(_training(trainees[0].config), trainees[0].module, slices)
        self.n_first, n_rows = trainees[0].config.spanned
        self.units = torch.ones(n_rows, device=self.device)
        self.completion: Completion | None = None

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Go on, or begin from the mean gains of a fixed order on some of the slices."""
        policy, average = self.trainees[number].module, self.averages[number]
        if state:
            self.units = state["units"].to(self.device)
            average.load_state_dict(state["average"])
            if "order" in state:
                self._complete_by(state["order"])
        elif number == 0:
            self.gains, self.units = self._mean_gains()
        config = self.trainees[number].config
        # Gains of another metric say nothing of SSIM, which evaluations stop by.
        is_gain = config.training.metric == "ssim" and self.completion is None
        units = self.units[config.acquisition.n_initial - self.n_first :].tolist()
        for one in (policy, self.evaluated(number)):
            one.gain_units = tuple(units) if is_gain else ()
            if isinstance(one, StartsFromGains) and _training(config).from_order and not state:
                one.start_from(self.gains / self.units[:, None])

    def state(self, number: int) -> dict[str, Any]:
        order = {} if self.completion is None else {"order": self.completion.ranked.tolist()}
        average = self.averages[number].state_dict()
        return {"units": self.units.cpu(), "average": average, **order}

    def evaluated(self, number: int) -> Policy:
        return cast(Policy, self.averages[number].module)

    def draw(
        self, config: PolicyConfig, n_slices: int, n_batches: int, generator: GeneratorFor
    ) -> Draws:
        shape = (n_slices, config.acquisition.horizon)
        tried = torch.rand(*shape, _training(config).n_random, generator=generator("tried"))
        followed = torch.rand(*shape, 2, generator=generator("followed"))
        return Draws([tried, followed, torch.rand(n_slices, 4, generator=generator("varied"))])

    def n_tried(self, config: PolicyConfig) -> int:
        """Return those tried, and with a completion the end without them and the column taken."""
        return _training(config).n_tried + 2 * (_training(config).completion != "none")

    def sized(self, batch: SliceBatch, step: int) -> SliceBatch:
        """Return slices of the sizes that were asked for, in turn."""
        sizes = _training(self.trainees[0].config).sizes or (batch.n_cols,)
        size = sizes[step % len(sizes)]
        return batch if size == batch.n_cols else coarser(batch, size)

    def varied(self, batch: SliceBatch, per_slice: Sequence[Tensor]) -> SliceBatch:
        """Return slices of which some are mirrored, magnified or reduced."""
        training, uniforms = _training(self.trainees[0].config), per_slice[2]
        if training.flips:
            batch = mirrored(batch, uniforms[:, 0] < 0.5)
        if training.zoom > 1:
            batch = zoomed(batch, training.zoom ** (2 * uniforms[:, 1] - 1))
        return batch

    def step_size(self, training: PolicyTraining, epoch: int, step: int) -> float:
        """Rise over the first steps, then fall to zero."""
        assert isinstance(training, DenseTraining)
        done = (epoch - 1) * self.n_steps + step
        rise = min(1.0, (done + 1) / (training.n_warm + 1))
        fall = 1 - done / (training.n_epochs * self.n_steps)
        return rise * fall * learning_rate_at(training, epoch)

    def step_taken(self) -> None:
        """Move the mean weights."""
        for trainee, average in zip(self.trainees, self.averages, strict=True):
            average.update_parameters(trainee.module)

    def gradients(self, batch: Batch) -> Float[Tensor, " policy"]:
        draws, follow = (x.transpose(0, 1).contiguous() for x in batch.per_slice[:2])
        training, setting = _training(batch.configs[0]), batch.configs[0].acquisition
        simulator, n_policies = batch.simulator, len(batch.policies)
        state, n_most = self._start(batch)
        steps: list[Rows] = []
        with torch.no_grad():
            for step in range(setting.horizon):
                n_left = (n_most - step).clamp(min=1)
                seen = observe(batch.policies, simulator, state, n_left)
                blocked = simulator.blocked(state)
                scores = score(batch.policies, seen).float()
                columns = columns_to_try(scores, blocked, draws[step], training.n_best)
                is_valid = ~blocked.gather(-1, columns)
                choice = _choice(follow[step], is_valid, training)
                row = self._row(state.mask)
                worth, state = self._tried(simulator, state, columns, choice, n_left)
                gains = worth / self.units[row][:, None]
                # Columns that stand in where too few are left to try do not count.
                steps.append(rows_of(seen, columns=columns, gains=gains, is_valid=is_valid))
        for number, view in enumerate(batch.policies):
            own = [part_of(rows, number, n_policies) for rows in steps]
            _add_gradients(view, own, training.gain_weight)
            trainee = self.trainees[batch.first + number]
            torch.nn.utils.clip_grad_norm_(trainee.module.parameters(), training.clip)
        return state.score.view(n_policies, -1).mean(dim=-1)

    def _start(self, batch: Batch) -> tuple[State, Int[Tensor, " slice"]]:
        """Return where acquisitions start, and how many columns each may acquire."""
        training, setting = _training(batch.configs[0]), batch.configs[0].acquisition
        simulator, uniforms = batch.simulator, batch.per_slice[2]
        horizons = torch.full((len(uniforms),), setting.horizon, device=uniforms.device)
        for at, horizon in enumerate(training.horizons):
            is_drawn = (uniforms[:, 2] * len(training.horizons)).long() == at
            horizons = torch.where(is_drawn, horizon, horizons)
        starts = training.starts or ((setting.n_initial,) if training.sizes else ())
        if not starts:
            return simulator.start(setting.start), horizons
        n_cols = simulator.batch.n_cols
        # The same share of a smaller matrix.
        counts = [max(1, n * n_cols // self.slices.n_cols) for n in starts]
        masks = torch.stack([center_mask(n_cols, n, uniforms.device) for n in counts])
        return simulator.start(masks[(uniforms[:, 3] * len(masks)).long()]), horizons

    def _row(self, mask: Bool[Tensor, "state col"]) -> Int[Tensor, " state"]:
        """Return which of the units belongs to each state."""
        measured = mask.sum(dim=-1) * (self.slices.n_cols / mask.shape[1])
        row = measured.round().long() - self.n_first
        return row.clamp(min=0, max=len(self.units) - 1)

    def _tried(
        self,
        simulator: Simulator,
        state: State,
        columns: Int[Tensor, "state candidate"],
        choice: Int[Tensor, " state"],
        n_left: Int[Tensor, " state"],
    ) -> tuple[Float[Tensor, "state candidate"], State]:
        """Return what each column is worth, and the states after the chosen ones."""
        if self.completion is None:
            branches = simulator.branch(state, columns)
            return branches.score - state.score[:, None], branches.follow(choice)
        chosen = columns.gather(-1, choice[:, None])[:, 0]
        worth = self.completion.values(simulator, state, columns, n_left)
        return worth, simulator.acquire(state, chosen)

    def _mean_gains(self) -> tuple[Float[Tensor, "step col"], Float[Tensor, " step"]]:
        """Return mean labels along a fixed order, and their deviation over columns."""
        config, (n_first, horizon) = self.trainees[0].config, self.trainees[0].config.spanned
        training, n_cols = _training(config), self.slices.n_cols
        start = n_first if training.starts else config.acquisition.start
        found = fit_fixed_order(
            self.slices,
            self.reconstructor,
            n_initial=start,
            horizon=horizon,
            n_slices_per_step=training.n_prior_slices,
            protocol=training.protocol,
            metric=training.metric,
            device=self.device,
        )
        gains = found.gains.to(self.device)
        if training.completion != "none":
            mask = start_mask(start, (1, n_cols), self.device)[0]
            how = {"protocol": training.protocol, "metric": training.metric}
            some = self.slices.sample(training.n_prior_slices)
            completion = self._complete_by(found.order)
            gains = mean_values(completion, some, self.reconstructor, mask, horizon, **how)
        units = torch.stack([row[~row.isnan()].std(correction=0) for row in gains])
        return carried_on(gains), units.clamp(min=1e-8)

    def _complete_by(self, order: list[int]) -> Completion:
        self.completion = Completion.of(order, self.slices.n_cols, self.device)
        return self.completion


def _check_varied(training: DenseTraining, policy: Policy, slices: SliceSet) -> None:
    """Refuse to vary what cannot be."""
    for name, is_used in (("zoom", training.zoom > 1), ("sizes", bool(training.sizes))):
        if is_used and slices.kind != IMAGES.name:
            raise ConfigError(
                f"training.{name} is for images, the store holds {slices.kind}; leave it out"
            )
    if training.sizes and not policy.serves_any_size:
        raise ConfigError(
            f"training.sizes are for networks of any size, and {type(policy).__name__} has one; "
            "use policy.name = 'column'"
        )
    if training.sizes and max(training.sizes) > slices.n_cols:
        raise ConfigError(
            f"training.sizes {list(training.sizes)} go beyond the {slices.n_cols} columns of the "
            "store; make one of larger images"
        )


def dense_loss(
    scores: Float[Tensor, "state candidate"],
    gains: Float[Tensor, "state candidate"],
    is_valid: Bool[Tensor, "state candidate"],
    gain_weight: float,
) -> Float[Tensor, " state"]:
    """Return each state's loss.

    Args:
        scores: of the columns that were tried.
        gains: what they gained, in the units of the scores.
        is_valid: False for columns that do not count.
        gain_weight: w, the weight of the expected gain.
    """
    counts = is_valid.sum(dim=-1)
    errors = (scores - gains).square().masked_fill(~is_valid, 0.0).sum(dim=-1) / counts
    chances = scores.masked_fill(~is_valid, -torch.inf).softmax(dim=-1)
    return errors - gain_weight * (chances * gains.masked_fill(~is_valid, 0.0)).sum(dim=-1)


def columns_to_try(
    scores: Float[Tensor, "state col"],
    blocked: Bool[Tensor, "state col"],
    uniforms: Float[Tensor, "state draw"],
    n_best: int,
) -> Int[Tensor, "state candidate"]:
    """Return the columns with the highest scores, best first, then some of the others at random.

    Where too few are left, blocked ones stand in, or one is drawn again.

    Args:
        scores: what the policy expects.
        blocked: columns that may not be chosen.
        uniforms: numbers in [0, 1) that decide the draws, which may repeat a column.
        n_best: how many of the best.
    """
    n_best = min(n_best, scores.shape[1])
    best = scores.masked_fill(blocked, -torch.inf).topk(n_best, dim=-1).indices
    rest = column_log_probabilities(torch.zeros_like(scores), blocked.scatter(-1, best, True))
    return torch.cat([best, draw_columns(rest, uniforms)], dim=-1)


def _choice(
    uniforms: Float[Tensor, "state 2"],
    is_valid: Bool[Tensor, "state candidate"],
    training: DenseTraining,
) -> Int[Tensor, " state"]:
    """Return which tried column to go on with: the best, another of the best, or any."""
    which, place = uniforms.unbind(dim=-1)
    n_tried = is_valid.shape[1]
    n_best = min(training.n_best, n_tried)
    other = torch.where(which < training.explore_any, place * n_tried, place * n_best).long()
    explores = which < training.explore_any + training.explore_best
    choice = torch.where(explores, other, torch.zeros_like(other))
    return torch.where(is_valid.gather(-1, choice[:, None])[:, 0], choice, torch.zeros_like(choice))


def _add_gradients(view: View, steps: Sequence[Rows], gain_weight: float) -> None:
    """Add the gradients of the mean loss over all states, some states at a time."""
    n_states, begin = sum(len(rows["mask"]) for rows in steps), 0
    for rows in joined(steps, N_AT_ONCE[steps[0]["mask"].device.type]):
        scores = view.recall(observation_of(rows), begin).float().gather(-1, rows["columns"])
        loss = dense_loss(scores, rows["gains"], rows["is_valid"], gain_weight).sum() / n_states
        loss.backward()
        begin += len(scores)


def _training(config: PolicyConfig) -> DenseTraining:
    assert isinstance(config.training, DenseTraining)
    return config.training
