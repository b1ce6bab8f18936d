"""`kscout train joint`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from kscout.cli.progress import tell_runs, training_progress
from kscout.cli.train_policy import preset_acquisition
from kscout.config import ACQUISITIONS, JointConfig, ReconstructorConfig, given, section, settle
from kscout.errors import ConfigError, unknown_name
from kscout.names import (
    ESTIMATORS,
    METRICS,
    POLICIES,
    SAMPLERS,
    Protocol,
    trainable_reconstructions,
)

_NETWORKS = ", ".join(name for name, one in POLICIES.entries.items() if one.origin == "training")


def train_joint(
    data: Annotated[Path, typer.Option(help="Store with the splits train and val.")],
    out: Annotated[Path, typer.Option(help="Run folder; an interrupted run there goes on.")],
    method: Annotated[str, typer.Option(help=f"What chooses columns: {SAMPLERS.words()}.")],
    reconstructor: Annotated[
        str | None,
        typer.Option(help="Trained reconstruction to start from: run, file or zoo name."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help=f"To train from nothing: {', '.join(trainable_reconstructions())} or module:Class."
        ),
    ] = None,
    channels: Annotated[int | None, typer.Option(help="Its finest features (16).")] = None,
    policy: Annotated[
        str | None,
        typer.Option(help=f"Network that chooses: {_NETWORKS} or module:Class. [the method's]"),
    ] = None,
    preset: Annotated[str, typer.Option(help=f"{', '.join(ACQUISITIONS)}.")] = "knee-base",
    n_initial: Annotated[int | None, typer.Option(help="Central columns at the start.")] = None,
    steps: Annotated[int | None, typer.Option(help="Columns to acquire.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file; changes the preset.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.key=value, any number of times.")
    ] = None,
    updates: Annotated[
        int | None, typer.Option(help="Optimizer steps of the reconstruction, for any method.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Validations and checkpoints.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Slices per such step.")] = None,
    seed: Annotated[int | None, typer.Option(help="Keys all draws; 0 where nothing says.")] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Train so many seeds, into OUT/seed-N.")
    ] = 1,
    metric: Annotated[
        str | None,
        typer.Option(help=f"What is raised: {', '.join(METRICS.entries)} or module:function."),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="paper or blind. (default: paper; blind for k-space)")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write event files.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a reconstruction together with what chooses its columns, into one folder.

    Kill it and type the same again: it goes on from its last epoch.

    Example: kscout train joint --data stores/knee --out runs/joint --method dense
    --reconstructor knee-unet
    """
    from kscout.data.store import Store
    from kscout.training.joint.train import train_joints

    if model is not None and reconstructor is not None:
        raise ConfigError(
            f"--reconstructor {reconstructor} is trained on, and --model {model} would be trained "
            "from nothing; leave one of them out"
        )
    flags = {
        "reconstructor.name": model,
        "reconstructor.n_channels": channels,
        "policy.name": policy,
        "acquisition.n_initial": n_initial,
        "acquisition.horizon": steps,
        "training.method": method,
        "training.n_updates": updates,
        "training.n_epochs": epochs,
        "training.batch_size": batch_size,
        "training.seed": seed,
        "training.metric": metric,
        "training.protocol": protocol,
        "training.precision": precision,
    }
    store = Store.open(data)
    base = resolve_joint(*(preset, config, settings or [], flags), protocol=store.kind.protocol)
    first = base.training.seed
    configs = [
        replace(base, training=replace(base.training, seed=one))
        for one in range(first, first + seeds)
    ]
    outs = [out] if seeds == 1 else [out / f"seed-{x.training.seed}" for x in configs]
    with training_progress(out / "tensorboard" if tensorboard else None) as on_step:
        runs = train_joints(
            *(configs, store, outs), start=reconstructor, device=device, on_step=on_step
        )
    tell_runs(runs, as_json=as_json)


def resolve_joint(
    preset: str,
    file: Path | None,
    settings: list[str],
    flags: dict[str, Any],
    *,
    protocol: Protocol = "paper",
) -> JointConfig:
    """Lay file, assignments and flags over the presets; `resolve_policy` names the arguments."""
    wanted = given(file, settings, flags)
    acquisition = preset_acquisition(preset, wanted)
    method = section(wanted, "training")["method"]
    if method in ESTIMATORS.entries and method not in SAMPLERS:
        raise ConfigError(
            f"{method} trains a policy for a reconstruction that stays as it is; use kscout train "
            f"policy --method {method}, or one of {', '.join(SAMPLERS)}"
        )
    if method not in SAMPLERS:
        raise unknown_name("sampler", str(method), list(SAMPLERS))
    base = JointConfig.of(method)
    base = replace(base, acquisition=acquisition)
    base = replace(base, training=replace(base.training, protocol=protocol))
    if section(wanted, "reconstructor"):
        # Arguments without a name are the U-Net's.
        base = replace(base, reconstructor=ReconstructorConfig.reconstructor)
    return settle(base, file, settings, flags)
