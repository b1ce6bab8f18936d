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
from kscout.cli.options import MATRIX_SIZE, matrix_size
from kscout.cli.progress import drawn_bars
from kscout.errors import ConfigError, unknown_name
from kscout.names import COIL_MAPS, IMPORT_PRESETS, SOURCES, TARGETS, Origin, PhaseEncoding, Plane

app = typer.Typer(cls=Commands, no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="Folder of a store.")]
Out = Annotated[Path, typer.Option(help="Folder of the new store.")]
_SIZE = "PIXELS|ROWSxCOLS"
_KSPACE, _COILS = "k-space (docs/raw.md)", "k-space of coils (docs/raw.md)"


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Folder of volumes, or a file.")],
    out: Out,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(IMPORT_PRESETS),
            help="The paper's rules; other options override them.",
        ),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar=_SIZE, help="Pixels to keep in the middle. (default: all)"),
    ] = None,
    pad: Annotated[
        str | None, typer.Option(metavar=_SIZE, help="Zero-pad smaller images to this first.")
    ] = None,
    resample: Annotated[
        str | None,
        typer.Option(metavar="MM|ROWxCOL", help="Bring pixels to this spacing (mm) first."),
    ] = None,
    divide: Annotated[
        float | None, typer.Option(help="Divide all pixels by this, e.g. to bring them to 0..1.")
    ] = None,
    absolute: Annotated[
        bool | None, typer.Option("--absolute", help="Take absolute values of pixels.")
    ] = None,
    center_volume: Annotated[
        bool | None,
        typer.Option(
            "--center-volume/--whole-volume", help="Keep the middle half of the slices, or all."
        ),
    ] = None,
    sample_rate: Annotated[
        float | None, typer.Option(help="Share of each split's volumes to keep. (default: 1)")
    ] = None,
    acquisition: Annotated[
        str | None, typer.Option(help="Only this acquisition, e.g. CORPD_FBK.")
    ] = None,
    splits: Annotated[
        Path | None, typer.Option(help="Folder of train.txt, val.txt, test.txt: volume names.")
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(help="Share drawn for test, then for val, where unnamed. (default: 0.2)"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of that draw. (default: 0)")] = None,
    test_from_train: Annotated[
        bool | None, typer.Option("--test-from-train", help="Draw test volumes from train's.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Name of images or k-space in a file.")] = None,
    plane: Annotated[Plane | None, typer.Option(help="Cut of NIfTI. (default: axial)")] = None,
    phase_encoding: Annotated[
        PhaseEncoding | None,
        typer.Option(help="Way that is encoded by phase. (default: columns)"),
    ] = None,
    raw: Annotated[
        bool | None,
        typer.Option(
            "--raw", help="Import it, also where there are images of it.", rich_help_panel=_KSPACE
        ),
    ] = None,
    crop: Annotated[
        str | None,
        typer.Option(metavar=_SIZE, help="Pixels of its image to keep.", rich_help_panel=_KSPACE),
    ] = None,
    resize: Annotated[
        str | None,
        typer.Option(
            metavar=_SIZE, help="Rows, columns about its center.", rich_help_panel=_KSPACE
        ),
    ] = None,
    axes: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="E.g. slice,coil,row,col.", rich_help_panel=_KSPACE),
    ] = None,
    origin: Annotated[
        Origin | None,
        typer.Option(help="Where its centers are. (default: center)", rich_help_panel=_KSPACE),
    ] = None,
    header: Annotated[
        Path | None,
        typer.Option(help="Header of ISMRMRD files without one.", rich_help_panel=_KSPACE),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="|".join(TARGETS), help="Rule of targets.", rich_help_panel=_KSPACE),
    ] = None,
    compress: Annotated[
        int | None, typer.Option(help="Virtual coils to keep, e.g. 8.", rich_help_panel=_KSPACE)
    ] = None,
    compress_center: Annotated[
        int | None,
        typer.Option(
            help="Central columns they are found in (default: 8).", rich_help_panel=_KSPACE
        ),
    ] = None,
    prospective: Annotated[
        bool | None,
        typer.Option(
            "--prospective", help="Take undersampled files, too.", rich_help_panel=_KSPACE
        ),
    ] = None,
    skip_bad: Annotated[
        bool | None, typer.Option("--skip-bad", help="Leave out and record what is unusable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import images of HDF5, NIfTI, DICOM or NumPy, or k-space; run again, it goes on.

    Example: kscout data import fastmri/knee --out knee-store --preset knee
    """
    from kscout.data.importing import ImportSettings, import_folder
    from kscout.data.info import summarize

    if splits is not None and held_out is not None:
        raise ConfigError("--splits names the volumes of every split; drop it or --held-out")
    options: dict[str, Any] = {"center_volume": center_volume, "divide": divide}
    options |= {"absolute": absolute}
    for name, text in (("size", size), ("pad", pad), ("crop", crop), ("resize", resize)):
        options[name] = None if text is None else ImportSettings.parse_size(text, f"--{name}")
    options |= {"sample_rate": sample_rate, "acquisition": acquisition, "splits": splits}
    options |= {"held_out": held_out, "seed": seed, "test_from_train": test_from_train}
    options |= {"key": key, "plane": plane, "skip_bad": skip_bad, "raw": raw}
    options |= {"header": header, "prospective": prospective, "target": target}
    options |= {"phase_encoding": phase_encoding, "origin": origin}
    options |= {"compress": compress, "compress_center": compress_center}
    if axes is not None:
        options["axes"] = ImportSettings.parse_axes(axes)
    if resample is not None:
        options["resample"] = ImportSettings.parse_spacing(resample)
    chosen = {name: value for name, value in options.items() if value is not None}
    settings = ImportSettings(**{**_preset(preset), **chosen})
    with _progress("importing") as on_volume:
        store = import_folder(source, out, settings, on_volume)
    _print_summary(summarize(store), as_json)


@app.command()
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
    volumes: Annotated[
        str | None,
        typer.Option(
            metavar="TRAIN,VAL,TEST", help="Number of volumes per split. (default: 40,10,10)"
        ),
    ] = None,
    slices: Annotated[int | None, typer.Option(help="Slices per volume. (default: 16)")] = None,
    size: Annotated[int | None, typer.Option(help="64 to 512 pixels. (default: 128/256)")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same images.")] = 0,
    workers: Annotated[
        int, typer.Option(help="Processes; 0 for one per core, fewer for few images.")
    ] = 0,
    variant: Annotated[
        str, typer.Option(help="realistic; structured is engineered to reward adaptivity.")
    ] = "realistic",
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's numbers of slices and image size.")
    ] = False,
    phase_encoding: Annotated[
        PhaseEncoding, typer.Option(help="Way of images that is encoded by phase.")
    ] = "columns",
    coils: Annotated[
        int | None,
        typer.Option(
            help="Store complex k-space of so many coils, not images.", rich_help_panel=_COILS
        ),
    ] = None,
    phase: Annotated[
        bool, typer.Option("--phase", help="A smooth phase of the subject.", rich_help_panel=_COILS)
    ] = False,
    maps: Annotated[
        str,
        typer.Option(metavar="|".join(COIL_MAPS), help="What coils are.", rich_help_panel=_COILS),
    ] = "loops",
    snr: Annotated[
        float | None, typer.Option(help="Signal to noise. (default: drawn)", rich_help_panel=_COILS)
    ] = None,
    target: Annotated[
        str,
        typer.Option(metavar="|".join(TARGETS), help="Rule of targets.", rich_help_panel=_COILS),
    ] = "rss",
    source: Annotated[
        list[Path] | None, typer.Option(help="heads: NIfTI or .npy volumes, one per subject.")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="heads: fetch real volumes with pip, and cache them.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a store of images or k-space that need no license; run again, it goes on.

    Example: kscout data make knee --out knee-store --volumes 40,10,10 --slices 16 --size 128
    """
    from kscout.data.generate import MakeSettings, make_store, paper_settings
    from kscout.data.info import summarize

    options: dict[str, Any] = {"seed": seed, "workers": workers, "variant": variant}
    sources = (*(source or ()), *(more or ()))
    options |= {"sources": sources, "download": download, "size": size}
    options |= {"phase_encoding": phase_encoding}
    options |= {"coils": coils, "phase": phase, "snr": snr, "target": target, "maps": maps}
    if volumes is not None:
        options["volumes"] = MakeSettings.parse_counts(volumes)
    if slices is not None:
        options["slices"] = slices
    if paper:
        settings = paper_settings(kind, **options)
    else:
        settings = MakeSettings(kind=kind, **options)
    with _progress("making") as on_volume:
        store = make_store(out, settings, on_volume)
    _print_summary(summarize(store), as_json)


@app.command()
def info(
    store: StorePath,
    as_json: AsJson = False,
    verify: Annotated[bool, typer.Option("--verify", help="Check every checksum.")] = False,
) -> None:
    """Tell counts, sizes, ranges, checksums and origin of a store.

    Example: kscout data info knee-store --verify
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
    out: Annotated[Path, typer.Option(help="The picture to write.")] = Path("montage.png"),
    split: Annotated[str, typer.Option(help="train, val or test. (default: the first)")] = "",
    images: Annotated[int, typer.Option(min=1, help="How many slices to show.")] = 24,
    size: Annotated[
        str | None,
        typer.Option(metavar=MATRIX_SIZE, help="Matrix size, where there are several."),
    ] = None,
    coils: Annotated[
        bool, typer.Option("--coils", help="Per slice: image, k-space, coils and maps.")
    ] = False,
) -> None:
    """Write a montage of a store's slices as PNG.

    Example: kscout data show knee-store --split test --out knees.png
    """
    from kscout.data.montage import save_montage
    from kscout.data.store import Store

    opened = Store.open(store)
    asked = matrix_size(size)
    shown = save_montage(opened, out, split=split, n_images=images, size=asked, coils=coils)
    span = " to ".join(dict.fromkeys((str(shown[0]), str(shown[-1]))))
    told = f"wrote {out}: {counted(len(shown), 'slice')}, {span}\n"
    if coils:
        told += (
            "of each: image, k-space, coils; below, of several coils: combination, phase, maps\n"
        )
    sys.stdout.write(printable(told))


def _preset(name: str | None) -> Mapping[str, Any]:
    if name is not None and name not in IMPORT_PRESETS:
        raise unknown_name("preset", name, list(IMPORT_PRESETS))
    return IMPORT_PRESETS[name] if name else {}


@contextmanager
def _progress(action: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a callback that draws a bar on a terminal, and prints a line now and then elsewhere."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield _plain_progress(action)
        return
    with drawn_bars(console) as tell:
        yield lambda done, total, name: tell(action, done, total, name)


def _plain_progress(action: str, every_s: float = 5.0) -> Callable[[int, int, str], None]:
    last = [time.monotonic()]

    def on_volume(done: int, total: int, name: str) -> None:
        if done == total or time.monotonic() - last[0] >= every_s:
            last[0] = time.monotonic()
            sys.stderr.write(printable(f"{action} {done}/{total} volumes ({name})\n"))

    return on_volume


def _print_summary(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    counts = ", ".join(f"{count} {split}" for split, count in summary["splits"].items())
    fingerprint = summary["fingerprint"][:12]
    word = "slice" if sum(summary["splits"].values()) == 1 else "slices"
    told = f"{summary['path']}: {counts} {word}; fingerprint {fingerprint}\n"
    sys.stdout.write(printable(told))
    sys.stdout.writelines(f"{line}\n" for line in _geometry_lines(summary))
    for entry in summary["left_out"]:
        sys.stdout.write(printable(f"left out {entry['source']}: {entry['reason']}\n"))


def _geometry_lines(facts: dict[str, Any], most: int = 5) -> list[str]:
    found = facts["geometry"]
    lines = [entry["told"] for entry in found[:most]]
    more = [f"and {len(found) - most} more sizes or spacings"] if len(found) > most else []
    return lines + more


def _print_facts(facts: dict[str, Any]) -> None:
    # A pipe has no width of its own; on a terminal the table fits itself in.
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
    found = ", ".join(f"{name} {count}" for name, count in facts["acquisitions"].items())
    console.print(f"acquisitions (volumes): {found}")
    for line in _geometry_lines(facts):
        console.print(line)
    for entry in facts["left_out"]:
        console.print(f"left out {entry['source']}: {entry['reason']}")
    for warning in facts["warnings"]:
        console.print(f"warning: {warning}")
    console.print(f"recipe: {json.dumps(facts['recipe'])}")
