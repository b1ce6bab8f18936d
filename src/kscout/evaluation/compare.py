"""Policies over one split and one reconstruction: a long table and a summary."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from kscout.columns import columns_text
from kscout.config import to_table
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import describe_device
from kscout.errors import ConfigError, DataError
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.records.results import METRICS, RESULTS, ResultsWriter, Scores
from kscout.evaluation.records.saved_settings import check_same
from kscout.evaluation.request import EvaluationRequest, EvaluationSetting
from kscout.evaluation.running.entries import EvaluationEntry, trainings_of
from kscout.evaluation.running.finished import FINISHED, FinishedPolicies
from kscout.evaluation.running.fixed_orders import ORDERS
from kscout.evaluation.running.kinds import check_kinds
from kscout.evaluation.running.prepare import (
    Labelled,
    Prepared,
    Wanted,
    labelled,
    loaded_network,
    paths_of,
    prepare,
)
from kscout.evaluation.running.recording import record_examples
from kscout.evaluation.running.setting import completed
from kscout.evaluation.summaries.conditions import Conditions
from kscout.evaluation.summaries.summarize import summarize
from kscout.evaluation.summaries.summary import SUMMARY, Summary, read_summary, write_summary
from kscout.files import check_free_of, check_replaceable, locked
from kscout.weights import fingerprint


@final
@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found."""

    found: Summary
    scores: list[Scores]
    """Per policy and seed, averaged over trajectories."""

    @property
    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`, as plain tables."""
        return to_table(self.found, nulls=True)

    def __repr__(self) -> str:
        return repr(self.found)

    def _repr_html_(self) -> str:
        return self.found._repr_html_()


def evaluate(
    policies: Sequence[Wanted],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
    *,
    train: SliceSet | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
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
        overwrite: replace what lies in `out` even if it was asked for otherwise, which is refused
            by default.
        on_step: called after each batch of slices, and after each fitted column.
    """
    if not policies:
        raise ConfigError("no policy to evaluate; name at least one, e.g. --policy random")
    named = labelled(policies)
    check_kinds(named, reconstructor)
    out = None if out is None else Path(out)
    if out is not None:
        check_free_of(out, "dataset", "run", "campaign")
    with nullcontext() if out is None else locked(out):
        return _evaluate(named, data, reconstructor, setting, train, out, overwrite, on_step)


def _evaluate(
    policies: Sequence[Labelled],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
    train: SliceSet | None,
    out: Path | None,
    overwrite: bool,
    on_step: OnStep | None,
) -> Evaluation:
    network = loaded_network(reconstructor)
    source = None if isinstance(reconstructor, Reconstructor) else str(reconstructor)
    setting = completed(setting, paths_of(policies), source, network)
    request = _request(policies, data, reconstructor, setting)
    if out is not None:
        check_replaceable(out / RESULTS, out / SUMMARY)
        if not overwrite:
            _check_same_request(out, request)
    cache = None if out is None else out / ORDERS
    ready = prepare(*(policies, data, network, setting), train=train, cache=cache, on_step=on_step)
    ready.warn_of_notes()
    conditions = _conditions(ready, request)
    finished = None
    if out is not None:
        finished = FinishedPolicies(out / FINISHED, _decisive(ready, conditions))
    entries, scores = _run_all(ready, finished, on_step)
    summary = summarize(
        scores,
        conditions,
        oracles={one.name for one in entries if one.is_oracle},
        reference=ready.reference,
        trainings=trainings_of(entries),
        choices={one.name: one.choice(is_argmax=setting.argmax) for one in entries},
    )
    if out is not None and finished is not None:
        # The summary goes first and comes back last: it never speaks of other results.
        (out / SUMMARY).unlink(missing_ok=True)
        finished.join(out / RESULTS, entries)
        record_examples(out, ready, summary, scores, setting.examples)
        write_summary(out, summary)
        finished.forget()
    return Evaluation(summary, scores)


def _request(
    policies: Sequence[Labelled],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
) -> EvaluationRequest:
    """Return the settings that affect results, with the names of all objects."""
    values = {item.name: getattr(setting, item.name) for item in fields(EvaluationRequest)}
    is_model = isinstance(reconstructor, Reconstructor)
    values["data"] = str(data) if isinstance(data, str | Path) else data.name
    values["reconstructor"] = type(reconstructor).__name__ if is_model else str(reconstructor)
    values["policies"] = tuple(str(x[0] if isinstance(x, tuple) else x) for x in policies)
    return EvaluationRequest(**values)


def _check_same_request(out: Path, here: EvaluationRequest) -> None:
    """Refuse a folder that holds an evaluation which was asked for otherwise."""
    if not (out / SUMMARY).is_file():
        return
    try:
        there = read_summary(out).request
    except DataError:
        there = None
    kept = None if there is None else to_table(there, nulls=True)
    check_same(out, "an evaluation", kept, to_table(here, nulls=True))


def _conditions(ready: Prepared, request: EvaluationRequest) -> Conditions:
    source, plan = ready.source, ready.plan
    return Conditions(
        protocol=ready.loaded.protocol_for(plan.protocol),
        store=source.name,
        store_fingerprint=source.fingerprint if isinstance(source, Store) else None,
        anatomy=source.anatomy if isinstance(source, Store) else None,
        columns=source.columns if isinstance(source, Store) else None,
        split=ready.slices.split or request.split,
        n_rows=ready.slices.shape[1],
        n_cols=ready.slices.n_cols,
        n_initial=plan.n_initial,
        initial=tuple(columns_text(start) for start in plan.initial) or None,
        steps=plan.horizon,
        columns_per_step=plan.columns_per_step,
        budgets=tuple(plan.horizons) or None,
        stop_below=plan.stop_below,
        is_argmax=request.argmax,
        draw_seeds=request.seeds,
        limit=request.limit,
        device=describe_device(ready.slices.device),
        reconstructor=request.reconstructor,
        precision=ready.reconstructor.precision,
        request=request,
        reconstructor_fingerprint=fingerprint(ready.loaded),
        note="; ".join(ready.notes) or None,
    )


def _decisive(ready: Prepared, conditions: Conditions) -> dict[str, Any]:
    """Return what decides the scores of every policy, but for its own draws."""
    plan = {key: value for key, value in asdict(ready.plan).items() if key != "seed"}
    told = ("device", "precision", "reconstructor_fingerprint")
    found = {key: getattr(conditions, key) for key in told}
    return {**plan, **found, "slices": ready.slices.fingerprint}


def _run_all(
    ready: Prepared, finished: FinishedPolicies | None, on_step: OnStep | None
) -> tuple[list[EvaluationEntry], list[Scores]]:
    """Run what is cheap first, then what is fitted, and oracles, which try every column, last."""
    found: dict[int, tuple[EvaluationEntry, Scores]] = {}
    turns = sorted(
        enumerate(ready.entries), key=lambda turn: (turn[1].is_oracle, bool(turn[1].fits))
    )
    for number, draft in turns:
        entry = ready.fit(draft)
        found[number] = (entry, _run(entry, ready, finished, on_step))
    in_order = [found[number] for number in range(len(found))]
    return [one for one, _ in in_order], [scores for _, scores in in_order]


def _run(
    entry: EvaluationEntry,
    ready: Prepared,
    finished: FinishedPolicies | None,
    on_step: OnStep | None,
) -> Scores:
    """Run one policy, or recall what it scored before a kill."""
    if finished is None:
        return _score(entry, ready, None, on_step)
    scores = finished.recall(entry, ready.slices)
    if scores is None:
        with finished.writing(entry) as writer:
            scores = _score(entry, ready, writer, on_step)
        finished.keep(entry, scores)
    return scores


def _score(
    entry: EvaluationEntry, ready: Prepared, writer: ResultsWriter | None, on_step: OnStep | None
) -> Scores:
    slices, done, n_trajectories = ready.slices, 0, 1
    name, seed, means, counts = entry.name, entry.seed, [], []
    for batch, trajectory in ready.trajectories(entry):
        rows = slice(done, done + len(batch))
        done, n_trajectories = rows.stop, trajectory.columns.shape[1]
        metrics = torch.stack([getattr(trajectory, metric) for metric in METRICS], dim=-1)
        if writer is not None:
            columns, volumes = trajectory.columns.cpu().numpy(), slices.volumes[rows]
            where = (volumes, slices.slices[rows])
            writer.write(name, seed, columns, metrics.cpu().numpy(), *where)
        means.append(metrics.double().mean(dim=1).cpu().numpy())
        counts.append(trajectory.n_acquired.double().mean(dim=1).cpu().numpy())
        if on_step is not None:
            on_step(Step(f"{name}, seed {seed}", done, len(slices)))
    values, n_acquired = np.concatenate(means), np.concatenate(counts)
    return Scores(name, seed, slices.volumes, slices.slices, values, n_trajectories, n_acquired)


__all__ = ["Evaluation", "EvaluationSetting", "Wanted", "evaluate"]
