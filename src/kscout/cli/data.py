"""`kscout data`: make, import, describe and show stores of slices."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kscout.cli.console import Commands, counted, printable
from kscout.cli.options import AsJson, with_fields
from kscout.cli.progress import drawn_bars
from kscout.config.written import MATRIX
from kscout.data.importing.settings import ImportSettings
from kscout.data.making import MakeSettings, paper_settings
from kscout.data.manifest import MANIFEST
from kscout.errors import ConfigError, unknown_name
from kscout.names import IMPORT_PRESETS, SOURCES

app = typer.Typer(cls=Commands, no_args_is_help=True)

StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a dataset.")]
Out = Annotated[Path, typer.Option(help="Folder of the new dataset.")]


@app.command("import")
@with_fields(
    ImportSettings, flags={"center_volume": "--center-volume/--whole-volume"}, is_open=True
)
def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of volumes, or a file.")],
    out: Out,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(IMPORT_PRESETS), help="The paper's rules; other options override them."
        ),
    ] = None,
    as_json: AsJson = False,
    **options: Any,  # noqa: ANN401 - values of the fields
) -> None:
    """Import images of HDF5, NIfTI, DICOM or NumPy, or k-space; an interrupted import resumes.

    Example: kscout data import fastmri/knee --out stores/fastmri --preset knee
    """
    from kscout.data.importing import import_folder
    from kscout.data.info import summarize

    if {"splits", "held_out"} <= set(options):
        raise ConfigError("--splits names the volumes of every split; remove it or --held-out")
    settings = ImportSettings(**{**_preset(preset), **options})
    is_done = (out / MANIFEST).is_file()
    with _progress("importing") as on_volume:
        store = import_folder(source, out, settings, on_volume)
    _print_summary(summarize(store), as_json, state="already imported; " if is_done else "")


@app.command()
@with_fields(MakeSettings, without=("kind", "totals"), flags={"sources": "--source"}, is_open=True)
def make(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="; ".join(f"{name}: {entry.summary}" for name, entry in SOURCES.items()),
        ),
    ],
    out: Out,
    more: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", hidden=True, help="Further files of --source."),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's numbers of slices and image size.")
    ] = False,
    as_json: AsJson = False,
    **options: Any,  # noqa: ANN401 - values of the fields
) -> None:
    """Generate a dataset of images or k-space; an interrupted command resumes.

    Example: kscout data make knee --out stores/knee --volumes 40,10,10 --slices 16 --size 128
    """
    from kscout.data.generate import make_store
    from kscout.data.info import summarize

    options["sources"] = (*options.get("sources", ()), *(more or ()))
    settings = paper_settings(kind, **options) if paper else MakeSettings(kind=kind, **options)
    is_done = (out / MANIFEST).is_file()
    with _progress("making") as on_volume:
        store = make_store(out, settings, on_volume)
    _print_summary(summarize(store), as_json, state="already made; " if is_done else "")


@app.command()
def info(
    store: StorePath,
    as_json: AsJson = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every checksum.")] = False,
) -> None:
    """Print counts, sizes, ranges, checksums and origin of a dataset.

    Example: kscout data info stores/knee --verify
    """
    from kscout.data.info import describe
    from kscout.data.store import Store

    opened = Store.open(store)
    if verify:
        opened.verify()
    facts = {**describe(opened), "verified": verify}
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        _print_facts(facts)


@app.command()
def show(
    store: StorePath,
    out: Annotated[Path, typer.Option(help="File of the picture.")] = Path("montage.png"),
    split: Annotated[str, typer.Option(help="train, val or test. (default: the first)")] = "",
    images: Annotated[int, typer.Option(min=1, help="Number of slices.")] = 24,
    size: Annotated[
        str | None, typer.Option(metavar=MATRIX.metavar, help="Matrix size, if there are several.")
    ] = None,
    coils: Annotated[
        bool, typer.Option("--coils", help="Per slice: image, k-space, coils and maps.")
    ] = False,
) -> None:
    """Write a montage of the slices of a dataset as PNG.

    Example: kscout data show stores/knee --split test --out knees.png
    """
    from kscout.data.montage import save_montage
    from kscout.data.store import Store

    opened = Store.open(store)
    asked = None if size is None else MATRIX.read(size, "--size")
    shown = save_montage(opened, out, split=split, n_images=images, size=asked, coils=coils)
    span = " to ".join(dict.fromkeys((str(shown[0]), str(shown[-1]))))
    text = f"wrote {out}: {counted(len(shown), 'slice')}, {span}\n"
    if coils:
        text += (
            "of each: image, k-space, coils; below, for several coils: combination, phase, maps\n"
        )
    sys.stdout.write(printable(text))


def _preset(name: str | None) -> Mapping[str, Any]:
    if name is not None and name not in IMPORT_PRESETS:
        raise unknown_name("preset", name, list(IMPORT_PRESETS))
    return IMPORT_PRESETS[name] if name else {}


@contextmanager
def _progress(action: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a callback that draws a bar on a terminal, and prints lines elsewhere."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield _plain_progress(action)
        return
    with drawn_bars(console) as draw:
        yield lambda done, total, name: draw(action, done, total, name)


def _plain_progress(action: str, every_s: float = 5.0) -> Callable[[int, int, str], None]:
    last = [time.monotonic()]

    def on_volume(done: int, total: int, name: str) -> None:
        if done == total or time.monotonic() - last[0] >= every_s:
            last[0] = time.monotonic()
            sys.stderr.write(printable(f"{action} {done}/{total} volumes ({name})\n"))

    return on_volume


def _print_summary(summary: dict[str, Any], as_json: bool, state: str = "") -> None:
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    counts = ", ".join(f"{count} {split}" for split, count in summary["splits"].items())
    fingerprint = summary["fingerprint"][:12]
    word = "slice" if sum(summary["splits"].values()) == 1 else "slices"
    text = f"{summary['path']}: {state}{counts} {word}; fingerprint {fingerprint}\n"
    sys.stdout.write(printable(text))
    sys.stdout.writelines(f"{line}\n" for line in _geometry_lines(summary))
    for entry in summary["left_out"]:
        sys.stdout.write(printable(f"left out {entry['source']}: {entry['reason']}\n"))


def _geometry_lines(facts: dict[str, Any], most: int = 5) -> list[str]:
    geometry = facts["geometry"]
    lines = [entry["description"] for entry in geometry[:most]]
    more = [f"and {len(geometry) - most} more sizes or spacings"] if len(geometry) > most else []
    return lines + more


def _print_facts(facts: dict[str, Any]) -> None:
    # A pipe has no width; on a terminal the table adapts to it.
    width = None if sys.stdout.isatty() else 120
    console = Console(width=width, soft_wrap=True, highlight=False, markup=False)
    checked = "checksums verified" if facts["verified"] else "--verify checks the checksums"
    console.print(f"{facts['path']}: {facts['kind']} store, schema {facts['schema_version']}")
    if facts["kind"] == "kspace":
        word = "coil" if facts["n_coils"] == 1 else "coils"
        coils = f"{facts['n_coils']} {'virtual ' * bool(facts['virtual'])}{word}"
        coils += f"; {facts['columns']} columns"
        console.print(f"{coils}; target: {facts['target']}")
    console.print(f"fingerprint {facts['fingerprint']} ({checked})")
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
    console.print(table)
    acquisitions = ", ".join(f"{name} {count}" for name, count in facts["acquisitions"].items())
    console.print(f"acquisitions (volumes): {acquisitions}")
    for line in _geometry_lines(facts):
        console.print(line)
    for entry in facts["left_out"]:
        console.print(f"left out {entry['source']}: {entry['reason']}")
    for warning in facts["warnings"]:
        console.print(f"warning: {warning}")
    console.print(f"recipe: {json.dumps(facts['recipe'])}")
