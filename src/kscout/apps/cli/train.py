"""`kscout train reconstructor`; `train policy` joins in `kscout.apps.cli`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kscout.apps.cli import options as common
from kscout.apps.cli.console import Commands
from kscout.apps.cli.progress import print_runs, training_progress
from kscout.config import (
    RECONSTRUCTOR_TRAININGS,
    ReconstructorConfig,
    ReconstructorTraining,
    settle,
)
from kscout.config.forms import Form
from kscout.errors import unknown_name
from kscout.json_types import JsonObject
from kscout.names import trainable_reconstructions

app = typer.Typer(cls=Commands, no_args_is_help=True)


@app.callback()
def train() -> None:
    """Train a reconstruction, a policy, or both."""


@dataclass(frozen=True, kw_only=True)
class _ReconstructorOptions:
    data: common.TrainingStore
    out: common.RunFolder
    preset: str = "unet"
    """unet: protocol blind, mirrored slices, a step size that falls to zero; paper-unet: the
    paper's training, protocol paper."""
    config: common.SettingsFile = None
    settings: common.Assignments = ()
    model: Annotated[
        str | None, Form(help=f"Network: {', '.join(trainable_reconstructions())} or module:Class.")
    ] = None
    channels: int | None = None
    """Features of the first layer. (default: 16)"""
    device: common.Device = "auto"
    tensorboard: common.Tensorboard = False
    as_json: common.AsJson = False


@app.command("reconstructor")
@common.with_fields(
    ReconstructorTraining,
    section="training",
    names="epochs=n_epochs batch_size seed protocol precision convolution",
)
@common.from_fields
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
