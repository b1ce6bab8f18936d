"""Policies, slices and the reconstruction of an evaluation or an analysis, ready to run."""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, final

import torch

from kscout import reconstruction
from kscout.acquisition.loop import Trajectory
from kscout.acquisition.plan import Plan
from kscout.columns import columns_text
from kscout.compatibility import Use, network_notes, policy_notes, target_note, warn
from kscout.core import Policy, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import check_memory, resolve_device
from kscout.errors import ConfigError
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.entries import (
    EvaluationEntry,
    check_distinct,
    completed,
    resolve,
    training_notes,
)
from kscout.evaluation.running.trajectories import (
    check_fits,
    check_start,
    n_at_once,
    plan_of,
    trajectories,
)
from kscout.evaluation.summaries.summarize import choose_reference
from kscout.files import read_record, write_json
from kscout.json_types import JsonObject
from kscout.metrics import PSNR_CEILING
from kscout.names import POLICIES
from kscout.physics.sampling import start_mask
from kscout.policies.fixed import FixedOrder
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.validation import zero_filled_note
from kscout.weights import SCHEMA_VERSION, fingerprint

T = TypeVar("T")
LabeledPolicy = str | Path | tuple[str, Policy]
"""A name, a run folder, a weights file, `LABEL=PATH`, or a label and a policy."""
PolicySource = LabeledPolicy | Policy
"""The same, or a policy whose label is the name of its class."""
_OPTIONS = "data reconstructor split n_initial steps trajectories protocol batch_size limit device"
"""Options of analyses that are also settings of an evaluation."""


def labeled_policies(policies: Sequence[PolicySource]) -> list[LabeledPolicy]:
    """Return the policies with labels; raise an error for other objects."""
    if isinstance(policies, str | Path | Policy):
        raise ConfigError(f"policies are a list; write [{policies!r}] for this one alone")
    labeled: list[LabeledPolicy] = []
    for source in policies:
        match source:
            case str() | Path() | (str(), Policy()):
                labeled.append(source)
            case Policy():
                labeled.append((type(source).__name__, source))
            case _:
                raise ConfigError(
                    f"{source!r} is no policy to evaluate; give a name, a path, an object of a "
                    'class that derives from kscout.core.Policy, or ("label", policy)'
                )
    return labeled


def paths_of(policies: Sequence[LabeledPolicy]) -> list[str]:
    """Return the names and paths among policies."""
    return [str(policy) for policy in policies if isinstance(policy, str | Path)]


@final
@dataclass(frozen=True)
class Prepared:
    """Policies, slices and a reconstruction on their device, ready to run."""

    entries: list[EvaluationEntry]
    slices: SliceSet
    reconstructor: Reconstructor
    """Frozen, in the precision of the setting."""
    loaded: Reconstructor
    """The same before freezing."""
    source: SliceSet | Store
    plan: Plan
    reference: str
    """Name of the policy with which others are compared."""
    setting: EvaluationSetting
    train: SliceSet | None
    """Slices for fitted orders; None for the training split of the dataset."""
    notes: list[str]
    """Differences between this evaluation and the trainings."""

    def by_name(
        self, compute: Callable[[EvaluationEntry], T], on_step: OnStep | None
    ) -> dict[str, list[T]]:
        """Return a value for each seed of each policy."""
        values: dict[str, list[T]] = {}
        for entry in self.entries:
            values.setdefault(entry.name, []).append(compute(entry))
            if on_step is not None:
                n_slices = len(self.slices)
                on_step(Step(f"{entry.name}, seed {entry.seed}", n_slices, n_slices))
        return values

    def fit(
        self, entry: EvaluationEntry, *, cache: Path | None = None, on_step: OnStep | None = None
    ) -> EvaluationEntry:
        if entry.fits is None:
            return entry
        slices, n_slices = self.slices, None
        if not entry.is_oracle:
            train = self.source if self.train is None else self.train
            n_slices = self.setting.fixed_slices
            if isinstance(train, Store):
                train = train.split("train", size=self.setting.size)
            slices = train.to(self.slices.device)
        order = fitted_order(
            slices,
            self.reconstructor,
            self.plan,
            n_slices_per_step=n_slices,
            cache=cache,
            on_step=_column_by_column(entry.name, on_step),
        )
        policy = POLICIES.resolve(entry.fits)(n_cols=self.slices.n_cols, order=order)
        return replace(entry, policy=policy, fits=None)

    def inputs(self, entry: EvaluationEntry) -> tuple[Policy, SliceSet, Reconstructor, Plan]:
        """Return what a function needs to run one policy, whose random seed is in the plan."""
        is_argmax = not entry.draws(is_argmax=self.plan.is_argmax)
        plan = replace(self.plan, seed=entry.draw_seed, is_argmax=is_argmax)
        return entry.policy, self.slices, self.reconstructor, plan

    def trajectories(
        self, entry: EvaluationEntry, *, keep_images: bool = False
    ) -> Iterator[tuple[SliceBatch, Trajectory]]:
        return trajectories(*self.inputs(entry), keep_images=keep_images)


def _column_by_column(name: str, on_step: OnStep | None) -> Callable[[JsonObject], None] | None:
    if on_step is None:
        return None
    what = f"fitting {name}, column by column"
    return lambda record: on_step(Step(what, record["step"], record["n_steps"]))


def open_policies(policies: Sequence[str], options: object) -> Prepared:
    """Open policies, slices and reconstruction of an analysis.

    The fields of `options`, the analysis, replace the defaults: one trajectory per slice, 32-bit
    arithmetic, and the start and the budget of the policies' trainings.
    """
    if not policies:
        raise ConfigError("no policy to analyze; name a run folder or a policy")
    stated = {name: getattr(options, name, None) for name in _OPTIONS.split()}
    stated["seeds"] = getattr(options, "seed", None)
    values: JsonObject = {"trajectories": 1, "precision": "fp32"}
    values |= {name: value for name, value in stated.items() if value not in (None, ())}
    if "data" not in values or "reconstructor" not in values:
        raise ConfigError("policies are run on slices; give --data and --reconstructor")
    setting = EvaluationSetting(**{**values, "data": str(values["data"])})
    network = loaded_network(setting.reconstructor)
    setting = completed(setting, policies, network)
    # An analysis acquires one column per step.
    ready = prepare(policies, setting.data, network, replace(setting, columns_per_step=1))
    warn(ready.notes)
    return replace(ready, entries=[ready.fit(entry) for entry in ready.entries])


def prepare(
    policies: Sequence[LabeledPolicy],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
    *,
    train: SliceSet | None = None,
) -> Prepared:
    """Load a split and a reconstruction, build the policies, and check that they fit together.

    Its arguments are those of `evaluate`. Orders are fitted later, by `Prepared.fit`.
    """
    device = str(resolve_device(setting.device))
    source = data if isinstance(data, SliceSet | Store) else Store.open(data)
    loaded = loaded_network(reconstructor)
    setting = completed(setting, paths_of(policies), loaded)
    whole = source
    if isinstance(whole, Store):
        whole = whole.split(setting.split, size=setting.size)
    whole.check_protocol(loaded.protocol_for(setting.protocol))
    slices, plan = whole.sample(setting.limit).to(device), plan_of(setting)
    entries, reference = _entries(policies, slices, plan, setting)
    _, n_rows, n_cols = slices.shape
    frozen = loaded.frozen(precision=setting.precision, n_rows=n_rows, n_cols=n_cols, device=device)
    if train is None and any(entry.needs_training_slices for entry in entries):
        _check_train(source, setting)
    _check_memory(entries, slices, plan)
    check_start(slices, frozen, start_mask(plan.start, slices.selectable.shape, slices.device))
    ready = Prepared(
        *(entries, slices, frozen, loaded, source, plan, reference, setting, train), notes=[]
    )
    return replace(ready, notes=list(dict.fromkeys(_notes(ready))))


def loaded_network(reconstructor: Reconstructor | Path | str) -> Reconstructor:
    """Return a reconstruction, loaded if it is a path or a name."""
    if isinstance(reconstructor, Reconstructor):
        return reconstructor
    if not isinstance(reconstructor, str | Path):
        raise ConfigError(
            f"{type(reconstructor).__name__} is no reconstruction; give a name, a path, an object "
            "of a class that derives from kscout.core.Reconstructor, or wrap a module or function "
            "with kscout.reconstruction.wrap"
        )
    return reconstruction.load(reconstructor)


def _notes(ready: Prepared) -> Iterator[str]:
    """Describe limits of the scores, and differences from the trainings."""
    slices, plan, network = ready.slices, ready.plan, ready.loaded
    peak = float(slices.data_range.max())
    if peak > PSNR_CEILING:
        yield (
            f"PSNR is meaningless here: pixels reach {peak:.4g}, and the convention paper clamps "
            f"reconstructions to [0, {PSNR_CEILING}]; read SSIM, or import the images with --divide"
        )
    is_fitted = ready.train is None and any(x.needs_training_slices for x in ready.entries)
    if is_fitted and ready.setting.split == "train":
        yield (
            "policy 'fixed' is fitted on the split train, which is evaluated here, so its scores "
            "are higher than on new slices; name a fitted order, fixed=NAME, or evaluate another "
            "split"
        )
    protocol = network.protocol_for(plan.protocol)
    for note in (
        target_note(network, slices.contents.kind.target_rule, slices.shape[0]),
        zero_filled_note(ready.reconstructor, slices, plan.start, plan.horizon, protocol),
    ):
        yield from () if note is None else (note,)
    start = None if plan.listed is None else columns_text(plan.listed)
    columns = (plan.n_initial, plan.horizon, plan.protocol, start, plan.columns_per_step)
    use = Use(slices.shape, *columns)
    yield from network_notes(network, use)
    yield from policy_notes([(x.name, x.policy) for x in ready.entries], network, use)
    is_store = isinstance(ready.source, Store)
    yield from training_notes(ready.entries, ready.source.fingerprint if is_store else None)


def _entries(
    policies: Sequence[LabeledPolicy], slices: SliceSet, plan: Plan, setting: EvaluationSetting
) -> tuple[list[EvaluationEntry], str]:
    """Return the policies before orders are fitted, and the name of the reference."""
    plan.check(slices.selectable)
    slices.check_start(plan.start)
    by_source = {
        str(source): resolve(source, slices.shape[1:], plan, seeds=setting.seeds)
        for source in policies
    }
    entries = [entry for source in policies for entry in by_source[str(source)]]
    check_distinct(entries)
    for entry in entries:
        check_fits(entry.policy, slices, plan, name=entry.name)
    names = list(dict.fromkeys(entry.name for entry in entries))
    reference = setting.reference
    if reference not in names and reference in by_source:
        # The name in tables may differ: `conv` is `untrained` there.
        reference = by_source[reference][0].name
    if reference is None and "fixed" not in names:
        orders = (entry.name for entry in entries if isinstance(entry.policy, FixedOrder))
        reference = next(orders, None)
    oracles = {entry.name for entry in entries if entry.is_oracle}
    return entries, choose_reference(names, oracles, reference)


def _check_memory(entries: Sequence[EvaluationEntry], slices: SliceSet, plan: Plan) -> None:
    """Raise an error for trajectories that need more memory than there is."""
    if any(entry.draws(is_argmax=plan.is_argmax) for entry in entries):
        n_states = min(n_at_once(plan, slices), len(slices)) * plan.n_trajectories
        draws = 4 * len(slices) * plan.n_trajectories * plan.horizon
        check_memory(
            draws + 16 * n_states * math.prod(slices.shape),
            slices.device,
            f"acquiring {len(slices):,} slices {plan.n_trajectories:,} times each",
            "lower --trajectories or --batch-size",
        )


def _check_train(source: SliceSet | Store, setting: EvaluationSetting) -> None:
    """Raise an error if there are no slices for fitted orders; opens none."""
    if not isinstance(source, Store):
        raise ConfigError(
            "policy 'fixed' is fitted on training slices; give them as train=..., or a store"
        )
    if "train" not in source.manifest.splits:
        raise ConfigError(
            f"policy 'fixed' is fitted on training slices, and {source.path} has only: "
            f"{', '.join(source.manifest.splits)}; name a fitted order, fixed=NAME, or give a "
            "dataset with training slices"
        )
    source.array("train", size=setting.size)


ORDERS = "orders"
"""Folder next to the results with fitted orders."""


def fitted_order(
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: Plan,
    *,
    n_slices_per_step: int | None = None,
    cache: Path | None = None,
    on_step: Callable[[JsonObject], None] | None = None,
) -> list[int]:
    """Return the order fitted on `slices`, from the folder `cache` if it was fitted before."""
    depends_on = {
        "slices": slices.fingerprint,
        "reconstructor": fingerprint(reconstructor),
        "n_initial": plan.n_initial,
        "horizon": plan.horizon,
        "protocol": plan.protocol,
        "n_slices_per_step": n_slices_per_step,
        # The seed has an effect only if slices are sampled.
        "seed": None if n_slices_per_step is None else plan.seed,
        # Omitted if it is central, as in the names of existing files.
        **({} if plan.listed is None else {"initial": [plan.listed]}),
    }
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()[:16]
    file = None if cache is None else cache / f"order-{key}.json"
    # A damaged file counts as missing.
    record = {} if file is None else read_record(file, arguments=dict).get("arguments", {})
    order = record.get("order", [])
    if _is_valid(order, slices, plan):
        return order
    result = fit_fixed_order(
        *(slices, reconstructor, replace(plan, batch_size=n_at_once(plan, slices))),
        n_slices_per_step=n_slices_per_step,
        device=slices.device,
        on_step=on_step,
    )
    if file is not None:
        header = {"schema_version": SCHEMA_VERSION, "kind": "policy", "component": "fixed"}
        arguments = {"n_cols": slices.n_cols, "order": result.order}
        network = fingerprint(reconstructor.original)
        extra = {**depends_on, "reconstructor": network, "mean_scores": result.mean_scores}
        write_json(file, {**header, "arguments": arguments, "extra": extra})
    return result.order


def _is_valid(order: list[object], slices: SliceSet, plan: Plan) -> bool:
    """Return whether a list from a file is an order of `horizon` columns outside the start."""
    start = start_mask(plan.start, (1, slices.n_cols), torch.device("cpu"))[0]
    if not isinstance(order, list):
        return False
    is_new = all(type(x) is int and 0 <= x < slices.n_cols and not start[x] for x in order)
    return is_new and len(set(order)) == len(order) == plan.horizon
