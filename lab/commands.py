"""Run commands of kscout and turn their outputs into rows of results.csv."""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from results import Row, result

from kscout.evaluation.records.results import Scores, read_scores
from kscout.evaluation.statistics import confidence_interval
from kscout.evaluation.summaries.summary import read_summary
from kscout.provenance import commit
from kscout.runs import read_metrics

ACQUISITIONS = {"base": (16, 16), "long": (4, 28), "8x": (8, 8)}
"""Columns at the start and columns to acquire, of 128."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all experiments have."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--work", type=Path, default=Path("lab-runs"), help="folder of all outputs"
    )
    options.add_argument("--device", default="auto")
    return options


def kscout(*words: object) -> str:
    """Run a command, which resumes what was interrupted, and return it as it is typed."""
    text = [str(word) for word in words]
    command = shlex.join(["kscout", *text])
    print(command, flush=True)
    code = subprocess.run([sys.executable, "-m", "kscout", *text]).returncode
    if code:
        sys.exit(code)
    return command


def evaluate(
    experiment: str,
    data: Path,
    reconstructor: Path | str,
    policies: list[str],
    out: Path,
    *words: object,
    **fields: str | float | None,
) -> list[Row]:
    """Evaluate policies on the test split and return one row per policy.

    Args:
        experiment: name of the experiment.
        data: dataset.
        reconstructor: run folder or name.
        policies: as `kscout evaluate --policy` reads them; a name once per seed.
        out: folder of the evaluation.
        words: further options.
        fields: fields of the rows that the summary does not contain or that it overrides.
    """
    named = [word for policy in policies for word in ("--policy", policy)]
    options = ("--data", data, "--reconstructor", reconstructor, "--out", out, *words)
    command = kscout("evaluate", *options, *named, "--reference", "fixed")
    return summary_rows(experiment, out, command, **fields)


def summary_rows(
    experiment: str, folder: Path, command: str, **fields: str | float | None
) -> list[Row]:
    """Return one row of the final SSIM per policy of an evaluation."""
    summary = read_summary(folder)
    rows = []
    for entry in summary.policies:
        compared = summary.comparison(entry.policy)
        choice = "best" if summary.is_argmax else "draws"
        if not entry.is_trained:
            choice = "draws" if entry.policy == "random" else ""
        low, high = compared.interval if compared and compared.interval else (None, None)
        values: dict[str, str | float | None] = {
            **{"experiment": experiment, "store": summary.store, "split": summary.split},
            **{"n_slices": summary.n_slices, "n_volumes": summary.n_volumes},
            **{"reconstruction": "frozen", "protocol": summary.protocol},
            **{"n_initial": summary.n_initial, "steps": summary.steps, "n_cols": summary.n_cols},
            **{"method": entry.policy, "choice": choice, "seed": " ".join(map(str, entry.seeds))},
            **{"n_seeds": entry.n_seeds, "metric": "ssim", "statistic": "mean"},
            **{"value": entry.ssim, "difference_to": compared and summary.reference},
            **{"difference": compared and compared.difference, "low": low, "high": high},
            **{"device": summary.device, "commit": commit(), "command": command},
        }
        rows.append(result(**{**values, **fields}))
    return rows


def seconds(run: Path) -> float:
    """Return the duration of a training."""
    return float(sum(line["time_s"] for line in read_metrics(run)))


def scores(folder: Path, policy: str) -> Scores:
    """Read the scores of a policy of an evaluation."""
    return next(one for one in read_scores(folder) if one.policy == policy)


def paired(
    runs: list[Scores], references: list[Scores]
) -> tuple[float, tuple[float, float] | tuple[None, None]]:
    """Return the mean difference in final SSIM and its interval over volumes.

    Policies are paired by seed; differences are averaged over seeds before volumes are compared.
    """
    pairs = zip(runs, references, strict=True)
    difference = np.mean(
        [one.metric("ssim")[:, -1] - other.metric("ssim")[:, -1] for one, other in pairs], axis=0
    )
    interval = confidence_interval(difference, runs[0].volumes)
    return float(difference.mean()), interval or (None, None)
