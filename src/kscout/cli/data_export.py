"""`kscout data export`: reconstructions of a store for other programs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from kscout.cli.console import answer_console, counted
from kscout.cli.evaluate import RECONSTRUCTION_WORDS
from kscout.cli.options import AsJson, with_fields
from kscout.cli.progress import evaluation_progress
from kscout.export.settings import ExportSetting
from kscout.names import POLICIES


@with_fields(
    ExportSetting, names="format n_initial steps argmax sample=seed split batch_size device"
)
def export(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a dataset.")],
    reconstructor: Annotated[str, typer.Option(help=RECONSTRUCTION_WORDS)],
    out: Annotated[Path, typer.Option(help="Folder for the files.")],
    policy: Annotated[
        str | None,
        typer.Option(
            help="Selects the columns; without it all measured columns are used. "
            + POLICIES.words("a run folder", "a weights file", "a zoo name")
        ),
    ] = None,
    as_json: AsJson = False,
    **options: Any,  # noqa: ANN401 - values of the fields
) -> None:
    """Write reconstructions of a dataset as HDF5 of fastMRI, NIfTI or DICOM, one file per volume.

    Example: kscout data export stores/knee --reconstructor runs/unet --policy runs/greedy
    --n-initial 16 --steps 16 --format nifti --out images
    """
    from kscout.export.volumes import export_store

    setting = ExportSetting(**options)
    with evaluation_progress() as on_step:
        written = export_store(
            *(store, out, setting), reconstructor=reconstructor, policy=policy, on_step=on_step
        )
    if as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    line = f"wrote {counted(len(written), 'volume')} to {out}"
    answer_console().print(line, soft_wrap=True)
