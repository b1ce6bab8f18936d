"""The fields of a record as options of a command: the docstring under a field is its help."""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar, final, get_args, get_origin, get_type_hints

from kscout.config.bounds import Form
from kscout.config.records import read

R = TypeVar("R")


@final
@dataclass(frozen=True)
class Option:
    """One option."""

    name: str
    type: Any
    default: Any
    """`dataclasses.MISSING` where it must be given."""
    docstring: str = ""
    marks: tuple[object, ...] = ()
    """Bounds and form."""

    @property
    def form(self) -> Form:
        return next((mark for mark in self.marks if isinstance(mark, Form)), Form())

    @property
    def help(self) -> str:
        return self.form.help or self.docstring

    @property
    def is_many(self) -> bool:
        return get_origin(self.type) is tuple

    def several(self, value: object) -> tuple[object, ...]:
        values = value if isinstance(value, list | tuple) else [value]
        is_text = get_args(self.type)[0] is str
        return tuple(str(one) if is_text else one for one in values if one is not None)


@cache
def options_of(kind: Any) -> tuple[Option, ...]:  # noqa: ANN401 - a dataclass
    """Return the options of a dataclass in the order of its fields."""
    types, marked = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        texts |= _docstrings(one) if "__dataclass_fields__" in vars(one) else {}
    return tuple(
        Option(x.name, types[x.name], x.default, texts.get(x.name, ""), get_args(marked[x.name]))
        for x in fields(kind)
    )


def with_options(kind: type[R], values: Mapping[str, object]) -> R:
    """Build a record from plain values; of an option that may be given often, one will do."""
    options: tuple[Option, ...] = options_of(kind)  # type: ignore[arg-type]
    many = {option.name: option for option in options if option.is_many}
    return read(kind, {k: many[k].several(v) if k in many else v for k, v in values.items()})


def flags(options: Mapping[str, object]) -> list[str]:
    """Return settings as words of a command; lists repeat, false and None are omitted.

    `center_volume` is true by default, and has a separate flag for false.
    """
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name == "center_volume":
            words.append(flag if value else "--whole-volume")
        elif isinstance(value, bool | None):
            words += [flag] if value else []
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for value_ in values for word in (flag, str(value_))]
    return words


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the strings that stand under the fields of a class itself."""
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
        # To parse whole modules, or to look for classes in them, would delay every command.
        pattern = rf"^( *)class {kind.__name__}\b.*?(?=^\1[^\s)#]|\Z)"
        found = re.search(pattern, source, re.MULTILINE | re.DOTALL)
        tree = ast.parse(textwrap.dedent(found[0] if found else ""))
    except (OSError, SyntaxError, TypeError):
        # Typed into an interpreter, or not written in Python: its options have no help.
        return {}
    body = [item for node in tree.body if isinstance(node, ast.ClassDef) for item in node.body]
    helps = {}
    for item, after in pairwise(body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            text = after.value if isinstance(after, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                helps[item.target.id] = " ".join(text.value.split())
    return helps
