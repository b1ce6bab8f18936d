"""Gradient noise of a trained policy: its kept checkpoints, its own estimator, its last layer."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout import policies
from kscout.acquisition.budget import check_budget
from kscout.acquisition.episode import Simulator
from kscout.compatibility import Use, check_matrix, network_notes, policy_notes, warn
from kscout.config import GradientTraining, PolicyConfig, read
from kscout.config.bounds import AtLeast
from kscout.config.records import check
from kscout.core import Policy, Protocol, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.errors import RunError
from kscout.evaluation.gradient_noise import (
    BATCH_SIZE,
    N_PASSES,
    N_TRAJECTORIES,
    PassRecord,
    measure_passes,
)
from kscout.evaluation.progress import OnStep
from kscout.names import ESTIMATORS, METRICS
from kscout.policies.views import Recomputed
from kscout.randomness import keyed_generator
from kscout.runs import RunRecord, epoch_path, read_run
from kscout.training.estimators.gradient import Batch, GradientEstimator
from kscout.training.trainee import Trainee
from kscout.weights import fingerprint


@final
@dataclass(frozen=True)
class NoiseSetting:
    """How gradient noise is measured; defaults are the paper's."""

    n_trajectories: Annotated[int, AtLeast(1)] = N_TRAJECTORIES
    """Actions per state (greedy) or trajectories per slice."""
    batch_size: Annotated[int, AtLeast(1)] = BATCH_SIZE
    n_passes: Annotated[int, AtLeast(1)] = N_PASSES
    """Passes over the training data, each with its own order and draws."""
    seed: int = 0
    protocol: Protocol | None = None
    """That of the reconstruction if None."""

    def __post_init__(self) -> None:
        check(self)


def kept_epochs(run: Path) -> list[int]:
    """Return the epochs whose weights a run folder keeps."""
    names = [path.stem.removeprefix("epoch-") for path in run.glob("epoch-*.safetensors")]
    found = sorted(int(name) for name in names if name.isdigit())
    if not found:
        raise RunError(
            f"{run} keeps no weights of single epochs; train with training.keep_epochs set"
        )
    return found


def check_is_policy(run: RunRecord) -> None:
    """Refuse a run whose gradients are not those of a policy alone."""
    if run.kind != "policy":
        raise RunError(
            f"{run.path} is a run of kind {run.kind!r}, and gradients are measured of a policy "
            "whose reconstruction stays as it is; name runs of kscout train policy"
        )


def measure_run(
    run: Path,
    slices: SliceSet,
    reconstructor: Reconstructor,
    setting: NoiseSetting | None = None,
    *,
    record: Path,
    epochs: Sequence[int] | None = None,
    on_step: OnStep | None = None,
) -> list[PassRecord]:
    """Measure the gradient's signal-to-noise ratio at checkpoints of a run, resumably.

    Args:
        run: folder of a policy run; its estimator, gamma and budget are used.
        slices: training data (paper), on the device to work on.
        reconstructor: the one that the policy was trained with.
        setting: q, batch size, passes, seed, protocol.
        record: file of one JSON line per finished pass; a stopped measurement goes on.
        epochs: which checkpoints; all that are kept where not given.
        on_step: called before and after each pass.
    """
    setting = setting or NoiseSetting()
    protocol = reconstructor.protocol_for(setting.protocol)
    slices.check_protocol(protocol)
    found = read_run(run)
    check_is_policy(found)
    config = found.config
    reconstructor = reconstructor.to(slices.device).eval()
    base = {
        "slices": slices.fingerprint,
        "reconstructor": fingerprint(reconstructor),
        "n_trajectories": setting.n_trajectories,
        "batch_size": setting.batch_size,
        "seed": setting.seed,
        "protocol": protocol,
    }
    records = []
    for epoch in kept_epochs(run) if epochs is None else epochs:
        policy = policies.load(epoch_path(run, epoch), device=slices.device)
        gradient = EstimatorGradient(policy, slices, reconstructor, config, setting)
        records += measure_passes(
            epoch,
            gradient.batches,
            gradient,
            record=record,
            setting=json.dumps({**base, "policy": fingerprint(policy)}, sort_keys=True),
            n_passes=setting.n_passes,
            on_step=on_step,
        )
    return records


def check_noise(
    runs: Mapping[str, RunRecord],
    slices: SliceSet,
    reconstructor: Reconstructor,
    *,
    protocol: Protocol,
    epochs: Sequence[int] | None = None,
) -> None:
    """Raise an error if gradients of a run cannot be measured; warn if it was trained otherwise.

    Args:
        runs: by the names that messages state.
        slices: as for `measure_run`.
        reconstructor: as for `measure_run`.
        protocol: of scores.
        epochs: as for `measure_run`.
    """
    loaded = {}
    for name, run in runs.items():
        first = (epochs or kept_epochs(run.path))[0]
        loaded[name] = policies.load(epoch_path(run.path, first))
        check_matrix(loaded[name], slices.shape, name=name, network=reconstructor)
    use = Use(slices.shape, protocol=protocol)
    notes = policy_notes(loaded.items(), reconstructor, use)
    warn([*network_notes(reconstructor, use), *notes])


def last_layer(policy: Policy) -> list[nn.Parameter]:
    """Return weight and bias of the last layer that has parameters."""
    owners = [module for module in policy.modules() if list(module.parameters(recurse=False))]
    if not owners:
        raise RunError(
            f"{type(policy).__name__} has no parameters, hence no gradients; name runs of a network"
        )
    return list(owners[-1].parameters(recurse=False))


@final
class EstimatorGradient:
    """Gradient of the last layer for one batch, by the estimator that trained the policy."""

    def __init__(
        self,
        policy: Policy,
        slices: SliceSet,
        reconstructor: Reconstructor,
        config: dict[str, Any],
        setting: NoiseSetting,
    ) -> None:
        self.policy, self.slices, self.reconstructor = policy, slices, reconstructor
        # Before the settings are read: what a run folder says imports no module of its own choice.
        kind = ESTIMATORS.recall(config["training"].get("method"), "the run")
        METRICS.recall(config["training"].get("metric", GradientTraining.metric), "the run")
        found = read(PolicyConfig, config)
        training, budget = found.training, found.acquisition
        check_budget(slices.selectable, n_initial=budget.start, horizon=budget.horizon)
        slices.check_start(budget.start)
        if not (issubclass(kind, GradientEstimator) and isinstance(training, GradientTraining)):
            raise RunError(
                f"runs of {training.method} have no gradient of a batch whose noise could be "
                "measured; choose runs of an estimator that takes one step per batch"
            )
        training = replace(training, n_trajectories=setting.n_trajectories)
        self.setting, self.config = setting, replace(found, training=training)
        trainee = Trainee.resume(policy, self.config)
        self.estimator: GradientEstimator = kind([trainee], slices, reconstructor)
        self.parameters = last_layer(policy)
        # Only the last layer's gradient is asked for: the rest need not be computed.
        policy.requires_grad_(False)
        for parameter in self.parameters:
            parameter.requires_grad_(True)

    def batches(self, pass_index: int) -> Iterator[tuple[int, SliceBatch]]:
        """Yield all slices in an order of the pass's own, numbered."""
        generator = keyed_generator("gradient noise order", self.setting.seed, pass_index)
        order = torch.randperm(len(self.slices), generator=generator)
        for number, index in enumerate(order.split(self.setting.batch_size)):
            yield number, self.slices.batch(index)

    def __call__(
        self, numbered: tuple[int, SliceBatch], pass_index: int
    ) -> Float[Tensor, " value"]:
        number, batch = numbered
        self.policy.zero_grad(set_to_none=True)
        simulator = Simulator(
            batch,
            self.reconstructor,
            protocol=self.setting.protocol,
            metric=self.config.training.metric,
        )
        generator = keyed_generator("gradient noise", self.setting.seed, pass_index, number)
        draws = self.estimator.draw(self.config, len(batch), 1, lambda _: generator)
        draws = draws.to(batch.kspace.device)
        # The one batch becomes the axis of policies.
        per_batch = [x.movedim(0, -1) for x in draws.per_batch]
        views = [Recomputed(self.policy)]
        self.estimator.gradients(Batch(views, [self.config], simulator, draws.per_slice, per_batch))
        gradients = [parameter.grad for parameter in self.parameters]
        return torch.cat([gradient.flatten() for gradient in gradients if gradient is not None])
