"""The file of a campaign, read strictly: what is crossed with what, and how each part is made.

Nothing in this folder imports torch: a campaign only plans, starts commands and looks at files.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from kscout.campaign.analyses import check_analysis
from kscout.campaign.store_recipes import StoreRecipe, parse_store
from kscout.campaign.values import (
    FLAG,
    NUMBERS,
    TEXT,
    TEXTS,
    WHOLE,
    WHOLES,
    Kind,
    Table,
    check_keys,
    check_values,
    different_names,
    known,
    one_of,
    section,
)
from kscout.config import (
    ACQUISITIONS,
    RECONSTRUCTOR_TRAININGS,
    AcquisitionSetting,
    PolicyConfig,
    ReconstructorConfig,
    merge,
    read,
    to_table,
    training_of,
)
from kscout.errors import ConfigError, unknown_name
from kscout.names import (
    ESTIMATORS,
    POLICIES,
    PROTOCOLS,
    RECONSTRUCTORS,
    is_outside,
    untrained_reconstructions,
    used,
)
from kscout.names import use as use_module
from kscout.zoo import zoo_names, zoo_path

_SPLIT = one_of("train", "val", "test")
_EVALUATION: dict[str, Kind] = {
    **{"policies": TEXTS, "trajectories": WHOLE, "split": _SPLIT, "reference": TEXT},
    **{"seeds": WHOLES, "limit": WHOLE, "fixed_slices": WHOLE, "argmax": FLAG},
}
_PROTOCOL = one_of(*PROTOCOLS)
_GRID_TRAINING = ("method", "gamma", "seed", "protocol")


@final
@dataclass(frozen=True)
class Reconstruction:
    """A reconstruction: given by path or name, or trained by a recipe."""

    name: str
    given: str | None = None
    """A run folder, a weights file or the name of one that needs no training."""
    config: ReconstructorConfig | None = None
    store: str | None = None
    """The store it learns from; that of the grid where not given."""


@final
@dataclass(frozen=True)
class Evaluation:
    """How policies are compared; defaults are the paper's."""

    policies: tuple[str, ...] = ("random", "fixed", "na-oracle", "oracle")
    trajectories: int = 8
    split: str = "test"
    reference: str | None = None
    seeds: tuple[int, ...] = ()
    """Seeds of the draws of policies that are not trained; the grid's where not given."""
    limit: int | None = None
    fixed_slices: int = 256
    argmax: bool = False


@final
@dataclass(frozen=True)
class Grid:
    """All that a campaign's file says."""

    name: str
    stores: tuple[StoreRecipe, ...]
    """Crossed with everything else."""
    training_stores: Mapping[str, StoreRecipe]
    """Every store by name, those that only reconstructions learn from too."""
    reconstructions: tuple[Reconstruction, ...]
    horizons: Mapping[str, AcquisitionSetting]
    policies: tuple[PolicyConfig, ...]
    """One per method, gamma and seed, with the first horizon's acquisition still to be set."""
    seeds: tuple[int, ...]
    protocol: str
    evaluation: Evaluation | None
    analyses: Mapping[str, Table] = field(default_factory=dict)
    use: tuple[str, ...] = ()
    """Modules from outside kscout whose classes the runs may load."""


def read_grid(path: Path) -> Grid:
    """Read and check a campaign's file; what is wrong is told with the file's name."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the campaign {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    try:
        return parse_grid(path.stem, table)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_grid(name: str, table: Table) -> Grid:
    """Build the grid of a parsed document."""
    sections = ("stores", "reconstructions", "horizons", "policy", "training")
    of_file = ("name", "use", "protocol", "grid", *sections, "evaluation", "analyses")
    check_keys(table, of_file, "")
    TEXTS.check(table.get("use", []), "use")
    grid = section(table, "grid")
    keys = ("stores", "reconstructions", "horizons", "methods", "gammas", "seeds")
    check_keys(grid, keys, "grid")
    protocol = table.get("protocol", "paper")
    _PROTOCOL.check(protocol, "protocol")
    TEXT.check(table.get("name", name), "name")
    every_store = {key: parse_store(key, value) for key, value in section(table, "stores").items()}
    recipes = section(table, "reconstructions")
    reconstructions = tuple(
        _reconstruction(one, recipes.get(one), protocol, every_store)
        for one in different_names(grid, "reconstructions", list(recipes))
    )
    learned_from = {one.store for one in reconstructions}
    stores = different_names(
        grid, "stores", [key for key in every_store if key not in learned_from]
    )
    WHOLES.check(grid.get("seeds", [0]), "grid.seeds")
    seeds = tuple(dict.fromkeys(grid.get("seeds", [0])))
    chosen = section(table, "evaluation")
    evaluation = _evaluation(chosen, seeds) if "evaluation" in table else None
    analyses = _analyses(section(table, "analyses"), evaluation)
    policies = _policies(grid, table, protocol, seeds)
    return Grid(
        name=table.get("name", name),
        stores=tuple(known("store", one, every_store) for one in stores),
        training_stores=every_store,
        reconstructions=reconstructions,
        horizons=_horizons(grid, section(table, "horizons")),
        policies=policies,
        seeds=seeds,
        protocol=protocol,
        evaluation=evaluation,
        analyses=analyses,
        use=_modules(table.get("use", []), reconstructions, policies, evaluation),
    )


def _modules(
    named: Iterable[str],
    reconstructions: Iterable[Reconstruction],
    policies: Iterable[PolicyConfig],
    evaluation: Evaluation | None,
) -> tuple[str, ...]:
    """Return modules from outside kscout that the file or the command line names, for all runs."""
    names = [one.config.reconstructor.name if one.config else one.name for one in reconstructions]
    for config in policies:
        names += [config.policy.name, config.training.method]
    if evaluation is not None:
        names += [policy.rpartition("=")[2] for policy in evaluation.policies]
    for module in [*named, *(name.partition(":")[0] for name in names if is_outside(name))]:
        use_module(module)
    return tuple(sorted(used() - {"__main__"}))


def _reconstruction(
    name: str, table: Table | None, protocol: str, stores: Mapping[str, StoreRecipe]
) -> Reconstruction:
    where = f"reconstructions.{name}"
    if table is None:
        free = untrained_reconstructions()
        if (name in RECONSTRUCTORS.entries and name not in free) or name not in RECONSTRUCTORS:
            raise ConfigError(
                f"unknown reconstruction {name!r}; add a section [{where}], or choose one of: "
                f"{', '.join(free)}, module:Class"
            )
        return Reconstruction(name, given=name)
    check_keys(table, ("path", "preset", "store", "reconstructor", "training"), where)
    if "path" in table:
        check_values(table, {"path": TEXT}, where)
        return Reconstruction(name, given=table["path"])
    if "store" in table:
        known("store", table["store"], stores)
    preset = known("preset", table.get("preset", "paper-unet"), RECONSTRUCTOR_TRAININGS)
    changes: Table = {key: value for key, value in table.items() if key not in ("preset", "store")}
    changes["training"] = {"protocol": protocol, **section(table, "training", where)}
    config = _settings(ReconstructorConfig(training=preset), changes, where)
    return Reconstruction(name, config=config, store=table.get("store"))


def _horizons(grid: Table, sections: Table) -> dict[str, AcquisitionSetting]:
    found = {}
    for name in different_names(grid, "horizons", list(sections)):
        if name not in sections:
            found[name] = known("horizon", name, ACQUISITIONS)
            continue
        table, where = sections[name], f"horizons.{name}"
        check_keys(table, ("n_initial", "steps"), where)
        missing = [key for key in ("n_initial", "steps") if type(table.get(key)) is not int]
        if missing:
            raise ConfigError(f"[{where}] needs {' and '.join(missing)}, whole numbers")
        try:
            found[name] = AcquisitionSetting(n_initial=table["n_initial"], horizon=table["steps"])
        except ConfigError as error:
            raise ConfigError(f"[{where}] {error}") from error
    return found


def _policies(
    grid: Table, table: Table, protocol: str, seeds: Iterable[int]
) -> tuple[PolicyConfig, ...]:
    methods, gammas = grid.get("methods", []), grid.get("gammas", [])
    TEXTS.check(methods, "grid.methods")
    NUMBERS.check(gammas, "grid.gammas")
    for method in methods:
        if method not in ESTIMATORS:
            raise unknown_name("method", method, list(ESTIMATORS))
    if not methods and ("gammas" in grid or "training" in table or "policy" in table):
        raise ConfigError("no policy is trained: grid.methods is empty; list greedy, ngreedy")
    training = section(table, "training")
    common = {key: value for key, value in training.items() if key not in ESTIMATORS}
    found = []
    for method in methods:
        own = {**common, **section(training, method, "training")}
        if taken := [key for key in own if key in _GRID_TRAINING]:
            raise ConfigError(f"[training] sets {taken[0]}, which the grid sets; move it there")
        base = PolicyConfig(training=training_of(method))
        is_varied = gammas and "gamma" in ESTIMATORS[method].varies
        for varied in [{"gamma": float(gamma)} for gamma in gammas] if is_varied else [{}]:
            for seed in seeds:
                of_grid = {**varied, "seed": seed, "protocol": protocol}
                changes: Table = {"training": {**own, **of_grid}}
                if "policy" in table:
                    changes["policy"] = {"name": "conv", **section(table, "policy")}
                found.append(_settings(base, changes, ""))
    return tuple(found)


def _evaluation(table: Table, seeds: tuple[int, ...]) -> Evaluation:
    check_values(table, _EVALUATION, "evaluation")
    policies = tuple(table.get("policies", Evaluation.policies))
    for policy in policies:
        given = policy.rpartition("=")[2]
        if given not in POLICIES and zoo_path(given) is None and not Path(given).exists():
            known_ones = [*POLICIES, *zoo_names("policy"), "a run folder", "LABEL=PATH"]
            raise unknown_name("policy", policy, known_ones)
    own = {**table, "policies": policies, "seeds": tuple(table.get("seeds", seeds))}
    return Evaluation(**own)


def _analyses(table: Table, evaluation: Evaluation | None) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for name, options in table.items():
        if options is not False:
            found[name] = {} if options is True else options
            check_analysis(name, found[name], evaluation is not None)
    return found


def _settings(base: Any, changes: Table, where: str) -> Any:  # noqa: ANN401 - settings of a run
    try:
        return read(type(base), merge(to_table(base), changes))
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}" if where else str(error)) from error
