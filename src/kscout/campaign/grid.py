"""The file of a campaign, read strictly: what is crossed with what, and how each part is made.

Nothing in this folder imports torch: a campaign only plans, starts commands and looks at files.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, final

from kscout.config import (
    ACQUISITIONS,
    POLICY_TRAININGS,
    RECONSTRUCTOR_TRAININGS,
    AcquisitionSetting,
    PolicyConfig,
    ReconstructorConfig,
    from_table,
    to_table,
)
from kscout.errors import ConfigError, unknown_name

Table = dict[str, Any]

UNTRAINED_RECONSTRUCTIONS = ("zero-filled", "total-variation")
"""Reconstructions that a name determines; a test holds them to the registry."""
BASELINES = (
    "random",
    "variable-density",
    "equispaced-one",
    "equispaced-two",
    "center-out",
    "fixed",
    "na-oracle",
    "oracle",
    "spectral-oracle",
    "conv",
)
"""Policies that need no training run; a test holds them to the registry."""
ANALYSES: dict[str, tuple[str, ...]] = {
    "policy": ("policies",),
    "entropy": ("split", "trajectories", "limit", "methods", "seeds"),
    "snr": ("split", "epoch", "trajectories", "batch_size", "passes", "limit", "methods", "seeds"),
    "cost": ("methods", "seeds"),
    "curves": ("methods", "seeds"),
    "gammas": (),
    "examples": ("policies", "slice", "split", "methods", "seeds"),
    "ranking": (),
}
"""Analyses by name, each with the options that its table in the file may hold."""

_MAKE = ("make", "volumes", "slices", "size", "seed", "variant", "paper", "source", "download")
_IMPORT = (
    *("import", "preset", "size", "pad", "center_volume", "sample_rate", "acquisition", "splits"),
    *("held_out", "seed", "test_from_train", "key", "plane", "skip_bad"),
)
_GRID_TRAINING = ("method", "gamma", "seed", "protocol")


@final
@dataclass(frozen=True)
class StoreRecipe:
    """A store of slices: one that is there, or how it is made."""

    name: str
    how: Literal["path", "make", "import"]
    settings: Table
    """`path` and `hint`, or the options of `data make` and `data import`."""


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
    _check_keys(table, ("name", "protocol", "grid", *sections, "evaluation", "analyses"), "")
    grid = _section(table, "grid")
    keys = ("stores", "reconstructions", "horizons", "methods", "gammas", "seeds")
    _check_keys(grid, keys, "grid")
    protocol = table.get("protocol", "paper")
    every_store = {key: _store(key, value) for key, value in _section(table, "stores").items()}
    recipes = _section(table, "reconstructions")
    reconstructions = tuple(
        _reconstruction(one, recipes.get(one), protocol, every_store)
        for one in _names(grid, "reconstructions", list(recipes))
    )
    learned_from = {one.store for one in reconstructions}
    stores = _names(grid, "stores", [key for key in every_store if key not in learned_from])
    seeds = _numbers(grid, "seeds", [0])
    evaluation = _evaluation(table["evaluation"], seeds) if "evaluation" in table else None
    analyses = _analyses(_section(table, "analyses"), evaluation)
    return Grid(
        name=table.get("name", name),
        stores=tuple(_known("store", one, every_store) for one in stores),
        training_stores=every_store,
        reconstructions=reconstructions,
        horizons=_horizons(grid, _section(table, "horizons")),
        policies=_policies(grid, table, protocol, seeds),
        seeds=seeds,
        protocol=protocol,
        evaluation=evaluation,
        analyses=analyses,
    )


def _store(name: str, table: Table) -> StoreRecipe:
    where = f"stores.{name}"
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r}; expected a section [{where}]")
    kinds: dict[Literal["path", "make", "import"], tuple[str, ...]] = {
        "path": ("path", "hint"),
        "make": _MAKE,
        "import": _IMPORT,
    }
    found = [how for how in kinds if how in table]
    if len(found) != 1:
        raise ConfigError(
            f"[{where}] says {' and '.join(found) or 'nothing'}; "
            "say one of: path (a store), make (knee, brain, heads), import (a folder)"
        )
    _check_keys(table, kinds[found[0]], where)
    settings = dict(table)
    if isinstance(table.get("volumes"), list):
        settings["volumes"] = ",".join(str(count) for count in table["volumes"])
    return StoreRecipe(name, found[0], settings)


def _reconstruction(
    name: str, table: Table | None, protocol: str, stores: Mapping[str, StoreRecipe]
) -> Reconstruction:
    where = f"reconstructions.{name}"
    if table is None:
        if name not in UNTRAINED_RECONSTRUCTIONS:
            raise ConfigError(
                f"unknown reconstruction {name!r}; add a section [{where}], or choose one of: "
                f"{', '.join(UNTRAINED_RECONSTRUCTIONS)}"
            )
        return Reconstruction(name, given=name)
    _check_keys(table, ("path", "preset", "store", "reconstructor", "training"), where)
    if "path" in table:
        _check_keys(table, ("path",), where)
        return Reconstruction(name, given=table["path"])
    if "store" in table:
        _known("store", table["store"], stores)
    preset = _known("preset", table.get("preset", "paper-unet"), RECONSTRUCTOR_TRAININGS)
    changes: Table = {key: value for key, value in table.items() if key not in ("preset", "store")}
    changes["training"] = {"protocol": protocol, **changes.get("training", {})}
    config = _settings(ReconstructorConfig(training=preset), changes, where)
    return Reconstruction(name, config=config, store=table.get("store"))


def _horizons(grid: Table, sections: Table) -> dict[str, AcquisitionSetting]:
    found = {}
    for name in _names(grid, "horizons", list(sections)):
        if name not in sections:
            found[name] = _known("horizon", name, ACQUISITIONS)
            continue
        table, where = sections[name], f"horizons.{name}"
        _check_keys(table, ("n_initial", "steps"), where)
        missing = [key for key in ("n_initial", "steps") if type(table.get(key)) is not int]
        if missing:
            raise ConfigError(f"[{where}] needs {' and '.join(missing)}, whole numbers")
        found[name] = AcquisitionSetting(n_initial=table["n_initial"], horizon=table["steps"])
    return found


def _policies(
    grid: Table, table: Table, protocol: str, seeds: Iterable[int]
) -> tuple[PolicyConfig, ...]:
    methods = list(grid.get("methods", []))
    for method in methods:
        _known("method", method, POLICY_TRAININGS)
    if not methods and ("gammas" in grid or "training" in table or "policy" in table):
        raise ConfigError("no policy is trained: grid.methods is empty; list greedy, ngreedy")
    training = _section(table, "training")
    common = {key: value for key, value in training.items() if key not in POLICY_TRAININGS}
    found = []
    for method in methods:
        own = {**common, **training.get(method, {})}
        if taken := [key for key in own if key in _GRID_TRAINING]:
            raise ConfigError(f"[training] sets {taken[0]}, which the grid sets; move it there")
        gammas: tuple[float, ...] = (1.0,)
        if method == "ngreedy":
            gammas = tuple(float(gamma) for gamma in grid.get("gammas", [1.0]))
        for gamma in gammas:
            for seed in seeds:
                of_grid = {"gamma": gamma, "seed": seed, "protocol": protocol}
                changes: Table = {"training": {**own, **of_grid}}
                if "policy" in table:
                    changes["policy"] = {"name": "conv", **table["policy"]}
                base = PolicyConfig(training=POLICY_TRAININGS[method])
                found.append(_settings(base, changes, ""))
    return tuple(found)


def _evaluation(table: Table, seeds: tuple[int, ...]) -> Evaluation:
    default = Evaluation()
    _check_keys(table, (*to_table(default), "reference", "limit"), "evaluation")
    policies = tuple(table.get("policies", default.policies))
    for policy in policies:
        if policy not in BASELINES and not Path(policy.rpartition("=")[2]).exists():
            raise unknown_name("policy", policy, [*BASELINES, "a run folder", "LABEL=PATH"])
    for key, value in table.items():
        expected = type(getattr(default, key, None) or ("" if key == "reference" else 0))
        if key not in ("policies", "seeds") and type(value) is not expected:
            raise ConfigError(f"evaluation.{key} is {value!r}; expected {expected.__name__}")
    own = {**table, "policies": policies, "seeds": tuple(table.get("seeds", seeds))}
    return Evaluation(**own)


def _analyses(table: Table, evaluation: Evaluation | None) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for name, options in table.items():
        allowed = _known("analysis", name, ANALYSES)
        if options is False:
            continue
        found[name] = {} if options is True else options
        _check_keys(found[name], allowed, f"analyses.{name}")
        if evaluation is None and name in ("policy", "gammas", "ranking"):
            raise ConfigError(f"analysis {name!r} reads an evaluation; add [evaluation]")
    return found


def _settings(base: Any, changes: Table, where: str) -> Any:  # noqa: ANN401 - settings of a run
    try:
        return from_table(type(base), changes, base)
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}" if where else str(error)) from error


def _section(table: Table, name: str) -> Table:
    value = table.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {value!r}; expected a section [{name}]")
    return value


def _names(grid: Table, key: str, default: list[str]) -> list[str]:
    names = grid.get(key, default)
    if not isinstance(names, list) or not names or len(set(names)) < len(names):
        raise ConfigError(f"grid.{key} is {names!r}; expected a list of different names")
    return names


def _numbers(grid: Table, key: str, default: list[int]) -> tuple[int, ...]:
    numbers = grid.get(key, default)
    if not numbers or any(type(one) is not int for one in numbers):
        raise ConfigError(f"grid.{key} is {numbers!r}; expected a list of whole numbers")
    return tuple(dict.fromkeys(numbers))


def _known(kind: str, name: str, table: Mapping[str, Any]) -> Any:  # noqa: ANN401 - its values
    if name not in table:
        raise unknown_name(kind, name, list(table))
    return table[name]


def _check_keys(table: Any, allowed: Iterable[str], where: str) -> None:  # noqa: ANN401 - TOML
    if not isinstance(table, dict):
        raise ConfigError(f"{where} is {table!r}; expected a section [{where}]")
    names = list(dict.fromkeys(allowed))
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            full = f"{where}.{key}".lstrip(".")
            choices = ", ".join(names) or "none"
            raise ConfigError(f"unknown setting {full!r}{hint}; choose one of: {choices}")
