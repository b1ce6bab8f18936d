"""`kscout train joint`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from kscout.apps.cli import options as common
from kscout.apps.cli.progress import print_runs, training_progress
from kscout.apps.cli.train_policy import OF_PRESET, PolicyNetwork, Preset, preset_acquisition
from kscout.config import (
    AcquisitionSetting,
    JointConfig,
    JointTraining,
    ReconstructorConfig,
    given,
    section,
    settle,
)
from kscout.config.forms import Form
from kscout.errors import ConfigError, unknown_name
from kscout.json_types import JsonObject
from kscout.names import ESTIMATORS, SAMPLERS, trainable_reconstructions

_NEW = f"{', '.join(trainable_reconstructions())} or module:Class."


@dataclass(frozen=True, kw_only=True)
class _JointOptions:
    data: common.TrainingStore
    out: common.RunFolder
    method: Annotated[str, Form(help=f"Sampler of the columns: {SAMPLERS.words()}.")]
    reconstructor: str | None = None
    """Trained reconstruction to continue from: run, file or zoo name."""
    model: Annotated[str | None, Form(help=f"New reconstruction to train instead: {_NEW}")] = None
    channels: int | None = None
    """Features of its first layer. (default: 16)"""
    policy: PolicyNetwork = None
    preset: Preset = "knee-base"
    config: common.SettingsFile = None
    settings: common.Assignments = ()
    seeds: common.Seeds = 1
    device: common.Device = "auto"
    tensorboard: common.Tensorboard = False
    as_json: common.AsJson = False


@common.with_fields(
    JointTraining,
    section="training",
    names="updates=n_updates checkpoints=n_checkpoints batch_size seed metric protocol precision",
)
@common.with_fields(
    AcquisitionSetting, section="acquisition", names="n_initial steps=horizon", helps=OF_PRESET
)
@common.from_fields
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
    configs = [
        replace(base, training=replace(base.training, seed=one))
        for one in range(first, first + options.seeds)
    ]
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
