"""`kscout data export`: reconstructions of a store for other programs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from kscout.apps.cli.console import answer_console, counted
from kscout.apps.cli.data import StorePath
from kscout.apps.cli.options import AsJson, from_fields, with_fields
from kscout.apps.cli.progress import evaluation_progress
from kscout.apps.export.parameters import ExportSetting
from kscout.config.forms import Form
from kscout.names import POLICIES, RECONSTRUCTION_WORDS

_POLICY = "Selects the columns; without it all measured columns are used. " + POLICIES.words(
    "a run folder", "a weights file", "a zoo name"
)


@dataclass(frozen=True, kw_only=True)
class _ImageOptions:
    store: StorePath
    reconstructor: Annotated[str, Form(help=RECONSTRUCTION_WORDS)]
    out: Path
    """Folder for the files."""
    policy: Annotated[str | None, Form(help=_POLICY)] = None
    as_json: AsJson = False


@with_fields(
    ExportSetting, names="format n_initial steps argmax sample=seed split batch_size device"
)
@from_fields
def export(options: _ImageOptions, **fields: Any) -> None:  # noqa: ANN401 - values of the fields
    """Write reconstructions of a dataset as HDF5 of fastMRI, NIfTI or DICOM, one file per volume.

    Example: kscout data export stores/knee --reconstructor runs/unet --policy runs/greedy
    --n-initial 16 --steps 16 --format nifti --out images
    """
    from kscout.apps.export.volumes import export_store

    with evaluation_progress() as on_step:
        written = export_store(
            *(options.store, options.out, ExportSetting(**fields)),
            reconstructor=options.reconstructor,
            policy=options.policy,
            on_step=on_step,
        )
    if options.as_json:
        typer.echo(json.dumps({"files": [str(path) for path in written]}))
        return
    line = f"wrote {counted(len(written), 'volume')} to {options.out}"
    answer_console().print(line, soft_wrap=True)
