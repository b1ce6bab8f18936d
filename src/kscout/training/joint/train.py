"""`train_joint`: a reconstruction and its sampler, into one run folder that both loaders read."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import Tensor

from kscout import policies, reconstruction
from kscout.config import Component, JointConfig, JointTraining, ReconstructorConfig, warmed_rate
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import check_memory, resolve_device
from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.names import RECONSTRUCTORS, SAMPLERS, is_outside
from kscout.runs import Run, RunRecord, read_run
from kscout.training.algorithm import Learner
from kscout.training.convolution import convolution, to_layout
from kscout.training.distributed import refuse_processes
from kscout.training.joint.algorithm import Joint
from kscout.training.joint.sampler import Pair, Sampler
from kscout.training.loop import OnStep, fixed_convolution, opened_run, train_epochs
from kscout.training.policy import check_setting, metadata_of
from kscout.training.reconstructor import check_trainable, new_model
from kscout.training.training_run import TrainingRun
from kscout.training.validation import final_picture, final_scores
from kscout.weights import constructor_arguments, fingerprint, joint_policy_path
from kscout.zoo import zoo_names, zoo_path


def train_joint(
    config: JointConfig,
    store: Store | Path | str,
    out: str | Path,
    *,
    start: str | Path | None = None,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
) -> RunRecord:
    """Train a reconstruction together with its sampler, or resume such a training.

    The folder holds both: `kscout.reconstruction.load` and `kscout.policies.load` read it.

    Args:
        config: what to train and how.
        store: dataset with the splits `train` and `val`.
        out: the run folder.
        start: a trained reconstruction to start from, as `kscout.reconstruction.load` takes it;
            initial weights where not given.
        device: `auto`, `cpu` or `cuda`.
        on_step: called after each update, and with the epoch's record after each epoch.
    """
    refuse_processes("a joint training")
    place = resolve_device(device)
    kind: type[Sampler] = SAMPLERS.resolve(config.training.method)
    if is_outside(config.training.method):
        _check_whole(kind)
    model, config = _reconstructor(config, start)
    store = Store.open(store)
    slices, held_out = (store.split(name).to(place) for name in ("train", "val"))
    config = replace(config, training=config.training.for_slices(len(slices)))
    _check(config, kind, model, (slices, held_out))
    inputs = {"store": store.fingerprint}
    if start is not None:
        inputs["start"] = fingerprint(model)
    policy = kind.make_policy(config, slices)
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"make_policy of {kind.__name__} returned {type(policy).__name__}; return a policy"
        )
    pair = Pair(model, policy).to(place)
    with opened_run(out, config, inputs, place) as run:
        assert run is not None
        if not run.is_finished:
            _train(run, pair, config, kind, slices, held_out, on_step)
    return read_run(out)


def _train(
    run: Run,
    pair: Pair,
    config: JointConfig,
    kind: type[Sampler],
    slices: SliceSet,
    held_out: SliceSet,
    on_step: OnStep,
) -> None:
    backend = fixed_convolution(run, config.training.convolution, slices.device, trains=True)
    to_layout(pair.reconstructor, backend)
    learner = Learner.of(pair, config)
    save = partial(_save, config, run.provenance.inputs)
    training_run = TrainingRun.resume(learner, run, save)

    def validate(algorithm: Joint) -> dict[str, float]:
        algorithm.current.refresh()
        policy = algorithm.evaluated().policy.eval()
        return final_scores(policy, algorithm.current.view, held_out, config)

    def picture(algorithm: Joint) -> Tensor:
        return final_picture(algorithm.evaluated().policy, algorithm.current.view, held_out, config)

    with convolution(backend):
        train_epochs(
            Joint(learner, slices, kind), training_run, validate, picture=picture, on_step=on_step
        )


def _save(config: JointConfig, inputs: dict[str, str], path: Path, pair: Pair, epoch: int) -> None:
    common: JsonObject = {**metadata_of(config, epoch), "store": inputs["store"]}
    reconstruction.save(path, pair.reconstructor, extra={**common, "joint": True})
    extra = {**common, "reconstructor": fingerprint(pair.reconstructor)}
    policies.save(joint_policy_path(path), pair.policy, extra=extra)


def _reconstructor(
    config: JointConfig, start: str | Path | None
) -> tuple[Reconstructor, JointConfig]:
    """Return the reconstruction to train, and the settings with its name and arguments."""
    protocol, wanted = config.training.protocol, config.reconstructor
    if start is None:
        wanted = wanted or ReconstructorConfig.reconstructor
        model = new_model(wanted, config.training.seed, protocol)
        return model, replace(config, reconstructor=wanted)
    model = _started(start)
    name, arguments = RECONSTRUCTORS.name_of(type(model)), constructor_arguments(model)
    asked = {} if wanted is None else wanted.arguments
    others = {key: value for key, value in asked.items() if arguments.get(key) != value}
    if wanted is not None and (wanted.name != name or others):
        shown = [f" with {one}" if others else "" for one in (arguments, dict(asked))]
        raise ConfigError(
            f"{start} is a {name}{shown[0]}, and a {wanted.name}{shown[1]} was requested; leave "
            "[reconstructor] and --model out, or start from nothing"
        )
    if model.protocol not in (None, protocol):
        raise ConfigError(
            f"{start} was trained for protocol {model.protocol} and this training is for "
            f"{protocol}; add --protocol {model.protocol}, or start from a network for {protocol} "
            "or from initial weights (without --reconstructor)"
        )
    check_trainable(model, protocol)
    plain = {key: value for key, value in arguments.items() if value is not None}
    return model, replace(config, reconstructor=Component(name, plain))


def _started(start: str | Path) -> Reconstructor:
    is_known = isinstance(start, str) and (start in RECONSTRUCTORS or zoo_path(start) is not None)
    if not is_known and not Path(start).exists():
        raise ConfigError(
            f"{start} is neither a file nor a run folder to start from; give one, or a network of "
            f"the zoo: {', '.join(zoo_names('reconstructor'))}; or start from nothing with --model"
        )
    model = reconstruction.load(start).train()
    if not reconstruction.is_learnable(model):
        raise ConfigError(
            f"{start} has nothing to train; start from a run folder, a weights file or a network "
            f"of the zoo: {', '.join(zoo_names('reconstructor'))}"
        )
    return model


def _check_whole(kind: type[Sampler]) -> None:
    lacking = sorted(kind.__abstractmethods__)
    if not kind.looks and kind.make_policy.__func__ is Sampler.make_policy.__func__:  # type: ignore[attr-defined]
        lacking.append("make_policy")
    if kind.state is not Sampler.state and kind.restore is Sampler.restore:
        lacking.append("restore, which takes back what its state gives")
    if lacking:
        raise ConfigError(
            f"the sampler {kind.__name__} (looks = {kind.looks}) lacks {', '.join(lacking)}; "
            "docs/how-to/train-jointly.md shows a complete one"
        )


def _tell_small_steps(training: JointTraining) -> None:
    """Warn if a training ends before its learning rate has risen."""
    wanted, n_updates, n_warm = training.learning_rate, training.n_updates, training.n_warm
    largest = max(warmed_rate(wanted, number, n_updates, n_warm) for number in range(n_updates))
    if largest < wanted / 2:
        logging.getLogger(__name__).warning(
            f"step sizes rise over training.n_warm = {n_warm} updates, and there are {n_updates}: "
            f"none exceeds {largest:.1g}, where {wanted:g} is requested; lower training.n_warm"
        )


def _check(
    config: JointConfig,
    kind: type[Sampler],
    model: Reconstructor,
    splits: tuple[SliceSet, SliceSet],
) -> None:
    training = config.training
    check_setting(config, splits)
    _tell_small_steps(training)
    own = SAMPLERS[training.method].policy
    if not kind.looks and config.policy.name != own:
        raise ConfigError(
            f"the sampler {training.method} has a policy of its own, and {config.policy.name!r} "
            "was requested; leave --policy out, or use --method dense"
        )
    n_coils, n_rows, n_cols = splits[0].shape
    n_images = max(training.batch_size, min(training.n_refill, 256))
    n_masks = (training.n_pool + training.n_refill) * (config.acquisition.horizon + 1)
    n_image = model.n_bytes(n_coils, n_rows, n_cols)
    n_bytes = n_images * n_image + n_masks * n_cols + kind.n_bytes(config, splits[0], n_image)
    check_memory(
        n_bytes,
        splits[0].device,
        f"a batch of {n_images:,} images of {n_rows}x{n_cols}, {n_masks:,} masks and what "
        f"{training.method} takes",
        "lower training.batch_size, n_refill, n_pool, or what the sampler tries and takes at once",
    )
