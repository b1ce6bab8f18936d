"""Dense gains: at each visited state many columns are tried, and all their gains are labels.

A policy's scores f are the gains that it expects, in units u of the step: the standard deviation,
over columns, of the mean gain along a fixed order. At a state the columns with the highest scores
and some at random are measured by the simulator, so that every column is tried at times. With
their gains y in the same units the loss is

    mean_c (f_c - y_c)^2 - w sum_c softmax(f)_c y_c,

the first term a regression, the second minus the gain that the policy may expect of its draw. The
acquisition goes on with the best column by score, at times with another one that was tried. A
moving mean of the weights is what is validated and kept, and it takes the best column.

Each batch is followed by `training.n_repeats` steps on labelled states of before, which cost one
image each: a state is remembered as its slice, its mask and its labels (`remembered`).
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast, final

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from kscout.acquisition.episode import Simulator, how_many_at_once
from kscout.acquisition.state import State
from kscout.config import DenseTraining, PolicyConfig
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.physics.sampling import start_mask
from kscout.policies.mean_gains import row_of
from kscout.policies.views import View
from kscout.training.augmentation import coarser
from kscout.training.distributed import average_gradients, share
from kscout.training.estimators import PolicyTrainee
from kscout.training.estimators.gradient import Batch, Drawn, Draws, GeneratorFor, WarmedEstimator
from kscout.training.estimators.labels import GAINS, dense_of, learned_from
from kscout.training.estimators.mean_gains import MeanGains
from kscout.training.estimators.remembered import Layout, Remembered
from kscout.training.estimators.tried import add_gradients, choice_of, columns_to_try
from kscout.training.estimators.variation import N_DRAWN, Variation
from kscout.training.estimators.visited import observe, rows_of, score
from kscout.training.replay import Rows
from kscout.training.starting import StartsFromGains, is_resized


@final
class Dense(WarmedEstimator):
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
            AveragedModel(x.module, multi_avg_fn=get_ema_multi_avg_fn(dense_of(x.config).average))
            for x in trainees
        ]
        self.variation = Variation(trainees[0].config, slices.n_cols)
        self.variation.check(trainees[0].module, slices)
        self.n_first, n_rows = trainees[0].config.spanned
        self.units = torch.ones(n_rows, device=self.device)
        self.gains = MeanGains(trainees[0].config, slices, reconstructor, self.device)
        training = dense_of(trainees[0].config)
        self.sizes = training.sizes or (slices.n_cols,)
        counts = {n: min(training.n_best, n) + training.n_random for n in self.sizes}
        self.layouts = {n: Layout(n, n_tried, N_DRAWN) for n, n_tried in counts.items()}
        """How labelled states are kept, by the columns of their slices."""
        self.memories = [Remembered(self.layouts, dense_of(x.config).buffer_size) for x in trainees]
        self.visited: dict[tuple[int, int, int], UInt8[Tensor, "slice step byte"]] = {}
        """What a batch labelled, by its first policy, its slices and their columns. A CUDA graph
        writes in place."""

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Go on, or begin from the mean gains of a fixed order on some of the slices."""
        policy, average = self.trainees[number].module, self.averages[number]
        if state:
            self.units = state["units"].to(self.device)
            average.load_state_dict(state["average"])
            self.memories[number].restore(state.get("memory", {}), self.device)
        elif number == 0:
            self._begin()
        config, start = self.trainees[number].config, self.trainees[number].start
        units = self.units[config.acquisition.n_initial - self.n_first :].tolist()
        # Gains that a trained network starts from are among its weights, for sizes of its own.
        is_begun = start is not None and not is_resized(policy, start)
        # One that has learned gains of another metric takes new ones.
        is_begun = is_begun and learned_from(start) in ("", config.training.metric)
        takes_gains = not state and not is_begun
        for one in (policy, self.evaluated(number)):
            one.gain_units = tuple(units) if self._learns_gains else ()
            one.labels = config.training.metric
            if isinstance(one, StartsFromGains) and takes_gains:
                self.gains.give(one, self.units)

    @property
    def _learns_gains(self) -> bool:
        """Gains of another metric say nothing of SSIM, which evaluations stop by."""
        return self.trainees[0].config.training.metric == GAINS

    def _begin(self) -> None:
        """Find the units of labels: those of a trained policy, else along a fixed order."""
        start = self.trainees[0].start
        known: Sequence[float] = ()
        if start is not None and not is_resized(self.trainees[0].module, start):
            known = start.gain_units if self._learns_gains else ()
        n_rows = len(self.units)
        # A file tells units from its start on, not from earlier ones that were drawn besides. A
        # network without steps of its own may be for another budget.
        has_steps = getattr(start, "horizon", None) == n_rows
        n_known = len(known) if has_steps or len(known) == n_rows else 0
        if n_known:
            self.units[n_rows - n_known :] = torch.tensor(known, device=self.device)
        if n_known == n_rows:
            return
        self.units[: n_rows - n_known] = self.gains.units()[: n_rows - n_known]

    def state(self, number: int) -> dict[str, Any]:
        known = self.memories[number].state()
        memory = {"memory": known} if known else {}
        average = self.averages[number].state_dict()
        return {"units": self.units.cpu(), "average": average, **memory}

    def begins_able(self, number: int) -> bool:
        policy = self.trainees[number].module
        return isinstance(policy, StartsFromGains) or super().begins_able(number)

    def evaluated(self, number: int) -> Policy:
        return cast(Policy, self.averages[number].module)

    def draw(
        self, config: PolicyConfig, n_slices: int, n_batches: int, generator: GeneratorFor
    ) -> Draws:
        shape = (n_slices, config.acquisition.horizon)
        tried = torch.rand(*shape, dense_of(config).n_random, generator=generator("tried"))
        followed = torch.rand(*shape, 2, generator=generator("followed"))
        varied = self.variation.draw(n_slices, generator)
        repeats = (dense_of(config).n_repeats, dense_of(config).n_seen_again(*shape))
        recalled = torch.rand(n_batches, *repeats, generator=generator("recalled"))
        return Draws([tried, followed, varied], [recalled] if repeats[0] else [])

    def n_tried(self, config: PolicyConfig) -> float:
        return config.training.n_tried

    @property
    def share_acquired(self) -> float:
        config, n_slices, n_acquired = self.trainees[0].config, len(self.slices), 0
        size = config.training.batch_size
        for step in range(self.n_steps):
            n_own = min(size, n_slices - step * size)
            n_acquired += n_own * self.variation.n_steps(self._n_cols(step))
        return n_acquired / n_slices / config.acquisition.horizon

    def sized(self, batch: SliceBatch, step: int) -> SliceBatch:
        """Return slices of the sizes that were asked for, in turn."""
        return coarser(batch, self._n_cols(step))

    def _n_cols(self, step: int) -> int:
        return self.sizes[step % len(self.sizes)]

    def varied(self, batch: SliceBatch, per_slice: Sequence[Tensor]) -> SliceBatch:
        """Return slices that are varied as was drawn for them."""
        return self.variation.of(batch, per_slice[2])

    def step_taken(self, drawn: Sequence[Drawn], step: int) -> None:
        """Move the mean weights, and take the steps on remembered states."""
        self._move_means()
        n_repeats = dense_of(self.trainees[0].config).n_repeats
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
        shape = (0, self.variation.n_steps(n_cols), self.layouts[n_cols].n_bytes)
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
        views, training = self.views[group], dense_of(self.trainees[0].config)
        for view in views:
            view.refresh()
        at_once = how_many_at_once(self.reconstructor, inputs[0].shape[1:], self.device)
        with torch.no_grad():
            parts = zip(*(x.split(at_once) for x in inputs), strict=True)
            found = [self._seen_again(views, SliceBatch(*data), last) for *data, last in parts]
        rows = {name: torch.cat([part[name] for part in found]) for name in found[0]}
        scores = rows.pop("score")
        add_gradients(views, [rows], training.gain_weight, self.slices.n_cols)
        return scores.view(len(views), -1).mean(dim=-1)

    def _seen_again(
        self, views: Sequence[View], slices: SliceBatch, states: UInt8[Tensor, "state byte"]
    ) -> Rows:
        """Return what policies see of remembered states, their labels and scores."""
        config, rows = self.trainees[0].config, self.layouts[slices.n_cols].unpack(states)
        simulator = Simulator(
            self.variation.of(slices, rows["uniforms"]),
            self.reconstructor,
            protocol=config.training.protocol,
            metric=config.training.metric,
        )
        initial = self.variation.initial(rows["uniforms"], slices.n_cols)
        maps = simulator.calibrate(start_mask(initial, rows["mask"].shape, self.device))
        state = simulator.start_from(rows["mask"], maps=maps)
        horizons = self.variation.horizons(rows["uniforms"], slices.n_cols)
        n_left = (horizons - rows["step"]).clamp(min=1)
        seen = replace(observe(views, simulator, state, n_left), step=rows["step"])
        is_valid = ~simulator.blocked(state).gather(-1, rows["columns"])
        labels = {"columns": rows["columns"], "gains": rows["gains"], "is_valid": is_valid}
        return rows_of(seen, **labels, score=state.score)

    def gradients(self, batch: Batch) -> Float[Tensor, " policy"]:
        training, simulator = dense_of(batch.configs[0]), batch.simulator
        n_slices, n_cols = simulator.batch.selectable.shape
        state = simulator.start(self.variation.initial(batch.per_slice[2], n_cols))
        labelled = []
        with torch.no_grad():
            for step in range(self.variation.n_steps(n_cols)):
                rows, state = self._labelled(batch, state, step)
                labelled.append(rows)
        if training.n_repeats:
            about = {"index": simulator.batch.index, "uniforms": batch.per_slice[2]}
            packed = [self.layouts[n_cols].pack({**rows, **about}) for rows in labelled]
            self.visited[batch.first, n_slices, n_cols] = torch.stack(packed, dim=1)
        add_gradients(batch.policies, labelled, training.gain_weight, self.slices.n_cols)
        return state.score.view(len(batch.policies), -1).mean(dim=-1)

    def _labelled(self, batch: Batch, state: State, step: int) -> tuple[Rows, State]:
        """Return the labels of a step, and all states after it."""
        draws, follow = (x[:, step] for x in batch.per_slice[:2])
        training, simulator = dense_of(batch.configs[0]), batch.simulator
        n_cols = simulator.batch.n_cols
        n_left = (self.variation.horizons(batch.per_slice[2], n_cols) - step).clamp(min=1)
        seen = observe(batch.policies, simulator, state, n_left)
        blocked = simulator.blocked(state)
        scores = score(batch.policies, seen).float()
        columns = columns_to_try(scores, blocked, draws, training.n_best)
        is_valid = ~blocked.gather(-1, columns)
        choice = choice_of(follow, is_valid, training.n_best)
        # Columns that stand in where too few are left to try do not count.
        labels = {"columns": columns, "is_valid": is_valid}
        rows = rows_of(seen, **labels)
        units = self.units[self._row(rows["mask"])]
        branches = simulator.branch(state, columns)
        gains = branches.score - state.score[:, None]
        return {**rows, "gains": gains / units[:, None]}, branches.follow(choice)

    def _row(self, mask: Bool[Tensor, "state col"]) -> Int[Tensor, " state"]:
        """Return which of the units belongs to each state."""
        share = self.slices.n_cols / mask.shape[1]
        return row_of(mask.sum(dim=-1), self.n_first, len(self.units), share=share)
