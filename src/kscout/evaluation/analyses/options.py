"""The options of an analysis, read from its class: one table for the command line and campaigns."""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, TypeVar, final, get_args, get_origin, get_type_hints

from kscout.config import read
from kscout.evaluation.analyses.analysis import Analysis

A = TypeVar("A", bound=Analysis[Any])


@final
@dataclass(frozen=True)
class Option:
    """One option."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def is_many(self) -> bool:
        """Whether it may be given several times."""
        return get_origin(self.type) is tuple

    def several(self, value: Any) -> tuple[Any, ...]:  # noqa: ANN401 - one value or several
        """Return the values of an option that may be given several times."""
        values = value if isinstance(value, list | tuple) else [value]
        is_text = get_args(self.type)[0] is str
        return tuple(str(one) if is_text else one for one in values if one is not None)


def options_of(kind: type[Analysis[Any]]) -> list[Option]:
    """Return the options of an analysis in the order of its fields."""
    types, docs = get_type_hints(kind), _docstrings(kind)
    return [
        Option(item.name, types[item.name], item.default, docs.get(item.name, ""))
        for item in fields(kind)
    ]


def with_options(kind: type[A], values: Mapping[str, Any], where: str = "") -> A:
    """Build an analysis from plain values; of an option that may be given often, one will do.

    Args:
        kind: its class.
        values: by name of the option.
        where: the place of the values in a file, for messages.
    """
    many = {option.name: option for option in options_of(kind) if option.is_many}
    return read(kind, {k: many[k].several(v) if k in many else v for k, v in values.items()}, where)


def _docstrings(kind: type) -> dict[str, str]:
    """Return the strings that stand under the fields of a class and of those it derives from."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        try:
            source = textwrap.dedent(inspect.getsource(one))
        except (OSError, TypeError):
            # Typed into an interpreter, or not written in Python: its options have no help.
            continue
        body = ast.parse(source).body[0]
        lines = body.body if isinstance(body, ast.ClassDef) else []
        for item, after in pairwise(lines):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[item.target.id] = " ".join(text.value.split())
    return found
