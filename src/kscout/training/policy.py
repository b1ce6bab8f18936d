"""Training of a policy on a frozen reconstruction."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from kscout.acquisition.plan import check_budget, training_plan
from kscout.acquisition.rollout import action_uniforms, rollout
from kscout.assemble import make_policy
from kscout.columns import columns_text, parse_columns
from kscout.compatibility import Use, network_notes, protocol_note, warn
from kscout.config import AcquisitionSetting, JointConfig, PolicyConfig
from kscout.contracts.policies import check_learnable
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import check_memory, resolve_device
from kscout.errors import ConfigError
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, SAMPLERS, metric_word
from kscout.policies import load as load_policy
from kscout.policies import save
from kscout.policies.ensemble import EnsemblePolicy
from kscout.reconstruction import load
from kscout.runs import RunRecord, read_run
from kscout.training.algorithm import Estimator, Learner
from kscout.training.convolution import convolution, to_layout
from kscout.training.distributed import refuse_processes
from kscout.training.loop import OnStep, fixed_convolution, opened_run, train_epochs
from kscout.training.starting import begin_from, network_of
from kscout.training.training_run import TrainingRun
from kscout.training.validation import final_picture, zero_filled_note
from kscout.weights import fingerprint

_VALIDATION_BATCH = {"cpu": 16, "cuda": 256}


def train_policy(
    config: PolicyConfig,
    store: Store | Path | str,
    reconstructor: str | Path,
    out: str | Path,
    *,
    start: str | Path | None = None,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
) -> RunRecord:
    """Train one policy on a frozen reconstruction, or resume an interrupted training.

    Args:
        config: settings.
        store: dataset with the splits `train` and `val`.
        reconstructor: what `kscout.reconstruction.load` takes; it stays frozen.
        out: the run folder.
        start: a trained policy whose weights are the initial weights, as `kscout.policies.load`
            takes it; its network is used. Not given: random initial weights.
        device: `auto`, `cpu` or `cuda`.
        on_step: called after each optimizer step, and with the epoch's record after each epoch.
    """
    refuse_processes("a policy training")
    estimator = ESTIMATORS.resolve(config.training.method)
    _check_groups(config, estimator)
    place, frozen, begun = resolve_device(device), load(reconstructor), None
    config, store = _under_protocol_of(frozen, config), Store.open(store)
    inputs = {"store": store.fingerprint, "reconstructor": fingerprint(frozen)}
    slices, held_out = (store.split(name).to(place) for name in ("train", "val"))
    if start is not None:
        begun = load_policy(start)
        config = network_of(begun, start, config, _sizes(config, slices))
        inputs["start"] = fingerprint(begun)
    check_setting(config, (slices, held_out))
    note = _protocol_note(config, frozen, slices)
    _check_memory(config, slices)
    # Before the folder is made: a policy that cannot be trained leaves nothing behind.
    policy = new_policy(config, slices).to(place)
    if isinstance(policy, EnsemblePolicy):
        # As long as it has no weights of its own, its members are all that it consists of.
        inputs["members"] = fingerprint(policy)
    if begun is not None:
        begin_from(policy, begun)
    with opened_run(out, config, inputs, place, note=note) as run:
        learner = Learner.of(policy, config)
        learner.start = begun
        training_run = TrainingRun.resume(learner, run, partial(_save, config, inputs))
        if not training_run.is_finished:
            _train(training_run, estimator, slices, held_out, frozen, on_step)
    return read_run(out)


def _train(
    training_run: TrainingRun[Policy, PolicyConfig],
    estimator: type[Estimator],
    slices: SliceSet,
    held_out: SliceSet,
    reconstructor: Reconstructor,
    on_step: OnStep,
) -> None:
    learner = training_run.learner
    training, device = learner.config.training, slices.device
    _, n_rows, n_cols = slices.shape
    frozen = reconstructor.frozen(
        precision=training.precision, n_rows=n_rows, n_cols=n_cols, device=device
    )
    backend = fixed_convolution(training_run.folder, training.convolution, device, trains=False)
    learned = {"train": slices, "val": held_out}[training.learns_from]
    acquisition = learner.config.acquisition
    use = (acquisition.start, acquisition.horizon, frozen.protocol_for(training.protocol))
    note = zero_filled_note(frozen, held_out, *use)
    if note is not None:
        warn([note])
    if device.type == "cpu":
        # On CUDA what is frozen has chosen its own, which torch.compile may count on.
        to_layout(frozen, backend)
    with convolution(backend):
        train_epochs(
            estimator(learner, learned, frozen),
            training_run,
            partial(_validation, held_out),
            picture=partial(_picture, held_out),
            device=device,
            on_step=on_step,
        )


def _validation(slices: SliceSet, estimator: Estimator) -> dict[str, float]:
    estimator.evaluated().eval()
    held_out = estimator.validated(slices)
    return final_scores(estimator.chooser(), estimator.reconstructor, held_out, estimator.config)


def _picture(slices: SliceSet, estimator: Estimator) -> Tensor:
    estimator.evaluated().eval()
    held_out = estimator.validated(slices)
    return final_picture(estimator.chooser(), estimator.reconstructor, held_out, estimator.config)


@torch.no_grad()
def final_scores(
    policy: Policy,
    reconstructor: Reconstructor,
    slices: SliceSet,
    config: PolicyConfig | JointConfig,
) -> dict[str, float]:
    """Return mean final scores of one trajectory per held-out slice, with fixed random numbers.

    The training's metric first, then SSIM.
    """
    plan, size = training_plan(config), _VALIDATION_BATCH[slices.device.type]
    draws = action_uniforms(len(slices), 1, plan.horizon, config.training.seed, "validation")
    index = torch.arange(len(slices), device=slices.index_device)
    total = torch.zeros(2, device=slices.device)
    for part, uniforms in zip(index.split(size), draws.to(slices.device).split(size), strict=True):
        simulator = plan.simulator(slices.batch(part), reconstructor)
        found = rollout(policy, simulator, plan, uniforms=uniforms)
        scores = (found.ssim if found.score is None else found.score, found.ssim)
        total += torch.stack([x[:, 0, -1].sum() for x in scores])
    names = (f"val_{metric_word(plan.metric)}", "val_ssim")
    return dict(zip(names, (total / len(slices)).tolist(), strict=True))


def _save(
    config: PolicyConfig, inputs: dict[str, str], path: Path, policy: Policy, epoch: int
) -> None:
    training, setting = config.training, config.acquisition
    extra: JsonObject = {
        "epoch": epoch,
        "method": training.method,
        **training.varied,
        **_several(config),
        "seed": training.seed,
        "protocol": training.protocol,
        "n_initial": setting.n_initial,
        **({} if setting.initial is None else {"initial": setting.initial}),
        "horizon": setting.horizon,
        **({} if setting.group == 1 else {"columns_per_step": setting.group}),
        **inputs,
    }
    save(path, policy, extra=extra)


def _several(config: PolicyConfig | JointConfig) -> dict[str, list[int]]:
    """Return matrix sizes, starts and budgets, if the training has several."""
    drawn = {name: getattr(config.training, name, ()) for name in ("sizes", "starts", "horizons")}
    return {name: list(values) for name, values in drawn.items() if values}


def new_policy(config: PolicyConfig | JointConfig, slices: SliceSet) -> Policy:
    """Build the policy to train, with its initial weights."""
    policy = make_policy(config.policy, seed=config.training.seed, **_sizes(config, slices))
    _check_trainable(config.policy.name, policy)
    method = config.training.method
    if isinstance(policy, EnsemblePolicy) and method in _KNOWN - {"ensemble"}:
        raise ConfigError(
            f"{method} would change the members of an ensemble; train it with --method ensemble"
        )
    if policy.needs_gain_estimator and method in _BY_SCORES:
        raise ConfigError(
            f"policy {config.policy.name!r} tries columns, so its scores have no gradients with "
            "respect to its weights; train it with --method posterior"
        )
    return policy


def _sizes(config: PolicyConfig | JointConfig, slices: SliceSet) -> JsonObject:
    """Return arguments of a policy that follow from images and acquisition."""
    n_initial, horizon = config.spanned
    n_rows, n_cols = slices.shape[1:]
    own = {"n_cols": n_cols, "n_rows": n_rows, "n_initial": n_initial, "horizon": horizon}
    drawn = _several(config)
    starts = {config.acquisition.n_initial, *drawn.get("starts", ())} - {n_initial}
    sizes = {"known_cols": drawn["sizes"]} if "sizes" in drawn else {}
    return {**own, **sizes, "known_starts": sorted(starts)}


def _under_protocol_of(reconstructor: Reconstructor, config: PolicyConfig) -> PolicyConfig:
    """Return settings with the protocol of a reconstruction, if they name none."""
    training = config.training
    protocol = reconstructor.protocol_for(training.protocol)
    return replace(config, training=replace(training, protocol=protocol))


def _protocol_note(
    config: PolicyConfig, reconstructor: Reconstructor, slices: SliceSet
) -> str | None:
    """Warn if a reconstruction was trained for other data; return the sentence on the protocol."""
    setting = config.acquisition
    start = None if setting.initial is None else columns_text(parse_columns(setting.initial))
    use = Use(slices.shape, setting.n_initial, setting.horizon, config.training.protocol, start)
    warn(network_notes(reconstructor, use))
    return protocol_note(reconstructor, use)


def check_setting(config: PolicyConfig | JointConfig, splits: Sequence[SliceSet]) -> None:
    """Raise an error for a budget beyond some slice; warn of settings for other data."""
    setting = config.acquisition
    for split in splits:
        if config.training.protocol is not None:
            split.check_protocol(config.training.protocol)
        check_budget(split.selectable, n_initial=setting.start, horizon=setting.horizon)
        split.check_start(setting.start)
        _check_span(config, split)
    note = _size_note(setting, splits[0].n_cols)
    if note is not None:
        logging.getLogger(__name__).warning(note)


def _check_groups(config: PolicyConfig, estimator: type[Estimator]) -> None:
    """Reject several columns per step if the estimator scores columns independently."""
    if config.acquisition.group == 1 or estimator.takes_groups:
        return
    others = [name for name in ESTIMATORS.entries if ESTIMATORS.resolve(name).takes_groups]
    raise ConfigError(
        f"{config.training.method} scores columns independently and cannot learn to choose "
        f"{config.acquisition.group} at a time; train with --method {' or '.join(others)}, or "
        "leave out --columns-per-step, which `evaluate` takes for every policy"
    )


def _check_span(config: PolicyConfig | JointConfig, split: SliceSet) -> None:
    """Raise an error for starts and budgets beyond the columns of some slice."""
    n_initial, horizon = config.spanned
    if (n_initial, horizon) != (config.acquisition.n_initial, config.acquisition.horizon):
        check_budget(split.selectable, n_initial=n_initial, horizon=horizon)
        split.check_start(n_initial)
    for start in getattr(config.training, "starts", ()):
        check_budget(split.selectable, n_initial=start, horizon=0)


def _check_memory(config: PolicyConfig, slices: SliceSet) -> None:
    """Raise an error if the random numbers of an epoch do not fit into memory."""
    training, horizon = config.training, config.acquisition.horizon
    check_memory(
        training.n_bytes(len(slices), horizon, math.prod(slices.shape)),
        slices.device,
        f"trying {training.n_tried:,} columns at each of {horizon} steps on {len(slices):,} slices",
        "lower --trajectories (or training.n_random and n_repeated) or --batch-size",
    )


def _size_note(setting: AcquisitionSetting, n_cols: int) -> str | None:
    """Return a warning if a setting is meant for another image size."""
    if setting.size in (None, n_cols):
        return None
    return (
        f"the setting {setting.n_initial} + {setting.horizon} columns is meant for {setting.size}, "
        f"and the images have {n_cols}; name --n-initial and --steps, or another --preset, if it "
        "was not chosen for them"
    )


def _check_trainable(name: str, policy: Policy) -> None:
    """Raise an error for a policy without weights, or with scores that differ between passes."""
    if not list(policy.parameters()):
        raise ConfigError(
            f"policy {name!r} has nothing to train; use a learnable one, e.g. policy.name = 'conv'"
        )
    check_learnable(policy, name)


_KNOWN = {*ESTIMATORS.entries, *SAMPLERS.entries}
"""Methods of kscout; those of other packages are not included."""
_BY_SCORES = _KNOWN - {"posterior", "ensemble"}
"""Methods that train with the gradients of scores."""
