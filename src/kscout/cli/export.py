"""`kscout export`: files to take away."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kscout.cli.console import Commands, answer_console, counted
from kscout.cli.evaluate import RECONSTRUCTION_WORDS
from kscout.cli.options import AsJson
from kscout.errors import ConfigError

if TYPE_CHECKING:
    from kscout.export.order import ScanTable

app = typer.Typer(cls=Commands, no_args_is_help=True)


@app.callback()
def export() -> None:
    """Write files for use outside of kscout."""


Given = Annotated[
    str,
    typer.Argument(
        metavar="POLICY|EVALUATION|SESSION",
        help="A fixed order (center-out, equispaced-one, a run folder of one), the folder of "
        "an evaluation, or the .npz of a session.",
    ),
]
NCols = Annotated[int | None, typer.Option(help="Columns of the image, for a policy.")]
NInitial = Annotated[int | None, typer.Option(help="Central columns measured first, for a policy.")]
Steps = Annotated[int | None, typer.Option(help="Columns measured after them, for a policy.")]
OfPolicy = Annotated[str | None, typer.Option(help="Whose acquisition, of an evaluation.")]
OfSlice = Annotated[
    str | None,
    typer.Option("--slice", metavar="VOLUME:NUMBER", help="Which slice, of an evaluation."),
]


@app.command()
def order(
    given: Given,
    out: Annotated[Path, typer.Option(help="The table: .csv or .json.")],
    n_cols: NCols = None,
    n_initial: NInitial = None,
    steps: Steps = None,
    policy: OfPolicy = None,
    slice_: OfSlice = None,
    fov_mm: Annotated[
        float | None, typer.Option(help="Field of view along phase encoding, for k in 1/m.")
    ] = None,
) -> None:
    """Write a scan table: which column is measured when, its phase-encoding step, and k.

    Example: kscout export order center-out --n-cols 128 --n-initial 16 --steps 16 --fov-mm 220
    --out order.csv
    """
    table = _table(given, n_cols, n_initial, steps, policy, slice_, fov_mm)
    table.write(out)
    answer_console().print(f"wrote {out}: {len(table.rows())} columns", soft_wrap=True)


@app.command()
def pulseq(
    given: Given,
    out: Annotated[Path, typer.Option(help="The .seq file; its MRD header lies beside it.")],
    fov_mm: Annotated[float, typer.Option(help="Field of view along phase encoding.")],
    n_rows: Annotated[
        int | None, typer.Option(help="Samples of a readout; else as many as columns.")
    ] = None,
    n_cols: NCols = None,
    n_initial: NInitial = None,
    steps: Steps = None,
    policy: OfPolicy = None,
    slice_: OfSlice = None,
    readout_mm: Annotated[
        float | None, typer.Option(help="Field of view along the readout; else --fov-mm.")
    ] = None,
    slice_mm: Annotated[float, typer.Option(help="Thickness of the slice.")] = 5.0,
    flip_deg: Annotated[float, typer.Option(help="Flip angle.")] = 15.0,
    echo_ms: Annotated[float, typer.Option(help="Echo time.")] = 8.0,
    repetition_ms: Annotated[float, typer.Option(help="Repetition time.")] = 20.0,
    dwell_us: Annotated[float, typer.Option(help="Time of a sample, in steps of 10.")] = 20.0,
    field_t: Annotated[float, typer.Option(help="Field of the magnet, for the header.")] = 3.0,
) -> None:
    """Write a gradient echo in Pulseq's format that measures columns in an order, and its header.

    Example: kscout export pulseq center-out --n-cols 128 --n-initial 16 --steps 16 --fov-mm 220
    --out scan.seq
    """
    from kscout.export.pulseq import GradientEcho, write_pulseq

    table = _table(given, n_cols, n_initial, steps, policy, slice_, fov_mm)
    echo = GradientEcho(
        n_rows=table.n_cols if n_rows is None else n_rows,
        readout_mm=fov_mm if readout_mm is None else readout_mm,
        slice_mm=slice_mm,
        flip_deg=flip_deg,
        echo_ms=echo_ms,
        repetition_ms=repetition_ms,
        dwell_us=dwell_us,
        field_t=field_t,
    )
    header = write_pulseq(out, table, echo)
    told = f"wrote {out}: {len(table.rows())} lines, timing checked; header {header}"
    answer_console().print(told, soft_wrap=True)


def _table(
    given: str,
    n_cols: int | None,
    n_initial: int | None,
    steps: int | None,
    policy: str | None,
    slice_: str | None,
    fov_mm: float | None,
) -> "ScanTable":
    from kscout.export import order as tables

    path = Path(given)
    if (path / "results.csv").is_file():
        volume, _, number = (slice_ or "").rpartition(":")
        if policy is None or not volume or not number.isdigit():
            raise ConfigError(
                "an evaluation holds many orders; add --policy and --slice VOLUME:NUMBER"
            )
        asked = {"policy": policy, "volume": volume, "number": int(number)}
        return tables.order_of_evaluation(path, **asked, field_of_view_mm=fov_mm)  # type: ignore[arg-type]
    if path.suffix == ".npz":
        return tables.order_of_session(path, field_of_view_mm=fov_mm)
    sizes = tables.sizes_of(given, n_cols=n_cols, n_initial=n_initial, steps=steps)
    return tables.order_of_policy(given, **sizes, field_of_view_mm=fov_mm)


@app.command()
def onnx(
    out: Annotated[Path, typer.Option(help="The .onnx file.")],
    n_rows: Annotated[int, typer.Option(min=2, help="Rows of the images.")],
    n_cols: Annotated[int, typer.Option(min=2, help="Columns of the images.")],
    reconstructor: Annotated[str | None, typer.Option(help=RECONSTRUCTION_WORDS)] = None,
    policy: Annotated[
        str | None, typer.Option(help="A run folder, a weights file or a zoo name.")
    ] = None,
    checked: Annotated[int, typer.Option(min=1, help="Slices drawn for the check.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Write reconstruction, policy or both as one ONNX graph, once onnxruntime agrees with torch.

    Example: kscout export onnx --reconstructor knee-unet --policy knee-base-greedy --n-rows 128
    --n-cols 128 --out knee.onnx
    """
    from kscout import policies, reconstruction
    from kscout.export.onnx import export_onnx

    if reconstructor is None and policy is None:
        raise ConfigError("there is nothing to export; give --reconstructor, --policy or both")
    network = None if reconstructor is None else reconstruction.load(reconstructor)
    found = export_onnx(
        *(out, network, None if policy is None else policies.load(policy)),
        n_rows=n_rows,
        n_cols=n_cols,
        n_checked=checked,
    )
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    errors = {"images": found.image_error, "scores": found.score_error}
    told = ", ".join(f"{what} to {x:.0e}" for what, x in errors.items() if x is not None)
    line = f"wrote {out}: agrees in {told} on {counted(found.n_checked, 'slice')}"
    answer_console().print(line, soft_wrap=True)
