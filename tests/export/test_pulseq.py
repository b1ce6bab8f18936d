"""A sequence measures the lines of its order, at the times asked for, and its header fits them."""

from pathlib import Path
from typing import Any

import ismrmrd
import numpy as np
import pytest
from typer.testing import CliRunner

from coil_data import coil_kspace, imported, stored
from kscout.apps.cli import app
from kscout.apps.export.order import ScanTable
from kscout.apps.export.pulseq import GradientEcho, write_pulseq
from kscout.data.formats.ismrmrd_header import read_header
from kscout.errors import ConfigError, DataError
from mrd_files import line, write

N_COLS, ORDER = 11, [4, 5, 6, 3, 7, 2, 8, 1, 9, 0, 10]
"""Center-out, of all columns."""


def run(out: Path, *words: object, fov_mm: float = 220.0, n_rows: int | None = 16) -> Any:
    sizes = ["--n-cols", N_COLS, "--n-initial", 3, "--steps", N_COLS - 3]
    sizes += [] if n_rows is None else ["--n-rows", n_rows]
    given = ["center-out", *sizes, "--fov-mm", fov_mm, "--out", out, *words]
    return CliRunner().invoke(app, ["export", "pulseq", *map(str, given)])


@pytest.mark.parametrize("given", [16, 13, None])
def test_a_sequence_read_back_measures_the_order(given: int | None, tmp_path: Path) -> None:
    path = tmp_path / "scan.seq"
    result = run(
        path,
        "--readout-mm",
        160,
        "--slice-mm",
        2,
        "--echo-ms",
        7,
        "--repetition-ms",
        25,
        n_rows=given,
    )
    assert result.exit_code == 0, result.output
    n_rows = given or N_COLS
    # Here: every worker that collects tests would wait for it.
    import pypulseq

    sequence = pypulseq.Sequence()
    sequence.read(str(path))
    assert sequence.check_timing()[0]
    assert sequence.evaluate_labels(evolution="adc")["LIN"].tolist() == ORDER
    k_per_m, _, excited_s, _, sampled_s = sequence.calculate_kspace()
    x, y, _ = k_per_m.reshape(3, N_COLS, n_rows)
    # Shapes are written with six digits.
    steps = np.arange(n_rows) - n_rows // 2
    np.testing.assert_allclose(x * 0.16, np.broadcast_to(steps, x.shape), atol=1e-4)
    lines = np.array(ORDER)[:, None] - N_COLS // 2
    np.testing.assert_allclose(y * 0.22, np.broadcast_to(lines, y.shape), atol=1e-4)
    echo_s = sampled_s.reshape(N_COLS, n_rows)[:, n_rows // 2] - excited_s
    np.testing.assert_allclose(echo_s, 7e-3, atol=1e-5)
    np.testing.assert_allclose(np.diff(excited_s), 25e-3, atol=1e-9)


def test_the_header_reads_what_the_sequence_measures(tmp_path: Path) -> None:
    """Lines that carry the label LIN as their counter become the k-space they were cut from."""
    path, n_rows = tmp_path / "scan.seq", 16
    assert run(path).exit_code == 0
    xml = path.with_suffix(".xml")
    theirs = ismrmrd.xsd.CreateFromDocument(xml.read_bytes())
    assert theirs.sequenceParameters.TE == [8.0]
    assert theirs.encoding[0].encodingLimits.kspace_encoding_step_1.maximum == N_COLS - 1
    (ours,) = read_header(xml.read_bytes()).encodings
    assert ours.encoded is not None and ours.encoded.matrix == (n_rows, N_COLS)
    assert ours.encoded.field_of_view_mm == (220, 220) and ours.center == N_COLS // 2
    kspace = coil_kspace(1, 2, n_rows, N_COLS).numpy()
    rows = [line(kspace[0, :, :, column], kspace_encode_step_1=column) for column in ORDER]
    store = imported(write(tmp_path / "scan.mrd", rows, xml=""), header=xml)
    np.testing.assert_array_equal(stored(store), kspace)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"echo_ms": 1.0}, "echo time of 1 ms is too short"),
        ({"repetition_ms": 9.0}, "repetition time of 9 ms is too short"),
        ({"readout_mm": 1.0}, "sequence is impossible"),
        ({"slice_mm": 0.1}, "sequence is impossible"),
        ({"slice_mm": 0.01}, "slice_mm is 0.01; it must be between 0.1 and 500"),
        ({"dwell_us": 13.0}, "dwell_us is 13; it must be a multiple of 10, such as 10"),
        ({"dwell_us": 1.0}, "dwell_us is 1.0; it must be between 10 and 1000"),
        ({"echo_ms": 8.004}, r"echo_ms is 8\.004; it must be a multiple of 0\.01, such as 8"),
        *(
            ({name: 1e300}, f"{name} is 1e\\+300; it must be between")
            for name in ("readout_mm", "echo_ms", "repetition_ms", "field_t", "max_grad_mt_per_m")
        ),
        ({"flip_deg": 0.0}, "flip_deg"),
        ({"n_rows": 1}, "n_rows"),
    ],
)
def test_what_cannot_be_played_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    table = ScanTable("here", N_COLS, (5,), (4,), 220.0)
    with pytest.raises(ConfigError, match=words):
        write_pulseq(
            tmp_path / "a.seq", table, GradientEcho(**{"n_rows": 16, "readout_mm": 160.0} | changes)
        )
    assert not list(tmp_path.iterdir())


def test_an_echo_time_that_is_told_to_be_possible_is(tmp_path: Path) -> None:
    table = ScanTable("here", N_COLS, (5,), (4,), 220.0)
    given: dict[str, Any] = {"n_rows": 16, "readout_mm": 160.0}
    with pytest.raises(ConfigError) as refused:
        write_pulseq(tmp_path / "a.seq", table, GradientEcho(**given, echo_ms=1.0))
    least = float(str(refused.value).split("give ")[1].split()[0])
    write_pulseq(tmp_path / "a.seq", table, GradientEcho(**given, echo_ms=least))


@pytest.mark.parametrize(("dwell_us", "echo_ms"), [(10.0, 8.005), (20.0, 8.0), (30.0, 8.005)])
def test_dwell_and_echo_times_are_those_of_the_options_and_of_the_header(
    tmp_path: Path, dwell_us: float, echo_ms: float
) -> None:
    path, table = tmp_path / "scan.seq", ScanTable("here", N_COLS, (5,), (4,), 220.0)
    write_pulseq(path, table, GradientEcho(n_rows=16, readout_mm=160.0, dwell_us=dwell_us))
    import pypulseq

    sequence = pypulseq.Sequence()
    sequence.read(str(path))
    k_per_m, _, excited_s, _, sampled_s = sequence.calculate_kspace()
    assert np.diff(sampled_s)[0] == pytest.approx(dwell_us * 1e-6)
    center_s = sampled_s[np.abs(k_per_m[0, :16]).argmin()]
    assert (center_s - excited_s[0]) * 1e3 == pytest.approx(echo_ms, abs=1e-5)
    header = ismrmrd.xsd.CreateFromDocument(path.with_suffix(".xml").read_bytes())
    assert header.sequenceParameters.TE == [echo_ms]


def test_names_and_fields_of_view_are_checked(tmp_path: Path) -> None:
    echo = GradientEcho(n_rows=16, readout_mm=160.0)
    with pytest.raises(ConfigError, match="--fov-mm"):
        write_pulseq(tmp_path / "a.seq", ScanTable("here", N_COLS, (5,), ()), echo)
    with pytest.raises(ConfigError, match=r"not the suffix \.seq"):
        write_pulseq(tmp_path / "a.csv", ScanTable("here", N_COLS, (5,), (), 220.0), echo)
    assert isinstance(run(tmp_path / "a.seq", fov_mm=-1.0).exception, ConfigError | DataError)
