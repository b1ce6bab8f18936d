"""The common part of AlphaZero and DDQN: an epoch of episodes, then steps on a replay buffer."""

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.acquisition.plan import training_plan
from kscout.core import Observation, Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.json_types import StateDict
from kscout.physics.sampling import start_mask
from kscout.randomness import keyed_generator, slices_of_round
from kscout.training.algorithm import EpochResult, Estimator, PolicyLearner
from kscout.training.baselines.settings import EpisodicTraining
from kscout.training.states import Memory, Rows


@final
@dataclass(frozen=True)
class Replayed:
    """Rows of a replay buffer, and the simulator that observes their slices again."""

    simulator: Simulator
    maps: Complex[Tensor, "row coil image_row col"] | None
    chooser: Policy
    values: list[Tensor]
    """Contents of the rows except the slice, on the device."""

    def observe(self, mask: Bool[Tensor, "row col"], step: Int[Tensor, " row"]) -> Observation:
        """Reconstruct the slices from these columns; return what the policy sees."""
        state = self.simulator.start_from(mask, maps=self.maps)
        return replace(self.simulator.observe(self.chooser, state, n_left=None), step=step)


class Episodic(Estimator):
    """Trains a policy in rounds: episodes, then optimizer steps on the replay buffer.

    A baseline implements `acquire` and `loss`. The settings derive from `EpisodicTraining`.
    """

    training: EpisodicTraining
    columns: ClassVar[tuple[str, ...]]
    """Names of the contents of a row; the first is `index`, the slice."""
    n_images: ClassVar[int]
    """Reconstructions for each row in an optimizer step."""

    def __init__(
        self, learner: PolicyLearner, slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(learner, slices, reconstructor)
        horizon = learner.config.acquisition.horizon
        self.n_episodes, self.n_updates, buffer_size = self.training.round_of(len(slices), horizon)
        self.memory = Memory(buffer_size)
        self.n_parts = math.ceil(self.n_episodes / self.n_at_once)
        self.n_steps = self.n_parts + self.n_updates

    @property
    def n_at_once(self) -> int:
        """Slices acquired at once; does not change results."""
        return {"cpu": 16, "cuda": 256}[self.device.type]

    def state(self) -> StateDict:
        return {**self.memory.rows}

    def restore(self, state: StateDict) -> None:
        if state:
            self.memory.add(state)

    @abstractmethod
    def acquire(
        self, epoch: int, places: Int[Tensor, " episode"], order: Int[Tensor, " all"]
    ) -> tuple[list[Rows], dict[str, Tensor], int]:
        """Acquire slices; return new rows, sums of scores, and the number of reconstructions.

        Places are those of the slices in the order of the round.
        """

    @abstractmethod
    def loss(self, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Return the mean loss of the policy on rows of the replay buffer."""

    def begin_epoch(self, epoch: int) -> None:
        self.learner.begin(epoch)

    def take_step(self, epoch: int, step: int) -> None:
        """Acquire some slices of the round, or take one of its optimizer steps."""
        training = self.training
        if step < self.n_parts:
            order = slices_of_round(
                training.seed, epoch, self.n_episodes, n_slices=len(self.slices)
            )
            places = torch.arange(len(order)).split(self.n_at_once)[step]
            new, scores, n_acquired = self.acquire(epoch, places, order)
            self.memory.add(*new)
            self.add(**scores, n_acquired=torch.tensor(n_acquired))
            self.means = {}
            return
        at = step - self.n_parts
        shape = (self.n_updates, training.batch_size)
        generator = keyed_generator("replay", training.seed, epoch)
        rows = torch.randint(len(self.memory), shape, generator=generator)[at]
        self.means = {"loss": self.update((epoch - 1) * self.n_updates + at, rows)}
        self.add(**self.means)

    def end_epoch(self, epoch: int) -> EpochResult:
        """Return means over the slices and optimizer steps of the round."""
        sums = dict(self.sums)
        # Images are not stored: each row is reconstructed again.
        n_replayed = self.n_images * self.n_updates * self.training.batch_size
        n_images = int(sums.pop("n_acquired")) + n_replayed
        n_decisions = self.n_episodes * self.config.acquisition.horizon
        facts = {"n_reconstructions": n_images, "n_decisions": n_decisions}
        counts = {name: self.n_updates if name == "loss" else self.n_episodes for name in sums}
        return EpochResult({name: float(sums[name]) / n for name, n in counts.items()}, facts)

    def update(self, n_before: int, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Take an optimizer step on rows of the replay buffer; return their mean loss."""
        self.learner.optimizer.zero_grad()
        self.view.refresh()
        loss = self.loss(rows)
        loss.backward()
        self.learner.optimizer.step()
        return loss.detach()

    def simulator(self, index: Int[Tensor, " slice"]) -> Simulator:
        batch = self.slices.batch(index.to(self.slices.index_device))
        return training_plan(self.config).simulator(batch, self.reconstructor)

    def replayed(self, rows: Int[Tensor, " row"]) -> Replayed:
        """Read rows of the replay buffer, among them `mask`."""
        memory = self.memory
        stored = {name: memory.rows[name][rows].to(self.device) for name in self.columns[1:]}
        simulator = self.simulator(memory.rows["index"][rows])
        start = start_mask(self.config.acquisition.start, stored["mask"].shape, self.device)
        maps = simulator.calibrate(start)
        return Replayed(simulator, maps, self.view.chooser, [*stored.values()])
