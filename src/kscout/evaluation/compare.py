"""Policies compared on one split with one reconstruction: a long table and a summary."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from kscout.columns import columns_text
from kscout.compatibility import warn
from kscout.config import to_table
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.device import describe_device
from kscout.errors import ConfigError, DataError, unknown_name
from kscout.evaluation.progress import OnStep, Step
from kscout.evaluation.records.results import (
    METRICS,
    RESULTS,
    ResultsWriter,
    Scores,
    data_frame,
    read_scores,
)
from kscout.evaluation.request import (
    Conditions,
    EvaluationRequest,
    EvaluationSetting,
    check_same,
    setting_of,
)
from kscout.evaluation.running.entries import EvaluationEntry, completed, trainings_of
from kscout.evaluation.running.prepare import (
    ORDERS,
    LabeledPolicy,
    PolicySource,
    Prepared,
    labeled_policies,
    loaded_network,
    paths_of,
    prepare,
)
from kscout.evaluation.running.recording import FINISHED, FinishedPolicies, record_examples
from kscout.evaluation.summaries.overview import curves_of
from kscout.evaluation.summaries.summarize import compare, pooled_scores, summarize
from kscout.evaluation.summaries.summary import (
    SUMMARY,
    Comparison,
    Summary,
    read_summary,
    write_summary,
)
from kscout.exports import lazily
from kscout.files import check_free_of, check_replaceable, locked
from kscout.json_types import JsonObject
from kscout.weights import fingerprint

with lazily():
    from matplotlib.figure import Figure

    from kscout.figures.curves import draw_ssim_by_step


@final
@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation."""

    found: Summary
    scores: list[Scores]
    """Per policy and seed, averaged over trajectories."""

    @property
    def summary(self) -> JsonObject:
        """The content of `summary.json`, as plain tables."""
        return to_table(self.found, nulls=True)

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is optional
        """Return a `pandas.DataFrame` with one row per policy, seed, slice and step."""
        columns: dict[str, list[Any]] = {
            name: [] for name in ("policy", "seed", "volume", "slice", "step", *METRICS)
        }
        for entry in self.scores:
            for volume, number, steps in zip(
                entry.volumes, entry.slices, entry.values, strict=True
            ):
                for step, values in enumerate(steps.tolist()):
                    cells = (entry.policy, entry.seed, volume, number, step, *values)
                    for column, cell in zip(columns.values(), cells, strict=True):
                        column.append(cell)
        return data_frame(columns)

    def compare(self, policy: str, reference: str) -> Comparison:
        """Return the paired difference of the final SSIM of two policies."""
        return compare_policies(self, policy, reference)

    def plot(self) -> Figure:
        """Return a matplotlib figure of the mean SSIM by step, with intervals."""
        return draw_ssim_by_step(curves_of(self.found))

    def __repr__(self) -> str:
        return repr(self.found)

    def _repr_html_(self) -> str:
        return self.found._repr_html_()


def evaluate(
    policies: Sequence[PolicySource],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting | None = None,
    *,
    train: SliceSet | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    on_step: OnStep | None = None,
    **settings: Any,  # noqa: ANN401 - fields of a dataclass
) -> Evaluation:
    """Run policies on one split with one reconstruction, and compare them.

    Args:
        policies: in the order of the table.
        data: a dataset, of which `setting.split` is used, or slices.
        reconstructor: a reconstructor, or a source for `kscout.reconstruction.load`.
        setting: how the policies are run; by default made of `settings`.
        train: slices for fitting `fixed`; by default the training split of the dataset.
        out: folder for `results.csv` and `summary.json`; a call after an interruption resumes with
            the policies that were not finished.
        overwrite: replace results of other settings in `out`; by default this is an error.
        on_step: called after each batch of slices, and after each fitted column.
        settings: fields of `EvaluationSetting`, e.g. `n_initial=16, steps=16`.
    """
    if setting is not None and settings:
        raise ConfigError(f"give setting, or {', '.join(settings)}, not both")
    if setting is None:
        setting = setting_of(settings, "train", "out", "overwrite", "on_step")
    if not policies:
        raise ConfigError("no policy to evaluate; name at least one, e.g. random")
    labeled = labeled_policies(policies)
    data = data if isinstance(data, str | Path | SliceSet) else Store.open(data)
    out = None if out is None else Path(out)
    if out is not None:
        check_free_of(out, "dataset", "run", "campaign")
    with nullcontext() if out is None else locked(out):
        return _evaluate(labeled, data, reconstructor, setting, train, out, overwrite, on_step)


def _evaluate(
    policies: Sequence[LabeledPolicy],
    data: SliceSet | Store | Path | str,
    reconstructor: Reconstructor | Path | str,
    setting: EvaluationSetting,
    train: SliceSet | None,
    out: Path | None,
    overwrite: bool,
    on_step: OnStep | None,
) -> Evaluation:
    network = loaded_network(reconstructor)
    setting = completed(setting, paths_of(policies), network)
    request = _request(policies, data, reconstructor, setting)
    if out is not None:
        check_replaceable(out / RESULTS, out / SUMMARY)
        if not overwrite:
            _check_same_request(out, request)
    ready = prepare(policies, data, network, setting, train=train)
    warn(ready.notes)
    conditions = _conditions(ready, request)
    finished = None
    if out is not None:
        # Everything that the scores of all policies depend on, except their seeds.
        depends_on = {key: value for key, value in asdict(ready.plan).items() if key != "seed"}
        depends_on |= {
            "device": conditions.device,
            "precision": conditions.precision,
            "reconstructor_fingerprint": conditions.reconstructor_fingerprint,
            "slices": ready.slices.fingerprint,
        }
        finished = FinishedPolicies(out / FINISHED, depends_on)
    entries, scores = _run_all(ready, finished, None if out is None else out / ORDERS, on_step)
    summary = summarize(
        scores,
        conditions,
        oracles={entry.name for entry in entries if entry.is_oracle},
        reference=ready.reference,
        trainings=trainings_of(entries),
        choices={entry.name: entry.choice(is_argmax=setting.argmax) for entry in entries},
    )
    if out is not None and finished is not None:
        # Removed first and written last: it never belongs to other results.
        (out / SUMMARY).unlink(missing_ok=True)
        finished.join(out / RESULTS, entries)
        record_examples(out, ready, summary, scores, setting.examples)
        write_summary(out, summary)
        finished.remove()
    return Evaluation(summary, scores)


def _request(
    policies: Sequence[LabeledPolicy],
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


def _check_same_request(out: Path, request: EvaluationRequest) -> None:
    """Raise an error for a folder with an evaluation of other settings."""
    if not (out / SUMMARY).is_file():
        return
    try:
        stored = read_summary(out).request
    except DataError:
        stored = None
    table = None if stored is None else to_table(stored, nulls=True)
    check_same(out, "an evaluation", table, to_table(request, nulls=True))


def _conditions(ready: Prepared, request: EvaluationRequest) -> Conditions:
    source, plan = ready.source, ready.plan
    store = source if isinstance(source, Store) else None
    return Conditions(
        protocol=ready.loaded.protocol_for(plan.protocol),
        store=source.name,
        store_fingerprint=store and store.fingerprint,
        anatomy=store and store.anatomy,
        columns=store and store.columns,
        split=ready.slices.split or request.split,
        n_rows=ready.slices.shape[1],
        n_cols=ready.slices.n_cols,
        n_initial=plan.n_initial,
        initial=None if plan.listed is None else (columns_text(plan.listed),),
        steps=plan.horizon,
        columns_per_step=plan.columns_per_step,
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


def _run_all(
    ready: Prepared, finished: FinishedPolicies | None, cache: Path | None, on_step: OnStep | None
) -> tuple[list[EvaluationEntry], list[Scores]]:
    """Run fast policies first, then fitted ones, and oracles, which try every column, last."""
    results: dict[int, tuple[EvaluationEntry, Scores]] = {}
    order = sorted(enumerate(ready.entries), key=lambda x: (x[1].is_oracle, bool(x[1].fits)))
    for number, unfitted in order:
        entry = ready.fit(unfitted, cache=cache, on_step=on_step)
        compute = partial(_score, entry, ready, on_step)
        scores = compute() if finished is None else finished.scores(entry, ready.slices, compute)
        results[number] = (entry, scores)
    pairs = [results[number] for number in range(len(results))]
    return [entry for entry, _ in pairs], [scores for _, scores in pairs]


def _score(
    entry: EvaluationEntry,
    ready: Prepared,
    on_step: OnStep | None,
    writer: ResultsWriter | None = None,
) -> Scores:
    slices, n_done, n_trajectories = ready.slices, 0, 1
    name, seed, means = entry.name, entry.seed, []
    for batch, trajectory in ready.trajectories(entry):
        rows = slice(n_done, n_done + len(batch))
        n_done, n_trajectories = rows.stop, trajectory.columns.shape[1]
        metrics = torch.stack([getattr(trajectory, metric) for metric in METRICS], dim=-1)
        if writer is not None:
            columns, volumes = trajectory.columns.cpu().numpy(), slices.volumes[rows]
            numbers = slices.slices[rows]
            writer.write(name, seed, columns, metrics.cpu().numpy(), volumes, numbers)
        means.append(metrics.double().mean(dim=1).cpu().numpy())
        if on_step is not None:
            on_step(Step(f"{name}, seed {seed}", n_done, len(slices)))
    where = (name, seed, slices.volumes, slices.slices)
    return Scores(*where, np.concatenate(means), n_trajectories)


__all__ = ["Evaluation", "EvaluationSetting", "PolicySource", "evaluate"]


def compare_policies(results: "Evaluation | Path | str", policy: str, reference: str) -> Comparison:
    """Return the difference of the final SSIM of two policies, paired by slice.

    `results` is an evaluation, or its folder or `results.csv`; the reference is subtracted.
    """
    scores = results.scores if isinstance(results, Evaluation) else read_scores(results)
    ssim = {name: x[:, :, METRICS.index("ssim")] for name, x in pooled_scores(scores).items()}
    for name in (policy, reference):
        if name not in ssim:
            raise unknown_name("policy", name, list(ssim))
    both = {name: ssim[name] for name in (policy, reference)}
    (comparison,) = compare(both, reference, scores[0].volumes)
    return comparison
