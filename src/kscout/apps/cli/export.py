"""`kscout export`: files for other programs."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from kscout.apps.cli.console import Commands, counted, print_result
from kscout.apps.cli.options import AsJson, from_fields, with_fields
from kscout.apps.export.parameters import GradientEcho, OrderSetting
from kscout.config.bounds import Between, Form
from kscout.errors import ConfigError
from kscout.names import RECONSTRUCTION_WORDS

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    help="""Export scan tables, sequences and ONNX networks.

    Example: kscout export order center-out --n-cols 128 --n-initial 16 --steps 16
    --out order.csv""",
)


@dataclass(frozen=True, kw_only=True)
class _OrderFile:
    given: Annotated[str, Form("POLICY|EVALUATION|SESSION", is_argument=True)]
    """A fixed order (center-out, equispaced-one, a run folder, the .json of a fitted one), the
    folder of an evaluation, or the .npz of a session."""


@dataclass(frozen=True, kw_only=True)
class _TableOptions(_OrderFile):
    out: Path
    """File of the table: .csv or .json."""
    fov_mm: float | None = None
    """Field of view along phase encoding, for k in 1/m."""


@app.command()
@with_fields(OrderSetting, is_open=True)
@from_fields
def order(options: _TableOptions, **settings: Any) -> None:  # noqa: ANN401 - values of the fields
    """Write a scan table: the order of columns, with their phase-encoding steps and k.

    Example: kscout export order center-out --n-cols 128 --n-initial 16 --steps 16 --fov-mm 220
    --out order.csv
    """
    from kscout.apps.export.order import order_of

    table = order_of(options.given, OrderSetting(**settings), options.fov_mm)
    table.write(options.out)
    print_result(None, f"wrote {options.out}: {len(table.rows())} columns")


@dataclass(frozen=True, kw_only=True)
class _SequenceOptions(_OrderFile):
    out: Path
    """The .seq file; its MRD header is put next to it."""
    fov_mm: float
    """Field of view along phase encoding."""


@app.command()
@with_fields(GradientEcho, is_open=True)
@with_fields(OrderSetting, is_open=True)
@from_fields
def pulseq(options: _SequenceOptions, **settings: Any) -> None:  # noqa: ANN401 - values of the fields
    """Write a Pulseq gradient echo that measures columns in a given order, and its MRD header.

    Example: kscout export pulseq center-out --n-cols 128 --n-initial 16 --steps 16 --fov-mm 220
    --out scan.seq
    """
    from kscout.apps.export.order import order_of
    from kscout.apps.export.pulseq import write_pulseq

    order = {x.name: settings.pop(x.name, None) for x in fields(OrderSetting)}
    table = order_of(options.given, OrderSetting(**order), options.fov_mm)
    echo = GradientEcho(**{"n_rows": table.n_cols, "readout_mm": options.fov_mm, **settings})
    header = write_pulseq(options.out, table, echo)
    line = f"wrote {options.out}: {len(table.rows())} lines, timing checked; header {header}"
    print_result(None, line)


@dataclass(frozen=True, kw_only=True)
class _GraphOptions:
    out: Path
    """The .onnx file."""
    n_rows: Annotated[int, Between(2, 4096)]
    """Rows of the images."""
    n_cols: Annotated[int, Between(2, 4096)]
    """Columns of the images."""
    reconstructor: Annotated[str | None, Form(help=RECONSTRUCTION_WORDS)] = None
    policy: str | None = None
    """A run folder, a weights file or a zoo name."""
    checked: Annotated[int, Between(1, 10_000)] = 100
    """Number of slices for the check."""
    as_json: AsJson = False


@app.command()
@from_fields
def onnx(options: _GraphOptions) -> None:
    """Write reconstruction, policy or both as one ONNX graph, and compare onnxruntime with torch.

    Example: kscout export onnx --reconstructor knee-unet --policy knee-base-greedy --n-rows 128
    --n-cols 128 --out knee.onnx
    """
    from kscout import policies, reconstruction
    from kscout.apps.export.onnx import export_onnx

    if options.reconstructor is None and options.policy is None:
        raise ConfigError("there is nothing to export; give --reconstructor, --policy or both")
    name, policy = options.reconstructor, options.policy
    exported = export_onnx(
        options.out,
        None if name is None else reconstruction.load(name),
        None if policy is None else policies.load(policy),
        n_rows=options.n_rows,
        n_cols=options.n_cols,
        n_checked=options.checked,
    )
    errors = {"images": exported.image_error, "scores": exported.score_error}
    agreement = ", ".join(f"{what} to {x:.0e}" for what, x in errors.items() if x is not None)
    line = f"wrote {options.out}: agrees in {agreement} on {counted(exported.n_checked, 'slice')}"
    print_result(asdict(exported), line, as_json=options.as_json)
