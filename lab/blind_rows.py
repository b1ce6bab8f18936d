"""Rows of lab/results.csv from the evaluations of `blind.py`: means, worst slices, differences."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from blind_tasks import EVALUATIONS, FULL, Task
from results import Row, result

from kscout.evaluation.records.results import Scores, read_scores
from kscout.evaluation.statistics import confidence_interval
from kscout.evaluation.summaries.summary import Summary, read_summary
from kscout.provenance import commit


def worst(values: np.ndarray) -> float:
    """Return the mean of the worst 5 % of slices."""
    return float(np.sort(values)[: max(1, round(len(values) / 20))].mean())


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": lambda values: float(values.mean()),
    "worst5": worst,
}


def final_scores(scores: Sequence[Scores], metric: str) -> np.ndarray:
    """Return final scores by seed and slice."""
    return np.stack([one.metric(metric)[:, -1] for one in scores])


def is_evaluated(work: Path, task: Task) -> bool:
    """Return whether all evaluations of a task are finished."""
    return all((work / task.name(part) / "summary.json").exists() for part in EVALUATIONS)


def rows_of(work: Path, seeds: Sequence[Task]) -> list[Row]:
    """Return the rows of one network and start, with seeds averaged before volumes are compared."""
    parts = ("scores", "oracles", "center")
    by_seed = [
        {k: v for part in parts for k, v in _scores(work, one, part).items()} for one in seeds
    ]
    for scores, one in zip(by_seed, seeds, strict=True):
        (scores[FULL],) = read_scores(work / one.name("full"))
    summary = read_summary(work / seeds[0].name("scores"))
    places = {"center-out": read_summary(work / seeds[0].name("center")).device}
    rows = []
    for policy in by_seed[0]:
        runs, fixed = ([scores[x] for scores in by_seed] for x in (policy, "fixed"))
        for metric in ("ssim", "psnr"):
            values, reference = (final_scores(x, metric) for x in (runs, fixed))
            differences = (values - reference).mean(axis=0)
            compared = confidence_interval(differences, runs[0].volumes) or (None, None)
            for statistic, function in STATISTICS.items():
                fields = common_fields(seeds, summary)
                value = float(np.mean([function(one) for one in values]))
                fields |= {"device": places.get(policy, summary.device)}
                fields |= {"method": policy, "metric": metric, "statistic": statistic}
                if statistic == "mean" and policy not in ("fixed", FULL):
                    fields |= {"difference_to": "fixed", "difference": float(differences.mean())}
                    fields |= {"low": compared[0], "high": compared[1]}
                rows.append(result(**fields, value=value))
    return rows


def rows_against(work: Path, seeds: Sequence[Task], policy: str, part: str) -> list[Row]:
    """Return the policies of a task minus one policy of the frozen network, by volume.

    Args:
        work: folder of all runs.
        seeds: seeds of one task.
        policy: name of the policy of the frozen network.
        part: evaluation of it.
    """
    frozen_seeds = [replace(one, network="general") for one in seeds]
    if not all(is_evaluated(work, one) for one in frozen_seeds):
        return []
    frozen = [_scores(work, one, part)[policy] for one in frozen_seeds]
    found = [_scores(work, one, "scores") for one in seeds]
    summary, rows = read_summary(work / seeds[0].name("scores")), []
    for name in ("fixed", "column", "ensemble"):
        if name == policy and frozen_seeds == list(seeds):
            continue
        own = [scores[name] for scores in found]
        for metric in ("ssim", "psnr"):
            values, others = (final_scores(x, metric) for x in (own, frozen))
            differences = (values - others).mean(axis=0)
            low, high = confidence_interval(differences, own[0].volumes) or (None, None)
            fields = common_fields(seeds, summary)
            fields |= {"experiment": f"blind-{policy}", "method": name, "metric": metric}
            fields |= {"statistic": "mean", "difference_to": f"{policy}, frozen"}
            fields |= {"low": low, "high": high, "difference": float(differences.mean())}
            rows.append(result(**fields, value=float(values.mean())))
    return rows


def _scores(work: Path, task: Task, part: str) -> dict[str, Scores]:
    return {x.policy: x for x in read_scores(work / task.name(part))}


def common_fields(seeds: Sequence[Task], summary: Summary) -> dict[str, str | float | None]:
    """Return the fields that all rows of one network and start have in common."""
    task = seeds[0]
    return {
        "experiment": "blind",
        "store": "knee-paper-size" if task.kind == "knee" else "heads-people",
        "split": "test",
        "n_slices": summary.n_slices,
        "n_volumes": summary.n_volumes,
        "reconstruction": {"general": "frozen", "cotrained": "co-trained"}[task.network],
        "protocol": "blind",
        "n_initial": task.n_initial,
        "steps": task.steps,
        "n_cols": summary.n_cols,
        "choice": "best",
        "seed": " ".join(str(one.seed) for one in seeds),
        "n_seeds": len(seeds),
        "device": summary.device,
        "commit": commit(),
        "command": "python lab/blind.py evaluations",
    }
