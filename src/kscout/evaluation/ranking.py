"""Rankings and tables that need nothing but the summaries of evaluations."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kscout.errors import DataError
from kscout.evaluation.summary import SUMMARY

Table = dict[str, Any]

_CONDITIONS = {
    "store": ("store_fingerprint", "store"),
    "split": ("split",),
    "limit": ("limit",),
    "size": ("n_cols",),
    "reconstructor": ("reconstructor_fingerprint", "reconstructor"),
    "protocol": ("protocol",),
    "argmax": ("is_argmax",),
}
"""What scores depend on beside the policy and its budget: keys of a summary, the surest first."""


def read_summary(path: Path) -> Table:
    """Read `summary.json`, given the file or its folder."""
    file = path / SUMMARY if path.is_dir() else path
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        for entry in summary["policies"]:
            _ = entry["final"]["ssim"]["mean"], entry["is_oracle"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is not the summary of an evaluation ({error!r}); run `kscout evaluate` again"
        ) from error
    return summary


def rank_policies(summary: Table) -> Table:
    """Return how SSIM and PSNR order the policies, and how far the two orders agree.

    Returns:
        `rows`: policy, is_oracle, ssim, psnr, ssim_rank, psnr_rank (1 is best; oracles are ranked
        with the rest), by SSIM; `kendall_tau` over all policies and `kendall_tau_feasible` without
        oracles, None for fewer than two; `disagreements`: pairs that the two metrics order
        differently, the one with the higher SSIM first.
    """
    rows = [
        {
            "policy": entry["policy"],
            "is_oracle": entry["is_oracle"],
            "ssim": entry["final"]["ssim"]["mean"],
            "psnr": entry["final"]["psnr"]["mean"],
        }
        for entry in summary["policies"]
    ]
    for metric in ("ssim", "psnr"):
        for row in rows:
            row[f"{metric}_rank"] = 1 + sum(other[metric] > row[metric] for other in rows)
    rows.sort(key=lambda row: row["ssim_rank"])
    return {
        "rows": rows,
        "kendall_tau": kendall_tau(rows),
        "kendall_tau_feasible": kendall_tau([row for row in rows if not row["is_oracle"]]),
        "disagreements": [
            [one["policy"], two["policy"]]
            for i, one in enumerate(rows)
            for two in rows[i + 1 :]
            if one["ssim"] > two["ssim"] and one["psnr"] < two["psnr"]
        ],
    }


def kendall_tau(rows: Sequence[Table]) -> float | None:
    """Return Kendall's tau-b of SSIM and PSNR; None where it is not defined."""
    ssim, psnr = (np.array([row[metric] for row in rows]) for metric in ("ssim", "psnr"))
    upper = np.triu_indices(len(rows), k=1)
    signs = [np.sign(values[:, None] - values[None, :])[upper] for values in (ssim, psnr)]
    scale = np.sqrt(np.abs(signs[0]).sum() * np.abs(signs[1]).sum())
    return float((signs[0] * signs[1]).sum() / scale) if scale else None


def gamma_table(summaries: Sequence[Table]) -> list[Table]:
    """Return final scores of learned policies by method and gamma, greedy first.

    A policy's method and gamma are those that its run was trained with. Evaluations may differ in
    start and steps, which rows tell, and in nothing else that changes scores.
    """
    _check_comparable(summaries)
    rows = []
    for summary in summaries:
        for entry in summary["policies"]:
            training = entry.get("training")
            if training is None:
                continue
            is_greedy = training["method"] == "greedy"
            row: Table = {"policy": entry["policy"], "method": training["method"]}
            row["gamma"] = None if is_greedy else training["gamma"]
            row["n_initial"], row["steps"] = summary.get("n_initial"), summary.get("steps")
            row["n_seeds"] = entry["n_seeds"]
            for metric in ("ssim", "psnr"):
                row[f"{metric}_mean"] = entry["final"][metric]["mean"]
                row[f"{metric}_std"] = entry["final"][metric]["std"]
            rows.append(row)
    if not rows:
        raise DataError("no policy in these evaluations was loaded from a training run")
    return sorted(
        rows, key=lambda row: (row["steps"] or 0, -1 if row["gamma"] is None else row["gamma"])
    )


def _check_comparable(summaries: Sequence[Table]) -> None:
    """Refuse evaluations whose scores differ for reasons that no row would tell."""
    for name, keys in _CONDITIONS.items():
        # A fingerprint tells more than a name, which may be typed in several ways.
        known = (key for key in keys if all(one.get(key) is not None for one in summaries))
        key = next(known, keys[-1])
        if len({str(one.get(key)) for one in summaries}) > 1:
            named = dict.fromkeys(_words(one.get(keys[-1])) for one in summaries)
            told = named if len(named) > 1 else dict.fromkeys(_words(one[key]) for one in summaries)
            raise DataError(
                f"these evaluations differ in {name} ({', '.join(told)}), so that their scores do "
                "not belong in one table; analyze them one by one"
            )


def _words(value: object) -> str:
    return "not set" if value is None else str(value)
