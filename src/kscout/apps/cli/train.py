"""`kscout train`: a reconstruction, a policy, or both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from kscout.apps.cli.console import Commands
from kscout.apps.cli.options import AsJson, Device, from_fields, with_fields
from kscout.apps.cli.progress import print_runs, training_progress
from kscout.config import (
    ACQUISITIONS,
    RECONSTRUCTOR_TRAININGS,
    AcquisitionSetting,
    GreedyTraining,
    JointConfig,
    JointTraining,
    NonGreedyTraining,
    PolicyConfig,
    ReconstructorConfig,
    ReconstructorTraining,
    estimators_with,
    given,
    section,
    settle,
)
from kscout.config.bounds import Between, Form
from kscout.errors import ConfigError, unknown_name
from kscout.json_types import JsonObject
from kscout.names import (
    ESTIMATORS,
    POLICIES,
    RECONSTRUCTION_WORDS,
    SAMPLERS,
    trainable_reconstructions,
)
from kscout.names.renamed import check_current

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="""Train a reconstruction, a policy, or both.

    Example: kscout train reconstructor --data stores/knee --out runs/unet""",
)
_Config = TypeVar("_Config", PolicyConfig, JointConfig)
_NEW_NETWORK = f"{', '.join(trainable_reconstructions())} or module:Class."


_Seeds = Annotated[int, Between(1, 1000), Form(help="Number of seeds to train, in OUT/seed-N.")]


@dataclass(frozen=True, kw_only=True)
class _TrainingOptions:
    data: Path
    """Dataset with the splits train and val."""
    out: Path
    """Run folder; an interrupted run resumes."""
    config: Path | None = None
    """TOML file; changes the preset."""
    settings: Annotated[tuple[str, ...], Form(flags="--set")] = ()
    """section.key=value; may be repeated."""
    device: Device = "auto"
    tensorboard: bool = False
    """Write events: settings, the loss of updates, scores and pictures of epochs."""
    as_json: AsJson = False


@dataclass(frozen=True, kw_only=True)
class _ReconstructorOptions(_TrainingOptions):
    preset: str = "unet"
    """unet: protocol blind, mirrored slices, a step size that falls to zero; paper-unet: the
    paper's training, protocol paper."""
    model: Annotated[str | None, Form(help=f"Network: {_NEW_NETWORK}")] = None
    channels: int | None = None
    """Features of the first layer. (default: 16)"""


@app.command("reconstructor")
@with_fields(
    ReconstructorTraining,
    section="training",
    names="epochs=n_epochs batch_size seed protocol convolution",
)
@from_fields
def reconstructor(options: _ReconstructorOptions, **flags: Any) -> None:  # noqa: ANN401 - settings
    """Train a reconstruction on fully sampled slices with random masks.

    An interrupted training resumes from its last update. Several processes:
    torchrun --nproc-per-node 2 -m kscout train reconstructor ...

    Example: kscout train reconstructor --data stores/knee --out runs/unet --epochs 10
    """
    from kscout.data.store import Store
    from kscout.training.reconstructor import train_reconstructor

    flags |= {"reconstructor.name": options.model, "reconstructor.n_channels": options.channels}
    store = Store.open(options.data)
    resolved = resolve_reconstructor(options.preset, options.config, options.settings, flags)
    with training_progress(options.out, options.tensorboard) as on_step:
        run = train_reconstructor(
            resolved, store, options.out, device=options.device, on_step=on_step
        )
    print_runs([run], as_json=options.as_json)


def resolve_reconstructor(
    preset: str, file: Path | None, settings: Sequence[str], flags: JsonObject
) -> ReconstructorConfig:
    """Lay file, assignments and flags over a preset; `resolve_policy` names the arguments."""
    if preset not in RECONSTRUCTOR_TRAININGS:
        raise unknown_name("preset", preset, list(RECONSTRUCTOR_TRAININGS))
    base = ReconstructorConfig(training=RECONSTRUCTOR_TRAININGS[preset])
    return settle(base, file, settings, flags)


_NETWORKS = ", ".join(name for name, one in POLICIES.entries.items() if one.origin == "training")
_PRESETS = ", ".join(
    f"{name} {one.n_initial} + {one.horizon} of {one.size}" for name, one in ACQUISITIONS.items()
)
_OF_PRESET = {
    "n_initial": "Central columns measured at the start. (default: the preset's)",
    "steps": "Columns acquired after the start. (default: the preset's)",
}
"""Help of options that a preset sets."""
_Preset = Annotated[str, Form(help=f"Start and steps of the paper, for any anatomy: {_PRESETS}.")]
_PolicyNetwork = Annotated[
    str | None, Form(help=f"Network to train: {_NETWORKS} or module:Class. (default: the method's)")
]


@dataclass(frozen=True, kw_only=True)
class _PolicyOptions(_TrainingOptions):
    reconstructor: Annotated[str, Form(help=RECONSTRUCTION_WORDS)]
    method: Annotated[
        str | None, Form(help=f"Training method: {ESTIMATORS.words()}. (default: greedy)")
    ] = None
    gamma: tuple[float, ...] = ()
    """Discount of ngreedy; several: each into OUT/gamma-G. (default: 1)"""
    preset: _Preset = "knee-base"
    initial: str | None = None
    """Columns to start from instead of central ones: 0,3,60-70."""
    policy: _PolicyNetwork = None
    start: str | None = None
    """Trained policy whose weights are the initial weights: run, file or zoo name."""
    seeds: _Seeds = 1


@app.command("policy")
@with_fields(
    NonGreedyTraining,
    section="training",
    names="epochs=n_epochs batch_size trajectories=n_trajectories seed metric protocol precision "
    "compile convolution",
    methods=ESTIMATORS,
)
@with_fields(
    AcquisitionSetting, section="acquisition", names="n_initial steps=horizon", helps=_OF_PRESET
)
@from_fields
def train_policy(options: _PolicyOptions, **flags: Any) -> None:  # noqa: ANN401 - settings
    """Train a policy for a frozen reconstruction.

    The policy (--policy) is the network that scores columns; the method (--method) is the way to
    train it. Each method has a default network: conv, the paper's, for greedy, ngreedy and ddqn;
    column for dense; a network of the same name for posterior, ensemble and alphazero.

    An interrupted training resumes from its last update if the same command is run again.

    Example: kscout train policy --data stores/knee --reconstructor runs/unet --out runs/greedy
    """
    from kscout.data.store import Store
    from kscout.training.policy import train_policies

    flags |= {"policy.name": options.policy, "training.method": options.method}
    flags |= {"training.gamma": options.gamma[0] if options.gamma else None}
    if options.initial is not None:
        flags |= _start(options.initial, flags.get("acquisition.n_initial"), options.data)
    store = Store.open(options.data)
    n_cols = store.array("train").shape[-1]
    base = resolve_policy(options.preset, options.config, options.settings, flags, n_cols)
    first = base.training.seed
    configs = vary(base, range(first, first + options.seeds), {"gamma": options.gamma or None})
    outs = [options.out / name for name in folders_of(configs)]
    with training_progress(options.out, options.tensorboard) as on_step:
        runs = train_policies(
            *(configs, store, options.reconstructor, outs),
            start=options.start,
            device=options.device,
            on_step=on_step,
        )
    print_runs(runs, as_json=options.as_json)


def _start(initial: str, n_initial: int | None, data: Path) -> JsonObject:
    from kscout.acquisition.plan import check_columns
    from kscout.columns import columns_text, parse_columns
    from kscout.data.store import Store

    if n_initial is not None:
        raise ConfigError("a training takes either --n-initial or --initial; give one of them")
    start = parse_columns(initial)
    check_columns(start, Store.open(data).split("train").n_cols)
    return {"acquisition.n_initial": len(start), "acquisition.initial": columns_text(start)}


def resolve_policy(
    preset: str, file: Path | None, settings: Sequence[str], flags: JsonObject, n_cols: int
) -> PolicyConfig:
    """Lay file, assignments and flags over the presets, the later ones winning.

    `settings` are `section.key=value`; flags are named by dotted names, and None if not given.
    """
    wanted = given(file, settings, flags)
    method = str(section(wanted, "training").get("method"))
    check_current("estimator", method)
    acquisition = preset_acquisition(preset, wanted, n_cols)
    base = PolicyConfig.of(method if method in ESTIMATORS else GreedyTraining.method)
    training = base.training
    for name in section(wanted, "training"):
        others = estimators_with(name)
        if name not in {field.name for field in fields(training)} and others:
            raise ConfigError(
                f"{training.method} has no {name}; it is a setting of {' and '.join(others)}: "
                f"leave it out, or use --method {others[0]}"
            )
    base = replace(base, acquisition=acquisition)
    return settle(base, file, settings, flags)


def preset_acquisition(preset: str, wanted: JsonObject, n_cols: int) -> AcquisitionSetting:
    """Return start and budget of a preset; raise an error if it is for images of another width.

    Numbers of columns that a user states are for images of any width.
    """
    if preset not in ACQUISITIONS:
        raise unknown_name("preset", preset, list(ACQUISITIONS))
    acquisition, named = ACQUISITIONS[preset], set(section(wanted, "acquisition"))
    has_start, has_end = bool({"n_initial", "initial"} & named), "horizon" in named
    size = acquisition.size or n_cols
    if size != n_cols and not (has_start and has_end):
        scaled = [
            f"{option} {max(1, round(n * n_cols / size))}"
            for option, n, is_given in (
                ("--n-initial", acquisition.n_initial, has_start),
                ("--steps", acquisition.horizon, has_end),
            )
            if not is_given
        ]
        raise ConfigError(
            f"the images have {n_cols} columns, and preset {preset} ({acquisition.n_initial} + "
            f"{acquisition.horizon}) is for {size}; give {' and '.join(scaled)}, the "
            "same fraction, or other numbers"
        )
    return replace(acquisition, size=None) if has_start or has_end else acquisition


def vary(
    base: _Config, seeds: Sequence[int], varied: Mapping[str, Sequence[float] | None]
) -> list[_Config]:
    """Return the settings of all combinations, the seed changing fastest."""
    changes: list[JsonObject] = [{}]
    for name, values in {**varied, "seed": seeds}.items():
        if values is not None and len(set(values)) < len(values):
            raise ConfigError(f"--{name} names one value twice: {list(values)}; give each once")
        if values is not None:
            changes = [{**change, name: value} for change in changes for value in values]
    return [replace(base, training=replace(base.training, **change)) for change in changes]


def folders_of(configs: Sequence[PolicyConfig]) -> list[str]:
    """Name each policy's folder below the run's by what differs; a single one needs none."""
    values = [{**x.training.varied, "seed": x.training.seed} for x in configs]
    differing = [key for key in values[0] if len({value[key] for value in values}) > 1]
    return ["/".join(f"{key}-{value[key]}" for key in differing) for value in values]


@dataclass(frozen=True, kw_only=True)
class _JointOptions(_TrainingOptions):
    method: Annotated[str, Form(help=f"Sampler of the columns: {SAMPLERS.words()}.")]
    reconstructor: str | None = None
    """Trained reconstruction to continue from: run, file or zoo name."""
    model: Annotated[
        str | None, Form(help=f"New reconstruction to train instead: {_NEW_NETWORK}")
    ] = None
    channels: int | None = None
    """Features of its first layer. (default: 16)"""
    policy: _PolicyNetwork = None
    preset: _Preset = "knee-base"
    seeds: _Seeds = 1


@app.command("joint")
@with_fields(
    JointTraining,
    section="training",
    names="updates=n_updates checkpoints=n_checkpoints batch_size seed metric protocol",
)
@with_fields(
    AcquisitionSetting, section="acquisition", names="n_initial steps=horizon", helps=_OF_PRESET
)
@from_fields
def train_joint(options: _JointOptions, **flags: Any) -> None:  # noqa: ANN401 - settings
    """Train a reconstruction together with the sampler of its columns, into one folder.

    Samplers: fixed fits one order for all slices to the current network; dense trains a policy;
    loupe and straight-through are baselines from the literature; random trains only the network.

    An interrupted training resumes from its last update if the same command is run again.

    Example: kscout train joint --data stores/knee --out runs/joint --method fixed
    --reconstructor runs/unet
    """
    from kscout.data.store import Store
    from kscout.training.joint.train import train_joint as train

    if options.model is not None and options.reconstructor is not None:
        raise ConfigError(
            f"--reconstructor {options.reconstructor} is trained on, and --model {options.model} "
            "would be trained from random weights; leave one of them out"
        )
    flags |= {"reconstructor.name": options.model, "reconstructor.n_channels": options.channels}
    flags |= {"policy.name": options.policy, "training.method": options.method}
    store, out = Store.open(options.data), options.out
    n_cols = store.array("train").shape[-1]
    base = resolve_joint(options.preset, options.config, options.settings, flags, n_cols)
    first = base.training.seed
    configs = vary(base, range(first, first + options.seeds), {})
    outs = [out] if options.seeds == 1 else [out / f"seed-{x.training.seed}" for x in configs]
    start, device = options.reconstructor, options.device
    with training_progress(out, options.tensorboard) as on_step:
        runs = [
            train(each, store, folder, start=start, device=device, on_step=on_step)
            for each, folder in zip(configs, outs, strict=True)
        ]
    print_runs(runs, as_json=options.as_json)


def resolve_joint(
    preset: str, file: Path | None, settings: Sequence[str], flags: JsonObject, n_cols: int
) -> JointConfig:
    """Lay file, assignments and flags over the presets; `resolve_policy` names the arguments."""
    wanted = given(file, settings, flags)
    method = section(wanted, "training")["method"]
    if method in ESTIMATORS.entries and method not in SAMPLERS:
        raise ConfigError(
            f"{method} trains a policy for a reconstruction that stays as it is; use kscout train "
            f"policy --method {method}, or one of {', '.join(SAMPLERS)}"
        )
    if method not in SAMPLERS:
        raise unknown_name("sampler", str(method), list(SAMPLERS))
    acquisition = preset_acquisition(preset, wanted, n_cols)
    base = replace(JointConfig.of(method), acquisition=acquisition)
    if section(wanted, "reconstructor"):
        # Arguments without a name are the U-Net's.
        base = replace(base, reconstructor=ReconstructorConfig.reconstructor)
    return settle(base, file, settings, flags)
