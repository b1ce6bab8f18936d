"""The summary of an evaluation in plain words: who won, by how much, and is it chance."""

from typing import Any

from kscout.report.evaluations import PROTOCOL_WORDS, Evaluation, final_of

LEVEL = 0.05


def tell_winner(evaluation: Evaluation) -> str:
    """Name the best feasible policy, its score and its distance to the reference."""
    feasible = [policy for policy in evaluation.policies if not policy["is_oracle"]]
    if not feasible:
        return "Only oracles were evaluated: no policy that a scanner could run is in the table."
    best = feasible[0]
    name, reference = best["policy"], evaluation.summary.get("reference")
    opening = f"**{name}** comes first: SSIM {final_of(best):.4f} after {_columns(evaluation)}"
    if len(feasible) == 1:
        return f"{opening}. No other feasible policy was evaluated."
    if name == reference:
        second = feasible[1]["policy"]
        lead = final_of(best) - final_of(feasible[1])
        verdict = _verdict(evaluation.comparison(second))
        return f"{opening}, {lead:.4f} above {second}, the next. {verdict}"
    compared = evaluation.comparison(name)
    if compared is None:
        return f"{opening}."
    distance = f"{compared['difference']:.4f} above {reference}, the reference"
    return f"{opening}, {distance}. {_verdict(compared)}"


def tell_runner_up(evaluation: Evaluation) -> str | None:
    """Say how close the second feasible policy is, where it is not the reference itself."""
    feasible = [policy for policy in evaluation.policies if not policy["is_oracle"]]
    if len(feasible) < 3 or evaluation.summary.get("reference") in (
        feasible[0]["policy"],
        feasible[1]["policy"],
    ):
        return None
    first, second = feasible[:2]
    gap = final_of(first) - final_of(second)
    return (
        f"Second is {second['policy']} with {final_of(second):.4f}, {gap:.4f} behind. That "
        "pair was not tested; only differences from the reference were."
    )


def tell_headroom(evaluation: Evaluation) -> str | None:
    """Say how far the best feasible policy is from what the truth would allow."""
    oracles = [policy for policy in evaluation.policies if policy["is_oracle"]]
    feasible = [policy for policy in evaluation.policies if not policy["is_oracle"]]
    if not oracles or not feasible:
        return None
    scores = " and ".join(f"{oracle['policy']} {final_of(oracle):.4f}" for oracle in oracles[:3])
    text = f"Oracles, which look at the ground truth, reach {scores}: bounds, not methods."
    closed = feasible[0].get("gap_closed")
    if closed is None:
        return text
    share = f"{feasible[0]['policy']} closes {100 * closed:.0f} % of it"
    if closed < 0:
        share = f"{feasible[0]['policy']} does not reach the lower end of it"
    return (
        f"{text} Between the best fixed order on the test data (na-oracle) and full adaptivity "
        f"(oracle) lies the gap that adaptive policies compete for; {share}."
    )


def tell_limits(evaluation: Evaluation) -> str | None:
    """Say what limits the tests, where something does."""
    notes = {c["note"] for c in evaluation.summary.get("comparisons") or [] if c.get("note")}
    return f"Limits of the tests: {'; '.join(sorted(notes))}." if notes else None


def summarize(evaluation: Evaluation) -> tuple[str, ...]:
    """Return the sentences that open a report."""
    found = (
        tell_winner(evaluation),
        tell_runner_up(evaluation),
        tell_headroom(evaluation),
        tell_limits(evaluation),
        PROTOCOL_WORDS.get(evaluation.protocol),
    )
    return tuple(sentence for sentence in found if sentence)


def facts(evaluation: Evaluation) -> dict[str, str]:
    """Return the protocol and the sizes of an evaluation, by label."""
    summary = evaluation.summary
    found = {"Protocol": evaluation.protocol}
    if summary.get("store"):
        found["Data"] = f"{summary['store']}, {summary.get('split', 'test')} split"
    if "n_slices" in summary:
        found["Scored on"] = f"{summary['n_slices']} slices of {summary['n_volumes']} volumes"
    if evaluation.n_initial is not None:
        found["Start"] = _with_factor(evaluation.n_initial, evaluation.n_cols)
        found["End"] = _with_factor(evaluation.n_initial + evaluation.steps, evaluation.n_cols)
    if summary.get("reconstructor"):
        found["Reconstruction"] = _named(summary["reconstructor"])
    n_trajectories = max(int(policy.get("n_trajectories", 1)) for policy in evaluation.policies)
    found["Trajectories"] = f"{n_trajectories} per slice"
    found["Seeds"] = str(max(int(policy.get("n_seeds", 1)) for policy in evaluation.policies))
    return found


def _named(value: Any) -> str:  # noqa: ANN401 - a name, or an object that has one
    return str(value.get("name", value)) if isinstance(value, dict) else str(value)


def _with_factor(n: int, n_cols: int | None) -> str:
    return f"{n} columns" if n_cols is None else f"{n} of {n_cols} columns ({n_cols / n:.3g}×)"


def _columns(evaluation: Evaluation) -> str:
    return f"{evaluation.steps} acquired columns"


def _verdict(compared: dict[str, Any] | None) -> str:
    if compared is None:
        return "The difference was not tested."
    interval, p_value = compared.get("interval"), compared.get("p_value_corrected")
    parts = []
    if interval is not None:
        low, high = sorted(abs(bound) for bound in interval)
        crosses = interval[0] < 0 < interval[1]
        parts.append(
            f"95 % interval {interval[0]:+.4f} to {interval[1]:+.4f}".replace("-", "−")
            if crosses
            else f"95 % interval {low:.4f} to {high:.4f}"
        )
    if p_value is not None:
        parts.append(f"p {'< 0.001' if p_value < 0.001 else f'= {p_value:.3f}'} after correction")
    excludes = interval is not None and not interval[0] <= 0 <= interval[1]
    is_significant = excludes and p_value is not None and p_value < LEVEL
    told = (
        "The difference is statistically significant"
        if is_significant
        else "The difference is not statistically significant: it may be chance"
    )
    return f"{told} ({', '.join(parts)})." if parts else f"{told}."


__all__ = ["facts", "summarize", "tell_winner"]
