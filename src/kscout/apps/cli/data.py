"""`kscout data`: make, import, describe, show and export datasets."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from kscout.apps.cli.console import Commands, counted, print_result
from kscout.apps.cli.options import AsJson, from_fields, with_fields
from kscout.apps.cli.progress import task_progress
from kscout.apps.export.parameters import ExportSetting
from kscout.config.bounds import MATRIX, AtLeast, Form
from kscout.data.importing.settings import ImportSettings
from kscout.data.making import MakeSettings, paper_settings
from kscout.data.manifest import MANIFEST
from kscout.errors import ConfigError, unknown_name
from kscout.evaluation.progress import Step
from kscout.json_types import JsonObject
from kscout.names import IMPORT_PRESETS, SOURCES

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="""Make, import, inspect and export datasets.

    Example: kscout data make knee --out stores/knee""",
)

StorePath = Annotated[Path, Form("STORE", is_argument=True, help="Folder of a dataset.")]
NewStore = Annotated[Path, Form(help="Folder of the new dataset.")]


@dataclass(frozen=True, kw_only=True)
class _ImportOptions:
    source: Annotated[Path, Form("SOURCE", is_argument=True)]
    """Folder of volumes, or a file."""
    out: NewStore
    preset: Annotated[str | None, Form("|".join(IMPORT_PRESETS))] = None
    """The paper's rules; other options override them."""
    as_json: AsJson = False


@app.command("import")
@with_fields(ImportSettings, is_open=True)
@from_fields
def import_(options: _ImportOptions, **fields: Any) -> None:  # noqa: ANN401 - values of the fields
    """Import images of HDF5, NIfTI, DICOM or NumPy, or k-space; an interrupted import resumes.

    Example: kscout data import fastmri/knee --out stores/fastmri --preset knee
    """
    from kscout.data import import_folder
    from kscout.data.info import summarize

    if {"splits", "held_out"} <= set(fields):
        raise ConfigError("--splits names the volumes of every split; remove it or --held-out")
    if options.preset is not None and options.preset not in IMPORT_PRESETS:
        raise unknown_name("preset", options.preset, list(IMPORT_PRESETS))
    preset = IMPORT_PRESETS[options.preset] if options.preset else {}
    settings = ImportSettings(**{**preset, **fields})
    is_done = (options.out / MANIFEST).is_file()
    with _progress("importing") as on_volume:
        store = import_folder(options.source, options.out, settings, on_volume)
    state = "already imported; " if is_done else ""
    _print_summary(summarize(store), options.as_json, state)


@dataclass(frozen=True, kw_only=True)
class _MakeOptions:
    kind: Annotated[
        str,
        Form(
            "KIND",
            is_argument=True,
            help="; ".join(f"{name}: {entry.summary}" for name, entry in SOURCES.items()),
        ),
    ]
    out: NewStore
    more: Annotated[tuple[Path, ...], Form("FILE", is_argument=True, is_hidden=True)] = ()
    """Further files of --source."""
    paper: bool = False
    """The paper's numbers of slices and image size."""
    as_json: AsJson = False


@app.command()
@with_fields(MakeSettings, without=("kind", "totals"), is_open=True)
@from_fields
def make(options: _MakeOptions, **fields: Any) -> None:  # noqa: ANN401 - values of the fields
    """Generate a dataset of images or k-space; an interrupted command resumes.

    Example: kscout data make knee --out stores/knee --volumes 40,10,10 --slices 16 --size 128
    """
    from kscout.data.generate import make_store
    from kscout.data.info import summarize

    fields["sources"] = (*fields.get("sources", ()), *options.more)
    make_settings = paper_settings if options.paper else MakeSettings
    is_done = (options.out / MANIFEST).is_file()
    with _progress("making") as on_volume:
        store = make_store(options.out, make_settings(kind=options.kind, **fields), on_volume)
    state = "already made; " if is_done else ""
    _print_summary(summarize(store), options.as_json, state)


@dataclass(frozen=True, kw_only=True)
class _InfoOptions:
    store: StorePath
    verify: bool = False
    """Check every checksum."""
    as_json: AsJson = False


@app.command()
@from_fields
def info(options: _InfoOptions) -> None:
    """Print counts, sizes, ranges, checksums and origin of a dataset.

    Example: kscout data info stores/knee --verify
    """
    from kscout.data.info import describe
    from kscout.data.store import Store

    opened = Store.open(options.store)
    if options.verify:
        opened.verify()
    facts = {**describe(opened), "verified": options.verify}
    print_result(facts, *_facts_lines(facts), as_json=options.as_json)


@dataclass(frozen=True, kw_only=True)
class _ShowOptions:
    store: StorePath
    out: Path = Path("montage.png")
    """File of the picture."""
    split: str = ""
    """train, val or test. (default: the first)"""
    images: Annotated[int, AtLeast(1)] = 24
    """Number of slices."""
    size: Annotated[int | tuple[int, int] | None, MATRIX] = None
    """Matrix size, if there are several."""
    coils: bool = False
    """Per slice: image, k-space, coils and maps."""


@app.command()
@from_fields
def show(options: _ShowOptions) -> None:
    """Write a montage of the slices of a dataset as PNG.

    Example: kscout data show stores/knee --split test --out knees.png
    """
    from kscout.data.montage import save_montage
    from kscout.data.store import Store

    shown = save_montage(
        Store.open(options.store),
        options.out,
        split=options.split,
        n_images=options.images,
        size=options.size,
        coils=options.coils,
    )
    span = " to ".join(dict.fromkeys((str(shown[0]), str(shown[-1]))))
    lines = [f"wrote {options.out}: {counted(len(shown), 'slice')}, {span}"]
    if options.coils:
        lines.append(
            "of each: image, k-space, coils; below, for several coils: combination, phase, maps"
        )
    print_result(None, *lines)


@contextmanager
def _progress(action: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a callback for the numbers of finished and of all volumes."""
    with task_progress() as on_step:
        yield lambda done, total, _: on_step(Step(action, done, total))


def _print_summary(summary: JsonObject, as_json: bool, state: str) -> None:
    counts = ", ".join(f"{count} {split}" for split, count in summary["splits"].items())
    fingerprint = summary["fingerprint"][:12]
    word = "slice" if sum(summary["splits"].values()) == 1 else "slices"
    line = f"{summary['path']}: {state}{counts} {word}; fingerprint {fingerprint}"
    print_result(summary, line, *_source_lines(summary), as_json=as_json)


def _source_lines(facts: JsonObject, most: int = 5) -> list[str]:
    """Return sizes and spacings, and sources that were left out."""
    geometry = facts["geometry"]
    lines = [entry["description"] for entry in geometry[:most]]
    lines += [f"and {len(geometry) - most} more sizes or spacings"] * (len(geometry) > most)
    return lines + [f"left out {one['source']}: {one['reason']}" for one in facts["left_out"]]


def _facts_lines(facts: JsonObject) -> Iterator[str | Table]:
    checked = "checksums verified" if facts["verified"] else "--verify checks the checksums"
    yield f"{facts['path']}: {facts['kind']} store, schema {facts['schema_version']}"
    if facts["kind"] == "kspace":
        word = "coil" if facts["n_coils"] == 1 else "coils"
        coils = f"{facts['n_coils']} {'virtual ' * bool(facts['virtual'])}{word}"
        coils += f"; {facts['columns']} columns"
        yield f"{coils}; target: {facts['target']}"
    yield f"fingerprint {facts['fingerprint']} ({checked})"
    columns = ("split", "matrix", "volumes", "slices", "pixels", "data_range", "MB", "sha256")
    table = Table(*columns)
    for array in facts["arrays"]:
        table.add_row(
            array["split"],
            f"{array['rows']}x{array['cols']}",
            str(array["volumes"]),
            str(array["slices"]),
            "{:.3g} to {:.3g}".format(*array["pixels"]),
            "{:.3g} to {:.3g}".format(*array["data_range"]),
            f"{array['bytes'] / 1e6:.1f}",
            array["sha256"][:12],
        )
    yield table
    acquisitions = ", ".join(f"{name} {count}" for name, count in facts["acquisitions"].items())
    yield f"acquisitions (volumes): {acquisitions}"
    yield from _source_lines(facts)
    yield from (f"warning: {warning}" for warning in facts["warnings"])
    yield f"recipe: {json.dumps(facts['recipe'])}"


@dataclass(frozen=True, kw_only=True)
class _ImageOptions:
    store: StorePath
    out: Path
    """Folder for the files."""
    as_json: AsJson = False


@app.command()
@with_fields(
    ExportSetting,
    names="reconstructor policy format n_initial steps argmax sample=seed split batch_size device",
)
@from_fields
def export(options: _ImageOptions, **fields: Any) -> None:  # noqa: ANN401 - values of the fields
    """Write reconstructions of a dataset as HDF5 of fastMRI, NIfTI or DICOM, one file per volume.

    Example: kscout data export stores/knee --reconstructor runs/unet --policy runs/greedy
    --n-initial 16 --steps 16 --format nifti --out images
    """
    from kscout.apps.export.volumes import export_store

    with task_progress() as on_step:
        written = export_store(options.store, options.out, ExportSetting(**fields), on_step)
    line = f"wrote {counted(len(written), 'volume')} to {options.out}"
    print_result({"files": [str(path) for path in written]}, line, as_json=options.as_json)
