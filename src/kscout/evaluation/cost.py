"""What training costs: time, peak memory, reconstructions per second, from run folders."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from kscout.evaluation.run_names import grouped_runs
from kscout.runs import RunRecord


def cost_table(runs: Sequence[Path]) -> list[dict[str, Any]]:
    """Return one row per method: means over its seeds of what their metrics logged.

    Runs trained in lockstep share their time: `time_s` is what each waited, `own_time_s` its
    share. Where a run did not log `n_reconstructions`, they follow from its settings: of each
    slice one at the start, then q per step.
    """
    return [_row(name, records) for name, records in grouped_runs(runs).items()]


def _row(name: str, records: Sequence[RunRecord]) -> dict[str, Any]:
    times = [sum(line["time_s"] for line in record.metrics) for record in records]
    n_epochs = [len(record.metrics) for record in records]
    own_times = [
        sum(line["time_s"] / line.get("n_lockstep", 1) for line in record.metrics)
        for record in records
    ]
    memory = [
        line["peak_memory_bytes"]
        for record in records
        for line in record.metrics
        if "peak_memory_bytes" in line
    ]
    counts = [_n_reconstructions(record) for record in records]
    known = [count for count in counts if count is not None]
    n_total, total_s = sum(known), sum(times)
    return {
        "policy": name,
        "kind": records[0].kind,
        "device": ", ".join(sorted({str(r.provenance.get("device", "unknown")) for r in records})),
        "n_seeds": len(records),
        "n_finished": sum(record.is_finished for record in records),
        "n_epochs": max(n_epochs),
        "n_lockstep": max(
            (line.get("n_lockstep", 1) for record in records for line in record.metrics), default=1
        ),
        "time_s": fmean(times),
        "own_time_s": fmean(own_times),
        "time_per_epoch_s": total_s / sum(n_epochs) if sum(n_epochs) else None,
        "peak_memory_mib": max(memory) / 2**20 if memory else None,
        "reconstructions_per_s": n_total / total_s
        if total_s and len(known) == len(counts)
        else None,
    }


def _n_reconstructions(record: RunRecord) -> int | None:
    if all("n_reconstructions" in line for line in record.metrics):
        return sum(line["n_reconstructions"] for line in record.metrics)
    if not all("n_slices" in line for line in record.metrics):
        return None
    n_slices = sum(line["n_slices"] for line in record.metrics)
    if record.kind != "policy":
        return n_slices
    per_step = record.config["training"]["n_trajectories"]
    return n_slices * (1 + record.config["acquisition"]["horizon"] * per_step)
