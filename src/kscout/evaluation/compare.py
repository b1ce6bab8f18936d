"""Policies over one split and one reconstruction: a long table and a summary."""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from kscout import reconstruction
from kscout.acquisition.budget import check_budget
from kscout.core import Policy, Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import describe_device, resolve_device
from kscout.errors import ConfigError
from kscout.evaluation.entrants import (
    Entrant,
    Sizes,
    check_distinct,
    conditions_note,
    is_fitted,
    resolve,
)
from kscout.evaluation.orders import ORDERS, fitted_order
from kscout.evaluation.parts import PARTS, Parts
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.requests import Request, as_request, check_request
from kscout.evaluation.results import METRICS, RESULTS, Scores
from kscout.evaluation.summary import SUMMARY, choose_reference, summarize
from kscout.evaluation.trajectories import (
    AcquisitionPlan,
    check_fits,
    trajectories,
)
from kscout.files import write_json
from kscout.names import POLICIES
from kscout.weights import fingerprint

Wanted = str | Path | tuple[str, Policy]
"""A policy's name, a run folder, a weights file, `LABEL=PATH`, or a label and a policy."""


@final
@dataclass(frozen=True)
class EvaluationSetting:
    """What is evaluated on what, and how; defaults are the paper's."""

    plan: AcquisitionPlan
    """Start, horizon, trajectories, draws, protocol and batch size."""
    seeds: tuple[int, ...] = ()
    """Seeds of the draws, each a row of its own for policies that are not trained; the plan's
    where not given."""
    split: str = "test"
    size: int | tuple[int, int] | None = None
    """Matrix size, for a split that holds several."""
    limit: int | None = None
    """Evaluate this many slices only, spread evenly over the split."""
    reference: str | None = None
    """Policy that others are compared with; see `summarize`."""
    n_fixed_slices: int = 256
    """Training slices drawn for each column of the order of `fixed`."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    precision: str = "auto"
    """Arithmetic of the reconstructions; see `Reconstructor.frozen`."""

    def __post_init__(self) -> None:
        if len(set(self.draw_seeds)) < len(self.draw_seeds):
            raise ConfigError(f"seeds {list(self.seeds)} name one twice; give each once")

    @property
    def draw_seeds(self) -> tuple[int, ...]:
        return tuple(int(seed) for seed in self.seeds or (self.plan.seed,))


@final
@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    summary: dict[str, Any]
    """The content of `summary.json`."""
    scores: list[Scores] = field(repr=False)
    """Per policy and seed, averaged over trajectories."""


@final
@dataclass(frozen=True)
class _Job:
    """All that running the policies needs, on its device."""

    slices: SliceSet
    train: Callable[[], SliceSet]
    """Reads the slices that `fixed` is fitted on: only where it takes part."""
    reconstructor: Reconstructor
    setting: EvaluationSetting
    cache: Path | None
    on_step: OnStep | None


def evaluate(
    policies: Sequence[Wanted],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
    *,
    train: SliceSet | None = None,
    out: Path | str | None = None,
    on_step: OnStep | None = None,
) -> Evaluation:
    """Run policies over one split with one reconstruction, and compare them.

    Args:
        policies: what to run, in the order of the table.
        data: a store, of which `setting.split` is taken, or slices.
        reconstructor: one, or what `kscout.reconstruction.load` takes.
        setting: how they are run.
        train: slices that `fixed` is fitted on; the store's training split where not given.
        out: folder to write `results.csv` and `summary.json` to; called again after a kill, it
            goes on with the policies that were not finished.
        on_step: called after each batch of slices, and after each fitted column.
    """
    if not policies:
        raise ConfigError("no policy to evaluate; name at least one, e.g. --policy random")
    out = None if out is None else Path(out)
    setting = replace(setting, device=str(resolve_device(setting.device)))
    source = data if isinstance(data, SliceSet | Store) else Store.open(data)
    loaded = (
        reconstructor
        if isinstance(reconstructor, Reconstructor)
        else reconstruction.load(reconstructor)
    )
    notes = [loaded.protocol_note(setting.plan.protocol)]
    slices = _slices(source, setting)
    _, n_rows, n_cols = slices.shape
    job = _Job(
        slices=slices,
        train=lambda: _train_slices(source, setting, train),
        reconstructor=loaded.frozen(
            precision=setting.precision, n_rows=n_rows, n_cols=n_cols, device=setting.device
        ),
        setting=setting,
        cache=None if out is None else out / ORDERS,
        on_step=on_step,
    )
    entrants, reference = _entrants(policies, job)
    sizes = Sizes(n_rows, n_cols, setting.plan.n_initial, setting.plan.horizon)
    notes += [conditions_note(one, sizes, setting.plan.protocol) for one in entrants]
    said = list(dict.fromkeys(note for note in notes if note is not None))
    for note in said:
        logging.getLogger(__name__).warning(note)
    head = {
        **_head(job, source, reconstructor),
        "request": request_of(policies, data, reconstructor, setting),
        "reconstructor_fingerprint": fingerprint(loaded),
    }
    parts = None if out is None else Parts(out / PARTS, _decisive(job, head))
    scores = [_run(entrant, job, parts) for entrant in entrants]
    summary = {
        **head,
        "note": "; ".join(said) or None,
        **summarize(
            scores,
            oracles={entrant.name for entrant in entrants if entrant.is_oracle},
            reference=reference,
        ),
    }
    for entry in summary["policies"]:
        entry["training"] = _training(entry["policy"], entrants)
    if out is not None and parts is not None:
        # The summary goes first and comes back last: it never speaks of other results.
        (out / SUMMARY).unlink(missing_ok=True)
        parts.join(out / RESULTS, entrants)
        write_json(out / SUMMARY, summary)
        parts.forget()
    return Evaluation(summary, scores)


def _decisive(job: _Job, head: dict[str, Any]) -> dict[str, Any]:
    """Return what decides the scores of every policy, but for its own draws."""
    plan = {key: value for key, value in asdict(job.setting.plan).items() if key != "seed"}
    told = {key: head[key] for key in ("device", "precision", "reconstructor_fingerprint")}
    return {**plan, **told, "slices": job.slices.fingerprint}


def request_of(
    policies: Sequence[Wanted],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
) -> Request:
    """Return what an evaluation is asked for, less what changes no result."""
    plan = setting.plan
    return as_request(
        {
            "data": data if isinstance(data, str | Path) else data.name,
            "split": setting.split,
            "size": setting.size,
            "limit": setting.limit,
            "reconstructor": _name_of(reconstructor),
            "precision": setting.precision,
            "policies": [one[0] if isinstance(one, tuple) else one for one in policies],
            "n_initial": plan.n_initial,
            "steps": plan.horizon,
            "trajectories": plan.n_trajectories,
            "seeds": setting.draw_seeds,
            "argmax": plan.is_argmax,
            "protocol": plan.protocol,
            "reference": setting.reference,
            "fixed_slices": setting.n_fixed_slices,
        }
    )


def check_out(out: Path, request: Request) -> None:
    """Refuse a folder that holds an evaluation which was asked for otherwise."""
    if (out / SUMMARY).is_file():
        check_request(out, "an evaluation", _request_in(out / SUMMARY), request)


def _request_in(summary: Path) -> Request | None:
    try:
        return json.loads(summary.read_text(encoding="utf-8")).get("request")
    except (ValueError, AttributeError):
        return None


def _name_of(reconstructor: Reconstructor | Path | str) -> str:
    if isinstance(reconstructor, Reconstructor):
        return type(reconstructor).__name__
    return str(reconstructor)


def _slices(source: SliceSet | Store, setting: EvaluationSetting) -> SliceSet:
    whole = (
        source if isinstance(source, SliceSet) else source.split(setting.split, size=setting.size)
    )
    return whole.sample(setting.limit).to(setting.device)


def _train_slices(
    source: SliceSet | Store, setting: EvaluationSetting, given: SliceSet | None
) -> SliceSet:
    if given is not None:
        return given.to(setting.device)
    if isinstance(source, SliceSet):
        raise ConfigError(
            "policy 'fixed' is fitted on training slices; give them as train=..., or a store"
        )
    return source.split("train", size=setting.size).to(setting.device)


def _entrants(wanted: Sequence[Wanted], job: _Job) -> tuple[list[Entrant], str]:
    """Return the policies ready to run, and the name of the one that others are compared with."""
    setting, plan = job.setting, job.setting.plan
    _, n_rows, n_cols = job.slices.shape
    check_budget(job.slices.selectable, n_initial=plan.n_initial, horizon=plan.horizon)
    sizes = Sizes(n_rows, n_cols, plan.n_initial, plan.horizon)
    # All that can be refused is refused before the first order is fitted.
    to_fit = [one for one in wanted if is_fitted(one)]
    placeholders: dict[str, list[int]] = {name: [] for name in to_fit}
    seeds = setting.draw_seeds
    drafts = [resolve(one, sizes, seeds=seeds, orders=placeholders) for one in wanted]
    check_distinct([entrant for some in drafts for entrant in some])
    for some in drafts:
        for entrant in some:
            check_fits(entrant.policy, job.slices, plan)
    names = list(dict.fromkeys(entrant.name for some in drafts for entrant in some))
    oracles = {entrant.name for some in drafts for entrant in some if entrant.is_oracle}
    # A table may call a policy otherwise than it was asked for: `conv` is `untrained` there.
    asked = {str(one): some[0].name for one, some in zip(wanted, drafts, strict=True)}
    typed = setting.reference
    named = typed if typed is None or typed in names else asked.get(typed, typed)
    reference = choose_reference(names, oracles, named)
    orders = {name: _fit(name, job) for name in to_fit}
    entrants = [
        entrant
        for one, some in zip(wanted, drafts, strict=True)
        for entrant in (resolve(one, sizes, seeds=seeds, orders=orders) if is_fitted(one) else some)
    ]
    return entrants, reference


def _fit(name: str, job: _Job) -> list[int]:
    """Fit the order of an oracle on the evaluated slices, of another policy on training slices."""
    is_fixed = not POLICIES[name].is_oracle
    setting, on_step = job.setting, job.on_step

    def told(record: dict[str, Any]) -> None:
        if on_step is not None:
            what = f"fitting {name}, column by column"
            on_step(Step(what, record["step"], record["n_steps"]))

    return fitted_order(
        job.train() if is_fixed else job.slices,
        job.reconstructor,
        replace(setting.plan, seed=setting.draw_seeds[0]),
        n_slices_per_step=setting.n_fixed_slices if is_fixed else None,
        cache=job.cache,
        on_step=told,
    )


def _run(entrant: Entrant, job: _Job, parts: Parts | None) -> Scores:
    """Run one policy, or recall what it scored before a kill."""
    if parts is None:
        return _score(entrant, job, None)
    scores = parts.recall(entrant, job.slices)
    if scores is None:
        scores = _score(entrant, job, parts)
        parts.keep(entrant, scores)
    return scores


def _score(entrant: Entrant, job: _Job, parts: Parts | None) -> Scores:
    plan = replace(
        job.setting.plan,
        seed=entrant.draw_seed,
        # Random columns are random whatever is asked of trained policies.
        is_argmax=job.setting.plan.is_argmax and entrant.is_learned,
    )
    slices, done, n_trajectories = job.slices, 0, 1
    means = []
    with nullcontext() if parts is None else parts.writing(entrant) as writer:
        for batch, trajectory in trajectories(entrant.policy, slices, job.reconstructor, plan):
            rows = slice(done, done + len(batch))
            done, n_trajectories = rows.stop, trajectory.columns.shape[1]
            metrics = torch.stack([getattr(trajectory, name) for name in METRICS], dim=-1)
            if writer is not None:
                writer.write(
                    entrant.name,
                    entrant.seed,
                    trajectory.columns.cpu().numpy(),
                    metrics.cpu().numpy(),
                    volumes=slices.volumes[rows],
                    slices=slices.slices[rows],
                )
            means.append(metrics.double().mean(dim=1).cpu().numpy())
            if job.on_step is not None:
                job.on_step(Step(f"{entrant.name}, seed {entrant.seed}", done, len(slices)))
    return Scores(
        policy=entrant.name,
        seed=entrant.seed,
        volumes=slices.volumes,
        slices=slices.slices,
        values=np.concatenate(means),
        n_trajectories=n_trajectories,
    )


def _training(name: str, entrants: Sequence[Entrant]) -> dict[str, Any] | None:
    """Return method and gamma that a policy was trained with, where its run tells."""
    config = next(entrant.config for entrant in entrants if entrant.name == name)
    if config is None or "method" not in config["training"]:
        return None
    return {key: config["training"].get(key) for key in ("method", "gamma")}


def _head(
    job: _Job, source: SliceSet | Store, reconstructor: Reconstructor | Path | str
) -> dict[str, Any]:
    plan = job.setting.plan
    return {
        "protocol": plan.protocol,
        "metric_convention": "paper",
        "store": source.name,
        "store_fingerprint": source.fingerprint if isinstance(source, Store) else None,
        "split": job.slices.split or job.setting.split,
        "n_cols": job.slices.n_cols,
        "n_initial": plan.n_initial,
        "steps": plan.horizon,
        "is_argmax": plan.is_argmax,
        "draw_seeds": list(job.setting.draw_seeds),
        "limit": job.setting.limit,
        "device": describe_device(job.slices.device),
        "reconstructor": _name_of(reconstructor),
        "precision": job.reconstructor.precision,
    }
