"""Dense gains: at each visited state many columns are tried, and all their gains are labels.

A policy's scores f are the gains that it expects, in units u of the step: the standard deviation,
over columns, of the mean gain along a fixed order. At a state the columns with the highest scores
and some at random are measured by the simulator, so that no column is overlooked for good. With
their gains y in the same units the loss is

    mean_c (f_c - y_c)^2 - w sum_c softmax(f)_c y_c,

the first term a regression, the second minus the gain that the policy may expect of its draw. The
acquisition goes on with the best column by score, at times with another one that was tried. A
moving mean of the weights is what is validated and kept, and it takes the best column.

Each batch is followed by `training.n_repeats` steps on labelled states of before, which cost one
image each: a state is remembered as its slice, its mask and its labels (`remembered`).

Where `training.completion` says so, labels are not gains of the next column, but what it is worth
at the end of the budget (`labels`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast, final, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kscout.acquisition.episode import Simulator, how_many_at_once
from kscout.acquisition.state import State
from kscout.config import DenseTraining, PolicyConfig, PolicyTraining, learning_rate_at
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.physics.sampling import Initial, center_mask, start_mask
from kscout.policies.views import View
from kscout.training.augmentation import coarser, mirrored, zoomed
from kscout.training.distributed import average_gradients, share
from kscout.training.estimators import PolicyTrainee
from kscout.training.estimators.gradient import (
    Batch,
    Drawn,
    Draws,
    GeneratorFor,
    GradientEstimator,
)
from kscout.training.estimators.labels import Completion, mean_labels
from kscout.training.estimators.remembered import Layout, Remembered
from kscout.training.estimators.tried import add_gradients, choice_of, columns_to_try
from kscout.training.estimators.visited import observe, rows_of, score
from kscout.training.replay import Rows

N_VARIED = 4
"""Numbers drawn for a slice: whether it is mirrored, its zoom, its budget, its start."""


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
        training = _training(trainees[0].config)
        self.sizes = training.sizes or (slices.n_cols,)
        self.layouts = {
            n: Layout(n, min(training.n_best, n) + training.n_random, N_VARIED) for n in self.sizes
        }
        """How labelled states are kept, by the columns of their slices."""
        self.memories = [Remembered(self.layouts, _training(x.config).n_memory) for x in trainees]
        self.visited: dict[tuple[int, int, int], UInt8[Tensor, "slice step byte"]] = {}
        """What a batch labelled, by its first policy, its slices and their columns. A CUDA graph
        writes in place."""

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Go on, or begin from the mean gains of a fixed order on some of the slices."""
        policy, average = self.trainees[number].module, self.averages[number]
        if state:
            self.units = state["units"].to(self.device)
            average.load_state_dict(state["average"])
            if "order" in state:
                self._complete_by(state["order"])
            self.memories[number].restore(state.get("memory", {}), self.device)
        elif number == 0:
            self._begin()
        config, start = self.trainees[number].config, self.trainees[number].start
        units = self.units[config.acquisition.n_initial - self.n_first :].tolist()
        # Gains that a trained network starts from are among its weights.
        takes_gains = _training(config).from_order and not state and start is None
        for one in (policy, self.evaluated(number)):
            one.gain_units = tuple(units) if self._learns_gains else ()
            if isinstance(one, StartsFromGains) and takes_gains:
                one.start_from(self.gains / self.units[:, None])

    @property
    def _learns_gains(self) -> bool:
        """Gains of another metric say nothing of SSIM, which evaluations stop by."""
        training = _training(self.trainees[0].config)
        return training.metric == "ssim" and training.completion == "none"

    def _begin(self) -> None:
        """Find the units of labels: those of a trained policy, else along a fixed order."""
        config, start = self.trainees[0].config, self.trainees[0].start
        known = () if start is None or not self._learns_gains else start.gain_units
        if len(known) == len(self.units):
            self.units = torch.tensor(known, device=self.device)
            return
        self.gains, self.units, order = mean_labels(
            config, self.slices, self.reconstructor, self.device
        )
        if _training(config).completion != "none":
            self._complete_by(order)

    def state(self, number: int) -> dict[str, Any]:
        order = {} if self.completion is None else {"order": self.completion.ranked.tolist()}
        known = self.memories[number].state()
        memory = {"memory": known} if known else {}
        average = self.averages[number].state_dict()
        return {"units": self.units.cpu(), "average": average, **order, **memory}

    def evaluated(self, number: int) -> Policy:
        return cast(Policy, self.averages[number].module)

    def draw(
        self, config: PolicyConfig, n_slices: int, n_batches: int, generator: GeneratorFor
    ) -> Draws:
        shape = (n_slices, config.acquisition.horizon)
        tried = torch.rand(*shape, _training(config).n_random, generator=generator("tried"))
        followed = torch.rand(*shape, 2, generator=generator("followed"))
        varied = torch.rand(n_slices, N_VARIED, generator=generator("varied"))
        repeats = (_training(config).n_repeats, _training(config).n_seen_again(*shape))
        recalled = torch.rand(n_batches, *repeats, generator=generator("recalled"))
        return Draws([tried, followed, varied], [recalled] if repeats[0] else [])

    def n_tried(self, config: PolicyConfig) -> int:
        """Return those tried, and with a completion the end without them and the column taken."""
        return _training(config).n_tried + 2 * (_training(config).completion != "none")

    def sized(self, batch: SliceBatch, step: int) -> SliceBatch:
        """Return slices of the sizes that were asked for, in turn."""
        size = self._n_cols(step)
        return batch if size == batch.n_cols else coarser(batch, size)

    def _n_cols(self, step: int) -> int:
        return self.sizes[step % len(self.sizes)]

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

    def averaged(self) -> None:
        """Clip the gradients, which are those of all processes by now."""
        for trainee in self.trainees:
            clip = _training(trainee.config).clip
            torch.nn.utils.clip_grad_norm_(trainee.module.parameters(), clip)

    def step_taken(self, drawn: Sequence[Drawn], step: int) -> None:
        """Move the mean weights, and take the steps on remembered states."""
        self._move_means()
        n_repeats = _training(self.trainees[0].config).n_repeats
        if n_repeats:
            self._remember(drawn, step)
        for number in range(n_repeats):
            self._repeat([one.draws.per_batch[0][step, number] for one in drawn], step)
            for trainee in self.trainees:
                trainee.optimizer.step()
            self._move_means()

    def _move_means(self) -> None:
        for trainee, average in zip(self.trainees, self.averages, strict=True):
            average.update_parameters(trainee.module)

    def _remember(self, drawn: Sequence[Drawn], step: int) -> None:
        """Keep what the last batch labelled."""
        config, n_cols = self.trainees[0].config, self._n_cols(step)
        size = config.training.batch_size
        whole = drawn[0].order[step * size : (step + 1) * size]
        n_mine = len(share(whole))
        shape = (0, config.acquisition.horizon, self.layouts[n_cols].n_bytes)
        for group in self.groups:
            own = self.memories[group]
            # A batch smaller than the number of processes leaves some without a slice.
            parts = [torch.empty(shape, dtype=torch.uint8, device=self.device)] * len(own)
            if n_mine:
                parts = [*self.visited[group.start, n_mine * len(own), n_cols].split(n_mine)]
            for memory, mine in zip(own, parts, strict=True):
                memory.add(n_cols, mine, len(whole))

    def _repeat(self, uniforms: Sequence[Float[Tensor, " n"]], step: int) -> None:
        """Leave the gradients of remembered states in the policies, averaged over processes."""
        n_cols, n_mine = self._n_cols(step), len(share(uniforms[0]))
        for trainee in self.trainees:
            trainee.optimizer.zero_grad()
        for group in self.groups if n_mine else ():
            pairs = zip(self.memories[group], uniforms[group], strict=True)
            states = torch.cat([own.draw(n_cols, numbers) for own, numbers in pairs])
            index = self.layouts[n_cols].unpack(states)["index"]
            slices = self.sized(self.slices.batch(index.to(self.slices.index_device)), step)
            inputs = [*slices.tensors(), states]
            self.passed("repeat", partial(self._again, group), group, inputs)
        average_gradients(self.parameters(slice(None)), n_mine / len(uniforms[0]))
        self.averaged()

    def _again(self, group: slice, inputs: Sequence[Tensor]) -> Float[Tensor, " policy"]:
        """Add the gradients of remembered states, given as plain tensors, as a graph needs it."""
        views, training = self.views[group], _training(self.trainees[0].config)
        for view in views:
            view.refresh()
        at_once = how_many_at_once(self.reconstructor, inputs[0].shape[1:], self.device)
        with torch.no_grad():
            parts = zip(*(x.split(at_once) for x in inputs), strict=True)
            found = [self._seen_again(views, SliceBatch(*data), last) for *data, last in parts]
        rows = {name: torch.cat([part[name] for part in found]) for name in found[0]}
        scores = rows.pop("score")
        add_gradients(views, [rows], training.gain_weight)
        return scores.view(len(views), -1).mean(dim=-1)

    def _seen_again(
        self, views: Sequence[View], slices: SliceBatch, states: UInt8[Tensor, "state byte"]
    ) -> Rows:
        """Return what policies see of remembered states, their labels and scores."""
        config, rows = self.trainees[0].config, self.layouts[slices.n_cols].unpack(states)
        simulator = Simulator(
            self._varied(slices, rows["uniforms"]),
            self.reconstructor,
            protocol=config.training.protocol,
            metric=config.training.metric,
        )
        initial = self._initial(rows["uniforms"], slices.n_cols)
        maps = simulator.calibrate(start_mask(initial, rows["mask"].shape, self.device))
        state = simulator.start_from(rows["mask"], maps=maps)
        n_left = (self._horizons(rows["uniforms"]) - rows["step"]).clamp(min=1)
        seen = replace(observe(views, simulator, state, n_left), step=rows["step"])
        is_valid = ~simulator.blocked(state).gather(-1, rows["columns"])
        labels = {"columns": rows["columns"], "gains": rows["gains"], "is_valid": is_valid}
        return rows_of(seen, **labels, score=state.score)

    def gradients(self, batch: Batch) -> Float[Tensor, " policy"]:
        draws, follow = (x.transpose(0, 1).contiguous() for x in batch.per_slice[:2])
        training, setting = _training(batch.configs[0]), batch.configs[0].acquisition
        simulator = batch.simulator
        state = simulator.start(self._initial(batch.per_slice[2], simulator.batch.n_cols))
        n_most = self._horizons(batch.per_slice[2])
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
            n_slices, n_cols = simulator.batch.selectable.shape
            packed = [self.layouts[n_cols].pack({**rows, **slices}) for rows in steps]
            self.visited[batch.first, n_slices, n_cols] = torch.stack(packed, dim=1)
        add_gradients(batch.policies, steps, training.gain_weight)
        return state.score.view(len(batch.policies), -1).mean(dim=-1)

    def _horizons(self, uniforms: Float[Tensor, "slice 4"]) -> Int[Tensor, " slice"]:
        """Return how many columns each slice may acquire."""
        config = self.trainees[0].config
        drawn = _training(config).horizons
        horizons = uniforms.new_full((len(uniforms),), config.acquisition.horizon).long()
        for at, horizon in enumerate(drawn):
            is_drawn = (uniforms[:, 2] * len(drawn)).long() == at
            horizons = torch.where(is_drawn, horizon, horizons)
        return horizons

    def _initial(self, uniforms: Float[Tensor, "slice 4"], n_cols: int) -> Initial:
        """Return where the acquisitions of slices with so many columns start."""
        training, setting = _training(self.trainees[0].config), self.trainees[0].config.acquisition
        starts = training.starts or ((setting.n_initial,) if training.sizes else ())
        if not starts:
            return setting.start
        # The same share of a smaller matrix.
        counts = [max(1, n * n_cols // self.slices.n_cols) for n in starts]
        masks = torch.stack([center_mask(n_cols, n, uniforms.device) for n in counts])
        return masks[(uniforms[:, 3] * len(masks)).long()]

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

    def _complete_by(self, order: list[int]) -> None:
        self.completion = Completion.of(order, self.slices.n_cols, self.device)


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


def _training(config: PolicyConfig) -> DenseTraining:
    assert isinstance(config.training, DenseTraining)
    return config.training
