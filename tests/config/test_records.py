"""Records come back unchanged from TOML and JSON, and what is wrong is told with its place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from kscout.config import of_0_2, read_file, settle, supported
from kscout.config.bounds import REST, Above, AtLeast, Between, Chosen, OneOf, Words
from kscout.config.layers import assigned, differences, given, listed, merge
from kscout.config.records import check, load, read, save, to_table
from kscout.config.retired import RETIRED
from kscout.errors import ConfigError, DataError


@dataclass(frozen=True)
class Shape:
    sides: int = 3


@dataclass(frozen=True)
class Round(Shape):
    radius: float = 1.0


def shape_of(table: dict[str, Any]) -> type[Shape]:
    return Round if "radius" in table else Shape


@dataclass(frozen=True)
class Inner:
    name: str
    rest: Annotated[Mapping[str, int], REST] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    kind: ClassVar[str] = "test"
    count: Annotated[int, AtLeast(2)]
    share: Annotated[float, Between(0, 1)] = 0.5
    rate: Annotated[float, Above(0)] = 1.0
    word: Literal["yes", "no"] = "yes"
    color: Annotated[str, OneOf("color", ("red", "blue"))] = "red"
    path: Path | None = None
    epochs: int | list[int] = 1
    number: int | float = 1
    place: tuple[int, int] = (1, 2)
    triple: Annotated[str | tuple[int, int, int], Words("three whole numbers")] = (1, 2, 3)
    sizes: tuple[float, ...] = ()
    inner: Inner | None = None
    many: dict[str, Inner] = field(default_factory=dict)
    switched: bool | Inner = False
    shape: Annotated[Shape, Chosen(shape_of)] = Shape()

    def __post_init__(self) -> None:
        check(self)
        if self.count == 13:
            raise ConfigError("count is 13, which is unlucky")


FULL = Record(
    count=7,
    share=0.25,
    word="no",
    color="blue",
    path=Path("a/b"),
    epochs=[1, 2],
    number=2.5,
    sizes=(1.0, 2.0),
    inner=Inner("x", {"a": 1}),
    many={"one": Inner("y"), "two": Inner("z", {"b": 2})},
    switched=Inner("w"),
    shape=Round(4, 2.0),
)


@pytest.mark.parametrize("name", ["r.toml", "r.json"])
@pytest.mark.parametrize("record", [FULL, Record(2)])
def test_records_survive_files(tmp_path: Path, name: str, record: Record) -> None:
    save(tmp_path / name, record)
    assert load(Record, tmp_path / name) == record


def test_what_is_none_is_left_out_of_toml_and_null_in_json() -> None:
    assert "path" not in to_table(Record(2))
    assert to_table(Record(2), nulls=True)["path"] is None
    assert to_table(FULL)["inner"] == {"name": "x", "a": 1}


def test_numbers_keep_the_type_that_either_allows() -> None:
    one, two = (read(Record, {"count": 2, "number": value}) for value in (3, 3.0))
    assert (type(one.number), type(two.number)) == (int, float)
    assert type(read(Record, {"count": 2, "share": 1}).share) is float


@pytest.mark.usefixtures("unchecked")
def test_records_made_in_python_are_plain_and_checked() -> None:
    record = Record(np.int64(3), share=np.float32(0.5), epochs=np.arange(2), place=[4, 5])  # type: ignore[arg-type]
    assert (type(record.count), record.epochs, record.place) == (int, [0, 1], (4, 5))
    with pytest.raises(ConfigError, match=r"^count is 'x'; expected a whole number$"):
        Record("x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 1}, "top.count is 1; it must be 2 or more"),
        ({"count": True}, "top.count is True; expected a whole number"),
        ({"count": 13}, "[top] count is 13, which is unlucky"),
        ({"share": 1.5}, "top.share is 1.5; it must be between 0 and 1"),
        ({"rate": 0}, "top.rate is 0.0; it must be above 0"),
        ({"rate": math.nan}, "top.rate is nan; expected a finite number"),
        ({"rate": math.inf}, "top.rate is inf; expected a finite number"),
        ({"count": 2**63}, f"top.count is {2**63}; whole numbers must fit in 64 bits"),
        ({"epochs": [-(2**64)]}, f"top.epochs[0] is {-(2**64)}; whole numbers must"),
        ({"word": "maybe"}, "top.word is 'maybe'; expected one of: yes, no"),
        ({"color": "green"}, "top.color: unknown color 'green'; choose one of: blue, red"),
        ({"path": 3}, "top.path is 3; expected a path"),
        ({"epochs": "x"}, "top.epochs is 'x'; expected a whole number or a list of whole numbers"),
        ({"epochs": [1, "x"]}, "top.epochs[1] is 'x'; expected a whole number"),
        ({"place": [1]}, "top.place is [1]; expected a list of two whole numbers"),
        ({"triple": [2]}, "top.triple is [2]; expected three whole numbers"),
        ({"sizes": 3}, "top.sizes is 3; expected a list of numbers"),
        ({"inner": 3}, "top.inner is 3; expected a section [top.inner]"),
        ({"inner": {}}, "[top.inner] needs name, a string"),
        ({"inner": {"name": "x", "a": "b"}}, "top.inner.a is 'b'; expected a whole number"),
        ({"many": {"one": {"name": 3}}}, "top.many.one.name is 3; expected a string"),
        ({"switched": {"name": 3}}, "top.switched.name is 3; expected a string"),
        ({"switched": "on"}, "top.switched is 'on'; expected true or false or a section"),
        ({"shape": {"radius": "big"}}, "top.shape.radius is 'big'; expected a number"),
        ({"shape": {"angle": 1}}, "unknown setting 'top.shape.angle'; choose one of: sides"),
        ({"shares": 1}, "unknown setting 'top.shares' (did you mean 'share'?); choose one of: co"),
        ({"kind": "other"}, "these are settings of kind 'other', not 'test'"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(Record, {"count": 2, **changes}, "top")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "holds a list; expected a table"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"count": "x"}', r"r.json: count is 'x'; expected a whole number"),
        ("{}", "r.json: missing: count, a whole number"),
    ],
)
def test_files_are_told_by_name(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(DataError, match=message):
        load(Record, path, error=DataError)


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
        {"training.n_epochs": 5, "training.method": None, "acquisition.size": 0},
    )
    assert found == {
        "training": {"seed": 4, "n_epochs": 5},
        "acquisition": {"horizon": 3, "size": 0},
        "policy": {"order": [1, 2], "note": "a word"},
    }


@pytest.mark.parametrize("text", ["training", "training=3", "training.x", ".x=3"])
def test_what_is_no_assignment_is_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write section\.key=value"):
        assigned([text])


def test_differences_are_told_by_place_and_not_all_of_many() -> None:
    there = {"a": {"x": 1, "y": 2, "n": True, "list": [1, 2]}, "b": 3}
    here = {"a": {"x": 1.0, "y": 4, "n": 1, "list": [True, 2]}, "c": 5}
    found = differences(there, here)
    assert found == [
        "a.y is 2 there and 4 here",
        "a.n is True there and 1 here",
        "a.list is [1, 2] there and [True, 2] here",
        "b is 3 there and 'not set' here",
        "c is 'not set' there and 5 here",
    ]
    assert differences(there, there) == []
    assert listed(found, most=1) == "a.y is 2 there and 4 here; 4 more"


def test_a_number_that_python_does_not_read_is_a_word() -> None:
    digits = "9" * 5000
    assert assigned([f"a.b={digits}", "a.c=9"]) == {"a": {"b": digits, "c": 9}}


@dataclass(frozen=True)
class _Training:
    seed: int = 0


@dataclass(frozen=True)
class _Settings:
    training: _Training = field(default_factory=_Training)
    acquisition: _Training = field(default_factory=_Training)
    analyses: _Training = field(default_factory=_Training)


_SECTIONS = [one.name for one in fields(_Settings)]
_OF_SECTIONS = [name for name in RETIRED if name.partition(".")[0] in _SECTIONS]
_WITH_EFFECT = [name for name, one in RETIRED.items() if not one.is_any_neutral]


@pytest.mark.parametrize("name", _OF_SECTIONS)
def test_a_section_may_name_a_retired_setting_at_the_value_without_effect(
    name: str, tmp_path: Path
) -> None:
    section, _, key = name.partition(".")
    default = repr(RETIRED[name].default).lower()
    file = tmp_path / "settings.toml"
    file.write_text(f"[{section}]\nseed = 1\n{key} = {default}\n")

    assert getattr(settle(_Settings(), file, [], {}), section) == _Training(seed=1)
    assert settle(_Settings(), None, [f"{name}={default}"], {}) == _Settings()


@pytest.mark.parametrize("name", RETIRED)
def test_arguments_are_dropped_at_the_value_without_effect(name: str) -> None:
    section, _, key = name.partition(".")
    default = RETIRED[name].default

    assert supported({"seed": 1, key: default}, ["seed"], section) == {"seed": 1}
    assert supported({key: default}, [key], section) == {key: default}


@pytest.mark.parametrize("name", _WITH_EFFECT)
def test_another_value_of_a_retired_setting_is_rejected_in_one_sentence(name: str) -> None:
    section, _, key = name.partition(".")

    with pytest.raises(ConfigError) as caught:
        supported({key: 7}, [], section)

    told, version = str(caught.value), RETIRED[name].version
    assert told.startswith(f"{name} is 7; version {version} removed this setting because ")
    assert told.endswith("; leave it out, or use an earlier version")


def test_names_of_runs_in_campaigns_tell_all_settings_of_0_2() -> None:
    table = {"kind": "policy", "training": {"method": "posterior", "turn": 5.0}}
    had = {"completion": "none", "n_trusted": 128, "turn": 5.0, "bend": 0.0}
    had |= {"starts": [], "zoom": 1.0, "clip": 1.0}

    assert of_0_2(table)["training"] == {"method": "imagine", **had}
    assert of_0_2({"training": {"method": "greedy"}})["training"] == {"method": "greedy"}


def test_files_of_runs_are_read_without_retired_settings(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        'kind = "policy"\n[policy]\nname = "column"\npaired = false\nwidth = 8\n'
        '[training]\nmethod = "dense"\nslopes = false\nturn = 5.0\n'
    )
    assert read_file(file) == {
        "kind": "policy",
        "policy": {"name": "column", "width": 8},
        "training": {"method": "dense", "turn": 5.0},
    }
