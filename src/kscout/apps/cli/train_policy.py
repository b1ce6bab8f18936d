"""`kscout train policy`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from kscout.apps.cli import options as common
from kscout.apps.cli.progress import print_runs, training_progress
from kscout.config import (
    ACQUISITIONS,
    AcquisitionSetting,
    GreedyTraining,
    NonGreedyTraining,
    PolicyConfig,
    estimators_with,
    given,
    section,
    settle,
)
from kscout.config.forms import Form
from kscout.errors import ConfigError, unknown_name
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, POLICIES, RECONSTRUCTION_WORDS
from kscout.names.renamed import check_current

_NETWORKS = ", ".join(name for name, one in POLICIES.entries.items() if one.origin == "training")

_PRESET = "knee-base"
_POLICY_OPTIONS = (
    "epochs=n_epochs batch_size trajectories=n_trajectories seed metric protocol precision compile "
    "convolution"
)
OF_PRESET = {
    "n_initial": "Central columns measured at the start. (default: the preset's)",
    "steps": "Columns acquired after the start. (default: the preset's)",
}
"""Help of options that a preset sets."""
Preset = Annotated[
    str,
    Form(
        help="Start and steps of the paper, for any anatomy: "
        + ", ".join(
            f"{name} {one.n_initial} + {one.horizon} of {one.size}"
            for name, one in ACQUISITIONS.items()
        )
        + "."
    ),
]
PolicyNetwork = Annotated[
    str | None, Form(help=f"Network to train: {_NETWORKS} or module:Class. (default: the method's)")
]


@dataclass(frozen=True, kw_only=True)
class _PolicyOptions:
    data: common.TrainingStore
    reconstructor: Annotated[str, Form(help=RECONSTRUCTION_WORDS)]
    out: common.RunFolder
    method: Annotated[
        str | None, Form(help=f"Training method: {ESTIMATORS.words()}. (default: greedy)")
    ] = None
    gamma: tuple[float, ...] = ()
    """Discount of ngreedy; several: each into OUT/gamma-G. (default: 1)"""
    preset: Preset = _PRESET
    initial: str | None = None
    """Columns to start from instead of central ones: 0,3,60-70, or a file as for evaluate."""
    config: common.SettingsFile = None
    settings: common.Assignments = ()
    policy: PolicyNetwork = None
    start: str | None = None
    """Trained policy whose weights are the initial weights: run, file or zoo name."""
    seeds: common.Seeds = 1
    device: common.Device = "auto"
    tensorboard: common.Tensorboard = False
    as_json: common.AsJson = False


@common.with_fields(
    NonGreedyTraining, section="training", names=_POLICY_OPTIONS, methods=ESTIMATORS
)
@common.with_fields(
    AcquisitionSetting,
    section="acquisition",
    names="n_initial steps=horizon columns_per_step",
    helps=OF_PRESET,
)
@common.from_fields
def train_policy(options: _PolicyOptions, **flags: Any) -> None:  # noqa: ANN401 - settings
    """Train a policy for a frozen reconstruction.

    The policy (--policy) is the network that scores columns; the method (--method) is the way to
    train it. Each method has a default network: conv, the paper's, for greedy, ngreedy and ddqn;
    column for dense; a network of the same name for posterior, ensemble and alphazero.

    An interrupted training resumes from its last update if the same command is run again.

    Example: kscout train policy --data stores/knee --reconstructor runs/unet --out runs/greedy
    """
    from kscout.data.store import Store
    from kscout.training.several import train_policies

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
    """Return the settings that say where acquisitions start."""
    from kscout.acquisition.starts import read_starts
    from kscout.columns import columns_text
    from kscout.data.store import Store

    if n_initial is not None:
        raise ConfigError("a training takes either --n-initial or --initial; give one of them")
    starts = read_starts(initial, n_cols=Store.open(data).split("train").n_cols)
    if len(starts) > 1:
        raise ConfigError(
            f"{initial} holds {len(starts)} starts, and training and validation slices share one; "
            "give a single list or mask"
        )
    (start,) = starts
    return {"acquisition.n_initial": len(start), "acquisition.initial": columns_text(start)}


def resolve_policy(
    preset: str, file: Path | None, settings: Sequence[str], flags: JsonObject, n_cols: int
) -> PolicyConfig:
    """Lay file, assignments and flags over the presets, the later ones winning.

    Args:
        preset: of the acquisition, by its name.
        file: TOML.
        settings: `section.key=value`.
        flags: by dotted name; None where not given.
        n_cols: columns of the images.
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
    base: PolicyConfig, seeds: Sequence[int], varied: Mapping[str, Sequence[Any] | None]
) -> list[PolicyConfig]:
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
