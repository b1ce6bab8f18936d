"""What training costs: time, peak memory, reconstructions per second, from run folders."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import final

from kscout.evaluation.analyses.analysis import Analysis, Page, ReportInputs
from kscout.evaluation.progress import OnStep
from kscout.evaluation.records.run_names import grouped_runs
from kscout.evaluation.summaries.paper_numbers import ARXIV, COST_DAYS, SETTINGS
from kscout.figures.blocks import Block
from kscout.figures.tables import Column, Row, Table, measured
from kscout.runs import RunRecord


@final
@dataclass(frozen=True)
class CostRow:
    """Cost of the runs of one method: means over seeds.

    Runs that kscout 0.2 trained together (`n_lockstep`) share their time: `time_s` is the time of
    all of them, `own_time_s` the share of each.
    """

    policy: str
    kind: str
    device: str
    n_seeds: int
    n_finished: int
    n_epochs: int
    n_lockstep: int
    time_s: float
    own_time_s: float
    time_per_epoch_s: float | None
    peak_memory_mib: float | None
    reconstructions_per_s: float | None
    reconstructions: float | None
    """Of one training, mean over seeds; None if runs did not log their decisions."""
    per_decision: float | None
    """Reconstructions for each column that was chosen in training."""


@final
@dataclass(frozen=True, kw_only=True)
class Cost(Analysis[CostRow]):
    """Cost of trainings: time, peak memory, reconstructions per second.

    Example: kscout analyze cost runs/greedy --out analyses
    """

    reads = "runs"
    file = "cost"
    title = "Training"
    row = CostRow

    def compute(
        self, sources: Sequence[str], *, out: Path | None = None, on_step: OnStep | None = None
    ) -> list[CostRow]:
        groups = grouped_runs([Path(x) for x in sources])
        return [_row(name, records) for name, records in groups.items()]

    @classmethod
    def blocks(cls, rows: Sequence[CostRow], page: Page, folder: Path) -> list[Block]:
        devices = {row.device for row in rows}
        columns = (
            *(Column("run"), Column("kind"), Column("seeds"), Column("epochs")),
            Column("time (s)", digits=1),
            Column("per epoch (s)", digits=2),
            *(Column("peak memory (MiB)", digits=0), Column("reconstructions per s", digits=0)),
            *(Column("reconstructions", digits=0), Column("per decision", digits=1)),
            Column("device"),
        )
        lines = [
            (
                *(row.policy, row.kind, str(row.n_seeds), str(row.n_epochs)),
                *map(measured, (row.own_time_s, row.time_per_epoch_s)),
                *map(measured, (row.peak_memory_mib, row.reconstructions_per_s)),
                *map(measured, (row.reconstructions, row.per_decision)),
                row.device if len(devices) > 1 else None,
            )
            for row in rows
        ]
        # Without empty columns it fits into a window of 1,200 pixels.
        used = [any(line[place] is not None for line in lines) for place in range(len(columns))]
        shown = tuple(Row(tuple(compress(line, used))) for line in lines)
        note = (
            "Time is the mean over seeds of all epochs, validation included. "
            "Reconstructions are counted per training and per selected column; a trained policy "
            "needs one per decision. Joint trainings do not count them. "
            f"{paper_times()}"
        )
        note += f" Device: {next(iter(devices))}." if len(devices) == 1 else ""
        title, named = "Cost of training", tuple(compress(columns, used))
        return [Table(title, named, shown, note, "training")]

    @classmethod
    def blocks_without_table(cls, inputs: ReportInputs, page: Page) -> list[Block]:
        runs = [str(path) for path in inputs.runs]
        return cls.blocks(cls().compute(runs), page, Path()) if runs else []


def paper_times() -> str:
    """Return all training times that the paper prints, in a sentence."""
    times = "; ".join(
        f"{SETTINGS[setting].title} "
        + " and ".join(
            f"{days} days" + (f" on {n_cards} cards" if n_cards > 1 else "")
            for days, n_cards in costs.values()
        )
        for setting, costs in COST_DAYS.items()
    )
    return (
        f"Approximate times of greedy and non-greedy training in {ARXIV} (appendix B.1), on GTX "
        f"1080 Ti cards and fastMRI data: {times}."
    )


def _row(name: str, records: Sequence[RunRecord]) -> CostRow:
    lines = [line for record in records for line in record.metrics]
    times = [sum(line["time_s"] for line in record.metrics) for record in records]
    own_times = [
        sum(line["time_s"] / line.get("n_lockstep", 1) for line in record.metrics)
        for record in records
    ]
    memory = [line["peak_memory_bytes"] for line in lines if "peak_memory_bytes" in line]
    counts = [_n_reconstructions(record) for record in records]
    known = [count for count in counts if count is not None]
    own_counts = [
        sum(line["n_reconstructions"] / line.get("n_lockstep", 1) for line in record.metrics)
        for record in records
        if all({"n_decisions", "n_reconstructions"} <= set(line) for line in record.metrics)
    ]
    n_decisions = sum(line.get("n_decisions", 0) for line in lines)
    total_s = float(sum(times))
    is_known = bool(total_s) and len(known) == len(counts)
    return CostRow(
        policy=name,
        kind=records[0].kind,
        device=", ".join(sorted({r.provenance.device for r in records})),
        n_seeds=len(records),
        n_finished=sum(record.is_finished for record in records),
        n_epochs=max(len(record.metrics) for record in records),
        n_lockstep=max((line.get("n_lockstep", 1) for line in lines), default=1),
        time_s=fmean(times),
        own_time_s=fmean(own_times),
        time_per_epoch_s=total_s / len(lines) if lines else None,
        peak_memory_mib=max(memory) / 2**20 if memory else None,
        reconstructions_per_s=sum(known) / total_s if is_known else None,
        reconstructions=fmean(own_counts) if own_counts else None,
        per_decision=sum(own_counts) / n_decisions if n_decisions else None,
    )


def _n_reconstructions(record: RunRecord) -> int | None:
    """Return the number of reconstructions of a run: one per slice of a reconstruction training.

    A joint training does not log how many columns its sampler tried, so its count is unknown.
    """
    key = "n_slices" if record.kind == "reconstructor" else "n_reconstructions"
    if not all(key in line for line in record.metrics):
        return None
    return sum(line[key] for line in record.metrics)
