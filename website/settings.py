"""The reference of settings, from the dataclasses and constructors that read them."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any

from kscout.config import (
    AcquisitionSetting,
    JointTraining,
    PolicyTraining,
    ReconstructorTraining,
    settings_class,
)
from kscout.config.options import Option, options_of
from kscout.names import ESTIMATORS, POLICIES, RECONSTRUCTORS, SAMPLERS
from website.command_line import code, prose

_HEAD = """# Settings

This page is generated from the code. A setting is written as `--set SECTION.NAME=VALUE` on the
command line, or as `NAME = VALUE` in the section `[SECTION]` of a TOML file (`--config`). The file
`config.toml` of a run contains the resolved settings."""
_FILLED = {"n_cols", "n_rows", "n_initial", "horizon", "order"}
"""Arguments that a training or an evaluation passes."""
_ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", flags=re.MULTILINE)

Row = tuple[str, Any, str]
"""Name, default and meaning of a setting."""


def settings_of(kind: type, common: type | None = None) -> list[Row]:
    """Return the settings of a dataclass without those that are the same in another one."""
    same: set[Option] = set(options_of(common)) if common else set()
    return [
        (one.name, one.default, one.help)
        for one in options_of(kind)
        if one not in same and one.name != "method"
    ]


def arguments_of(kind: type) -> list[Row]:
    """Return the arguments that the constructor of a component accepts as settings."""
    described = dict(_ARGUMENT.findall(inspect.getdoc(kind) or ""))
    return [
        (one.name, one.default, described.get(one.name, ""))
        for one in inspect.signature(kind).parameters.values()
        if one.kind is one.KEYWORD_ONLY and one.name not in _FILLED
    ]


def _value(default: Any) -> str:  # noqa: ANN401 - of any type
    if default is MISSING or default is inspect.Parameter.empty:
        return "required"
    if default is None or default in ((), ""):
        return "not given"
    if isinstance(default, bool):
        return code(str(default).lower())
    return code(str(list(default) if isinstance(default, tuple) else default))


def _table(rows: list[Row]) -> str:
    lines = [f"| {code(name)} | {_value(value)} | {prose(text)} |\n" for name, value, text in rows]
    return f"| setting | default | meaning |\n|---|---|---|\n{''.join(lines)}"


def _sections() -> Iterator[tuple[str, list[Row]]]:
    yield "## [acquisition]", settings_of(AcquisitionSetting)
    yield "## [training] of `train reconstructor`", settings_of(ReconstructorTraining)
    yield "## [training] of `train policy`", settings_of(PolicyTraining)
    for name in ESTIMATORS:
        kind = settings_class(name)
        yield f"### --method {name}", settings_of(kind, PolicyTraining)
    yield "## [training] of `train joint`", settings_of(JointTraining)
    for name in SAMPLERS:
        kind = settings_class(name, SAMPLERS)
        yield f"### --method {name} of `train joint`", settings_of(kind, JointTraining)
    for section, table in (("policy", POLICIES), ("reconstructor", RECONSTRUCTORS)):
        yield f"## [{section}]", []
        for name in table:
            yield f"### {section} {name}", arguments_of(table.resolve(name))


def settings_page() -> str:
    """Return the page; methods and components without settings are left out."""
    parts = [
        f"{title}\n\n{_table(rows)}" if rows else title
        for title, rows in _sections()
        if rows or title.startswith("## ")
    ]
    return "\n\n".join([_HEAD, *parts])
