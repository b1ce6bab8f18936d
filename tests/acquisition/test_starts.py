"""Start masks and budgets as users write them: every notation of one mask is the same mask."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kscout.acquisition.plan import for_slices, read_budgets, read_starts
from kscout.columns import columns_text, parse_columns
from kscout.errors import ConfigError, DataError

N_COLS = 11
COLUMNS = (0, 3, 6, 7, 8)


def mask(columns: tuple[int, ...] = COLUMNS) -> list[bool]:
    return [column in columns for column in range(N_COLS)]


def write(path: Path, content: Any) -> Path:
    if path.suffix == ".npy":
        np.save(path, np.array(content))
    elif path.suffix == ".npz":
        np.savez(path, order=np.array(content, dtype=np.int16))
    else:
        path.write_text(content if path.suffix == ".txt" else json.dumps(content))
    return path


ONE_FOR_ALL = [
    ("a.txt", "# mine\n\n0 3, 6-8  # the center\n"),
    ("a.txt", "6-8; 3,0\n"),
    ("a.json", list(COLUMNS)),
    ("a.json", mask()),
    ("a.json", [int(value) for value in mask()]),
    ("a.json", ["0,3,6-8"]),
    ("a.npy", mask()),
    ("a.npy", COLUMNS),
    ("a.npy", [[int(value) for value in mask()]]),
    ("a.npz", [[[1 if value else -1 for value in mask()]]]),
]


@pytest.mark.parametrize("name, content", ONE_FOR_ALL)
def test_every_notation_names_the_same_columns(tmp_path: Path, name: str, content: Any) -> None:
    (found,) = read_starts(write(tmp_path / name, content), n_cols=N_COLS)
    assert sorted(found) == list(COLUMNS)
    assert sorted(read_starts("0,3,6-8", n_cols=N_COLS)[0]) == list(COLUMNS)


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.txt", "0,3\n5\n"),
        ("a.json", [[0, 3], [5]]),
        ("a.json", [mask((0, 3)), mask((5,))]),
        ("a.npy", [mask((0, 3)), mask((5,))]),
        (
            "a.npz",
            [[[0 if v else -1 for v in mask((0, 3))]], [[0 if v else -1 for v in mask((5,))]]],
        ),
    ],
)
def test_a_file_may_hold_a_start_per_slice(tmp_path: Path, name: str, content: Any) -> None:
    assert read_starts(write(tmp_path / name, content), n_cols=N_COLS) == ((0, 3), (5,))


def test_ranges_of_one_list_have_a_common_limit() -> None:
    with pytest.raises(ConfigError, match="a list of columns names more than 65536"):
        parse_columns("0-65535," * 1000)


def test_text_of_columns_is_read_back() -> None:
    assert columns_text([8, 3, 7, 6, 0]) == "0,3,6-8"
    for columns in ((5,), (0, 1), (0, 2, 4), tuple(range(N_COLS))):
        assert parse_columns(columns_text(columns)) == columns


@pytest.mark.parametrize(
    "given, sentence",
    [
        ("0,x", "'x' is not a column"),
        ("", "'' is not a column"),
        ("-3", "'-3' is not a column"),
        ("9-2", "the range 9-2"),
        ("0-999999999", "the range 0-999999999"),
        ("3,11", "column 11 of the start is not one of the 11"),
        ("3,2-4", "column 3 occurs twice"),
    ],
)
def test_a_wrong_list_is_refused_in_a_sentence(given: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        read_starts(given, n_cols=N_COLS)


@pytest.mark.parametrize(
    "name, content, sentence",
    [
        ("a.json", mask()[:-1], "mask of 10 columns, the images have 11"),
        ("a.npy", np.zeros((2, 9), dtype=bool), "mask of 9 columns"),
        ("a.json", [], r"holds \[\]"),
        ("a.json", {"columns": [1]}, "give a list of columns"),
        ("a.json", [[1], 2], "give a list of columns"),
        ("a.json", [[1.5]], "where a list of columns is expected"),
        ("a.npy", [0.5, 1.0], "float64"),
        ("a.npy", np.zeros((2, 2, 11), dtype=bool), "3 axes"),
        ("a.npz", [[0, 1]], "no axes slice, trajectory, column"),
        ("a.txt", "", r"holds \[\]"),
        ("a.txt", "0,3\nfoo\n", "'foo' is not a column"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(
    tmp_path: Path, name: str, content: Any, sentence: str
) -> None:
    with pytest.raises((ConfigError, DataError), match=sentence):
        read_starts(write(tmp_path / name, content), n_cols=N_COLS)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.json", "a.txt"])
@pytest.mark.parametrize("content", [None, b"", b"\x93NUMPY\x01", b"\xff\xfe{"])
def test_a_damaged_file_is_refused_in_a_sentence(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name):
        read_starts(tmp_path / name, n_cols=N_COLS)


def test_a_file_is_measured_before_it_is_read(tmp_path: Path) -> None:
    header = "{'descr': '|b1', 'fortran_order': False, 'shape': (4000000000000, 11), }"
    bomb = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + header.ljust(117).encode() + b"\n"
    (tmp_path / "bomb.npy").write_bytes(bomb + b"\x01" * 22)
    os.mkfifo(tmp_path / "pipe.txt")
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "folder.json").mkdir()
    for name in ("bomb.npy", "pipe.txt", "pipe.npy", "deep.json", "folder.json"):
        with pytest.raises(DataError, match=name):
            read_starts(tmp_path / name, n_cols=N_COLS)


def test_budgets_are_one_number_or_one_per_slice(tmp_path: Path) -> None:
    assert read_budgets("12") == read_budgets(12) == (12,)
    for name, content in (("a.txt", "4\n5 # b\n"), ("a.json", [4, 5]), ("a.npy", [4, 5])):
        assert read_budgets(write(tmp_path / name, content)) == (4, 5)
    for wrong in ("many", "1.5", write(tmp_path / "b.txt", "4\nx\n")):
        with pytest.raises(ConfigError, match="is not a number of columns"):
            read_budgets(wrong)


def test_entries_follow_slices_of_the_split_or_of_the_evaluation() -> None:
    assert for_slices("x", [1, 3], 5, "starts") == ["x", "x"]
    assert for_slices("abcde", [1, 3], 5, "starts") == ["b", "d"]
    assert for_slices("ab", [1, 3], 5, "starts") == ["a", "b"]
    with pytest.raises(DataError, match="3 starts were given, the split has 5 slices"):
        for_slices("abc", [1, 3], 5, "starts")
