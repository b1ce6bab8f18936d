"""Scan tables hold an order as a sequence needs it; what has no order is refused."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from kscout import policies
from kscout.acquisition import Advisor, Scan, Session
from kscout.apps.cli import app
from kscout.apps.export import order as tables
from kscout.errors import ConfigError, DataError
from kscout.policies.conv import ConvPolicy
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.zero_filled import ZeroFilled
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
    note = "'knee-base-fixed' was trained for 16 + 16 columns and runs here with 4 + 28; the zoo"
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


def test_names_of_tables_and_damaged_sessions_are_refused(tmp_path: Path) -> None:
    assert isinstance(
        run("center-out", *sizes(), "--out", tmp_path / "order.txt").exception, ConfigError
    )
    (tmp_path / "bad.npz").write_bytes(b"PK")
    assert isinstance(
        run(tmp_path / "bad.npz", "--out", tmp_path / "order.csv").exception, DataError
    )


@pytest.mark.parametrize("name", ["results/missing", "missing.json", "missing.npz"])
@pytest.mark.parametrize("given", [[], sizes()])
def test_a_missing_file_is_named(name: str, given: list[object], tmp_path: Path) -> None:
    error = run(name, *given, "--out", tmp_path / "order.csv").exception
    assert isinstance(error, ConfigError) and str(error).startswith(f"{name} does not exist")
