"""Scan tables as Pulseq sequences: a spoiled gradient echo, with an ISMRMRD header.

With the header, `kscout data import --header` reads the data of such a scan.
"""

import tempfile
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from kscout.apps.export.order import ScanTable
from kscout.apps.export.parameters import GradientEcho
from kscout.errors import ConfigError, needs_extra
from kscout.files import check_replaceable, write_text
from kscout.json_types import JsonObject

if TYPE_CHECKING:
    from pypulseq import Sequence

_RASTER_S = 1e-5
"""Raster in seconds: gradients and blocks have multiples of this duration."""
_SPOILING_DEG = 117.0
"""Increment of the phase increment of pulses (RF spoiling), in degrees."""
_SPOIL_CYCLES = 4
"""Cycles of phase over a slice, and over two pixels of the readout."""
_PULSE_S, _PULSE_CYCLES = 3e-3, 4.0
_MAX_GRAD_MT_PER_M, _MAX_SLEW_T_PER_M_PER_S = 28.0, 120.0


def write_pulseq(path: Path, table: ScanTable, echo: GradientEcho) -> Path:
    """Check and write a sequence and the header of its data; return the path of the header."""
    if table.field_of_view_mm is None:
        raise ConfigError("a sequence needs the field of view along phase encoding; give --fov-mm")
    if path.suffix != ".seq":
        raise ConfigError(f"{path} has not the suffix .seq; use it")
    header = path.with_suffix(".xml")
    check_replaceable(path, header)
    with needs_extra("Pulseq", "pulseq"):
        import pypulseq
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "scan.seq"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _sequence(pypulseq, table, echo).write(str(made))
        text = made.read_text()
    write_text(header, mrd_header(table, echo))
    write_text(path, text)
    return header


def mrd_header(table: ScanTable, echo: GradientEcho) -> str:
    """Return the ISMRMRD header of the measured data; LIN is the column."""
    assert table.field_of_view_mm is not None
    lines = sorted({*table.start, *table.acquired})
    space = (
        f"<matrixSize><x>{echo.n_rows}</x><y>{table.n_cols}</y><z>1</z></matrixSize>"
        f"<fieldOfView_mm><x>{echo.readout_mm:g}</x><y>{table.field_of_view_mm:g}</y>"
        f"<z>{echo.slice_mm:g}</z></fieldOfView_mm>"
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD">
<experimentalConditions>
<H1resonanceFrequency_Hz>{round(42.576e6 * echo.field_t)}</H1resonanceFrequency_Hz>
</experimentalConditions>
<encoding>
<encodedSpace>{space}</encodedSpace>
<reconSpace>{space}</reconSpace>
<encodingLimits>
<kspace_encoding_step_0><minimum>0</minimum><maximum>{echo.n_rows - 1}</maximum>\
<center>{echo.n_rows // 2}</center></kspace_encoding_step_0>
<kspace_encoding_step_1><minimum>{lines[0]}</minimum><maximum>{lines[-1]}</maximum>\
<center>{table.n_cols // 2}</center></kspace_encoding_step_1>
</encodingLimits>
<trajectory>cartesian</trajectory>
</encoding>
<sequenceParameters>
<TR>{echo.repetition_ms:.10g}</TR><TE>{_echo_ms(echo):.10g}</TE><flipAngle_deg>{echo.flip_deg:g}</flipAngle_deg>
</sequenceParameters>
</ismrmrdHeader>
"""


def _echo_ms(echo: GradientEcho) -> float:
    """Return the echo time that is written: with half a step, samples begin on the raster."""
    return echo.echo_ms + (0.005 if round(echo.dwell_us / 10) % 2 else 0)


def _sequence(pypulseq: ModuleType, table: ScanTable, echo: GradientEcho) -> "Sequence":
    try:
        rows = table.rows()
        events = _events(pypulseq, echo, max(abs(row["k_per_m"]) for row in rows))
        sequence = pypulseq.Sequence(events.system)
        for number, row in enumerate(rows):
            _add_line(pypulseq, sequence, events, row, number)
    # The package raises several types for gradients that are impossible.
    except (ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(
            f"this sequence is impossible ({error}); enlarge the field of view, the slice or "
            "--dwell-us"
        ) from error
    is_ok, report = sequence.check_timing()
    if not is_ok:
        raise ConfigError(
            f"the sequence has {len(report)} timing errors, such as {report[0]}; lengthen "
            "--repetition-ms, or change --dwell-us"
        )
    views = (echo.readout_mm, table.field_of_view_mm, echo.slice_mm)
    sequence.set_definition("FOV", [x * 1e-3 for x in views if x is not None])
    sequence.set_definition("Name", "kscout")
    return sequence


def _events(pypulseq: ModuleType, echo: GradientEcho, farthest_per_m: float) -> SimpleNamespace:
    """Return the events of every line, including the farthest one, and the waiting times."""
    system, pulse, select = _excitation(pypulseq, echo)
    step, dwell_s = 1000 / echo.readout_mm, round(echo.dwell_us / 10) * _RASTER_S
    flat_s = echo.n_rows * dwell_s
    trapezoid = partial(pypulseq.make_trapezoid, system=system)
    read = trapezoid("x", flat_area=echo.n_rows * step, flat_time=flat_s)
    sampling = pypulseq.make_adc(echo.n_rows, duration=flat_s, delay=read.rise_time, system=system)
    # Sample n // 2 is the center of k-space, as in kscout; samples are centered in their dwell.
    before = -read.area / 2 - (step / 2 if echo.n_rows % 2 == 0 else 0)
    center_s = read.rise_time + (echo.n_rows // 2 + 0.5) * dwell_s
    spoil_x, spoil_z = 2 * _SPOIL_CYCLES * step, _SPOIL_CYCLES * 1000 / echo.slice_mm
    pre_s, post_s = (
        max(pypulseq.calc_duration(trapezoid(axis, area=area)) for axis, area in areas)
        for areas in (
            (("x", before), ("y", farthest_per_m), ("z", -select.area / 2)),
            (("x", spoil_x), ("y", farthest_per_m), ("z", spoil_z)),
        )
    )
    events = SimpleNamespace(
        system=system,
        pulse=pulse,
        select=select,
        rephase=trapezoid("z", area=-select.area / 2, duration=pre_s),
        prephase=trapezoid("x", area=before, duration=pre_s),
        encode=partial(trapezoid, "y", duration=pre_s),
        read=read,
        sampling=sampling,
        spoil_x=trapezoid("x", area=spoil_x, duration=post_s),
        rewind=partial(trapezoid, "y", duration=post_s),
        spoil_z=trapezoid("z", area=spoil_z, duration=post_s),
    )
    select_s, read_s = (pypulseq.calc_duration(x) for x in (select, read))
    echo_s = select_s - pulse.delay - _PULSE_S / 2 + pre_s + center_s
    _add_waits(events, echo, echo_s, select_s + pre_s + read_s + post_s)
    return events


def _excitation(
    pypulseq: ModuleType, echo: GradientEcho
) -> tuple[object, SimpleNamespace, SimpleNamespace]:
    """Return the limits of the system, the pulse and the slice-selection gradient."""
    system = pypulseq.Opts(
        max_grad=_MAX_GRAD_MT_PER_M,
        grad_unit="mT/m",
        max_slew=_MAX_SLEW_T_PER_M_PER_S,
        slew_unit="T/m/s",
        rf_ringdown_time=2e-5,
        rf_dead_time=1e-4,
        adc_dead_time=1e-5,
    )
    pulse, select, _ = pypulseq.make_sinc_pulse(
        flip_angle=np.deg2rad(echo.flip_deg),
        duration=_PULSE_S,
        slice_thickness=echo.slice_mm * 1e-3,
        apodization=0.5,
        time_bw_product=_PULSE_CYCLES,
        delay=system.rf_dead_time,
        use="excitation",
        return_gz=True,
        system=system,
    )
    return system, pulse, select


def _add_waits(
    events: SimpleNamespace, echo: GradientEcho, echo_s: float, repetition_s: float
) -> None:
    """Add the delays before the readout and at the end, given the times without them."""
    before_s = _on_raster(echo.echo_ms * 1e-3 - echo_s)
    after_s = _on_raster(echo.repetition_ms * 1e-3 - repetition_s - before_s)
    shortest = {"echo": (before_s, echo_s), "repetition": (after_s, repetition_s + before_s)}
    for name, (left_s, least_s) in shortest.items():
        if left_s < 0:
            raise ConfigError(
                f"the {name} time of {getattr(echo, f'{name}_ms'):g} ms is too short; give "
                f"{np.ceil(least_s * 1e5) / 100:g} or more"
            )
    events.before_s, events.after_s = before_s, after_s


def _on_raster(time_s: float) -> float:
    # If the center of k-space is between two raster steps, the later one is used.
    return float(np.round(np.ceil(time_s / _RASTER_S - 1e-6) * _RASTER_S, 9))


def _add_line(
    pypulseq: ModuleType,
    sequence: "Sequence",
    events: SimpleNamespace,
    row: JsonObject,
    number: int,
) -> None:
    phase = np.deg2rad(_SPOILING_DEG * number * (number + 1) / 2 % 360)
    events.pulse.phase_offset = events.sampling.phase_offset = phase
    encode, rewind = events.encode(area=row["k_per_m"]), events.rewind(area=-row["k_per_m"])
    sequence.add_block(events.pulse, events.select)
    sequence.add_block(events.prephase, encode, events.rephase)
    if events.before_s:
        sequence.add_block(pypulseq.make_delay(events.before_s))
    label = pypulseq.make_label(type="SET", label="LIN", value=row["column"])
    sequence.add_block(events.read, events.sampling, label)
    sequence.add_block(events.spoil_x, rewind, events.spoil_z)
    if events.after_s:
        sequence.add_block(pypulseq.make_delay(events.after_s))
