"""The analyses of a campaign: which runs or evaluation each one reads, and its command."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from kscout.errors import ConfigError

_PRODUCTS = {
    "policy": "average_policy.json",
    "entropy": "entropies.json",
    "snr": "snr.json",
    "cost": "cost.json",
    "curves": "curves.json",
    "gammas": "gammas.json",
    "examples": "examples.json",
    "ranking": "ranking.json",
}
_ON_DATA = ("entropy", "snr", "examples")
"""Analyses that run policies on slices."""
_ONE_SEED = ("snr", "examples")
"""Analyses that take the first seed of each method where none is named: the paper's choice."""
_OF_RUNS = ("methods", "seeds", "policies")
"""Options that choose what is analyzed; the others are the command's."""


def analysis_nodes(
    root: Path,
    analyses: Mapping[str, Mapping[str, Any]],
    setting: Setting,
    policies: Sequence[Node],
    evaluation: Node | None,
) -> Iterator[Node]:
    """Yield the analyses of one store, reconstruction and horizon."""
    for name, options in analyses.items():
        if name == "ranking":
            continue
        if name in ("policy", "gammas"):
            if evaluation is None:
                raise ConfigError(f"analysis {name!r} reads an evaluation; add [evaluation]")
            read, words = _of_evaluation(name, options, policies, evaluation)
        else:
            read, words = _of_runs(name, options, setting, policies)
        yield _node(root, name, setting, options, read, words)


def ranking_node(
    root: Path, store: Node | Source, network: Node | Source, evaluations: Sequence[Node]
) -> Node:
    """Return the analysis that reads all horizons of a store and reconstruction."""
    label = f"ranking-{store.label}-{name_of(network)}"
    key = address("analysis", {"label": label}, {"runs": [node.key for node in evaluations]})
    out = folder_of(root, "analysis", key) / label
    paths = [path_of(node) for node in evaluations]
    return Node(
        kind="analysis",
        title=f"ranking of {store.label}, {name_of(network)}",
        key=key,
        root=root,
        label=label,
        product=_PRODUCTS["ranking"],
        command=("analyze", "ranking", *paths, "--out", str(out)),
        settings={"label": label},
        inputs=keys_of(*evaluations),
        group="ranking",
    )


def _of_evaluation(
    name: str, options: Mapping[str, Any], policies: Sequence[Node], evaluation: Node
) -> tuple[list[Node], list[str]]:
    if name == "gammas":
        return [evaluation], [path_of(evaluation)]
    trained = list(dict.fromkeys(name_of(node) for node in policies))
    shown = list(options.get("policies", trained))
    if not shown:
        raise ConfigError("analysis 'policy' has no policy to show; name some in analyses.policy")
    return [evaluation], [*shown, "--results", path_of(evaluation)]


def _of_runs(
    name: str, options: Mapping[str, Any], setting: Setting, policies: Sequence[Node]
) -> tuple[list[Node], list[str]]:
    chosen = _chosen(name, options, policies)
    words = [*options.get("policies", []), *(path_of(node) for node in chosen)]
    if not words:
        raise ConfigError(f"analysis {name!r} has no run to read; list grid.methods")
    if name in _ON_DATA:
        words += ["--data", path_of(setting.store), "--reconstructor", path_of(setting.network)]
        words += ["--device", setting.device]
        words += flags({key: value for key, value in options.items() if key not in _OF_RUNS})
    if name in ("entropy", "examples"):
        words += ["--n-initial", str(setting.horizon.n_initial)]
        words += ["--steps", str(setting.horizon.horizon)]
    if name in ("snr", "examples"):
        words += ["--protocol", setting.protocol]
    return chosen, words


def _chosen(name: str, options: Mapping[str, Any], policies: Sequence[Node]) -> list[Node]:
    """Return the runs of the methods and seeds that an analysis asks for."""
    methods = list(dict.fromkeys(name_of(node) for node in policies))
    for method in options.get("methods", []):
        if method not in methods:
            raise ConfigError(
                f"analyses.{name}.methods names {method!r}; this campaign trains: "
                f"{', '.join(methods) or 'none'}"
            )
    seeds = list(dict.fromkeys(node.settings["training"]["seed"] for node in policies))
    wanted = options.get("seeds", seeds[:1] if name in _ONE_SEED else seeds)
    return [
        node
        for node in policies
        if name_of(node) in options.get("methods", methods)
        and node.settings["training"]["seed"] in wanted
    ]


def _node(
    root: Path,
    name: str,
    setting: Setting,
    options: Mapping[str, Any],
    read: Sequence[Node],
    words: Sequence[str],
) -> Node:
    label = f"{name}-{setting.label}"
    settings: dict[str, Any] = {"analysis": name, "label": label, **options}
    settings |= {"n_initial": setting.horizon.n_initial, "steps": setting.horizon.horizon}
    if name in ("snr", "examples"):
        settings["protocol"] = setting.protocol
    key = address("analysis", settings, inputs_of(setting, read))
    return Node(
        kind="analysis",
        title=f"{name}, {setting.label}",
        key=key,
        root=root,
        label=label,
        product=_PRODUCTS[name],
        command=("analyze", name, *words, "--out", str(folder_of(root, "analysis", key) / label)),
        settings=settings,
        inputs=keys_of(setting.store, setting.network, *read),
        group=name,
    )
