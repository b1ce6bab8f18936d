"""From a campaign file to the factors of its grid, with all settings resolved."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import final

from kscout.apps.campaign.analyses import check_analysis
from kscout.apps.campaign.file import Crossed, EvaluationSection, File, Store
from kscout.columns import parse_columns
from kscout.config import (
    ACQUISITIONS,
    RECONSTRUCTOR_TRAININGS,
    AcquisitionSetting,
    PolicyConfig,
    ReconstructorConfig,
    merge,
    of_today,
    read,
    read_file,
    section,
    to_table,
)
from kscout.config.records import unknown_key
from kscout.config.retired import is_dropped
from kscout.errors import ConfigError, unknown_name
from kscout.json_types import JsonObject
from kscout.names import (
    ESTIMATORS,
    RECONSTRUCTORS,
    Protocol,
    is_outside,
    untrained_reconstructions,
    use,
    used,
)
from kscout.names.renamed import current, current_keys


@final
@dataclass(frozen=True)
class Network:
    """A reconstruction: given by path or name, or trained with given settings."""

    name: str
    given: str | None = None
    """A run folder, a weights file or the name of a reconstruction without training."""
    config: ReconstructorConfig | None = None
    store: str | None = None
    """The store of its training; by default that of the grid."""


@final
@dataclass(frozen=True)
class CampaignGrid:
    """The factors that a campaign crosses."""

    name: str
    stores: Mapping[str, Store]
    """Every store of the file by name."""
    crossed: Sequence[str]
    """Names of the stores that are crossed with the other factors."""
    networks: Sequence[Network]
    horizons: Mapping[str, AcquisitionSetting]
    policies: Sequence[PolicyConfig]
    """One per method, varied setting and seed; acquisition and protocol are set later."""
    protocol: Protocol | None
    """None: that of each reconstruction."""
    evaluation: EvaluationSection | None
    analyses: Mapping[str, JsonObject]
    """Options by analysis."""
    use: tuple[str, ...] = ()
    """Modules of other packages whose classes the runs may load."""


MOST_POLICIES = 10_000


def check_printable(value: object) -> None:
    """Raise an error for names and strings with characters that control terminals."""
    if isinstance(value, str) and not value.isprintable():
        raise ConfigError(f"{value!r:.100} has characters that cannot be printed; remove them")
    for inner in value if isinstance(value, dict | list) else ():
        check_printable(inner)
        if isinstance(value, dict):
            check_printable(value[inner])


def read_grid(path: Path) -> CampaignGrid:
    """Read and validate a campaign file; errors name the file."""
    table = read_file(path, what="the campaign")
    try:
        check_printable({path.stem: table})
        return parse_grid(path.stem, _of_today(table))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _of_today(table: JsonObject) -> JsonObject:
    found = {key: dict(one) if isinstance(one, dict) else one for key, one in table.items()}
    methods = section(found, "grid").get("methods")
    if isinstance(methods, list):
        found["grid"]["methods"] = [
            current("estimator", one) if isinstance(one, str) else one for one in methods
        ]
    training = section(found, "training")
    own = {key: one for key, one in training.items() if isinstance(one, dict)}
    if own:
        renamed = {current("estimator", x): current_keys("training", y) for x, y in own.items()}
        found["training"] = {x: y for x, y in training.items() if x not in own} | renamed
    if isinstance(found.get("analyses"), dict):
        found["analyses"] = {current("analysis", x): y for x, y in found["analyses"].items()}
    return of_today(found)


def parse_grid(name: str, table: JsonObject) -> CampaignGrid:
    """Build the grid of a parsed document."""
    file = read(File, table)
    wanted = _chosen(file.grid.reconstructions, file.reconstructions, "reconstructions")
    networks = [_network(one, file) for one in wanted]
    learned_from = {network.store for network in networks}
    crossed = _chosen(
        file.grid.stores, [one for one in file.stores if one not in learned_from], "stores"
    )
    for store in [*crossed, *(learned_from - {None})]:
        if store not in file.stores:
            raise unknown_name("store", str(store), list(file.stores))
    seeds = tuple(dict.fromkeys(file.grid.seeds))
    evaluation = file.evaluation
    if evaluation is not None and evaluation.seeds is None:
        evaluation = replace(evaluation, seeds=seeds)
    horizons = _horizons(file)
    n_cells = len(crossed) * len(networks) * len(horizons)
    policies = list(_policies(file, seeds, MOST_POLICIES // max(1, n_cells)))
    return CampaignGrid(
        name=file.name or name,
        stores=file.stores,
        crossed=crossed,
        networks=networks,
        horizons=horizons,
        policies=policies,
        protocol=file.protocol,
        evaluation=evaluation,
        analyses=_analyses(file),
        use=_modules(file, networks, policies),
    )


def _chosen(names: Sequence[str] | None, every: Iterable[str], key: str) -> Sequence[str]:
    found = list(every) if names is None else names
    if not found:
        raise ConfigError(f"there are no {key}; add a section [{key}.NAME]")
    return found


def _network(name: str, file: File) -> Network:
    where = f"reconstructions.{name}"
    if name not in file.reconstructions:
        free = untrained_reconstructions()
        is_trained = name in RECONSTRUCTORS.entries and name not in free
        if name not in RECONSTRUCTORS or is_trained:
            raise ConfigError(
                f"unknown reconstruction {name!r}; add a section [{where}], or choose one of: "
                f"{', '.join(free)}, module:Class"
            )
        return Network(name, given=name)
    recipe = file.reconstructions[name]
    if recipe.path is not None:
        return Network(name, given=recipe.path)
    base = ReconstructorConfig(training=RECONSTRUCTOR_TRAININGS[recipe.preset])
    named = {} if file.protocol is None else {"protocol": file.protocol}
    training = {**named, **recipe.training}
    changes = {"reconstructor": recipe.reconstructor, "training": training}
    config = read(ReconstructorConfig, merge(to_table(base), changes), where)
    return Network(name, config=config, store=recipe.store)


def _horizons(file: File) -> dict[str, AcquisitionSetting]:
    own = {
        name: AcquisitionSetting(
            n_initial=one.n_initial or len(set(parse_columns(one.initial or ""))),
            horizon=one.steps,
            initial=one.initial,
        )
        for name, one in file.horizons.items()
    }
    known = {**ACQUISITIONS, **own}
    wanted = _chosen(file.grid.horizons, file.horizons, "horizons")
    for name in wanted:
        if name not in known:
            raise unknown_name("horizon", name, list(known))
    return {name: known[name] for name in wanted}


def _policies(file: File, seeds: Sequence[int], n_most: int) -> Iterator[PolicyConfig]:
    """Yield the settings of every method, with all varied values and seeds, up to a limit."""
    methods, varied = file.grid.methods, file.grid.varied
    if not methods and (varied or file.training or file.policy):
        raise ConfigError(
            f"no policy is trained: grid.methods is empty; list {', '.join(ESTIMATORS)}"
        )
    varies = _check_varied(varied)
    common = {key: value for key, value in file.training.items() if key not in ESTIMATORS}
    if "seeds" in common:
        raise ConfigError("[training] sets seeds, which the grid sets; move them to [grid]")
    for method in methods:
        own = {**common, **_of_method(file.training, method)}
        own_seeds = _own_seeds(own.pop("seeds", None), method) or seeds
        if taken := [key for key in own if key in ("method", "seed", "protocol", *varies)]:
            raise ConfigError(f"[training] sets {taken[0]}, which the grid sets; move it there")
        base = to_table(PolicyConfig.of(method))
        names = [name for name in ESTIMATORS[method].varies if f"{name}s" in varied]
        n_most -= len(own_seeds) * math.prod(len(varied[f"{name}s"]) for name in names)
        if n_most < 0:
            raise ConfigError(
                f"the grid has more than {MOST_POLICIES} policies: each of {len(own_seeds)} seeds "
                "of a method for every store, reconstruction and horizon; divide it into several "
                "files"
            )
        for values in product(*(varied[f"{name}s"] for name in names)):
            for seed in own_seeds:
                of_grid = {**dict(zip(names, values, strict=True)), "seed": seed}
                training = {**own, **of_grid}
                yield read(PolicyConfig, merge(base, {"policy": file.policy, "training": training}))


def _of_method(training: JsonObject, method: str) -> JsonObject:
    own, where = training.get(method, {}), f"training.{method}"
    if not isinstance(own, dict):
        raise ConfigError(f"{where} is {own!r}; expected a section [{where}]")
    return own


def _own_seeds(given: object, method: str) -> list[int]:
    """Return the seeds of one method; empty if it has those of the grid."""
    if given is None:
        return []
    if not isinstance(given, list) or not given or any(type(one) is not int for one in given):
        raise ConfigError(f"training.{method}.seeds is {given!r}; expected a list of whole numbers")
    return list(dict.fromkeys(given))


def _check_varied(varied: Mapping[str, object]) -> list[str]:
    """Return the settings that a grid may vary; `gammas` varies `gamma`."""
    names = list(dict.fromkeys(name for one in ESTIMATORS.values() for name in one.varies))
    for key in varied:
        if key.removesuffix("s") not in names or not key.endswith("s"):
            allowed = [item.name for item in fields(Crossed) if item.name != "varied"]
            raise unknown_key(key, [*allowed, *(f"{name}s" for name in names)], "grid")
    return names


def _analyses(file: File) -> dict[str, JsonObject]:
    found: dict[str, JsonObject] = {}
    for name, options in file.analyses.items():
        if options is not False and not is_dropped(f"analyses.{name}", options):
            found[name] = {} if options is True else options
            check_analysis(name, found[name], file.evaluation is not None)
    return found


def _modules(
    file: File, networks: Iterable[Network], policies: Iterable[PolicyConfig]
) -> tuple[str, ...]:
    """Return modules of other packages that the file or the command line names, for all runs."""
    names = [*file.grid.methods, *file.analyses]
    names += [name for one in policies for name in (one.policy.name, one.training.metric)]
    names += [one.config.reconstructor.name if one.config else one.name for one in networks]
    if file.evaluation is not None:
        names += [policy.rpartition("=")[2] for policy in file.evaluation.policies]
    for module in [*file.use, *(name.partition(":")[0] for name in names if is_outside(name))]:
        use(module)
    return tuple(sorted(used() - {"__main__"}))
