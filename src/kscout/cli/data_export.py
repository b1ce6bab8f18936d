"""`kscout data export`: reconstructions of a store for other programs."""

import json
from pathlib import Path
from typing import Annotated

import typer

from kscout.cli.console import answer_console, counted
from kscout.cli.evaluate import RECONSTRUCTION_WORDS
from kscout.cli.options import AsJson, Device
from kscout.cli.progress import evaluation_progress
from kscout.names import POLICIES, ImageFormat


def export(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a store.")],
    reconstructor: Annotated[str, typer.Option(help=RECONSTRUCTION_WORDS)],
    format_: Annotated[ImageFormat, typer.Option("--format", help="Of the files.")],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Chooses the columns; without one all that were measured are used. "
            + POLICIES.words("a run folder", "a weights file", "a zoo name")
        ),
    ] = None,
    n_initial: Annotated[
        int | None, typer.Option(help="Central columns at the start; else as it was trained.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Columns acquired; else as it was trained.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="SEED", help="Draw columns; else a trained policy's best.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    batch_size: Annotated[int | None, typer.Option(min=1, help="Slices at once.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write reconstructions of a store as fastMRI's HDF5, NIfTI or DICOM, a file per volume.

    Example: kscout data export stores/knee --reconstructor runs/unet --policy runs/greedy-seed0
    --n-initial 16 --steps 16 --format nifti --out images
    """
    from kscout.export.volumes import ExportSetting, export_store

    setting = ExportSetting(
        format=format_,
        split=split,
        n_initial=n_initial,
        steps=steps,
        seed=sample,
        batch_size=batch_size,
        device=device,
    )
    with evaluation_progress() as on_step:
        written = export_store(
            *(store, out, setting), reconstructor=reconstructor, policy=policy, on_step=on_step
        )
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    told = f"wrote {counted(len(written), 'volume')} to {out}"
    answer_console().print(told, soft_wrap=True)
