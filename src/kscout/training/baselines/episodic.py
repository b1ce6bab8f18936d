"""What AlphaZero and DDQN share: an epoch acquires episodes, then learns from a replay buffer."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.config import PolicyConfig
from kscout.core import Observation, Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.physics.sampling import start_mask
from kscout.randomness import keyed_generator, slices_of_round
from kscout.training.baselines.settings import EpisodicTraining
from kscout.training.distributed import average_gradients, share, sum_over_processes
from kscout.training.estimators import EpochResult, Estimator, PolicyTrainee
from kscout.training.replay import Memory, Rows


@final
@dataclass(frozen=True)
class Replayed:
    """Rows of a replay buffer with what it takes to observe their slices again."""

    simulator: Simulator
    maps: Complex[Tensor, "row coil image_row col"] | None
    chooser: Policy
    values: list[Tensor]
    """What the rows hold besides the slice, on the device."""

    def observe(self, mask: Bool[Tensor, "row col"], step: Int[Tensor, " row"]) -> Observation:
        """Reconstruct the slices from these columns; return what the policy sees."""
        state = self.simulator.start_from(mask, maps=self.maps)
        return replace(self.simulator.observe(self.chooser, state), step=step)


class Episodic(Estimator):
    """Trains policies one after the other, in rounds: episodes, then optimizer steps.

    A baseline implements `acquire` and `loss`.

    The settings derive from `EpisodicTraining`.
    """

    columns: ClassVar[tuple[str, ...]]
    """Names of what a row holds; the first is `index`, the slice."""
    n_images: ClassVar[int]
    """Reconstructions for each row in an optimizer step."""

    def __init__(
        self, trainees: Sequence[PolicyTrainee], slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(trainees, slices, reconstructor)
        training, horizon = trainees[0].config.training, trainees[0].config.acquisition.horizon
        assert isinstance(training, EpisodicTraining)
        self.n_episodes, self.n_updates, buffer_size = training.round_of(len(slices), horizon)
        self.memories = [Memory(buffer_size) for _ in trainees]
        self.n_parts = math.ceil(self.n_episodes / self.n_at_once)
        self.n_steps = len(trainees) * (self.n_parts + self.n_updates)

    @property
    def n_at_once(self) -> int:
        """Slices acquired at once; does not change results."""
        return {"cpu": 16, "cuda": 256}[self.device.type]

    def state(self, number: int) -> dict[str, Any]:
        return {**self.memories[number].rows}

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Restore the replay buffer."""
        if state:
            self.memories[number].add(state)

    @abstractmethod
    def acquire(
        self, number: int, epoch: int, places: Int[Tensor, " episode"], order: Int[Tensor, " all"]
    ) -> tuple[list[Rows], dict[str, Tensor], int]:
        """Acquire slices; return new rows, sums of scores, and the number of reconstructions.

        Args:
            number: of the policy.
            epoch: counted from 1.
            places: of the slices in the order of the round.
            order: the slices of the round.
        """

    @abstractmethod
    def loss(self, number: int, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Return the mean loss of a policy on rows of its replay buffer."""

    def begin_epoch(self, epoch: int) -> None:
        for trainee in self.trainees:
            trainee.begin(epoch)

    def take_step(self, epoch: int, step: int) -> None:
        """Acquire some slices of a policy's round, or take one of its optimizer steps."""
        number, at = divmod(step, self.n_parts + self.n_updates)
        training, memory = self.trainees[number].config.training, self.memories[number]
        if at < self.n_parts:
            order = slices_of_round(
                training.seed, epoch, self.n_episodes, n_slices=len(self.slices)
            )
            places = torch.arange(len(order)).split(self.n_at_once)[at]
            new, scores, n_acquired = self.acquire(number, epoch, places, order)
            memory.add(*new)
            self.add(number, **scores, n_acquired=torch.tensor(n_acquired))
            self.means = {}
            return
        at -= self.n_parts
        shape = (self.n_updates, training.batch_size)
        generator = keyed_generator("replay", training.seed, epoch)
        rows = torch.randint(len(memory), shape, generator=generator)[at]
        loss = self.update(number, (epoch - 1) * self.n_updates + at, rows)
        self.add(number, loss=loss)
        self.means = {} if number else {"loss": loss}

    def end_epoch(self, epoch: int) -> list[EpochResult]:
        """Return means over the slices and optimizer steps of the round."""
        config, results = self.trainees[0].config, []
        # Images are not stored: each row is reconstructed again.
        n_replayed = self.n_images * self.n_updates * config.training.batch_size
        n_reconstructions = len(self.trainees) * n_replayed
        for sums in self.sums:
            n_reconstructions += int(sums["n_acquired"])
            counts = {x: self.n_updates if x == "loss" else self.n_episodes for x in sums}
            results.append({x: float(sums[x]) / n for x, n in counts.items() if x != "n_acquired"})
        n_decisions = self.n_episodes * config.acquisition.horizon
        facts = {"n_reconstructions": n_reconstructions, "n_decisions": n_decisions}
        return [EpochResult(scores, facts) for scores in results]

    def update(self, number: int, n_before: int, rows: Int[Tensor, " row"]) -> Float[Tensor, ""]:
        """Take an optimizer step, each process on its share of the rows; return their mean loss.

        Args:
            number: of the policy.
            n_before: its optimizer steps before this one.
            rows: of all processes.
        """
        trainee = self.trainees[number]
        trainee.optimizer.zero_grad()
        self.views[number].refresh()
        mine, loss = share(rows), torch.zeros((), device=self.device)
        if len(mine):
            loss = self.loss(number, mine)
            loss.backward()
        weight = len(mine) / len(rows)
        average_gradients(list(trainee.module.parameters()), weight)
        trainee.optimizer.step()
        return sum_over_processes(loss.detach() * weight)

    def simulator(self, config: PolicyConfig, index: Int[Tensor, " slice"]) -> Simulator:
        """Return a simulator of some slices."""
        batch, training = self.slices.batch(index.to(self.slices.index_device)), config.training
        return Simulator(
            batch, self.reconstructor, protocol=training.protocol, metric=training.metric
        )

    def replayed(self, number: int, rows: Int[Tensor, " row"]) -> Replayed:
        """Read rows of a replay buffer, among them `mask`."""
        memory, config = self.memories[number], self.trainees[number].config
        stored = {name: memory.rows[name][rows].to(self.device) for name in self.columns[1:]}
        simulator = self.simulator(config, memory.rows["index"][rows])
        start = start_mask(config.acquisition.start, stored["mask"].shape, self.device)
        maps = simulator.calibrate(start)
        return Replayed(simulator, maps, self.views[number].chooser, [*stored.values()])
