"""What an evaluation says in short: `summary.json`, from scores by slice.

Means are over slices, trajectories and seeds; std is over seeds; intervals and tests take volumes
as the unit and the scores averaged over seeds.
"""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from kscout.errors import DataError, unknown_name
from kscout.evaluation.results import METRICS, Scores
from kscout.evaluation.statistics import (
    CONFIDENCE,
    N_RESAMPLES,
    bootstrap_interval,
    bootstrap_intervals,
    holm,
    paired_permutation_test,
    std_over_seeds,
)
from kscout.names import POLICIES

SUMMARY = "summary.json"
ORACLES = tuple(name for name, entry in POLICIES.entries.items() if entry.is_oracle)
LEAST_GAP = 0.002
"""Oracle minus NA oracle below which the share of the gap that is closed says nothing."""
_REFERENCES = ("fixed", "random", "center-out", "variable-density", "equispaced-two")

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


def summarize(
    scores: Sequence[Scores], *, oracles: Collection[str] = ORACLES, reference: str | None = None
) -> Table:
    """Return means, intervals and paired comparisons of all policies.

    Args:
        scores: one entry per policy and seed, all over the same slices.
        oracles: names of policies that look at the truth.
        reference: the policy that others are compared with; by default the first of fixed,
            random, center-out, variable-density and equispaced-two that is there.
    """
    _check_same_slices(scores)
    by_policy: dict[str, list[Scores]] = {}
    for entry in scores:
        by_policy.setdefault(entry.policy, []).append(entry)
    pooled = {
        name: np.mean([e.values for e in entries], axis=0) for name, entries in by_policy.items()
    }
    final = {name: values[:, -1, 0] for name, values in pooled.items()}
    volumes = scores[0].volumes
    reference = choose_reference(list(by_policy), oracles, reference)
    closed = _gaps_closed({name: float(values.mean()) for name, values in final.items()})
    return {
        "n_slices": len(volumes),
        "n_volumes": len(set(volumes)),
        "confidence": CONFIDENCE,
        "interval": f"percentile bootstrap over volumes, {N_RESAMPLES} draws",
        "policies": [
            {
                "policy": name,
                "is_oracle": name in oracles,
                **_describe(entries, pooled[name]),
                "gap_closed": closed[name],
            }
            for name, entries in by_policy.items()
        ],
        "reference": reference,
        "comparisons": compare(final, reference, volumes),
        "headroom": {
            "oracle_minus_na_oracle": _difference(final, "oracle", "na-oracle", volumes),
            "na_oracle_minus_fixed": _difference(final, "na-oracle", "fixed", volumes),
        },
    }


def choose_reference(names: Sequence[str], oracles: Collection[str], wanted: str | None) -> str:
    """Return the policy that others are compared with."""
    if wanted is not None:
        if wanted not in names:
            raise unknown_name("reference", wanted, list(names))
        return wanted
    candidates = [name for name in names if name not in oracles]
    known = [name for name in _REFERENCES if name in candidates]
    return [*known, *candidates, *names][0]


def compare(
    final: dict[str, Float64[np.ndarray, " slice"]], reference: str, volumes: Sequence[str]
) -> list[Table]:
    """Compare the final SSIM of every policy with the reference's, slice by slice."""
    others = [name for name in final if name != reference]
    tests = [
        paired_permutation_test(final[name] - final[reference], volumes, n_comparisons=len(others))
        for name in others
    ]
    corrected = holm([test.p_value for test in tests])
    return [
        {
            "policy": name,
            "reference": reference,
            **(_difference(final, name, reference, volumes) or {}),
            "p_value": test.p_value,
            "p_value_corrected": p_value,
            "correction": f"Holm, {len(others)} comparisons",
            "test": test.method,
            "note": test.note,
        }
        for name, test, p_value in zip(others, tests, corrected, strict=True)
    ]


def gap_closed(ssim: float, na_oracle: float | None, oracle: float | None) -> float | None:
    """Return (ssim - NA oracle) / (oracle - NA oracle), None where the gap is below .002."""
    if na_oracle is None or oracle is None or oracle - na_oracle < LEAST_GAP:
        return None
    return (ssim - na_oracle) / (oracle - na_oracle)


def _gaps_closed(means: dict[str, float]) -> dict[str, float | None]:
    bounds = means.get("na-oracle"), means.get("oracle")
    return {name: gap_closed(ssim, *bounds) for name, ssim in means.items()}


def _describe(entries: Sequence[Scores], pooled: Float64[np.ndarray, "slice moment 3"]) -> Table:
    n_moments = pooled.shape[1]
    intervals = bootstrap_intervals(pooled.reshape(len(pooled), -1), entries[0].volumes)
    if intervals is not None:
        intervals = intervals.reshape(n_moments, len(METRICS), 2)
    by_step: Table = {}
    for i, metric in enumerate(METRICS):
        by_seed = [entry.values[:, :, i].mean(axis=0) for entry in entries]
        stds = [std_over_seeds([float(means[t]) for means in by_seed]) for t in range(n_moments)]
        by_step[metric] = {
            "mean": pooled[:, :, i].mean(axis=0).tolist(),
            "std": stds,
            "interval": [None] * n_moments if intervals is None else intervals[:, i].tolist(),
        }
    return {
        "n_seeds": len(entries),
        "seeds": [entry.seed for entry in entries],
        "n_trajectories": entries[0].n_trajectories,
        "final": {
            metric: {key: values[-1] for key, values in table.items()}
            for metric, table in by_step.items()
        },
        "by_step": by_step,
    }


def _difference(
    final: dict[str, Float64[np.ndarray, " slice"]],
    name: str,
    reference: str,
    volumes: Sequence[str],
) -> Table | None:
    if name not in final or reference not in final:
        return None
    values = final[name] - final[reference]
    return {"difference": float(values.mean()), "interval": bootstrap_interval(values, volumes)}


def _check_same_slices(scores: Sequence[Scores]) -> None:
    if not scores:
        raise DataError("no scores to summarize; evaluate at least one policy")
    first = scores[0]
    for entry in scores[1:]:
        if (entry.volumes, entry.slices) != (first.volumes, first.slices):
            raise DataError(
                f"{entry.policy!r} and {first.policy!r} were scored on different slices; "
                "evaluate them on the same ones to compare them"
            )
        if entry.values.shape != first.values.shape:
            raise DataError(
                f"{entry.policy!r} took {entry.values.shape[1] - 1} steps and {first.policy!r} "
                f"{first.values.shape[1] - 1}; compare policies of one horizon"
            )


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


def check_comparable(summaries: Sequence[Table]) -> None:
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
