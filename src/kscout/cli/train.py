"""`kscout train reconstructor`; `train policy` joins in `kscout.cli`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from kscout.cli import options
from kscout.cli.console import Commands
from kscout.cli.progress import print_runs, training_progress
from kscout.config import (
    RECONSTRUCTOR_TRAININGS,
    ReconstructorConfig,
    ReconstructorTraining,
    settle,
)
from kscout.errors import unknown_name
from kscout.names import trainable_reconstructions

app = typer.Typer(cls=Commands, no_args_is_help=True)

_PRESETS = (
    "unet: protocol blind, mirrored slices, a step size that falls to zero; paper-unet: the "
    "paper's training, protocol paper."
)


@app.callback()
def train() -> None:
    """Train a reconstruction, a policy, or both."""


@app.command("reconstructor")
@options.with_fields(
    ReconstructorTraining,
    section="training",
    names="epochs=n_epochs batch_size seed protocol precision convolution",
)
def reconstructor(
    data: options.TrainingStore,
    out: options.RunFolder,
    preset: Annotated[str, typer.Option(help=_PRESETS)] = "unet",
    config: options.SettingsFile = None,
    settings: options.Assignments = None,
    model: Annotated[
        str | None,
        typer.Option(help=f"Network: {', '.join(trainable_reconstructions())} or module:Class."),
    ] = None,
    channels: Annotated[
        int | None, typer.Option(help="Features of the first layer. (default: 16)")
    ] = None,
    device: options.Device = "auto",
    tensorboard: options.Tensorboard = False,
    as_json: options.AsJson = False,
    **flags: Any,  # noqa: ANN401 - settings by dotted name
) -> None:
    """Train a reconstruction on fully sampled slices with random masks.

    An interrupted training resumes from its last update. Several processes:
    torchrun --nproc-per-node 2 -m kscout train reconstructor ...

    Example: kscout train reconstructor --data stores/knee --out runs/unet --epochs 10
    """
    from kscout.data.store import Store
    from kscout.training.reconstructor import train_reconstructor

    flags |= {"reconstructor.name": model, "reconstructor.n_channels": channels}
    store = Store.open(data)
    resolved = resolve_reconstructor(preset, config, settings or [], flags)
    with training_progress(out / "tensorboard" if tensorboard else None) as on_step:
        run = train_reconstructor(resolved, store, out, device=device, on_step=on_step)
    print_runs([run], as_json=as_json)


def resolve_reconstructor(
    preset: str, file: Path | None, settings: list[str], flags: dict[str, Any]
) -> ReconstructorConfig:
    """Lay file, assignments and flags over a preset; `resolve_policy` names the arguments."""
    if preset not in RECONSTRUCTOR_TRAININGS:
        raise unknown_name("preset", preset, list(RECONSTRUCTOR_TRAININGS))
    base = ReconstructorConfig(training=RECONSTRUCTOR_TRAININGS[preset])
    return settle(base, file, settings, flags)
