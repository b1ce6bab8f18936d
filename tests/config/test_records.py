"""Records come back unchanged from TOML and JSON, and what is wrong is told with its place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from kscout.config.bounds import REST, Above, AtLeast, Between, Chosen, OneOf, Told
from kscout.config.records import check, load, read, save, to_table
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
    triple: Annotated[str | tuple[int, int, int], Told("three whole numbers")] = (1, 2, 3)
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
