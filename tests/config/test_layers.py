"""Later layers win, a key is in what a user named exactly where it was given, and changes show."""

from pathlib import Path

import pytest

from kscout.config.layers import assigned, differences, given, listed, merge, nested
from kscout.errors import ConfigError


def test_later_layers_win_and_sections_merge() -> None:
    one = {"a": {"x": 1, "y": {"z": 1}}, "b": 1}
    assert merge(one, {"a": {"y": {"w": 2}}}, {"b": 3}) == {
        "a": {"x": 1, "y": {"z": 1, "w": 2}},
        "b": 3,
    }
    assert one == {"a": {"x": 1, "y": {"z": 1}}, "b": 1}


def test_another_name_replaces_a_section() -> None:
    below = {"policy": {"name": "conv", "n_channels": 4}}
    assert merge(below, {"policy": {"name": "own"}}) == {"policy": {"name": "own"}}
    assert merge(below, {"policy": {"name": "conv"}}) == below
    # Arguments without a name are meant for the name that is given beside them.
    assert merge({"policy": {"n_layers": 3}}, {"policy": {"name": "own"}}) == {
        "policy": {"n_layers": 3, "name": "own"}
    }


def test_what_a_user_named_is_all_that_is_there(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[training]\nseed = 1\nn_epochs = 2\n[acquisition]\nhorizon = 3\n")
    found = given(
        file,
        ["training.seed=4", "policy.order=[1, 2]", "policy.note=a word"],
        {"training.n_epochs": 5, "training.method": None},
    )
    assert found == {
        "training": {"seed": 4, "n_epochs": 5},
        "acquisition": {"horizon": 3},
        "policy": {"order": [1, 2], "note": "a word"},
    }


def test_options_that_are_not_given_are_left_out() -> None:
    assert nested({"a.b": None, "a.c": 0, "d": False}) == {"a": {"c": 0}, "d": False}


@pytest.mark.parametrize("text", ["training", "training=3", "training.x", ".x=3"])
def test_what_is_no_assignment_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write section\.key=value"):
        assigned([text])


def test_differences_are_told_by_place_and_not_all_of_many() -> None:
    there = {"a": {"x": 1, "y": 2}, "b": 3}
    here = {"a": {"x": 1, "y": 4}, "c": 5}
    found = differences(there, here)
    assert found == [
        "a.y is 2 there and 4 here",
        "b is 3 there and 'not set' here",
        "c is 'not set' there and 5 here",
    ]
    assert differences(there, there) == []
    assert listed(found, most=1) == "a.y is 2 there and 4 here; 2 more"


def test_a_number_that_python_does_not_read_is_a_word() -> None:
    digits = "9" * 5000
    assert assigned([f"a.b={digits}", "a.c=9"]) == {"a": {"b": digits, "c": 9}}


def test_true_is_not_one() -> None:
    there, here = {"n": True, "list": [1, 2]}, {"n": 1, "list": [True, 2]}
    assert differences(there, here) == [
        "n is True there and 1 here",
        "list is [1, 2] there and [True, 2] here",
    ]
    assert differences(there, there) == differences({"n": 1}, {"n": 1.0}) == []
