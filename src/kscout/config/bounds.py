"""Annotations of fields: bounds, names of a table, words for messages, forms of options."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from kscout.errors import ConfigError, unknown_name
from kscout.json_types import JsonObject
from kscout.names.renamed import check_current


@final
@dataclass(frozen=True)
class AtLeast:
    """A number that is this or more."""

    least: int | float

    def check(self, value: float, where: str) -> None:
        if not value >= self.least:
            raise ConfigError(f"{where} is {value}; it must be {self.least} or more")


@final
@dataclass(frozen=True)
class Above:
    """A number above this one."""

    bound: int | float

    def check(self, value: float, where: str) -> None:
        if not value > self.bound:
            raise ConfigError(f"{where} is {value}; it must be above {self.bound}")


@final
@dataclass(frozen=True)
class Between:
    """A number from the first to the second, both included."""

    low: int | float
    high: int | float

    def check(self, value: float, where: str) -> None:
        if not self.low <= value <= self.high:
            raise ConfigError(f"{where} is {value}; it must be between {self.low} and {self.high}")


@final
@dataclass(frozen=True)
class MultipleOf:
    """A number that is a multiple of a raster."""

    raster: float

    def check(self, value: float, where: str) -> None:
        n_steps = value / self.raster
        if abs(n_steps - round(n_steps)) > 1e-6:
            near = round(n_steps) * self.raster or self.raster
            raise ConfigError(
                f"{where} is {value:g}; it must be a multiple of {self.raster:g}, such as {near:g}"
            )


@final
@dataclass(frozen=True, eq=False)
class OneOf:
    """A name of a table, such as `kscout.names.POLICIES`."""

    kind: str
    """Its name in messages."""
    table: Collection[str]

    def check(self, value: str, where: str) -> None:
        if value not in self.table:
            check_current(getattr(self.table, "kind", self.kind), value)
            raise ConfigError(f"{where}: {unknown_name(self.kind, value, list(self.table))}")


@final
@dataclass(frozen=True)
class Some:
    """A list that holds something, up to a limit."""

    most: int | None = None

    def check(self, value: Sequence[object], where: str) -> None:
        if not value or (self.most and len(value) > self.most):
            raise ConfigError(
                f"{where} has {len(value)} values; give 1 to {self.most}"
                if value
                else f"{where} is empty; give at least one value"
            )


@final
@dataclass(frozen=True)
class Different:
    """A list that holds something, and nothing twice."""

    def check(self, value: Sequence[object], where: str) -> None:
        if not value or len(set(value)) < len(value):
            raise ConfigError(f"{where} is {list(value)!r}; give at least one value, none twice")


@final
@dataclass(frozen=True)
class Words:
    """The description of a field's values in messages."""

    words: str


@final
@dataclass(frozen=True)
class Chosen:
    """Selects the class of a record by its table, e.g. by the name of an estimator."""

    pick: Callable[[JsonObject], type[Any]]


_MOST_ITEMS, _DEEPEST = 2**16, 8
"""Items of a list in the arguments of a component, and levels of nested lists and sections."""
_LARGEST = 2**20
"""Magnitude of whole numbers in the arguments of a component, which may be sizes of its tensors."""


def check_bounded(value: object, where: str, depth: int = 0) -> None:
    """Raise an error for arguments of a component with which its constructor might not return."""
    if type(value) is int and abs(value) > _LARGEST:
        text = str(value)[:24]
        raise ConfigError(f"{where} is {text}; it must be between {-_LARGEST} and {_LARGEST}")
    if isinstance(value, list | tuple | Mapping):
        if len(value) > _MOST_ITEMS or depth == _DEEPEST:
            raise ConfigError(
                f"{where} has {len(value)} items at level {depth + 1}; expected at most "
                f"{_MOST_ITEMS} items and {_DEEPEST} levels"
            )
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in pairs:
            check_bounded(inner, f"{where}.{key}", depth + 1)


REST: Final = "rest"
"""Marks the field that takes every key of a section that no other field has."""

Bound = AtLeast | Above | Between | MultipleOf | OneOf | Some | Different
"""What checks a value."""


@final
@dataclass(frozen=True)
class Form:
    """The form of an option, in addition to its name, type, bounds and docstring."""

    metavar: str | None = None
    """Form of the value, as help shows it."""
    read: Callable[[str, str], Any] | None = None
    """Returns the value of a text; its second argument names the option, for messages."""
    flags: str = ""
    """Flags that differ from the name, separated by spaces."""
    help: str = ""
    """Text for a help that several commands share or that lists names, instead of a docstring."""
    envvar: str | None = None
    """Environment variable that replaces the option."""
    is_argument: bool = False
    """Whether the value has no flag."""
    is_hidden: bool = False


LARGEST_SIDE = 4096
"""Largest number of pixels on one side of an image."""
Size = tuple[int, int]
"""Rows and columns."""


def sides(size: int | Size) -> Size:
    """Return rows and columns of a size, which may be one number for a square."""
    return (size, size) if isinstance(size, int) else size


def parse_size(text: str, option: str) -> int | Size:
    """Read a size in pixels from one number, the side of a square, or from `ROWSxCOLS`."""
    try:
        rows, *cols = (int(part) for part in text.split("x"))
    except ValueError:
        rows, cols = 0, [0, 0]
    if len(cols) > 1:
        raise ConfigError(
            f"{option} {text!r} is no image size; write pixels as in 128, or rows x columns "
            "as in 640x368"
        )
    return rows if cols in ([], [rows]) else (rows, cols[0])


def parse_matrix(text: str, option: str) -> int | Size:
    """Read what names one of several matrix sizes, as `Store.split` takes it."""
    size = parse_size(text, option)
    # An import takes one number for a square; here it would take any rows.
    return (size, size) if isinstance(size, int) and "x" in text else size


MATRIX = Form("COLS|ROWSxCOLS", parse_matrix)
"""One of several matrix sizes."""
