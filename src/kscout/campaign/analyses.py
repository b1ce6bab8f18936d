"""The analyses of a campaign: which runs or evaluations each one reads, and its command."""

import re
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from kscout.campaign.nodes import (
    Node,
    Setting,
    Source,
    address,
    flags,
    folder_of,
    inputs_of,
    keys_of,
    name_of,
    path_of,
)
from kscout.campaign.values import (
    FLAG,
    NUMBER,
    PLACES,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLE_OR_WHOLES,
    WHOLES,
    Kind,
    check_values,
    one_of,
)
from kscout.errors import ConfigError
from kscout.evaluation.analyses import Analysis, options_of, with_options
from kscout.names import ANALYSES

_OF_CAMPAIGN = ("data", "reconstructor", "device", "n_initial", "steps", "protocol", "results")
"""Options that the campaign sets."""
_OF_RUNS: dict[str, Kind] = {"methods": TEXTS, "seeds": WHOLES}
"""Keys of its own by which a file chooses the runs that are analyzed."""
_SCALARS = {bool: FLAG, int: WHOLE, float: NUMBER, str: TEXT, Path: TEXT}


def check_analysis(name: str, options: Mapping[str, Any], has_evaluation: bool) -> None:
    """Refuse, before anything runs, what an analysis of a campaign's file cannot be asked for."""
    kind, where = ANALYSES.resolve(name), f"analyses.{name}"
    own = {option.name: option.type for option in options_of(kind)}
    allowed = {key: _kind(type_) for key, type_ in own.items() if key not in _OF_CAMPAIGN}
    allowed |= {"policies": TEXTS} if kind.reads == "policies" else {}
    allowed |= _OF_RUNS if not _reads_evaluation(kind) else {}
    check_values(options, allowed, where)
    if _reads_evaluation(kind) and not has_evaluation:
        raise ConfigError(f"analysis {name!r} reads an evaluation; add [evaluation]")
    given = {key: value for key, value in options.items() if key in own}
    given |= {"results": Path()} if "results" in own else {}
    try:
        with_options(kind, given)
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from error


def _reads_evaluation(kind: type[Analysis[Any]]) -> bool:
    """Say whether an analysis reads an evaluation: it must, or it can and the campaign has one."""
    return kind.reads == "results" or any(option.name == "results" for option in options_of(kind))


def _kind(type_: Any) -> Kind:  # noqa: ANN401 - types as values
    """Return what a value of the file may be for an option of this type."""
    origin, inner = get_origin(type_), get_args(type_)
    if origin in (Union, types.UnionType):
        return _kind(next(one for one in inner if one is not type(None)))
    if origin is Literal:
        return one_of(*inner)
    if origin is tuple:
        return WHOLE_OR_WHOLES if inner[0] is int else PLACES
    return _SCALARS[type_]


def analysis_nodes(
    root: Path,
    analyses: Mapping[str, Mapping[str, Any]],
    setting: Setting,
    policies: Sequence[Node],
    evaluation: Node | None,
) -> Iterator[Node]:
    """Yield the analyses of one store, reconstruction and horizon."""
    for name, options in analyses.items():
        kind = ANALYSES.resolve(name)
        if kind.spans_horizons:
            continue
        label = f"{_file_name(name)}-{setting.label}"
        settings: dict[str, Any] = {"analysis": name, "label": label, **options}
        settings |= {"n_initial": setting.horizon.n_initial, "steps": setting.horizon.horizon}
        own = {key: value for key, value in options.items() if key not in ("policies", *_OF_RUNS)}
        if evaluation is not None and _reads_evaluation(kind):
            read, words = [evaluation], _of_evaluation(name, kind, options, policies, evaluation)
        else:
            read = _chosen(name, kind, options, policies)
            words = [*options.get("policies", []), *(path_of(node) for node in read)]
            own |= _given(kind, setting)
            settings |= {key: own[key] for key in ("protocol",) if key in own}
        if not words:
            raise ConfigError(f"analysis {name!r} has nothing to read; list grid.methods")
        yield Node(
            kind="analysis",
            title=f"{name}, {setting.label}",
            key=(key := address("analysis", settings, inputs_of(setting, read))),
            root=root,
            label=label,
            product=f"{kind.file}.json",
            command=_command(name, words, own, folder_of(root, "analysis", key) / label),
            settings=settings,
            inputs=keys_of(setting.store, setting.network, *read),
            group=name,
        )


def spanning_nodes(
    root: Path,
    analyses: Mapping[str, Mapping[str, Any]],
    store: Node | Source,
    network: Node | Source,
    evaluations: Sequence[Node],
) -> Iterator[Node]:
    """Yield the analyses that read all horizons of a store and reconstruction."""
    for name, options in analyses.items():
        kind = ANALYSES.resolve(name)
        if not kind.spans_horizons:
            continue
        label = f"{_file_name(name)}-{store.label}-{name_of(network)}"
        settings = {"label": label, **options}
        paths = [path_of(node) for node in evaluations]
        yield Node(
            kind="analysis",
            title=f"{name} of {store.label}, {name_of(network)}",
            key=(key := address("analysis", settings, {"runs": [one.key for one in evaluations]})),
            root=root,
            label=label,
            product=f"{kind.file}.json",
            command=_command(name, paths, options, folder_of(root, "analysis", key) / label),
            settings=settings,
            inputs=keys_of(*evaluations),
            group=name,
        )


def _command(
    name: str, words: Sequence[str], options: Mapping[str, Any], out: Path
) -> tuple[str, ...]:
    return ("analyze", name, *words, *flags(options), "--out", str(out))


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "-", name)


def _given(kind: type[Analysis[Any]], setting: Setting) -> dict[str, Any]:
    """Return what the campaign says of the options that an analysis has."""
    said = {
        "data": path_of(setting.store),
        "reconstructor": path_of(setting.network),
        "device": setting.device,
        "n_initial": setting.horizon.n_initial,
        "steps": setting.horizon.horizon,
        "protocol": setting.protocol,
    }
    return {one.name: said[one.name] for one in options_of(kind) if one.name in said}


def _of_evaluation(
    name: str,
    kind: type[Analysis[Any]],
    options: Mapping[str, Any],
    policies: Sequence[Node],
    evaluation: Node,
) -> list[str]:
    if kind.reads == "results":
        return [path_of(evaluation)]
    shown = options.get("policies") or list(dict.fromkeys(name_of(node) for node in policies))
    if not shown:
        raise ConfigError(f"analysis {name!r} has no policy to show; name some in analyses.{name}")
    return [*shown, "--results", path_of(evaluation)]


def _chosen(
    name: str, kind: type[Analysis[Any]], options: Mapping[str, Any], policies: Sequence[Node]
) -> list[Node]:
    """Return the runs of the methods and seeds that an analysis asks for."""
    methods = list(dict.fromkeys(name_of(node) for node in policies))
    for method in options.get("methods", []):
        if method not in methods:
            raise ConfigError(
                f"analyses.{name}.methods names {method!r}; this campaign trains: "
                f"{', '.join(methods) or 'none'}"
            )
    seeds = list(dict.fromkeys(node.settings["training"]["seed"] for node in policies))
    wanted = options.get("seeds", seeds[:1] if kind.one_seed else seeds)
    return [
        node
        for node in policies
        if name_of(node) in options.get("methods", methods)
        and node.settings["training"]["seed"] in wanted
    ]
