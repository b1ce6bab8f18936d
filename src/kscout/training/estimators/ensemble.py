"""Weights of an ensemble, by non-negative least squares on slices with known gains.

Slices are acquired by the members, each by one of them in turn. At each step the columns with the
highest scores of some member are tried, and their gains are regressed on the gains that the members
predict. Both are centered within each state, because a constant over its columns decides nothing.
States of adjacent steps count, too. A constant makes the sum a gain, which rules to stop need.

From few columns the largest immediate gain is a poor choice. With `training.ordered` the first
steps are those of a fixed order; of several numbers of steps the one with the best final scores is
selected.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.compatibility import check_matrix, check_real
from kscout.config import EnsembleTraining, PolicyConfig
from kscout.core import Reconstructor
from kscout.data.kinds import IMAGES
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError
from kscout.names import metric_word
from kscout.policies.ensemble import EnsemblePolicy
from kscout.randomness import keyed_generator
from kscout.training.distributed import from_main, share, sum_over_processes
from kscout.training.estimators import Estimator, PolicyTrainee
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.least_squares import Sums
from kscout.training.loop import EpochResult

_N_AT_ONCE = {"cpu": 4, "cuda": 48}
"""Slices that are acquired at a time."""


@final
class Ensemble(Estimator):
    """Fits the weights of the members of an `EnsemblePolicy`."""

    settings = EnsembleTraining

    def __init__(
        self, trainees: Sequence[PolicyTrainee], slices: SliceSet, reconstructor: Reconstructor
    ) -> None:
        super().__init__(trainees, slices, reconstructor)
        self.n_slices = min(_training(trainees[0].config).n_slices, len(slices))
        self.n_batches = -(-self.n_slices // _N_AT_ONCE[self.device.type])
        n_parts = len(_numbers(trainees[0].config))
        self.n_steps = len(trainees) * n_parts * self.n_batches
        self.order: list[int] = []
        for trainee in trainees:
            self._check(trainee)

    def _check(self, trainee: PolicyTrainee) -> None:
        """Reject members and settings that cannot be fitted on these slices."""
        policy, metric = _policy(trainee), trainee.config.training.metric
        longest, n_steps = _numbers(trainee.config)[-1], trainee.config.acquisition.horizon
        if longest >= n_steps:
            raise ConfigError(
                f"training.ordered leaves no step to fit: {longest} of {n_steps}; give fewer steps"
            )
        if policy.order:
            raise ConfigError(
                f"policy.order is {list(policy.order)}, but the training fits it; leave it out, "
                "and give its length as training.ordered"
            )
        kind = None if self.slices.kind == IMAGES.name else f"the slices are {self.slices.kind}"
        check_real(policy, kind)
        check_matrix(policy, self.slices.shape, network=self.reconstructor)
        if policy.needs_judge and metric != "ssim":
            raise ConfigError(
                f"a member tries columns by SSIM, and the weights are fitted for {metric}; leave "
                "out --metric, or give policies that try none"
            )

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Go on with an order, or find one."""
        config = self.trainees[number].config
        if number == 0 and (longest := _numbers(config)[-1]):
            self.order = state["order"] if state else self._fitted_order(config, longest)

    def _fitted_order(self, config: PolicyConfig, n_steps: int) -> list[int]:
        training = _training(config)
        found = fit_fixed_order(
            self.slices,
            self.reconstructor,
            n_initial=config.acquisition.start,
            horizon=n_steps,
            n_slices_per_step=training.n_baseline_slices,
            protocol=training.protocol,
            metric=training.metric,
            device=self.device,
        )
        # Near a tie another process may come to another order.
        return from_main(found.order)

    def state(self, number: int) -> dict[str, Any]:
        return {"order": self.order} if self.order else {}

    def validated(self, slices: SliceSet) -> SliceSet:
        """Return some of the slices: members may try many columns of each."""
        return slices.sample(_training(self.trainees[0].config).n_validated)

    def begin_epoch(self, epoch: int) -> None:
        """Draw which slices are acquired together by each trainee."""
        self.batches = [[*self._batches(trainee.config, epoch)] for trainee in self.trainees]

    @torch.no_grad()
    def take_step(self, epoch: int, step: int) -> None:
        """Acquire some slices, for one trainee and one number of first steps after the other."""
        number, rest = divmod(step, self.n_steps // len(self.trainees))
        part, at = divmod(rest, self.n_batches)
        trainee, known = self.trainees[number], self.sums[number]
        config, policy = trainee.config, _policy(trainee).eval()
        n_first = _numbers(config)[part]
        self._begin(policy, config, n_first)
        if f"scores {part}" not in known:
            empty = Sums.empty(config.acquisition.horizon, len(policy.members), self.device)
            scores = torch.zeros((), dtype=torch.float64, device=self.device)
            known |= {f"{x} {part}": y for x, y in {**vars(empty), "scores": scores}.items()}
        index, by = self.batches[number][at]
        if len(mine := share(index)):
            sums = self._sums(number, part)
            known[f"scores {part}"] += self._acquire(policy, config, mine, share(by), sums)

    def _sums(self, number: int, part: int) -> Sums:
        """Return the sums of a trainee for one number of first steps."""
        names = [field.name for field in fields(Sums)]
        return Sums(*(self.sums[number][f"{name} {part}"] for name in names))

    @torch.no_grad()
    def end_epoch(self, epoch: int) -> list[EpochResult]:
        """Set the weights of each trainee."""
        results = []
        for number, trainee in enumerate(self.trainees):
            config, policy = trainee.config, _policy(trainee)
            numbers, known = _numbers(config), self.sums[number]
            totals = [sum_over_processes(known[f"scores {x}"]) for x in range(len(numbers))]
            means = [float(total) / self.n_slices for total in totals]
            # Of equal ones the first, which decides most by what it sees.
            best = max(range(len(numbers)), key=means.__getitem__)
            mean, sums = means[best], self._sums(number, best).over_processes()
            self._begin(policy, config, numbers[best])
            for own, value in zip((policy.weights, policy.constants), sums.solved(), strict=True):
                own.copy_(value)
            n_decisions = self.n_slices * sum(config.acquisition.horizon - x for x in numbers)
            n_tried = n_decisions * (1 + len(policy.members) * _training(config).n_best)
            n_images = n_tried + self.n_slices * sum(numbers)
            facts = {"n_reconstructions": n_images, "n_decisions": n_decisions}
            name = f"train_{metric_word(config.training.metric)}"
            results.append(EpochResult({name: mean}, facts))
        return results

    def _begin(self, policy: EnsemblePolicy, config: PolicyConfig, n_first: int) -> None:
        """Let so many columns of the order come first; sums of another metric tell no SSIM."""
        policy.begin_with(self.order[:n_first], self.slices.n_cols)
        if config.training.metric != "ssim":
            policy.gain_units = ()

    def _batches(
        self, config: PolicyConfig, epoch: int
    ) -> Iterator[tuple[Int[Tensor, " slice"], Int[Tensor, " slice"]]]:
        """Yield which slices are acquired together, and their numbers, which say by whom."""
        generator = keyed_generator(config.training.seed, epoch, "weighed slices")
        drawn = torch.randperm(len(self.slices), generator=generator)[: self.n_slices]
        numbers = torch.arange(self.n_slices, device=self.device)
        n_at_once = _N_AT_ONCE[self.device.type]
        parts = (drawn.to(self.slices.index_device).split(n_at_once), numbers.split(n_at_once))
        yield from zip(*parts, strict=True)

    def _acquire(
        self,
        policy: EnsemblePolicy,
        config: PolicyConfig,
        index: Int[Tensor, " slice"],
        number: Int[Tensor, " slice"],
        sums: Sums,
    ) -> Float[Tensor, ""]:
        """Acquire slices, try columns of each step, and return the sum of their final scores."""
        training, setting = _training(config), config.acquisition
        how = {"protocol": training.protocol, "metric": training.metric}
        simulator = Simulator(self.slices.batch(index), self.reconstructor, **how)  # type: ignore[arg-type]
        state = simulator.start(setting.start)
        slices = torch.arange(len(index), device=self.device)
        for step in range(setting.horizon):
            seen = simulator.observe(policy, state, n_left=setting.horizon - step)
            blocked = simulator.blocked(state)
            if step < len(policy.order):
                scores = policy.along_order(seen).masked_fill(blocked, -torch.inf)
                state = simulator.acquire(state, scores.argmax(dim=-1))
                continue
            expected = policy.expected(seen).masked_fill(blocked, -torch.inf)
            n_best = min(training.n_best, blocked.shape[-1])
            best = expected.topk(n_best, dim=-1).indices
            # Where too few are left, the best stands in for the others.
            is_left = ~blocked.expand(expected.shape).gather(-1, best)
            best = torch.where(is_left, best, best[..., :1])
            columns = best.transpose(0, 1).flatten(1)
            gains = simulator.score_columns(state, columns) - state.score[:, None]
            told = expected.gather(-1, columns.expand(len(expected), -1, -1))
            sums.add(step, told, gains)
            state = simulator.acquire(state, best[number % len(best), slices, 0])
        return state.score.double().sum()


def _numbers(config: PolicyConfig) -> list[int]:
    """Return numbers of first steps that are those of an order, the lowest first."""
    return sorted(set(_training(config).ordered)) or [0]


def _policy(trainee: PolicyTrainee) -> EnsemblePolicy:
    policy = trainee.module
    if not isinstance(policy, EnsemblePolicy):
        raise ConfigError(
            f"ensemble fits the weights of several policies, and {type(policy).__name__} is one; "
            "use policy.name = 'ensemble', or another --method"
        )
    return policy


def _training(config: PolicyConfig) -> EnsembleTraining:
    assert isinstance(config.training, EnsembleTraining)
    return config.training
