"""The analyses of a campaign: the runs or evaluations that each reads, and its command."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias, final

from kscout.apps.campaign.file import Wholes
from kscout.apps.campaign.nodes import Node, Setting, file_name, name_of
from kscout.columns import LEAST_CENTRAL
from kscout.config.options import flags
from kscout.config.records import read, unknown_key
from kscout.errors import ConfigError
from kscout.evaluation.analyses import Analysis, options_of
from kscout.json_types import JsonObject
from kscout.names import ANALYSES, untrained_reconstructions

AnalysisClass: TypeAlias = type[Analysis[Any]]
_OF_CAMPAIGN = ("data", "reconstructor", "device", "n_initial", "steps", "protocol", "results")
"""Options that the campaign sets."""
_ONCE_WITHOUT_PROTOCOL = ("entropy",)
"""Analyses whose names have no protocol if it is the one of version 0.2: `blind` for k-space, else
`paper`."""


@final
@dataclass(frozen=True)
class Selection:
    """Keys by which a file selects the analyzed results; empty: all."""

    methods: tuple[str, ...] = ()
    seeds: Wholes | None = None
    policies: tuple[str, ...] = ()


_CHOOSING = tuple(item.name for item in fields(Selection))


def check_analysis(name: str, options: Mapping[str, object], has_evaluation: bool) -> None:
    """Raise an error, before any run, for invalid options of an analysis in a campaign file."""
    where = f"analyses.{name}"
    kind = ANALYSES.resolve(name)
    own = {option.name: option for option in options_of(kind)}
    allowed = [key for key in own if key not in _OF_CAMPAIGN]
    allowed += ["policies"] if kind.reads == "policies" else []
    allowed += ["methods", "seeds"] if not _reads_evaluation(kind) else []
    for key in options:
        if key not in allowed:
            raise unknown_key(key, allowed, where)
    if _reads_evaluation(kind) and not has_evaluation:
        raise ConfigError(f"analysis {name!r} reads an evaluation; add [evaluation]")
    read(Selection, {key: value for key, value in options.items() if key in _CHOOSING}, where)
    given = {
        key: list(own[key].several(value)) if own[key].is_many else value
        for key, value in options.items()
        if key in own
    }
    given |= {"results": "."} if "results" in own else {}
    read(kind, given, where)


def _reads_evaluation(kind: AnalysisClass) -> bool:
    """Return whether an analysis reads an evaluation: required, or optional and available."""
    return kind.reads == "results" or any(option.name == "results" for option in options_of(kind))


def analysis_nodes(
    root: Path,
    analyses: Mapping[str, JsonObject],
    setting: Setting,
    policies: Sequence[Node],
    evaluation: Node | None,
) -> Iterator[Node]:
    """Yield the analyses of one store, reconstruction and horizon."""
    for name, options in analyses.items():
        kind = ANALYSES.resolve(name)
        label = f"{file_name(name)}-{setting.label}"
        settings: JsonObject = {"analysis": name, "label": label, **options}
        settings |= setting.columns
        own = {key: value for key, value in options.items() if key not in _CHOOSING}
        if evaluation is not None and _reads_evaluation(kind):
            runs, words = [evaluation], _of_evaluation(name, kind, options, policies, evaluation)
        else:
            runs = _chosen(name, kind, options, policies)
            words = [*options.get("policies", []), *(node.path for node in runs)]
            if kind.reads == "reconstructions":
                free = _untrained(setting)
                runs, words = [], list(dict.fromkeys([*free, setting.network.path]))
                if free != untrained_reconstructions(of_coils=False):
                    settings["reconstructions"] = free
            own |= _given(kind, setting)
            settings |= _protocol(name, own, setting)
        if not words:
            raise ConfigError(f"analysis {name!r} has no runs to read; list grid.methods")
        yield Node(
            root,
            "analysis",
            label,
            title=f"{name}, {setting.label}",
            product=f"{kind.file}.json",
            words=("analyze", name, *words, *flags(own)),
            settings=settings,
            reads={**setting.reads, "runs": runs},
            group=name,
        )


def _protocol(name: str, own: Mapping[str, object], setting: Setting) -> JsonObject:
    """Return the protocol of an analysis, if it is part of its name."""
    of_0_2 = "blind" if setting.kind == "kspace" else "paper"
    is_usual = name in _ONCE_WITHOUT_PROTOCOL and setting.protocol == of_0_2
    return {"protocol": own["protocol"]} if "protocol" in own and not is_usual else {}


def _untrained(setting: Setting) -> list[str]:
    """Return the untrained reconstructions; some of coils need central columns at the start."""
    n_center = 0 if setting.horizon.initial else setting.horizon.n_initial
    of_coils = setting.kind == "kspace" and n_center >= LEAST_CENTRAL
    return untrained_reconstructions(of_coils=of_coils)


def _given(kind: AnalysisClass, setting: Setting) -> JsonObject:
    said = {
        **{key: part.path for key, part in setting.reads.items()},
        "device": setting.device,
        # Policies start from given columns if no number of central columns is set.
        **{key: value for key, value in setting.columns.items() if key != "initial"},
        "protocol": setting.protocol,
    }
    return {one.name: said[one.name] for one in options_of(kind) if one.name in said}


def _of_evaluation(
    name: str, kind: AnalysisClass, options: JsonObject, policies: Sequence[Node], evaluation: Node
) -> list[str]:
    if kind.reads == "results":
        return [evaluation.path]
    # The evaluation names runs by their folders, which may have the name of another version.
    folders = [node.output.name for node in policies]
    shown = options.get("policies") or list(
        dict.fromkeys(name.rpartition("-seed")[0] or name for name in folders)
    )
    if not shown:
        raise ConfigError(f"analysis {name!r} has no policy; name some in analyses.{name}")
    return [*shown, "--results", evaluation.path]


def _chosen(
    name: str, kind: AnalysisClass, options: JsonObject, policies: Sequence[Node]
) -> list[Node]:
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
