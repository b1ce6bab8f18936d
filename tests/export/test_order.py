"""Scan tables hold an order as a sequence needs it; what has no order is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import ismrmrd
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from coil_data import coil_kspace, imported, stored
from kscout import policies
from kscout.acquisition import Advisor, Scan, Session
from kscout.apps.cli import app
from kscout.apps.export import order as tables
from kscout.apps.export.order import ScanTable
from kscout.apps.export.pulseq import GradientEcho, write_pulseq
from kscout.data.formats.ismrmrd_header import read_header
from kscout.errors import ConfigError, DataError
from kscout.policies.conv import ConvPolicy
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.zero_filled import ZeroFilled
from mrd_files import line, write
from synthetic_results import make_summary, write_evaluation

SIZES: dict[str, int] = {"n_cols": 16, "n_initial": 3, "steps": 4}


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["export", "order", *map(str, words)])


def sizes(n_cols: int = 16, n_initial: int = 3, steps: int = 4) -> list[object]:
    return ["--n-cols", n_cols, "--n-initial", n_initial, "--steps", steps]


def test_lines_and_k_are_those_of_the_field_of_view(tmp_path: Path) -> None:
    """Neighboring columns lie 1 / field of view apart, and DC is zero."""
    out = tmp_path / "order.csv"
    assert run("center-out", *sizes(), "--fov-mm", 250, "--out", out).exit_code == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["column"]) for row in rows] == [7, 8, 9, 6, 10, 5, 11]
    assert [int(row["step"]) for row in rows] == [0, 0, 0, 1, 2, 3, 4]
    for place, row in enumerate(rows):
        assert int(row["place"]) == place and int(row["line"]) == int(row["column"]) - 8
        assert float(row["k_per_m"]) == pytest.approx(int(row["line"]) / 0.25)


def test_json_holds_the_same_rows_with_their_facts(tmp_path: Path) -> None:
    out = tmp_path / "order.json"
    assert run("equispaced-one", *sizes(), "--out", out).exit_code == 0
    found = json.loads(out.read_text())
    assert found["rows"] == tables.order_of_policy("equispaced-one", **SIZES).rows()
    assert found["n_initial"] == 3 and found["k_step_per_m"] is None
    assert "k_per_m" not in found["rows"][0]


def test_sizes_are_those_of_the_file_where_none_are_given(tmp_path: Path) -> None:
    out = tmp_path / "order.json"
    assert run("knee-base-fixed", "--out", out).exit_code == 0
    found = json.loads(out.read_text())
    assert (found["n_cols"], found["n_initial"], len(found["rows"])) == (128, 16, 32)
    assert run("knee-base-fixed", "--steps", 4, "--out", out).exit_code == 0
    assert len(json.loads(out.read_text())["rows"]) == 20
    with pytest.raises(ConfigError, match="--n-cols, --n-initial and --steps; give all"):
        tables.sizes_of("center-out", n_cols=16, n_initial=None, steps=2)


def test_an_order_for_another_acquisition_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    for n_initial, steps in ((16, 16), (4, 28)):
        tables.order_of_policy("knee-base-fixed", n_cols=128, n_initial=n_initial, steps=steps)
    note = "'knee-base-fixed' was trained for 16 + 16 columns and runs here with 4 + 28; train"
    assert [note in x for x in caplog.messages] == [True, False]


def test_a_fitted_order_is_read_from_its_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "fixed.safetensors"
    policies.save(file, FixedOrder(n_cols=16, order=[0, 8, 15, 4]))
    assert tables.order_of_policy(str(file), **SIZES).acquired == (0, 15, 4, 6)
    assert "was fitted for fewer columns; the last 1 follow from the center" in caplog.text
    with pytest.raises(ConfigError, match="orders 16 columns"):
        tables.order_of_policy(str(file), **{**SIZES, "n_cols": 32})


def test_what_chooses_as_it_goes_has_no_order(tmp_path: Path) -> None:
    file = tmp_path / "conv.safetensors"
    policies.save(file, ConvPolicy(n_cols=16, n_rows=12, n_channels=2, n_hidden=5))
    for given in (str(file), "random", "variable-density"):
        with pytest.raises(ConfigError, match="has no order"):
            tables.order_of_policy(given, **SIZES)
    with pytest.raises(ConfigError, match="has no order"):
        tables.order_of_policy("oracle", **SIZES)


def test_a_session_gives_back_what_it_measured(tmp_path: Path) -> None:
    file = tmp_path / "session.npz"
    with Advisor(ZeroFilled(), FixedOrder(n_cols=16, order=[1, 14])) as advisor:
        session = Session(advisor, Scan(n_rows=5, n_cols=16, budget=6, initial=3), file=file)
        for columns in ([12], [9, 7, 8], [1]):
            data = torch.ones(len(columns), 1, 5, dtype=torch.complex64)
            session.measure(columns, data)
    table = tables.order_of_session(file)
    assert table.start == (9, 7, 8) and table.acquired == (12, 1)
    (tmp_path / "bad.npz").write_bytes(b"PK")
    assert isinstance(run(tmp_path / "bad.npz", "--out", tmp_path / "a.csv").exception, DataError)
    arrays = dict(np.load(file))
    facts = json.loads(arrays["session"].tobytes())
    for name, value in (("initial", 10**12), ("n_cols", 10**12)):
        changed = json.dumps({**facts, "scan": {**facts["scan"], name: value}})
        np.savez(file, **{**arrays, "session": np.frombuffer(changed.encode(), np.uint8)})
        with pytest.raises(DataError, match="is not a session"):
            tables.order_of_session(file)


def test_an_evaluation_gives_one_slice_of_one_policy(tmp_path: Path) -> None:
    folder = write_evaluation(tmp_path / "found")
    name = make_summary().policies[0].policy
    header = "policy,seed,volume,slice,trajectory,step,column,ssim,psnr,nmse"
    rows = [
        f"{name},0,a:b,{number},0,{step},{column},.5,20,.1"
        for number in (4, 5)
        for step, column in enumerate(["", 0, number])
    ]
    (folder / "results.csv").write_text("\n".join([header, *rows]) + "\n")
    out = tmp_path / "order.json"
    given = [folder, "--policy", name, "--slice", "a:b:5", "--out", out]
    assert run(*given).exit_code == 0
    found = json.loads(out.read_text())["rows"]
    assert [row["column"] for row in found if row["step"]] == [0, 5]
    assert len(found) == make_summary().n_initial + 2
    for word, wrong, told in ((2, "other", "choose one of"), (4, "b:4", "it has a:b:4, a:b:5")):
        failed = run(*given[:word], wrong, *given[word + 1 :]).exception
        assert isinstance(failed, ConfigError) and told in str(failed)
    assert isinstance(run(folder, "--out", out).exception, ConfigError)
    adaptive = run(folder, "--policy", name, "--out", out).exception
    assert "a different order for each slice; add --slice, one of a:b:4, a:b:5" in str(adaptive)
    equal = [
        f"{name},0,a,{n},0,{step},{x},.5,20,.1" for n in (4, 5) for step, x in ((0, ""), (1, 7))
    ]
    (folder / "results.csv").write_text("\n".join([header, *equal]) + "\n")
    assert run(folder, "--policy", name, "--out", out).exit_code == 0
    assert [row["column"] for row in json.loads(out.read_text())["rows"] if row["step"]] == [7]
    failed = run(*given, "--n-cols", 16, "--steps", 2).exception
    assert "--n-cols and --steps cannot be used with the evaluation" in str(failed)


@pytest.mark.parametrize(
    "words",
    [
        ["center-out", "--n-cols", 16],
        ["center-out", *sizes(steps=14)],
        ["center-out", *sizes(), "--fov-mm", 0],
        ["center-out", *sizes(), "--fov-mm", "nan"],
        ["nobody", *sizes()],
        ["center-out", *sizes(), "--fov-mm", 1e300],
        ["center-out", "--n-cols", 99999999999, "--n-initial", 16, "--steps", 16],
        ["center-out", *sizes(), "--slice", "a:1", "--policy", "x"],
    ],
)
def test_what_makes_no_table_is_refused_and_writes_nothing(
    tmp_path: Path, words: list[object]
) -> None:
    out = tmp_path / "order.csv"
    assert isinstance(run(*words, "--out", out).exception, ConfigError) and not out.exists()
    text = run("center-out", *sizes(), "--out", tmp_path / "order.txt")
    assert isinstance(text.exception, ConfigError)


@pytest.mark.parametrize("name", ["results/missing", "missing.json", "missing.npz"])
@pytest.mark.parametrize("given", [[], sizes()])
def test_a_missing_file_is_named(name: str, given: list[object], tmp_path: Path) -> None:
    error = run(name, *given, "--out", tmp_path / "order.csv").exception
    assert isinstance(error, ConfigError) and str(error).startswith(f"{name} does not exist")


N_COLS, ORDER = 11, [4, 5, 6, 3, 7, 2, 8, 1, 9, 0, 10]
"""Center-out, of all columns."""


def pulseq_run(out: Path, *words: object, fov_mm: float = 220.0, n_rows: int | None = 16) -> Any:
    sizes = ["--n-cols", N_COLS, "--n-initial", 3, "--steps", N_COLS - 3]
    sizes += [] if n_rows is None else ["--n-rows", n_rows]
    given = ["center-out", *sizes, "--fov-mm", fov_mm, "--out", out, *words]
    return CliRunner().invoke(app, ["export", "pulseq", *map(str, given)])


@pytest.mark.parametrize("given", [16, 13, None])
def test_a_sequence_read_back_measures_the_order(given: int | None, tmp_path: Path) -> None:
    path = tmp_path / "scan.seq"
    times = ["--echo-ms", 7, "--repetition-ms", 25]
    result = pulseq_run(path, "--readout-mm", 160, "--slice-mm", 2, *times, n_rows=given)
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
    assert pulseq_run(path).exit_code == 0
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
        ({"dwell_us": 13.0}, "dwell_us is 13; it must be a multiple of 10, such as 10"),
        ({"echo_ms": 8.004}, r"echo_ms is 8\.004; it must be a multiple of 0\.01, such as 8"),
        ({"repetition_ms": 1e300}, r"repetition_ms is 1e\+300; it must be between"),
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
    assert isinstance(
        pulseq_run(tmp_path / "a.seq", fov_mm=-1.0).exception, ConfigError | DataError
    )
