"""Columns of a start as users write them."""

import pytest

from kscout.acquisition.plan import check_columns
from kscout.columns import columns_text, parse_columns
from kscout.errors import ConfigError

N_COLS = 11


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
        ("starts.txt", "'starts.txt' is not a column"),
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
        check_columns(parse_columns(given), N_COLS)
