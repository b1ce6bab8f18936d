"""Dense gains: at each visited state many columns are tried, and all their gains are labels.

A policy's scores f are the gains that it expects, in units u of the step: the standard deviation,
over columns, of the mean gain along a fixed order. At a state the columns with the highest scores
and some at random are measured by the simulator, so that no column is overlooked for good. With
their gains y in the same units the loss is

    mean_c (f_c - y_c)^2 - w sum_c softmax(f)_c y_c,

the first term a regression, the second minus the gain that the policy may expect of its draw. The
acquisition goes on with the best column by score, at times with another one that was tried. A
moving mean of the weights is what is validated and kept, and it takes the best column.

With `training.n_repeats` each batch is followed by as many steps on labelled states of before,
which cost one image each: a state is remembered as its slice and its mask.

Where `training.completion` says so, labels are not gains of the next column, but what it is worth
at the end of the budget (`labels`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

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
from kscout.training.distributed import n_processes
from kscout.training.estimators import PolicyTrainee
from kscout.training.estimators.gradient import (
    Batch,
    Drawn,
    Draws,
    GeneratorFor,
    GradientEstimator,
)
from kscout.training.estimators.labels import Completion, carried_on, mean_values
from kscout.training.estimators.tried import choice_of, columns_to_try, dense_loss
from kscout.training.estimators.visited import (
    joined,
    observation_of,
    observe,
    part_of,
    rows_of,
    score,
)
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.replay import Memory, Rows

N_AT_ONCE = {"cpu": 16, "cuda": 1024}
"""States of a policy whose gradients are computed together, by kind of device."""

KEPT = ("index", "uniforms", "mask", "step", "n_left", "columns", "gains", "is_valid")
"""What is remembered of a state: its slice and how it was varied, what was measured, what was tried
and what came out, which does not depend on who looks."""


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
        self.memories = [Memory(_training(x.config).n_memory) for x in trainees]
        self.visited: dict[tuple[int, int], list[Rows]] = {}
        """What a batch labelled, by its first policy and its size. A CUDA graph writes in place."""

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Go on, or begin from the mean gains of a fixed order on some of the slices."""
        policy, average = self.trainees[number].module, self.averages[number]
        if state:
            self.units = state["units"].to(self.device)
            average.load_state_dict(state["average"])
            if "order" in state:
                self._complete_by(state["order"])
            if "memory" in state:
                self.memories[number].add(
                    {k: v.to(self.device) for k, v in state["memory"].items()}
                )
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
        average, known = self.averages[number].state_dict(), self.memories[number].rows
        memory = {"memory": {name: value.cpu() for name, value in known.items()}} if known else {}
        return {"units": self.units.cpu(), "average": average, **order, **memory}

    def evaluated(self, number: int) -> Policy:
        return cast(Policy, self.averages[number].module)

    def draw(
        self, config: PolicyConfig, n_slices: int, n_batches: int, generator: GeneratorFor
    ) -> Draws:
        shape = (n_slices, config.acquisition.horizon)
        tried = torch.rand(*shape, _training(config).n_random, generator=generator("tried"))
        followed = torch.rand(*shape, 2, generator=generator("followed"))
        varied = torch.rand(n_slices, 4, generator=generator("varied"))
        repeats = (_training(config).n_repeats, _training(config).n_repeated)
        recalled = torch.rand(n_batches, *repeats, generator=generator("recalled"))
        return Draws([tried, followed, varied], [recalled] if repeats[0] else [])

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
        return self._varied(batch, per_slice[2])

    def _varied(self, batch: SliceBatch, uniforms: Float[Tensor, "slice 4"]) -> SliceBatch:
        training = _training(self.trainees[0].config)
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

    def step_taken(self, drawn: Sequence[Drawn], step: int) -> None:
        """Move the mean weights, and take the steps on remembered states."""
        self._move_means()
        for number in range(_training(self.trainees[0].config).n_repeats):
            if number == 0:
                self._remember(drawn, step)
            for group in self.groups:
                pairs = zip(self.memories[group], drawn[group], strict=True)
                again = [own.draw(one.draws.per_batch[0][step, number]) for own, one in pairs]
                rows = {name: torch.cat([own[name] for own in again]) for name in KEPT}
                slices = self.slices.batch(rows["index"].to(self.slices.index_device))
                inputs = [*slices.tensors(), *(rows[name] for name in KEPT)]
                self.passed("repeat", partial(self._again, group), group, inputs)
            for trainee in self.trainees:
                trainee.optimizer.step()
            self._move_means()

    def _move_means(self) -> None:
        for trainee, average in zip(self.trainees, self.averages, strict=True):
            average.update_parameters(trainee.module)

    def _remember(self, drawn: Sequence[Drawn], step: int) -> None:
        """Keep what the last batch labelled."""
        size = self.trainees[0].config.training.batch_size
        n_slices = len(drawn[0].order[step * size : (step + 1) * size])
        for group in self.groups:
            own = self.memories[group]
            steps = self.visited[group.start, n_slices * len(own)]
            for number, memory in enumerate(own):
                memory.add(*(part_of(rows, number, len(own)) for rows in steps))

    def _again(self, group: slice, inputs: Sequence[Tensor]) -> Float[Tensor, " policy"]:
        """Add the gradients of remembered states, given as plain tensors, as a graph needs it."""
        data, rows = inputs[: -len(KEPT)], dict(zip(KEPT, inputs[-len(KEPT) :], strict=True))
        views, config = self.views[group], self.trainees[0].config
        training = _training(config)
        for view in views:
            view.refresh()
        simulator = Simulator(
            self._varied(SliceBatch(*data), rows["uniforms"]),
            self.reconstructor,
            protocol=training.protocol,
            metric=training.metric,
        )
        with torch.no_grad():
            first = start_mask(config.acquisition.start, rows["mask"].shape, self.device)
            # No map is found in a column that was not measured.
            maps = simulator.calibrate(first & rows["mask"])
            state = simulator.start_from(rows["mask"], maps=maps)
            seen = replace(observe(views, simulator, state, rows["n_left"]), step=rows["step"])
        labels = {name: rows[name] for name in ("columns", "gains", "is_valid")}
        self._learn(views, group.start, [rows_of(seen, **labels)], training)
        return state.score.view(len(views), -1).mean(dim=-1)

    def _learn(
        self, views: Sequence[View], first: int, steps: Sequence[Rows], training: DenseTraining
    ) -> None:
        """Add the gradients of labelled states to the policies that they are divided among."""
        for number, view in enumerate(views):
            own = [part_of(rows, number, len(views)) for rows in steps]
            _add_gradients(view, own, training.gain_weight)
            parameters = self.trainees[first + number].module.parameters()
            torch.nn.utils.clip_grad_norm_(parameters, training.clip)

    def gradients(self, batch: Batch) -> Float[Tensor, " policy"]:
        draws, follow = (x.transpose(0, 1).contiguous() for x in batch.per_slice[:2])
        training, setting = _training(batch.configs[0]), batch.configs[0].acquisition
        simulator = batch.simulator
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
                choice = choice_of(follow[step], is_valid, training)
                row = self._row(state.mask)
                worth, state = self._tried(simulator, state, columns, choice, n_left)
                gains = worth / self.units[row][:, None]
                # Columns that stand in where too few are left to try do not count.
                labels = {"columns": columns, "gains": gains, "is_valid": is_valid}
                steps.append(rows_of(replace(seen, n_left=n_left), **labels))
        if training.n_repeats:
            slices = {"index": simulator.batch.index, "uniforms": batch.per_slice[2]}
            labelled = [{name: {**rows, **slices}[name] for name in KEPT} for rows in steps]
            self.visited[batch.first, len(simulator.batch)] = labelled
        self._learn(batch.policies, batch.first, steps, training)
        return state.score.view(len(batch.policies), -1).mean(dim=-1)

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
    """Refuse to vary what cannot be, and to repeat where processes share the slices."""
    if training.n_repeats and n_processes() > 1:
        raise ConfigError(
            f"training.n_repeats is {training.n_repeats}, and {n_processes()} processes learn "
            "together, whose memories would differ; train in one process, or set it to 0"
        )
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
