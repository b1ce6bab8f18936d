"""What the commands of `kscout analyze` share: options, refusing to overwrite, printing."""

import json
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from kscout.cli.evaluate import answer_console
from kscout.files import finite
from kscout.names import Protocol as ProtocolName

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")]
Policies = Annotated[
    list[str], typer.Argument(metavar="POLICY...", help="Run folders, weights files or names.")
]
Results = Annotated[
    list[Path], typer.Argument(metavar="RESULTS...", help="Folders that `evaluate` wrote.")
]
Out = Annotated[Path, typer.Option(help="Folder for tables and figures.")]
Data = Annotated[Path, typer.Option(help="Store of slices.")]
Reconstructor = Annotated[str, typer.Option(help="As for `evaluate`.")]
Split = Annotated[str, typer.Option(help="train, val or test.")]
NInitial = Annotated[int | None, typer.Option(help="Columns at the start. [default: the runs']")]
Steps = Annotated[int | None, typer.Option(help="Columns to acquire. [default: the runs']")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Of the draws. [default: 0]")]
Protocol = Annotated[ProtocolName, typer.Option(help="paper or blind.")]
Limit = Annotated[int | None, typer.Option(help="Only so many slices, spread over the split.")]
BatchSize = Annotated[int, typer.Option(help="Slices at once.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the table as JSON.")]


Formula = Literal["paper", "reference"]
"""How a gradient's signal-to-noise ratio is computed."""


def refuse_without_effect(seeds: Sequence[int] | None, **options: object) -> None:
    """Refuse what results on disk cannot be asked for, rather than ignore it.

    Args:
        seeds: those that were given.
        options: all that has no effect on results; None where not given.
    """
    from kscout.errors import ConfigError

    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(
            f"{', '.join(given)} would have no effect: --results reads an evaluation and runs "
            "nothing; leave out one or the other"
        )
    if seeds is not None and len(seeds) > 1:
        raise ConfigError(
            f"--results shows one seed of each policy, and --seed names {len(seeds)}; give one, or "
            "none for the best"
        )


def claim(name: str, out: Path, overwrite: bool, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return what a table is asked for; refuse a folder that holds one of other settings."""
    from kscout.evaluation.requests import as_request, check_table

    flat: dict[str, Any] = {}
    for key, value in options.items():
        if is_dataclass(value) and not isinstance(value, type):
            flat |= asdict(value)
        else:
            flat[key] = value
    # How many slices are worked on at once decides a gradient, and no other table.
    free = {"device"} if name == "snr" else {"device", "batch_size"}
    request = as_request({key: value for key, value in flat.items() if key not in free})
    if not overwrite:
        check_table(out, name, request)
    return request


def subject_setting(data: Path | None, reconstructor: str | None, **options: Any) -> Any:  # noqa: ANN401
    """Return a `SubjectSetting`; what is None keeps its default."""
    from kscout.errors import ConfigError
    from kscout.evaluation.subjects import SubjectSetting

    if data is None or reconstructor is None:
        raise ConfigError("policies are run on slices; give --data and --reconstructor")
    given = {key: value for key, value in options.items() if value is not None}
    if "seeds" in given:
        given["seeds"] = tuple(given["seeds"])
    return SubjectSetting(data=data, reconstructor=reconstructor, **given)


def tell(
    rows: list[dict[str, Any]], out: Path, name: str, as_json: bool, head: int | None = None
) -> None:
    """Print the table (or its first rows), or JSON."""
    if as_json:
        typer.echo(json.dumps(finite(rows)))
        return
    console = answer_console()
    shown = rows[:head]
    if shown:
        table = Table(box=SIMPLE_HEAD)
        for key in shown[0]:
            table.add_column(key.replace("_", " "), overflow="fold")
        for row in shown:
            table.add_row(*(_cell(value) for value in row.values()))
        console.print(table)
    text = f"wrote {out}/{name}.csv and .json, {len(rows)} rows"
    if 0 < len(shown) < len(rows):
        text += f", of which {len(shown)} are shown"
    console.print(text, highlight=False, soft_wrap=True)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)
