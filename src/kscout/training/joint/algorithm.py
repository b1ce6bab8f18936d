"""The joint training: the reconstruction on masks from a pool, and its sampler."""

import copy
import math
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from kscout.config import JointConfig, warmed_rate
from kscout.core import Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.json_types import StateDict
from kscout.physics.sampling import start_mask
from kscout.policies.random import Random
from kscout.randomness import keyed_generator, slices_of_round
from kscout.training.algorithm import Algorithm, EpochResult, Learner, optimizer_step
from kscout.training.augmentation import mirrored
from kscout.training.joint.sampler import Material, Pair, Sampler, acquire
from kscout.training.reconstructor import gradients_of, training_loss
from kscout.training.states import Memory

JointLearner = Learner[Pair, JointConfig]

_N_ACQUIRED_AT_ONCE = {"cpu": 16, "cuda": 256}


@final
class Joint(Algorithm[Pair, JointConfig]):
    """Trains a pair; steps are updates of the reconstruction."""

    def __init__(self, learner: JointLearner, slices: SliceSet, kind: type[Sampler]) -> None:
        super().__init__(learner, len(slices))
        self.slices = slices
        self.training, self.model = learner.config.training, learner.module.reconstructor
        self.n_steps = math.ceil(self.training.n_updates / self.training.n_epochs)
        self.start = start_mask(self.config.acquisition.start, (1, slices.n_cols), slices.device)
        self.pool = MaskPool(slices, self.training.n_pooled(len(slices)))
        self.current = Current(self.model, slices)
        material = Material(
            self.config, slices, self.current.view, self.current.snapshot, learner.optimizer
        )
        self.sampler = kind(learner.module.policy, material)
        self.n_taught, self.is_asked = 0, False
        if self.training.compile and slices.device.type == "cuda":
            self.model.compile_passes()
        first = torch.zeros(self.training.batch_size, dtype=torch.int64)
        self.gradients = gradients_of(self.model, slices, first, self._backward)
        # A captured graph leaves gradients that no step may use.
        learner.optimizer.zero_grad()

    def n_steps_in(self, epoch: int) -> int:
        return len(self.training.updates_of(epoch))

    def begin_epoch(self, epoch: int) -> None:
        """Draw the random numbers by which updates sample the pool."""
        generator = keyed_generator("pool", self.training.seed, epoch)
        shape = (self.n_steps_in(epoch), self.training.batch_size, 2)
        self.draws = torch.rand(shape, generator=generator).to(self.slices.index_device)

    def take_step(self, epoch: int, step: int) -> None:
        """Take an update of the reconstruction, and of the sampler if it is due."""
        number = self.training.updates_of(epoch)[step]
        self._prepare(epoch, number, is_new=step == 0)
        self.means = {"loss": self._learn(number, self.draws[step])}
        self.add(**self.means)
        if self.sampler.is_due(number):
            score = self.means["sampler_score"] = self._teach()
            self.add(score=score, n_scores=torch.ones_like(score))

    def end_epoch(self, epoch: int) -> EpochResult:
        """Read losses from the device, which no update waits for."""
        training, numbers, sums = self.training, self.training.updates_of(epoch), self.sums
        scores = {"train_loss": float(sums["loss"]) / len(numbers)}
        if "score" in sums:
            scores["sampler_score"] = float(sums["score"] / sums["n_scores"])
        facts = {
            "n_updates": numbers.stop,
            "n_sampler_updates": self.n_taught,
            "n_slices": len(numbers) * training.batch_size,
        }
        return EpochResult(scores, facts)

    def rate(self, epoch: int) -> float:
        """Return the learning rate of the reconstruction at the end of an epoch."""
        return self._rate(self.training.updates_of(epoch)[-1])

    def evaluated(self) -> Pair:
        return Pair(self.model, self.sampler.policy)

    def state(self) -> StateDict:
        sampler = self.sampler.state() if self.is_asked else None
        return {"pool": self.pool.state(), "sampler": sampler, "n_taught": self.n_taught}

    def restore(self, state: StateDict) -> None:
        if not state:
            return
        self.pool.restore(state["pool"])
        self.n_taught, self.is_asked = state["n_taught"], state["sampler"] is not None
        if self.is_asked:
            self.sampler.restore(state["sampler"])

    def _rate(self, number: int) -> float:
        training = self.training
        return warmed_rate(training.learning_rate, number, training.n_updates, training.n_warm)

    def _prepare(self, epoch: int, number: int, *, is_new: bool) -> None:
        """Renew the sampler and refill the pool before an update, if they are due."""
        training, is_first = self.training, number == self.training.n_random
        if is_first:
            # The pool contains masks of random columns.
            self.is_asked = True
            self.pool.clear()
        if self.is_asked and (is_first or is_new):
            self.current.refresh()
            self.sampler.renew(epoch, is_first=is_first)
        if number % training.refill_every == 0 or not len(self.pool):
            self._acquire(number, min(training.n_refill, len(self.slices)))

    def _acquire(self, number: int, n: int) -> None:
        training, slices = self.training, self.slices
        part = number // training.refill_every + 1
        index = slices_of_round(training.seed, part, n, n_slices=len(slices), purpose="pool")
        horizon = self.config.acquisition.horizon
        generator = keyed_generator("acquired", training.seed, number)
        uniforms = torch.rand(n, horizon, generator=generator).to(slices.device)
        policy = self.sampler.policy.eval() if self.is_asked else Random()
        looks = self.is_asked and self.sampler.looks
        if looks:
            self.current.refresh()
        size = _N_ACQUIRED_AT_ONCE[slices.device.type]
        generator = keyed_generator("mirrored", training.seed, number)
        flips = (torch.rand(n, generator=generator) < 0.5).to(slices.device)
        parts = (x.split(size) for x in (index, flips, uniforms))
        for own, is_mirrored, drawn in zip(*parts, strict=True):
            batch = self._batch(own.to(slices.index_device), is_mirrored)
            view = self.current.view if looks else None
            self.pool.add(own, is_mirrored, acquire(policy, batch, self.config, drawn, view))

    def _batch(
        self, index: Int[Tensor, " slice"], is_mirrored: Bool[Tensor, " slice"]
    ) -> SliceBatch:
        batch = self.slices.batch(index)
        return mirrored(batch, is_mirrored) if self.training.flips else batch

    def _learn(self, number: int, uniforms: Float[Tensor, "batch 2"]) -> Float[Tensor, ""]:
        index, is_mirrored, mask = self.pool.draw(uniforms)
        self.model.train()
        # Slices are read outside of the graph, as they may be in a file.
        loss = self.gradients([mask, *self._batch(index, is_mirrored).tensors()]).clone()
        optimizer_step(self.learner.optimizer, self._rate(number))
        self.learner.optimizer.zero_grad()
        return loss

    def _teach(self) -> Float[Tensor, ""]:
        self.current.refresh()
        score = self.sampler.update(self.n_taught)
        self.n_taught += 1
        if not isinstance(score, Tensor) or score.numel() != 1:
            shape = f" of shape {tuple(score.shape)}" if isinstance(score, Tensor) else ""
            raise ConfigError(
                f"update of {type(self.sampler).__name__} returned {type(score).__name__}{shape}; "
                "return a tensor of one number, the mean score of its slices"
            )
        return score.detach().float().reshape(())

    def _backward(self, inputs: Sequence[Tensor]) -> Float[Tensor, ""]:
        mask, *tensors = inputs
        start = self.start.expand_as(mask)
        loss = training_loss(self.model, SliceBatch(*tensors), mask, self.training, start)
        torch.autograd.backward(loss)
        return loss


@final
class Current:
    """A copy of the trained reconstruction, and a fast view of it, updated on request.

    Memory stays in place, so that a CUDA graph that holds the view sees the present weights.
    """

    def __init__(self, model: Reconstructor, slices: SliceSet) -> None:
        self.model, self.snapshot = model, copy.deepcopy(model)
        _, n_rows, n_cols = slices.shape
        self.view = self.snapshot.frozen(
            precision="auto", n_rows=n_rows, n_cols=n_cols, device=slices.device
        )

    @torch.no_grad()
    def refresh(self) -> None:
        present = self.model.state_dict()
        for name, kept in self.snapshot.state_dict().items():
            kept.copy_(present[name])
        self.view.refresh()


@final
class MaskPool:
    """Numbers of slices, whether they are mirrored, and their masks from the start to the budget.

    The oldest leave first.
    """

    def __init__(self, slices: SliceSet, n_most: int) -> None:
        self.slices, self.memory = slices, Memory(n_most)

    def __len__(self) -> int:
        return len(self.memory)

    def clear(self) -> None:
        self.memory.rows = {}

    def add(
        self,
        index: Int[Tensor, " slice"],
        is_mirrored: Bool[Tensor, " slice"],
        masks: Bool[Tensor, "slice moment col"],
    ) -> None:
        """Add acquisitions."""
        index = index.to(self.slices.index_device)
        self.memory.add({"index": index, "is_mirrored": is_mirrored, "masks": masks})

    def draw(
        self, uniforms: Float[Tensor, "batch 2"]
    ) -> tuple[Int[Tensor, " batch"], Bool[Tensor, " batch"], Bool[Tensor, "batch col"]]:
        """Sample slices, each with whether it is mirrored and the mask of one step."""
        index, is_mirrored, masks = (self.memory.rows[x] for x in ("index", "is_mirrored", "masks"))
        entry, moment = ((uniforms[:, i] * n).long() for i, n in enumerate(masks.shape[:2]))
        here, at = (x.to(masks.device) for x in (entry, moment))
        return index[entry], is_mirrored[here], masks[here, at]

    def state(self) -> StateDict:
        return {name: value.cpu() for name, value in self.memory.rows.items()}

    def restore(self, state: StateDict) -> None:
        self.clear()
        # Versions 0.2 and 0.3 stored the random numbers.
        is_mirrored = state["numbers"][:, 0] < 0.5 if "numbers" in state else state["is_mirrored"]
        masks = state["masks"].to(self.slices.device)
        self.add(state["index"], is_mirrored.to(masks.device), masks)
