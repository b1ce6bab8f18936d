"""The summary of an evaluation from its scores by slice."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

import numpy as np
from jaxtyping import Float64

from kscout.errors import DataError, unknown_name
from kscout.evaluation.records.results import METRICS, Scores
from kscout.evaluation.request import Conditions
from kscout.evaluation.statistics import (
    CONFIDENCE,
    confidence_interval,
    confidence_intervals,
    holm,
    paired_permutation_test,
    std_over_seeds,
)
from kscout.evaluation.summaries.summary import (
    Choice,
    Comparison,
    Difference,
    Headroom,
    Interval,
    PolicySummary,
    Score,
    StepDifferences,
    StepScores,
    Summary,
    Training,
)
from kscout.names import POLICIES

ORACLES = tuple(name for name, entry in POLICIES.entries.items() if entry.is_oracle)
LEAST_GAP = 0.002
"""Least difference of oracle and NA oracle for which the closed share of the gap is stated."""
_METHOD = "Student's t over volume means, volumes weighted by their number of slices"
_REFERENCES = ("fixed", "random", "center-out", "variable-density", "equispaced-two")


def summarize(
    scores: Sequence[Scores],
    conditions: Conditions,
    *,
    oracles: Collection[str] = ORACLES,
    reference: str | None = None,
    trainings: Mapping[str, Training | None] | None = None,
    choices: Mapping[str, Choice | None] | None = None,
) -> Summary:
    """Return means, intervals and paired comparisons of all policies.

    `oracles`, `trainings` and `choices` are by name of the policy. Without `reference`, others are
    compared with the first of fixed, random, center-out, variable-density and equispaced-two.
    """
    by_policy, pooled = _by_policy(scores), pooled_scores(scores)
    ssim = {name: values[:, :, METRICS.index("ssim")] for name, values in pooled.items()}
    final = {name: values[:, -1] for name, values in ssim.items()}
    volumes = scores[0].volumes
    reference = choose_reference(list(by_policy), oracles, reference)
    means = {name: float(values.mean()) for name, values in final.items()}
    bounds = means.get("na-oracle"), means.get("oracle")
    return Summary(
        **{item.name: getattr(conditions, item.name) for item in fields(Conditions)},
        n_slices=len(volumes),
        n_volumes=len(set(volumes)),
        confidence=CONFIDENCE,
        interval=_METHOD,
        policies=tuple(
            _policy(
                entries,
                pooled[name],
                is_oracle=name in oracles,
                gap=gap_closed(means[name], *bounds),
                training=(trainings or {}).get(name),
                choice=(choices or {}).get(name),
            )
            for name, entries in by_policy.items()
        ),
        reference=reference,
        comparisons=compare(ssim, reference, volumes),
        headroom=Headroom(
            oracle_minus_na_oracle=_difference(final, "oracle", "na-oracle", volumes),
            na_oracle_minus_fixed=_difference(final, "na-oracle", "fixed", volumes),
        ),
    )


def pooled_scores(scores: Sequence[Scores]) -> dict[str, Float64[np.ndarray, "slice moment 3"]]:
    """Return the scores of each policy, averaged over its seeds."""
    _check_same_slices(scores)
    return {
        name: np.mean([entry.values for entry in entries], axis=0)
        for name, entries in _by_policy(scores).items()
    }


def _by_policy(scores: Sequence[Scores]) -> dict[str, list[Scores]]:
    by_policy: dict[str, list[Scores]] = {}
    for entry in scores:
        by_policy.setdefault(entry.policy, []).append(entry)
    return by_policy


def choose_reference(names: Sequence[str], oracles: Collection[str], wanted: str | None) -> str:
    """Return the policy with which others are compared."""
    if wanted is not None:
        if wanted not in names:
            raise unknown_name("reference", wanted, list(names))
        return wanted
    candidates = [name for name in names if name not in oracles]
    known = [name for name in _REFERENCES if name in candidates]
    return [*known, *candidates, *names][0]


def compare(
    ssim: Mapping[str, Float64[np.ndarray, "slice moment"]], reference: str, volumes: Sequence[str]
) -> tuple[Comparison, ...]:
    """Compare the SSIM of every policy with that of the reference, paired by slice."""
    paired = {name: x - ssim[reference] for name, x in ssim.items() if name != reference}
    tests = [
        paired_permutation_test(values[:, -1], volumes, n_comparisons=len(paired))
        for values in paired.values()
    ]
    by_step = [_by_step(values, volumes) for values in paired.values()]
    corrected = holm([test.p_value for test in tests])
    return tuple(
        Comparison(
            policy=name,
            reference=reference,
            difference=steps.difference[-1],
            interval=confidence_interval(paired[name][:, -1], volumes),
            p_value=test.p_value,
            p_value_corrected=p_value,
            correction=f"Holm, {len(paired)} comparisons",
            test=test.method,
            note=test.note,
            by_step=steps,
        )
        for name, test, p_value, steps in zip(paired, tests, corrected, by_step, strict=True)
    )


def _by_step(
    differences: Float64[np.ndarray, "slice moment"], volumes: Sequence[str]
) -> StepDifferences:
    bounds = confidence_intervals(differences, volumes)
    intervals: list[Interval | None] = [None] * differences.shape[1]
    if bounds is not None:
        intervals = [(low, high) for low, high in bounds.tolist()]
    # Step by step: a mean of both axes has another rounding.
    means = [float(differences[:, step].mean()) for step in range(differences.shape[1])]
    return StepDifferences(tuple(means), tuple(intervals))


def gap_closed(ssim: float, na_oracle: float | None, oracle: float | None) -> float | None:
    """Return (ssim - NA oracle) / (oracle - NA oracle), None where the gap is below .002."""
    if na_oracle is None or oracle is None or oracle - na_oracle < LEAST_GAP:
        return None
    return (ssim - na_oracle) / (oracle - na_oracle)


def _policy(
    entries: Sequence[Scores],
    pooled: Float64[np.ndarray, "slice moment 3"],
    *,
    is_oracle: bool,
    gap: float | None,
    training: Training | None,
    choice: Choice | None,
) -> PolicySummary:
    n_moments = pooled.shape[1]
    bounds = confidence_intervals(pooled.reshape(len(pooled), -1), entries[0].volumes)
    by_step = {}
    for i, metric in enumerate(METRICS):
        by_seed = [entry.values[:, :, i].mean(axis=0) for entry in entries]
        intervals: list[Interval | None] = [None] * n_moments
        if bounds is not None:
            pairs = bounds.reshape(n_moments, len(METRICS), 2)[:, i].tolist()
            intervals = [(low, high) for low, high in pairs]
        by_step[metric] = StepScores(
            mean=tuple(pooled[:, :, i].mean(axis=0).tolist()),
            std=tuple(std_over_seeds([float(x[t]) for x in by_seed]) for t in range(n_moments)),
            interval=tuple(intervals),
        )
    return PolicySummary(
        policy=entries[0].policy,
        is_oracle=is_oracle,
        n_seeds=len(entries),
        seeds=tuple(entry.seed for entry in entries),
        n_trajectories=entries[0].n_trajectories,
        final={
            metric: Score(steps.mean[-1], steps.std[-1], steps.interval[-1])
            for metric, steps in by_step.items()
        },
        by_step=by_step,
        gap_closed=gap,
        training=training,
        columns=choice,
    )


def _difference(
    final: Mapping[str, Float64[np.ndarray, " slice"]],
    name: str,
    reference: str,
    volumes: Sequence[str],
) -> Difference | None:
    if name not in final or reference not in final:
        return None
    values = final[name] - final[reference]
    return Difference(float(values.mean()), confidence_interval(values, volumes))


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
