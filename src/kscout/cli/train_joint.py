"""`kscout train joint`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kscout.cli import options
from kscout.cli.progress import print_runs, training_progress
from kscout.cli.train_policy import OF_PRESET, PolicyNetwork, Preset, preset_acquisition
from kscout.config import (
    AcquisitionSetting,
    JointConfig,
    JointTraining,
    ReconstructorConfig,
    given,
    section,
    settle,
)
from kscout.errors import ConfigError, unknown_name
from kscout.names import ESTIMATORS, SAMPLERS, trainable_reconstructions


@options.with_fields(
    JointTraining,
    section="training",
    names="updates=n_updates checkpoints=n_checkpoints batch_size seed metric protocol precision",
)
@options.with_fields(
    AcquisitionSetting, section="acquisition", names="n_initial steps=horizon", helps=OF_PRESET
)
def train_joint(
    data: options.TrainingStore,
    out: options.RunFolder,
    method: Annotated[str, typer.Option(help=f"Sampler of the columns: {SAMPLERS.words()}.")],
    reconstructor: Annotated[
        str | None,
        typer.Option(help="Trained reconstruction to continue from: run, file or zoo name."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="New reconstruction to train instead: "
            f"{', '.join(trainable_reconstructions())} or module:Class."
        ),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Features of its first layer. (default: 16)")
    ] = None,
    policy: PolicyNetwork = None,
    preset: Preset = "knee-base",
    config: options.SettingsFile = None,
    settings: options.Assignments = None,
    seeds: options.Seeds = 1,
    device: options.Device = "auto",
    tensorboard: options.Tensorboard = False,
    as_json: options.AsJson = False,
    **flags: Any,  # noqa: ANN401 - settings by dotted name
) -> None:
    """Train a reconstruction together with the sampler of its columns, into one folder.

    Samplers: fixed fits one order for all slices to the current network; dense trains a policy;
    loupe and straight-through are baselines from the literature; random trains only the network.

    An interrupted training resumes from its last update if the same command is run again.

    Example: kscout train joint --data stores/knee --out runs/joint --method fixed
    --reconstructor runs/unet
    """
    from kscout.data.store import Store
    from kscout.training.joint.train import train_joint as train

    if model is not None and reconstructor is not None:
        raise ConfigError(
            f"--reconstructor {reconstructor} is trained on, and --model {model} would be trained "
            "from random weights; leave one of them out"
        )
    flags |= {"reconstructor.name": model, "reconstructor.n_channels": channels}
    flags |= {"policy.name": policy, "training.method": method}
    store = Store.open(data)
    base = resolve_joint(preset, config, settings or [], flags, store.array("train").shape[-1])
    first = base.training.seed
    configs = [
        replace(base, training=replace(base.training, seed=one))
        for one in range(first, first + seeds)
    ]
    outs = [out] if seeds == 1 else [out / f"seed-{x.training.seed}" for x in configs]
    with training_progress(out / "tensorboard" if tensorboard else None) as on_step:
        runs = [
            train(each, store, folder, start=reconstructor, device=device, on_step=on_step)
            for each, folder in zip(configs, outs, strict=True)
        ]
    print_runs(runs, as_json=as_json)


def resolve_joint(
    preset: str, file: Path | None, settings: list[str], flags: dict[str, Any], n_cols: int
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
