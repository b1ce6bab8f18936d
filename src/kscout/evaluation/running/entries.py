"""Policies of an evaluation from names and paths: checked, loaded, built, and their budgets."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from kscout import policies
from kscout.acquisition.choose import draws_columns, has_weights, is_outside
from kscout.acquisition.plan import Plan
from kscout.assemble import make_policy
from kscout.config import AcquisitionSetting, Component, PolicyConfig, of_today
from kscout.core import Policy, Reconstructor
from kscout.errors import ConfigError
from kscout.evaluation.records.run_names import run_label, seed_in, split_label, without_seed
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.summaries.summary import Choice, Training
from kscout.json_types import JsonObject
from kscout.names import POLICIES, check_label, unknown_policy
from kscout.names.renamed import check_current
from kscout.runs import CONFIG, read_run
from kscout.runs.required import Settings, check_content
from kscout.weights import described, policy_file
from kscout.zoo import zoo_names, zoo_path


@final
@dataclass(frozen=True)
class EvaluationEntry:
    """One policy with one seed in an evaluation."""

    name: str
    """Name in tables; entries with the same name are seeds of one method."""
    seed: int
    """Seed of the training, or of the sampling."""
    policy: Policy
    draw_seed: int
    """Random seed for the columns of its trajectories."""
    is_learned: bool = False
    """Loaded from weights, or an object: `--argmax` applies."""
    config: JsonObject | None = None
    """Settings of the training; None if unknown."""
    is_given: bool = False
    """An object from Python, which no name or file determines."""
    fits: str | None = None
    """Name of the policy whose order is still to be fitted; None if there is nothing to fit."""

    @property
    def needs_training_slices(self) -> bool:
        """Whether an order is still to be fitted on training slices."""
        return self.fits is not None and not self.is_oracle

    @property
    def is_oracle(self) -> bool:
        return self.policy.needs_target

    @property
    def training(self) -> Training | None:
        """Method, gamma and epoch of its training; None if unknown."""
        section, epoch = (self.config or {}).get("training", {}), self.policy.recorded.get("epoch")
        if "method" not in section:
            return None
        epochs = (epoch,) if isinstance(epoch, int) else ()
        return Training(section["method"], section.get("gamma"), epochs)

    def draws(self, *, is_argmax: bool) -> bool:
        """Return whether it samples; `--argmax` applies to trained policies and own classes."""
        applies = self.is_learned or is_outside(self.policy)
        return draws_columns(self.policy, is_argmax=is_argmax and applies)

    def choice(self, *, is_argmax: bool) -> Choice | None:
        """Return how it chooses columns; None for policies of kscout without weights."""
        if not (has_weights(self.policy) or is_outside(self.policy)):
            return None
        return "sampled" if self.draws(is_argmax=is_argmax) else "best"


def trainings_of(entries: Sequence[EvaluationEntry]) -> dict[str, Training | None]:
    """Return the training of each method by name, with the epochs of all its seeds."""
    trainings: dict[str, Training | None] = {}
    for entry in entries:
        known, training = trainings.get(entry.name), entry.training
        if known is not None and training is not None:
            training = replace(known, epochs=known.epochs + training.epochs)
        trainings[entry.name] = training or known
    return trainings


def is_fitted(name: str) -> bool:
    """Return whether an order is fitted when an evaluation with this policy starts."""
    return name in POLICIES and POLICIES[name].origin == "fit"


def resolve(
    source: str | Path | tuple[str, Policy],
    shape: Sequence[int],
    plan: Plan,
    *,
    seeds: Sequence[int] = (0,),
) -> list[EvaluationEntry]:
    """Return the entries for one name, path, `LABEL=NAME`, `LABEL=PATH` or (label, policy).

    A stochastic policy has one entry per seed; a loaded or deterministic one has one entry, with
    the first seed. `fixed` and `na-oracle` have an empty order until they are fitted. A `Path` is a
    path, also if a policy has that name.
    """
    if isinstance(source, tuple):
        label, policy = source
        _check_label(label, policy)
        return [
            EvaluationEntry(label, seed, policy, seed, is_learned=True, is_given=True)
            for seed in _seeds_of(policy, seeds)
        ]
    if isinstance(source, Path):
        return [_loaded(source, seeds[0])]
    if source in POLICIES:
        return _named(source, shape, plan, seeds)
    prefix, name = split_label(source)
    if prefix is None:
        return [_loaded(source, seeds[0])]
    if not prefix.strip():
        raise ConfigError(f"{source!r} has no label; write LABEL={name}, or {name} alone")
    if name in POLICIES:
        entries = _named(str(name), shape, plan, seeds)
    else:
        entries = [_loaded(source, seeds[0])]
    _check_label(prefix, entries[0].policy)
    return [replace(entry, name=prefix) for entry in entries]


def _named(
    name: str, shape: Sequence[int], plan: Plan, seeds: Sequence[int]
) -> list[EvaluationEntry]:
    if is_fitted(name):
        unfitted = POLICIES.resolve(name)(n_cols=shape[-1], order=[])
        return [EvaluationEntry(name, seeds[0], unfitted, seeds[0], fits=name)]
    policy = _built(name, shape, plan, seeds[0])
    if any(True for _ in policy.parameters()):
        is_default = name == PolicyConfig.policy.name
        label = "untrained" if is_default else f"untrained {name}"
        return [
            EvaluationEntry(label, seed, _built(name, shape, plan, seed), seed) for seed in seeds
        ]
    return [EvaluationEntry(name, seed, policy, seed) for seed in _seeds_of(policy, seeds)]


def _check_label(label: str, policy: Policy) -> None:
    is_same = label in [*POLICIES] and isinstance(policy, POLICIES.resolve(label))
    check_label(label, label if is_same else type(policy).__name__)


def _seeds_of(policy: Policy, seeds: Sequence[int]) -> Sequence[int]:
    return seeds if policy.is_stochastic else seeds[:1]


def _built(name: str, shape: Sequence[int], plan: Plan, seed: int) -> Policy:
    """Return a policy by name; a network has the initial weights of a training with this seed."""
    sizes = {"n_rows": shape[-2], "n_cols": shape[-1]}
    return make_policy(
        Component(name), seed=seed, **sizes, n_initial=plan.n_initial, horizon=plan.horizon
    )


def _loaded(source: str | Path, draw_seed: int) -> EvaluationEntry:
    label, path = _located(source)
    config = _config_of(path)
    return EvaluationEntry(
        name=label,
        seed=config["training"]["seed"] if config else seed_in(path),
        policy=policies.load(path),
        draw_seed=draw_seed,
        is_learned=True,
        config=config,
    )


def _located(source: str | Path) -> tuple[str, Path]:
    """Return the name in tables and the path of a run, weights file or zoo entry."""
    label, place = split_label(source)
    path = zoo_path(place) or Path(place)
    if not path.exists():
        check_current("policy", str(place))
        known = [*POLICIES, *zoo_names("policy"), "module:Class"]
        raise unknown_policy(str(place), [*known, "a run folder, a weights file, or LABEL=PATH"])
    return run_label(path) if label is None else label, path


def _config_of(path: Path) -> JsonObject | None:
    """Return the training settings of a policy; None if unknown."""
    folder = path if path.is_dir() else path.parent
    return read_run(folder).config if (folder / CONFIG).is_file() else _config_in(path)


def _config_in(path: Path) -> JsonObject | None:
    """Return the training settings in a weights file of kscout; None without a training."""
    extra = _metadata(policy_file(path))
    if not all(key in extra for key in ("method", "seed", "n_initial", "horizon")):
        return None
    sections = {
        "training": ("method", "gamma", "seed", "protocol"),
        "acquisition": ("n_initial", "horizon", "initial"),
    }
    config: JsonObject = {
        section: {key: extra[key] for key in keys if key in extra}
        for section, keys in sections.items()
    }
    check_content(Settings, {"kind": "policy", **config}, path)
    if extra["method"] == "greedy":
        # Bundled weights of this method have a gamma without effect.
        config["training"].pop("gamma", None)
    return of_today(config)


def _metadata(file: Path) -> JsonObject:
    """Return the metadata of a weights file of kscout; nothing for other files."""
    description = described(file)
    return {} if description is None else description.extra


def budgets_of(sources: Sequence[str]) -> dict[AcquisitionSetting, list[str]]:
    """Return the policies by the acquisition for which they were trained or fitted.

    No weights are loaded.
    """
    budgets: dict[AcquisitionSetting, list[str]] = {}
    for source in sources:
        if source.rpartition("=")[2] not in POLICIES:
            path = _located(source)[1]
            config = _config_of(path) or {}
            section = config.get("acquisition") or _metadata(policy_file(path))
            # The file of an order does not contain a start that is not central.
            is_known = "acquisition" in config or "initial" not in section
            budget = _acquisition_in(section) if is_known else None
            if budget is not None:
                budgets.setdefault(budget, []).append(source)
    return budgets


def _acquisition_in(section: JsonObject) -> AcquisitionSetting | None:
    """Return the acquisition in settings or metadata; None without numbers of columns."""
    counts: JsonObject = {key: section.get(key) for key in ("n_initial", "horizon")}
    if not all(type(count) is int and count > 0 for count in counts.values()):
        return None
    return AcquisitionSetting(**counts, initial=section.get("initial"))


def check_distinct(entries: Sequence[EvaluationEntry]) -> None:
    """Raise an error for entries with equal names and seeds, or other differing settings."""
    first: dict[str, EvaluationEntry] = {}
    seen: set[tuple[str, int]] = set()
    for entry in entries:
        if (entry.name, entry.seed) in seen:
            raise ConfigError(
                f"two policies are called {entry.name!r} with seed {entry.seed}; "
                "name them LABEL=PATH"
            )
        seen.add((entry.name, entry.seed))
        other = first.setdefault(entry.name, entry)
        one, two = (x.config and without_seed(x.config) for x in (other, entry))
        if one != two:
            raise ConfigError(
                f"the runs called {entry.name!r} with seeds {other.seed} and {entry.seed} "
                "have other settings too; name them LABEL=PATH"
            )


def training_notes(entries: Sequence[EvaluationEntry], store: str | None) -> Iterator[str]:
    """Describe policies with random weights, and those trained on another dataset.

    `store` is the fingerprint of the dataset, if there is one.
    """
    untrained = [
        entry.name
        for entry in entries
        if not entry.is_learned and any(True for _ in entry.policy.parameters())
    ]
    if untrained:
        yield (
            f"policies with random weights: {', '.join(dict.fromkeys(untrained))}; a trained one "
            "is given by its run folder, weights file or zoo name"
        )
    trained_on = [(entry.name, entry.policy.recorded.get("store")) for entry in entries]
    names = [name for name, other in trained_on if isinstance(other, str) and other != store]
    if names and store is not None:
        yield (
            "trained on another dataset than this one, so scores show how well they generalize: "
            + ", ".join(dict.fromkeys(names))
        )


def completed(
    setting: EvaluationSetting, policies: Sequence[str], network: Reconstructor
) -> EvaluationSetting:
    """Return a setting with start, budget and protocol; by default those of the trainings."""
    setting = replace(setting, protocol=network.protocol_for(setting.protocol))
    has_start = setting.n_initial is not None or setting.initial is not None
    if has_start and setting.steps is not None:
        return setting
    trained = trained_budget(policies)
    if not has_start and trained.initial is not None:
        setting = replace(setting, initial=trained.initial)
    elif not has_start:
        setting = replace(setting, n_initial=trained.n_initial)
    return setting if setting.steps is not None else replace(setting, steps=trained.horizon)


def trained_budget(policies: Sequence[str]) -> AcquisitionSetting:
    """Return the acquisition for which all policies were trained that have a start and a budget."""
    budgets = budgets_of(policies)
    if len(budgets) != 1:
        named = "; ".join(f"{', '.join(names)}: {one}" for one, names in budgets.items())
        fault = f"the policies have different ones ({named})" if budgets else "no policy has them"
        raise ConfigError(
            f"start and budget are not given, and {fault}; add --n-initial and --steps"
        )
    return next(iter(budgets))
