"""From what a user names (policy, run folder, weights file, zoo name) to policies ready to run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard, final

from kscout import policies
from kscout.acquisition.choose import draws_columns, has_weights
from kscout.assemble import make_policy
from kscout.config import Component, PolicyConfig, of_today
from kscout.core import Policy
from kscout.errors import ConfigError, unknown_name
from kscout.evaluation.records.run_names import run_label, seed_in, without_seed
from kscout.evaluation.summaries.summary import Choice, Training
from kscout.names import POLICIES, check_label
from kscout.names.renamed import check_current
from kscout.runs import CONFIG, read_run
from kscout.runs.required import check_settings
from kscout.weights import described, network_file, policy_file
from kscout.zoo import zoo_names, zoo_path


@final
@dataclass(frozen=True)
class EvaluationEntry:
    """One policy with one seed, as it takes part in an evaluation."""

    name: str
    """What tables call it; entries of one name are seeds of one method."""
    seed: int
    """The seed that it was trained with, or that decides its draws."""
    policy: Policy
    draw_seed: int
    """Keys the draws of its trajectories."""
    is_learned: bool = False
    """Loaded from weights: `--argmax` applies."""
    config: dict[str, Any] | None = None
    """The settings it was trained with, where they are known."""
    is_given: bool = False
    """An object of the caller's, of which no name or file tells all."""
    fits: str | None = None
    """Name of the policy whose order is still to be fitted; None if there is nothing to fit."""

    def fitted(self, order: Sequence[int], n_cols: int) -> "EvaluationEntry":
        """Return the entry with a fitted order."""
        if self.fits is None:
            return self
        policy = POLICIES.resolve(self.fits)(n_cols=n_cols, order=order)
        return replace(self, policy=policy, fits=None)

    @property
    def is_oracle(self) -> bool:
        return self.policy.needs_target

    @property
    def training(self) -> Training | None:
        """Method, gamma and epoch of its training, if its run states them."""
        found, epoch = (self.config or {}).get("training", {}), self.policy.recorded.get("epoch")
        epochs = (epoch,) if isinstance(epoch, int) else ()
        return Training(found["method"], found.get("gamma"), epochs) if "method" in found else None

    def draws(self, *, is_argmax: bool) -> bool:
        """Return whether it samples; `--argmax` applies to policies that were loaded or given."""
        return draws_columns(self.policy, is_argmax=is_argmax and self.is_learned)

    def choice(self, *, is_argmax: bool) -> Choice | None:
        """Return how it chooses columns; None if it has no weights, so that it cannot differ."""
        if not has_weights(self.policy):
            return None
        return "sampled" if self.draws(is_argmax=is_argmax) else "best"


def trainings_of(entries: Sequence[EvaluationEntry]) -> dict[str, Training | None]:
    """Return the training of each method by name, with the epochs of all its seeds."""
    found: dict[str, Training | None] = {}
    for one in entries:
        known, own = found.get(one.name), one.training
        if known is not None and own is not None:
            own = replace(known, epochs=known.epochs + own.epochs)
        found[one.name] = own or known
    return found


@final
@dataclass(frozen=True)
class Sizes:
    """What a policy is built from."""

    n_rows: int
    n_cols: int
    n_initial: int
    horizon: int


def is_fitted(wanted: object) -> TypeGuard[str]:
    """Say whether a policy's order is fitted when an evaluation starts."""
    return isinstance(wanted, str) and wanted in POLICIES and POLICIES[wanted].origin == "fit"


def resolve(
    wanted: str | Path | tuple[str, Policy], sizes: Sizes, *, seeds: Sequence[int] = (0,)
) -> list[EvaluationEntry]:
    """Return the entries for one name, path, `LABEL=NAME`, `LABEL=PATH` or (label, policy).

    A policy that draws takes part once per seed; a loaded or a deterministic one once, with the
    draws of the first seed. `fixed` and `na-oracle` have an empty order until they are fitted.

    Args:
        wanted: what the user asked for; a `Path` is one even where a policy has that name.
        sizes: what policies are built from.
        seeds: seeds of the draws.
    """
    if isinstance(wanted, tuple):
        return [_given(*wanted, seed=seed) for seed in _seeds_of(wanted[1], seeds)]
    if isinstance(wanted, Path):
        return [_loaded(wanted, seeds[0])]
    if wanted in POLICIES:
        return _named(wanted, sizes, seeds)
    label, equals, name = wanted.partition("=")
    if not equals or Path(wanted).exists():
        return [_loaded(wanted, seeds[0])]
    if not label.strip():
        raise ConfigError(f"{wanted!r} has no label; write LABEL={name}, or {name} alone")
    found = _named(name, sizes, seeds) if name in POLICIES else [_loaded(wanted, seeds[0])]
    _check_label(label, found[0].policy)
    return [replace(one, name=label) for one in found]


def _named(name: str, sizes: Sizes, seeds: Sequence[int]) -> list[EvaluationEntry]:
    """Return the entries for a name in the table of policies."""
    if is_fitted(name):
        unfitted = POLICIES.resolve(name)(n_cols=sizes.n_cols, order=[])
        return [EvaluationEntry(name, seeds[0], unfitted, seeds[0], fits=name)]
    policy = _built(name, sizes, seeds[0])
    if any(True for _ in policy.parameters()):
        is_usual = name == PolicyConfig.policy.name
        label = "untrained" if is_usual else f"untrained {name}"
        return [EvaluationEntry(label, seed, _built(name, sizes, seed), seed) for seed in seeds]
    return [EvaluationEntry(name, seed, policy, seed) for seed in _seeds_of(policy, seeds)]


def _check_label(label: str, policy: Policy) -> None:
    is_same = label in [*POLICIES] and isinstance(policy, POLICIES.resolve(label))
    check_label(label, label if is_same else type(policy).__name__)


def _given(label: str, policy: Policy, *, seed: int) -> EvaluationEntry:
    _check_label(label, policy)
    return EvaluationEntry(label, seed, policy, seed, is_learned=True, is_given=True)


def _seeds_of(policy: Policy, seeds: Sequence[int]) -> Sequence[int]:
    return seeds if policy.is_stochastic else seeds[:1]


def _built(name: str, sizes: Sizes, seed: int) -> Policy:
    """Return a policy by name; a network has the weights that training with this seed finds."""
    return make_policy(Component(name), seed=seed, **asdict(sizes))


class Budget(NamedTuple):
    """The acquisition that a policy or a reconstruction was trained for."""

    n_initial: int
    horizon: int
    initial: str | None
    """Columns of the start; None for central ones."""
    columns_per_step: int


def budgets_of(wanted: Sequence[str]) -> set[Budget]:
    """Return what the runs among these were trained for; loads no weights.

    Where there is no run, files of orders tell what they were fitted for. One that was trained for
    several matrix sizes tells nothing: its columns are shares of them.
    """
    names = [one for one in wanted if one.rpartition("=")[2] not in POLICIES]
    paths = [_located(one)[1] for one in names]
    configs = [_config_of(path) for path in paths]
    told = [config for config in configs if config and "acquisition" in config]
    sections = [one["acquisition"] for one in told if not one["training"].get("sizes")]
    if not told:
        sections = [_fitted_for(path) for path in paths]
    return {_budget(one) for one in sections if one}


def _budget(told: Mapping[str, Any]) -> Budget:
    group = told.get("columns_per_step") or 1
    return Budget(told["n_initial"], told["horizon"], told.get("initial"), group)


def _fitted_for(path: Path) -> dict[str, Any]:
    """Return the acquisition that an order in a file was fitted for, where the file tells."""
    extra = _told_by(policy_file(path))
    # An order tells no columns of its start: where they are not central, a user names them.
    return extra if _tells_columns(extra) and "initial" not in extra else {}


def _tells_columns(extra: Mapping[str, Any]) -> bool:
    """Say whether a file tells how many columns there are at the start, and then."""
    counts = (extra.get(key) for key in ("n_initial", "horizon"))
    return all(type(count) is int and count > 0 for count in counts)


def _loaded(wanted: str | Path, draw_seed: int) -> EvaluationEntry:
    label, path = _located(wanted)
    config = _config_of(path)
    return EvaluationEntry(
        name=label,
        seed=config["training"]["seed"] if config else seed_in(path),
        policy=policies.load(path),
        draw_seed=draw_seed,
        is_learned=True,
        config=config,
    )


def _located(wanted: str | Path) -> tuple[str, Path]:
    """Return what tables call a run, weights file or zoo name, and where it lies."""
    label, equals, after = str(wanted).partition("=")
    # A path may hold an equals sign itself, so a label is one only where the whole is no path.
    has_label = bool(equals) and not Path(wanted).exists()
    source = after if has_label else wanted
    path = zoo_path(source) or Path(source)
    if not path.exists():
        check_current("policy", str(source))
        known = [*POLICIES, *zoo_names("policy"), "module:Class"]
        raise unknown_name(
            "policy", str(wanted), [*known, "a run folder, a weights file, or LABEL=PATH"]
        )
    return label if has_label else run_label(path), path


def _config_of(path: Path) -> dict[str, Any] | None:
    """Return the settings that a policy was trained with, where they are known."""
    folder = path if path.is_dir() else path.parent
    return read_run(folder).config if (folder / CONFIG).is_file() else _config_in(path)


def _told_by(file: Path) -> dict[str, Any]:
    """Return what a weights file of ours tells of its training; nothing of any other."""
    told = described(file)
    return {} if told is None else told.extra


def _config_in(path: Path) -> dict[str, Any] | None:
    """Return the settings that a weights file of ours tells, where it was left by a training."""
    extra = _told_by(policy_file(path))
    if not all(key in extra for key in ("method", "seed", "n_initial", "horizon")):
        return None
    sections = {
        "training": ("method", "gamma", "seed", "protocol", "sizes", "starts", "horizons"),
        "acquisition": ("n_initial", "horizon", "initial", "columns_per_step"),
    }
    found: dict[str, Any] = {
        section: {key: extra[key] for key in keys if key in extra}
        for section, keys in sections.items()
    }
    check_settings({"kind": "policy", **found}, path)
    if extra["method"] == "greedy":
        # Bundled weights of this method have a gamma without effect.
        found["training"].pop("gamma", None)
    return of_today(found)


def check_distinct(entries: Sequence[EvaluationEntry]) -> None:
    """Refuse entries that a table could not tell apart, or that it would wrongly average."""
    first: dict[str, EvaluationEntry] = {}
    seen: set[tuple[str, int]] = set()
    for entry in entries:
        if (entry.name, entry.seed) in seen:
            raise ConfigError(
                f"two policies are called {entry.name!r} with seed {entry.seed}; "
                "name them LABEL=PATH"
            )
        seen.add((entry.name, entry.seed))
        before = first.setdefault(entry.name, entry)
        if _settings(before) != _settings(entry):
            raise ConfigError(
                f"the runs called {entry.name!r} with seeds {before.seed} and {entry.seed} "
                "have other settings too; name them LABEL=PATH"
            )


def _settings(entry: EvaluationEntry) -> dict[str, Any] | None:
    return None if entry.config is None else without_seed(entry.config)


def budget_of_network(source: Path | str) -> Budget | None:
    """Return what a reconstruction learned for together with a policy.

    Args:
        source: what it is loaded from; anything else than such a reconstruction tells nothing.
    """
    file = network_file(zoo_path(source) or Path(source))
    told = _told_by(file)
    if not told.get("joint"):
        return None
    run = read_run(file.parent).config if (file.parent / CONFIG).is_file() else {}
    if run.get("kind") == "joint":
        told = {**run["acquisition"], **told}
    return _budget(told) if _tells_columns(told) else None


def store_note(entries: Sequence[EvaluationEntry], store: str) -> str | None:
    """Return a sentence if policies were trained on another dataset than this one.

    Args:
        entries: the policies.
        store: fingerprint of the dataset.
    """
    names = [one.name for one in entries if _trained_on(one.policy) not in (None, store)]
    if not names:
        return None
    words = "trained on another dataset than this one, so scores show how well they generalize"
    return f"{words}: {', '.join(dict.fromkeys(names))}"


def _trained_on(policy: Policy) -> str | None:
    """Return the fingerprint of the dataset that a policy was trained on."""
    found = policy.recorded.get("store")
    return found if isinstance(found, str) else None
