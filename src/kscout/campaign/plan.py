"""From a grid to the graph of its runs, each after all that it needs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from kscout.campaign.analyses import analysis_nodes, spanning_nodes
from kscout.campaign.grid import Grid, Reconstruction
from kscout.campaign.nodes import (
    Node,
    Setting,
    Source,
    address,
    flags,
    folder_of,
    inputs_of,
    keys_of,
    path_of,
)
from kscout.campaign.sources import (
    file_fingerprint,
    fingerprints,
    given_reconstruction,
    given_store,
    weights_file,
)
from kscout.campaign.store_recipes import StoreRecipe
from kscout.config import AcquisitionSetting, PolicyConfig, to_table, to_toml
from kscout.errors import ConfigError, DataError
from kscout.zoo import zoo_path

INDEX = "campaign.json"
SETTINGS = "settings.toml"


@final
@dataclass
class Plan:
    """The runs of a campaign by key, in an order in which they can be run."""

    name: str
    root: Path
    use: tuple[str, ...] = ()
    """Modules from outside kscout that every command is told to use."""
    nodes: dict[str, Node] = field(default_factory=dict)
    stores: dict[str, Source] = field(default_factory=dict)
    """Given stores by key."""
    weights: dict[str, Source] = field(default_factory=dict)
    """Given reconstructions by key."""

    def add(self, node: Node) -> Node:
        """Add a run; one that is there already stays as it is."""
        command = (*flags({"use": self.use}), *node.command)
        return self.nodes.setdefault(node.key, replace(node, command=command))

    @property
    def sources(self) -> list[Source]:
        return [*self.stores.values(), *self.weights.values()]

    def of_kind(self, kind: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == kind]

    def source_fingerprints(self) -> dict[str, str]:
        return fingerprints(self.stores, self.weights)

    def check_sources(self) -> None:
        """Refuse to start while something that is given is not there."""
        missing = [source for source in self.sources if source.is_missing]
        if missing:
            told = "; ".join(f"{one.path} is not there: {one.hint}" for one in missing)
            raise DataError(f"campaign {self.name} cannot start: {told}")


def make_plan(grid: Grid, root: Path, *, device: str = "auto") -> Plan:
    """Expand a grid to the graph of its runs under `root`; reads manifests, runs nothing.

    Args:
        grid: what is crossed with what.
        root: the campaign's folder.
        device: handed to every command; no part of any name.
    """
    plan = Plan(grid.name, root, grid.use)
    known = _known_sources(root)
    for recipe in grid.stores:
        store = _store(plan, recipe, known)
        for reconstruction in grid.reconstructions:
            learned_from = store
            if reconstruction.store is not None:
                learned_from = _store(plan, grid.training_stores[reconstruction.store], known)
            network = _reconstruction(plan, reconstruction, learned_from, device, known)
            _cross(plan, grid, store, network, device)
    return plan


def _cross(
    plan: Plan, grid: Grid, store: Node | Source, network: Node | Source, device: str
) -> None:
    evaluations = []
    for name, horizon in grid.horizons.items():
        _check_size(store, name, horizon)
        setting = Setting(store, network, horizon, grid.protocol, device)
        policies = [
            plan.add(_policy(plan.root, config, setting, device)) for config in grid.policies
        ]
        evaluation = None
        if grid.evaluation is not None:
            evaluation = plan.add(_evaluation(plan.root, grid, setting, policies))
            evaluations.append(evaluation)
        for node in analysis_nodes(plan.root, grid.analyses, setting, policies, evaluation):
            plan.add(node)
    for node in spanning_nodes(plan.root, grid.analyses, store, network, evaluations):
        plan.add(node)


def _store(plan: Plan, recipe: StoreRecipe, known: Mapping[str, str]) -> Node | Source:
    if recipe.how == "path":
        source = given_store(recipe, known)
        return plan.stores.setdefault(source.key, source)
    settings = dict(recipe.settings)
    key = address("store", settings, {})
    what = settings.pop(recipe.how)
    if recipe.how == "make":
        label = f"{what}-{settings['size']}" if "size" in settings else str(what)
    else:
        label = Path(what).name
    out = folder_of(plan.root, "store", key) / label
    return plan.add(
        Node(
            kind="store",
            title=f"{recipe.name}: {recipe.how} {what}",
            key=key,
            root=plan.root,
            label=label,
            product="manifest.json",
            command=("data", recipe.how, str(what), "--out", str(out), *flags(settings)),
            settings=recipe.settings,
        )
    )


def _reconstruction(
    plan: Plan,
    reconstruction: Reconstruction,
    store: Node | Source,
    device: str,
    known: Mapping[str, str],
) -> Node | Source:
    if reconstruction.config is None:
        source = given_reconstruction(reconstruction, known)
        return plan.weights.setdefault(source.key, source)
    config = reconstruction.config
    settings = to_table(config)
    key = address("reconstructor", settings, {"data": store.key})
    label = f"{config.reconstructor.name}-seed{config.training.seed}"
    folder = folder_of(plan.root, "reconstructor", key)
    command = (
        *("train", "reconstructor", "--config", str(folder / SETTINGS)),
        *("--data", path_of(store), "--out", str(folder / label), "--device", device),
    )
    return plan.add(
        Node(
            kind="reconstructor",
            title=f"{reconstruction.name}, {store.label}",
            key=key,
            root=plan.root,
            label=label,
            product="done.json",
            command=command,
            settings=settings,
            inputs=keys_of(store),
            files={SETTINGS: to_toml(config)},
        )
    )


def _policy(root: Path, config: PolicyConfig, setting: Setting, device: str) -> Node:
    config = replace(config, acquisition=setting.horizon)
    settings, training = to_table(config), config.training
    inputs = {"data": setting.store.key, "reconstructor": setting.network.key}
    key = address("policy", settings, inputs)
    label = f"{training.label}-seed{training.seed}"
    folder = folder_of(root, "policy", key)
    columns: tuple[str, ...] = ()
    if setting.horizon.size is None:
        # Without these the command would hold the run to the image size of its default preset.
        n_initial, steps = setting.horizon.n_initial, setting.horizon.horizon
        columns = ("--n-initial", str(n_initial), "--steps", str(steps))
    command = (
        *("train", "policy", "--config", str(folder / SETTINGS), "--seed", str(training.seed)),
        *(*columns, "--data", path_of(setting.store), "--reconstructor", path_of(setting.network)),
        *("--out", str(folder / label), "--device", device),
    )
    return Node(
        kind="policy",
        title=f"{training.label} seed {training.seed}, {setting.label}",
        key=key,
        root=root,
        label=label,
        product="done.json",
        command=command,
        settings=settings,
        inputs=keys_of(setting.store, setting.network),
        files={SETTINGS: to_toml(config)},
        group=f"{training.method}, {setting.label}",
    )


def _evaluation(root: Path, grid: Grid, setting: Setting, policies: Sequence[Node]) -> Node:
    evaluation = grid.evaluation
    if evaluation is None:
        raise ConfigError("there is no evaluation in this campaign; add [evaluation]")
    options = {key: value for key, value in to_table(evaluation).items() if key != "policies"}
    options["seed"] = options.pop("seeds")
    options |= {"protocol": grid.protocol, "n_initial": setting.horizon.n_initial}
    options["steps"] = setting.horizon.horizon
    settings = {**options, "label": setting.label, "policies": list(evaluation.policies)}
    settings["given"] = [_content(policy) for policy in evaluation.policies]
    key = address("evaluation", settings, inputs_of(setting, policies))
    wanted = [*evaluation.policies, *(str(node.output) for node in policies)]
    out = folder_of(root, "evaluation", key) / setting.label
    command = (
        *("evaluate", "--data", path_of(setting.store)),
        *("--reconstructor", path_of(setting.network)),
        *flags(options),
        *flags({"policy": wanted}),
        *("--out", str(out), "--device", setting.device),
    )
    return Node(
        kind="evaluation",
        title=setting.label,
        key=key,
        root=root,
        label=setting.label,
        product="summary.json",
        command=command,
        settings=settings,
        inputs=keys_of(setting.store, setting.network, *policies),
        group=str(len(policies)),
    )


def _content(policy: str) -> str | None:
    """Return a hash of the weights that a given policy stands for, None for a plain name."""
    given = policy.rpartition("=")[2]
    file = zoo_path(given) or weights_file(Path(given))
    return file_fingerprint(file) if file.is_file() else None


def _check_size(store: Node | Source, name: str, horizon: AcquisitionSetting) -> None:
    """Refuse a horizon that a store's images have no columns for, before hours of training."""
    size = store.settings.get("size") if isinstance(store, Node) else None
    if size is not None and horizon.budget > size:
        raise ConfigError(
            f"horizon {name!r} ends at {horizon.budget} columns, store {store.label!r} has {size}; "
            "lower its steps"
        )


def _known_sources(root: Path) -> dict[str, str]:
    try:
        return json.loads((root / INDEX).read_text(encoding="utf-8")).get("sources", {})
    except (OSError, ValueError):
        return {}
