"""Open what an evaluation or an analysis runs: policies, slices and a reconstruction."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard, final

from kscout import reconstruction
from kscout.acquisition.budget import check_budget
from kscout.acquisition.rollout import Trajectory
from kscout.columns import columns_text
from kscout.compatibility import Use, network_notes, policy_notes, warn
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import check_memory, resolve_device
from kscout.errors import ConfigError
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.entries import (
    EvaluationEntry,
    Sizes,
    check_distinct,
    resolve,
    store_note,
)
from kscout.evaluation.running.fixed_orders import fitted_order
from kscout.evaluation.running.setting import completed
from kscout.evaluation.running.trajectories import (
    AcquisitionPlan,
    check_fits,
    check_start,
    plan_of,
    trajectories,
)
from kscout.evaluation.summaries.summarize import choose_reference
from kscout.metrics import PSNR_CEILING
from kscout.policies.fixed import FixedOrder
from kscout.training.validation import zero_filled_note

Labelled = str | Path | tuple[str, Policy]
"""A policy's name, a run folder, a weights file, `LABEL=PATH`, or a label and a policy."""
Wanted = Labelled | Policy
"""The same, or a policy that is called by its class."""
_OPTIONS = (
    "data reconstructor split n_initial steps trajectories protocol batch_size limit device "
    "precision"
)
"""Options of analyses that are also settings of an evaluation."""


def labelled(wanted: Sequence[Wanted]) -> list[Labelled]:
    """Return what to run, a policy without a label under the name of its class."""
    if isinstance(wanted, str | Path | Policy):
        raise ConfigError(f"policies are a list; write [{wanted!r}] for this one alone")
    found: list[Labelled] = []
    for one in wanted:
        pair = (type(one).__name__, one) if isinstance(one, Policy) else one
        if not isinstance(pair, str | Path) and not _is_pair(pair):
            raise ConfigError(
                f"{one!r} is no policy to evaluate; give a name, a path, an object of a class that "
                'derives from kscout.core.Policy, or ("label", policy)'
            )
        found.append(pair)
    return found


def paths_of(wanted: Sequence[Labelled]) -> list[str]:
    """Return the names and paths among policies."""
    return [str(policy) for policy in wanted if isinstance(policy, str | Path)]


def _is_pair(value: object) -> TypeGuard[tuple[str, Policy]]:
    match value:
        case (str(), Policy()):
            return True
    return False


@final
@dataclass(frozen=True)
class Prepared:
    """Policies, slices and a reconstruction on their device, ready to run."""

    entries: list[EvaluationEntry]
    slices: SliceSet
    reconstructor: Reconstructor
    """Frozen, in the precision that was asked for."""
    loaded: Reconstructor
    """The same as it was loaded."""
    source: SliceSet | Store
    plan: AcquisitionPlan
    reference: str
    """Name of the policy that others are compared with."""
    notes: list[str] = field(default_factory=list)
    """Conditions under which the policies or the reconstruction were not trained."""
    fit: Callable[[EvaluationEntry], EvaluationEntry] = lambda one: one
    """Fits the order of a policy that needs it, and returns others as they are."""

    @property
    def by_name(self) -> dict[str, list[EvaluationEntry]]:
        """Contenders grouped as seeds of one method."""
        groups: dict[str, list[EvaluationEntry]] = {}
        for one in self.entries:
            groups.setdefault(one.name, []).append(one)
        return groups

    def each_seed(
        self, entries: Sequence[EvaluationEntry], on_step: OnStep | None
    ) -> Iterator[EvaluationEntry]:
        """Yield policies, and report each as done when the next one is requested."""
        for one in entries:
            yield one
            if on_step is not None:
                n_slices = len(self.slices)
                on_step(Step(f"{one.name}, seed {one.seed}", n_slices, n_slices))

    def warn_of_notes(self) -> None:
        """Warn of these conditions."""
        warn(self.notes)

    def plan_of(self, entry: EvaluationEntry) -> AcquisitionPlan:
        """Return the plan with the draws of one policy."""
        is_argmax = not entry.draws(is_argmax=self.plan.is_argmax)
        return replace(self.plan, seed=entry.draw_seed, is_argmax=is_argmax)

    def trajectories(
        self, entry: EvaluationEntry, *, keep_images: bool = False, keep_probabilities: bool = False
    ) -> Iterator[tuple[SliceBatch, Trajectory]]:
        """Yield what one policy does to each batch of slices."""
        return trajectories(
            entry.policy,
            self.slices,
            self.reconstructor,
            self.plan_of(entry),
            keep_images=keep_images,
            keep_probabilities=keep_probabilities,
        )


def open_policies(wanted: Sequence[str], options: object) -> Prepared:
    """Open policies, slices and reconstruction of an analysis.

    Args:
        wanted: names and paths of the policies.
        options: the analysis. Its fields replace the defaults: one trajectory per slice, 32-bit
            arithmetic, and the start and the budget of the policies' trainings.
    """
    if not wanted:
        raise ConfigError("no policy to analyze; name a run folder or a policy")
    values = {name: getattr(options, name, None) for name in _OPTIONS.split()}
    values["seeds"] = getattr(options, "seed", None)
    given = {name: value for name, value in values.items() if value not in (None, ())}
    if "data" not in given or "reconstructor" not in given:
        raise ConfigError("policies are run on slices; give --data and --reconstructor")
    given["data"] = str(given["data"])
    setting = EvaluationSetting(**{"trajectories": 1, "precision": "fp32", **given})
    network = loaded_network(setting.reconstructor)
    # An analysis acquires one column per step.
    setting = replace(
        completed(setting, wanted, setting.reconstructor, network), columns_per_step=1
    )
    ready = prepare(wanted, setting.data, network, setting)
    ready.warn_of_notes()
    return replace(ready, entries=[ready.fit(entry) for entry in ready.entries])


def prepare(
    wanted: Sequence[Labelled],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
    *,
    train: SliceSet | None = None,
    cache: Path | None = None,
    on_step: OnStep | None = None,
) -> Prepared:
    """Load a split and a reconstruction, and build the policies; `Prepared.fit` fits orders.

    Its arguments are those of `evaluate`; `cache` is a folder of orders that were fitted before.
    """
    device = str(resolve_device(setting.device))
    source = data if isinstance(data, SliceSet | Store) else Store.open(data)
    loaded = loaded_network(reconstructor)
    setting = completed(setting, paths_of(wanted), None, loaded)
    whole = _slices(source, setting)
    whole.check_protocol(loaded.protocol_for(setting.protocol))
    slices = whole.sample(setting.limit).to(device)
    plan = plan_of(setting, slices, n_whole=len(whole))
    _, n_rows, n_cols = slices.shape
    sizes = Sizes(n_rows, n_cols, plan.n_initial, plan.horizon)
    # All that can be refused is refused before the first order is fitted.
    entries, reference = _drafts(wanted, slices, sizes, plan, setting, loaded)
    frozen = loaded.frozen(precision=setting.precision, n_rows=n_rows, n_cols=n_cols, device=device)
    is_fitting = any(one.fits is not None and not one.is_oracle for one in entries)
    fitted_on = _train_source(source, setting, train) if is_fitting else None
    _check_memory(entries, slices, plan)
    check_start(slices, frozen, plan.start(slices))

    def fit(one: EvaluationEntry) -> EvaluationEntry:
        if one.fits is None:
            return one
        order = fitted_order(
            slices if one.is_oracle else _train_slices(source, setting, train).to(device),
            frozen,
            plan,
            n_slices_per_step=None if one.is_oracle else setting.fixed_slices,
            cache=cache,
            on_step=_telling(one.name, on_step),
        )
        return one.fitted(order, n_cols)

    notes = [_psnr_note(slices)]
    if isinstance(fitted_on, Store) and setting.split == "train":
        notes.append(
            "policy 'fixed' is fitted on the split train, which is what is evaluated here, so that "
            "it lies higher than on new slices; name an order that was fitted before, fixed=NAME, "
            "or evaluate another split"
        )
    notes.append(loaded.target_note(slices.contents.kind.target_rule, slices.shape[0]))
    columns = (plan.n_initial, plan.horizon, plan.protocol, _start_of(plan), plan.columns_per_step)
    notes.append(_zero_filled_note(frozen, slices, plan))
    use = Use(slices.shape, *columns)
    notes += network_notes(loaded, use)
    notes += policy_notes([(one.name, one.policy) for one in entries], loaded, use)
    if isinstance(source, Store):
        notes.append(store_note(entries, source.fingerprint))
    said = list(dict.fromkeys(note for note in notes if note is not None))
    return Prepared(entries, slices, frozen, loaded, source, plan, reference, said, fit)


def _start_of(plan: AcquisitionPlan) -> str | None:
    """Return the columns that acquisitions start from in words, None for central ones."""
    starts = [columns_text(one) for one in plan.initial]
    return "own columns" if len(starts) > 1 else next(iter(starts), None)


def _psnr_note(slices: SliceSet) -> str | None:
    peak = float(slices.data_range.max())
    if peak <= PSNR_CEILING:
        return None
    return (
        f"PSNR is meaningless here: pixels reach {peak:.4g}, and the convention paper clamps "
        f"reconstructions to [0, {PSNR_CEILING}]; read SSIM, or import the images with --divide"
    )


def _zero_filled_note(
    network: Reconstructor, slices: SliceSet, plan: AcquisitionPlan
) -> str | None:
    horizon = min(plan.horizons or (plan.horizon,))
    protocol = network.protocol_for(plan.protocol)
    return zero_filled_note(network, slices, plan.start(slices), horizon, protocol)


def loaded_network(reconstructor: Reconstructor | Path | str) -> Reconstructor:
    """Return a reconstruction, loaded if it is a path or a name."""
    if isinstance(reconstructor, Reconstructor):
        return reconstructor
    return reconstruction.load(reconstructor)


def _slices(source: SliceSet | Store, setting: EvaluationSetting) -> SliceSet:
    if isinstance(source, Store):
        return source.split(setting.split, size=setting.size)
    return source


def _drafts(
    wanted: Sequence[Labelled],
    slices: SliceSet,
    sizes: Sizes,
    plan: AcquisitionPlan,
    setting: EvaluationSetting,
    network: Reconstructor,
) -> tuple[list[EvaluationEntry], str]:
    """Return the policies before orders are fitted, and the name of the reference."""
    check_budget(slices.selectable, n_initial=plan.start(slices), horizon=plan.columns(slices))
    slices.check_start(plan.start(slices))
    drafts = [resolve(one, sizes, seeds=setting.seeds) for one in wanted]
    every = [one for draft in drafts for one in draft]
    for one in every:
        if len(plan.initial) > 1 and one.fits is not None and not one.is_oracle:
            raise ConfigError(
                f"policy {one.name!r} is fitted on training slices, and the starts are those of "
                "other slices; give one start for all, or leave it out"
            )
    check_distinct(every)
    for one in every:
        check_fits(one.policy, slices, plan, name=one.name, network=network)
    names = list(dict.fromkeys(one.name for one in every))
    # A table may call a policy otherwise than it was asked for: `conv` is `untrained` there.
    asked = {str(name): draft[0].name for name, draft in zip(wanted, drafts, strict=True)}
    typed = setting.reference
    named = typed if typed is None or typed in names else asked.get(typed, typed)
    if named is None and "fixed" not in names:
        # An order fitted elsewhere, such as the zoo's, is the same bar.
        named = next((one.name for one in every if isinstance(one.policy, FixedOrder)), None)
    return every, choose_reference(names, {one.name for one in every if one.is_oracle}, named)


def _check_memory(
    entries: Sequence[EvaluationEntry], slices: SliceSet, plan: AcquisitionPlan
) -> None:
    """Refuse draws and acquisitions that no memory holds."""
    if any(one.draws(is_argmax=plan.is_argmax) for one in entries):
        n_states = min(plan.n_at_once(slices), len(slices)) * plan.n_trajectories
        draws = 4 * len(slices) * plan.n_trajectories * plan.horizon
        check_memory(
            draws + 16 * n_states * math.prod(slices.shape),
            slices.device,
            f"acquiring {len(slices):,} slices {plan.n_trajectories:,} times each",
            "lower --trajectories or --batch-size",
        )


def _train_source(
    source: SliceSet | Store, setting: EvaluationSetting, given: SliceSet | None
) -> SliceSet | Store:
    """Return what orders are fitted on, and refuse where nothing is; opens no slices."""
    if given is not None:
        return given
    if isinstance(source, SliceSet):
        raise ConfigError(
            "policy 'fixed' is fitted on training slices; give them as train=..., or a store"
        )
    if "train" not in source.manifest.splits:
        raise ConfigError(
            f"policy 'fixed' is fitted on training slices, and {source.path} has only: "
            f"{', '.join(source.manifest.splits)}; name an order that was fitted before, "
            "fixed=NAME, or give a store with training slices"
        )
    source.array("train", size=setting.size)
    return source


def _train_slices(
    source: SliceSet | Store, setting: EvaluationSetting, given: SliceSet | None
) -> SliceSet:
    found = _train_source(source, setting, given)
    return found if isinstance(found, SliceSet) else found.split("train", size=setting.size)


def _telling(name: str, on_step: OnStep | None) -> Callable[[dict[str, Any]], None] | None:
    if on_step is None:
        return None
    what = f"fitting {name}, column by column"
    return lambda record: on_step(Step(what, record["step"], record["n_steps"]))
