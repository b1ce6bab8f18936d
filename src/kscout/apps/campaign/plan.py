"""From a grid to the graph of its runs, each after its dependencies."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import final

from kscout.apps.campaign.analyses import analysis_nodes
from kscout.apps.campaign.file import EvaluationSection, GivenStore, MadeStore, Store
from kscout.apps.campaign.grid import CampaignGrid, Network
from kscout.apps.campaign.nodes import Node, Setting, Source, address, file_name
from kscout.compressed import plain_checksum
from kscout.config import (
    AcquisitionSetting,
    PolicyConfig,
    ReconstructorConfig,
    of_0_2,
    to_table,
    to_toml,
)
from kscout.config.options import flags
from kscout.data.manifest import MANIFEST, read_manifest
from kscout.errors import ConfigError, DataError
from kscout.files import read_record
from kscout.json_types import JsonObject
from kscout.names import FORMATS, PROTOCOLS, RAW_FORMATS, RECONSTRUCTORS, Protocol
from kscout.zoo import zoo_path

_SINCE_0_1 = {"metric": "ssim", "sizes": []}
"""Settings of trainings that 0.1 lacked; with these values they are not part of a name."""
INDEX = "campaign.json"
SETTINGS = "settings.toml"
_WEIGHTS = "weights.safetensors"
_RAW_ONLY = {one for entry in RAW_FORMATS.values() for one in entry.suffixes}
_RAW_ONLY -= {one for entry in FORMATS.values() for one in entry.suffixes}
"""Suffixes of files that contain k-space and no images."""


@final
@dataclass
class CampaignPlan:
    """The runs of a campaign by key, in an executable order."""

    name: str
    root: Path
    use: tuple[str, ...] = ()
    """Modules of other packages for `--use` of every command."""
    nodes: dict[str, Node] = field(default_factory=dict)
    given: dict[str, Source] = field(default_factory=dict)
    """Given stores and reconstructions, by key."""
    sources: dict[str, str] = field(default_factory=dict)
    """Fingerprints of given stores and reconstructions by path, also of those that are gone."""
    kspace: list[str] = field(default_factory=list)
    """Paths of given stores of k-space."""
    protocols: dict[str, Protocol] = field(default_factory=dict)
    """Protocols of given reconstructions by path, also of those that are gone."""

    def add(self, node: Node) -> Node:
        """Add a run; an existing one is unchanged."""
        return self.nodes.setdefault(node.key, replace(node, use=self.use))

    def of_kind(self, kind: str) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind == kind]

    @property
    def missing(self) -> list[Source]:
        return [x for x in self.given.values() if x.product and not x.product.is_file()]

    def check_sources(self) -> None:
        """Raise an error if a given source is missing."""
        text = "; ".join(f"{one.path} does not exist: {one.hint}" for one in self.missing)
        if text:
            raise DataError(f"campaign {self.name} cannot start: {text}")


def make_plan(grid: CampaignGrid, root: Path, *, device: str = "auto") -> CampaignPlan:
    """Expand a grid to the graph of its runs under `root`; only reads manifests.

    The campaign's index describes given stores and reconstructions that no longer exist: without
    it, the names of all their runs would change.
    """
    index = read_record(root / INDEX, sources=dict, kspace=list, protocols=dict)
    sources = {path: x for path, x in index.get("sources", {}).items() if isinstance(x, str)}
    protocols: dict[str, Protocol] = {
        path: one for path, x in index.get("protocols", {}).items() for one in PROTOCOLS if x == one
    }
    plan = CampaignPlan(grid.name, root, grid.use, sources=sources, protocols=protocols)
    kinds = {name: _kind_of(one, index.get("kspace", [])) for name, one in grid.stores.items()}
    given = {x.path: kinds[name] for name, x in grid.stores.items() if isinstance(x, GivenStore)}
    plan.kspace = sorted(path for path, kind in given.items() if kind == "kspace")
    for name, network in product(grid.crossed, grid.networks):
        store, teacher = _store(plan, name, grid.stores[name]), network.store or name
        trained = _network(plan, network, _store(plan, teacher, grid.stores[teacher]), device)
        protocol = grid.protocol or _protocol(plan, network, trained)
        settings = []
        for horizon_name, horizon in grid.horizons.items():
            _check_size(store, horizon_name, horizon)
            settings.append(Setting(store, trained, horizon, protocol, device, kinds[name]))
        _cross(plan, grid, settings)
    return plan


def _protocol(plan: CampaignPlan, network: Network, source: Node | Source) -> Protocol:
    if network.config is not None:
        return network.config.training.protocol
    if isinstance(source, Node) or source.product is None:
        return "blind"
    if source.product.is_file():
        # Imported here because plans without a given reconstruction do not need torch.
        from kscout.reconstruction import load

        plan.protocols[source.path] = load(source.product).protocol_for()
    return plan.protocols.get(source.path, "blind")


def _cross(plan: CampaignPlan, grid: CampaignGrid, settings: Sequence[Setting]) -> None:
    """Add the runs of one store and reconstruction, with one setting per horizon."""
    for setting in settings:
        policies = [plan.add(_policy(plan.root, config, setting)) for config in grid.policies]
        evaluation = None
        if grid.evaluation is not None:
            evaluation = plan.add(_evaluation(plan.root, grid.evaluation, setting, policies))
        for node in analysis_nodes(plan.root, grid.analyses, setting, policies, evaluation):
            plan.add(node)


def _store(plan: CampaignPlan, name: str, store: Store) -> Node | Source:
    if isinstance(store, GivenStore):
        return _given_store(plan, store)
    settings = to_table(store)
    if isinstance(settings.get("volumes"), list):
        settings["volumes"] = ",".join(map(str, settings["volumes"]))
    how = "make" if isinstance(store, MadeStore) else "import"
    options = {key: value for key, value in settings.items() if key != how}
    what = settings[how]
    label = Path(what).name
    if isinstance(store, MadeStore) and "size" in settings:
        label = f"{what}-{settings['size']}"
    return plan.add(
        Node(
            plan.root,
            "store",
            label,
            title=f"{name}: {how} {what}",
            product="manifest.json",
            words=("data", how, what, *flags(options)),
            settings=settings,
        )
    )


def _network(
    plan: CampaignPlan, network: Network, store: Node | Source, device: str
) -> Node | Source:
    config = network.config
    if config is None:
        return _given_reconstruction(plan, network)
    label = f"{file_name(config.reconstructor.name)}-seed{config.training.seed}"
    return plan.add(
        Node(
            plan.root,
            "reconstructor",
            label,
            title=f"{network.name}, {store.label}",
            product="done.json",
            words=("train", "reconstructor", "--data", store.path, "--device", device),
            settings=_named(config),
            reads={"data": store},
            files={SETTINGS: to_toml(config)},
        )
    )


def _named(config: PolicyConfig | ReconstructorConfig) -> JsonObject:
    """Return the settings that determine the name of a training."""
    table = of_0_2(to_table(config))
    for name, value in _SINCE_0_1.items():
        if table["training"].get(name) == value:
            del table["training"][name]
    return table


def _policy(root: Path, config: PolicyConfig, setting: Setting) -> Node:
    training = replace(config.training, protocol=setting.protocol)
    config = replace(config, acquisition=setting.horizon, training=training)
    words = ["train", "policy", *setting.words, "--seed", str(training.seed)]
    if setting.horizon.size is None:
        # Otherwise the command would restrict the run to the image size of its default preset.
        words += flags(setting.columns)
    return Node(
        root,
        "policy",
        f"{file_name(training.label)}-seed{training.seed}",
        title=f"{training.label} seed {training.seed}, {setting.label}",
        product="done.json",
        words=words,
        settings=_named(config),
        reads=setting.reads,
        files={SETTINGS: to_toml(config)},
        group=f"{training.method}, {setting.label}",
    )


def _evaluation(
    root: Path, evaluation: EvaluationSection, setting: Setting, policies: Sequence[Node]
) -> Node:
    options = {key: value for key, value in to_table(evaluation).items() if key != "policies"}
    options["seed"] = options.pop("seeds")
    options |= {"protocol": setting.protocol, **setting.columns}
    wanted = [*evaluation.policies, *(node.path for node in policies)]
    return Node(
        root,
        "evaluation",
        setting.label,
        title=setting.label,
        product="summary.json",
        words=("evaluate", *setting.words, *flags(options), *flags({"policy": wanted})),
        settings={
            **options,
            "label": setting.label,
            "policies": list(evaluation.policies),
            "given": [_content(policy) for policy in evaluation.policies],
        },
        reads={**setting.reads, "runs": policies},
        group=str(len(policies)),
    )


def _content(policy: str) -> str | None:
    given = policy.rpartition("=")[2]
    file = zoo_path(given) or _weights_file(Path(given))
    return plain_checksum(file) if file.is_file() else None


def _check_size(store: Node | Source, name: str, horizon: AcquisitionSetting) -> None:
    """Raise an error, before hours of training, if a horizon has more columns than images."""
    size = store.settings.get("size") if isinstance(store, Node) else None
    # Rows x columns, or a side; other values are reported by the import.
    columns = str(size).rpartition("x")[2]
    if columns.isdecimal() and horizon.budget > int(columns):
        raise ConfigError(
            f"horizon {name!r} ends at {horizon.budget} columns, store {store.label!r} has "
            f"{columns}; lower its steps"
        )


def _given_store(plan: CampaignPlan, store: GivenStore) -> Source:
    path, label = Path(store.path), Path(store.path).name
    if (path / MANIFEST).is_file():
        manifest = read_manifest(path)
        plan.sources[str(path)], label = manifest.fingerprint, manifest.name
    content = plan.sources.get(str(path), f"missing {path}")
    key = address("store", {}, {"content": content})
    return plan.given.setdefault(key, Source(key, str(path), label, path / MANIFEST, store.hint))


def _kind_of(store: Store, gone: Collection[str]) -> str:
    """Return the content of a store, `image` or `kspace`, from its manifest or recipe."""
    if isinstance(store, GivenStore):
        if (Path(store.path) / MANIFEST).is_file():
            return read_manifest(Path(store.path)).kind
        return "kspace" if store.path in gone else "image"
    if isinstance(store, MadeStore):
        return "kspace" if "coils" in store.settings else "image"
    names = ("raw", "axes", "header", "crop", "resize", "compress", "prospective")
    of_raw = any(store.settings.get(name) for name in names)
    is_raw = of_raw or Path(store.import_).suffix in _RAW_ONLY
    return "kspace" if is_raw else "image"


def _given_reconstruction(plan: CampaignPlan, network: Network) -> Source:
    given = network.given or ""
    if given in RECONSTRUCTORS:
        key = address("reconstructor", {}, {"name": given})
        return plan.given.setdefault(key, Source(key, given, file_name(given)))
    file = zoo_path(given) or _weights_file(Path(given))
    if file.is_file():
        plan.sources[given] = plain_checksum(file)
    content = plan.sources.get(given, f"missing {given}")
    key = address("reconstructor", {}, {"content": content})
    hint = "train it with `kscout train reconstructor`, or name another path"
    return plan.given.setdefault(key, Source(key, given, network.name, file, hint))


def _weights_file(path: Path) -> Path:
    return path / _WEIGHTS if path.is_dir() else path
