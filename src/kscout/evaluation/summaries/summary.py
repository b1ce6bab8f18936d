"""The summary of an evaluation, `summary.json`: records, table, reader and writer.

Means are over slices, trajectories and seeds; std is over seeds; intervals and tests take volumes
as the unit and the scores averaged over seeds. `summarize` computes them.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, final

from kscout.config import read, read_file, save
from kscout.errors import ConfigError, DataError
from kscout.evaluation.records.results import METRICS
from kscout.evaluation.request import Conditions
from kscout.evaluation.statistics import IN_BRACKETS, NO_INTERVALS
from kscout.evaluation.summaries.paper_numbers import (
    ARXIV,
    NOT_SHOWN,
    ORACLE_PSNR,
    SSIM,
    PaperSetting,
    method_of,
    same_setting,
)
from kscout.exports import lazily
from kscout.figures.tables import Column, Measured, Row, Table, measured, to_html, to_text
from kscout.json_types import JsonObject
from kscout.names import POLICIES, label_of

with lazily():
    from kscout.figures.notebook import card

SUMMARY = "summary.json"
Interval = tuple[float, float]
Choice = Literal["sampled", "best"]
"""Columns sampled from the scores, or those with the highest score."""


@final
@dataclass(frozen=True)
class Score:
    """One metric at one step."""

    mean: float
    std: float | None
    """Over seeds (ddof 1); None for one."""
    interval: Interval | None
    """95 %, over volumes; None for fewer than three."""


@final
@dataclass(frozen=True)
class StepScores:
    """One metric by step; step 0 is the start."""

    mean: tuple[float, ...]
    std: tuple[float | None, ...]
    interval: tuple[Interval | None, ...]


@final
@dataclass(frozen=True)
class Training:
    """The training of a policy."""

    method: str
    gamma: float | None = None
    epochs: tuple[int, ...] = ()
    """Of the evaluated weights, one per seed; empty if a file does not state it."""

    @property
    def label(self) -> str:
        """Name of its runs in tables."""
        return label_of(self.method, {"gamma": self.gamma})


@final
@dataclass(frozen=True)
class PolicySummary:
    """Scores of one policy."""

    policy: str
    is_oracle: bool
    n_seeds: int
    seeds: tuple[int, ...]
    n_trajectories: int
    final: dict[str, Score]
    """By metric, after the last step."""
    by_step: dict[str, StepScores]
    """By metric."""
    gap_closed: float | None = None
    """(ssim - NA oracle) / (oracle - NA oracle)."""
    training: Training | None = None
    """None for a policy that was not trained, or whose training is unknown."""
    columns: Choice | None = None
    """How columns were chosen; None for a policy without weights, and in files of version 0.2."""

    @property
    def ssim(self) -> float:
        """Mean SSIM after the last step."""
        return self.final["ssim"].mean

    @property
    def paper_method(self) -> str | None:
        """The method of the paper, by its training or its name; None for other methods."""
        return method_of(self.policy if self.training is None else self.training.label)

    @property
    def is_trained(self) -> bool:
        """Whether it was trained, by its training or its name."""
        return self.training is not None or self.paper_method not in (None, *POLICIES.entries)


@final
@dataclass(frozen=True)
class Difference:
    """A difference of two final SSIMs, paired by slice."""

    difference: float
    interval: Interval | None


@final
@dataclass(frozen=True)
class StepDifferences:
    """A difference of two SSIMs by step, paired by slice; step 0 is the start."""

    difference: tuple[float, ...]
    interval: tuple[Interval | None, ...]


@final
@dataclass(frozen=True)
class Comparison:
    """A policy compared with the reference: final SSIM, paired by slice."""

    policy: str
    reference: str
    difference: float
    interval: Interval | None
    p_value: float
    p_value_corrected: float
    correction: str
    test: str
    note: str | None
    """A limit of the test, if there is one."""
    by_step: StepDifferences


@final
@dataclass(frozen=True)
class Headroom:
    """Gains with the ground truth; None if one of the policies is missing."""

    oracle_minus_na_oracle: Difference | None
    na_oracle_minus_fixed: Difference | None


@final
@dataclass(frozen=True, kw_only=True)
class Summary(Conditions):
    """The content of `summary.json`."""

    n_slices: int
    n_volumes: int
    confidence: float
    interval: str
    """Method of the intervals."""
    policies: tuple[PolicySummary, ...]
    reference: str
    """The policy with which others are compared."""
    comparisons: tuple[Comparison, ...]
    headroom: Headroom

    def __repr__(self) -> str:
        return to_text(policy_table(self))

    def _repr_html_(self) -> str:
        return card(to_html(policy_table(self)))

    @property
    def scored_on(self) -> str:
        """Slices and volumes in words."""
        counts = {"slice": self.n_slices, "volume": self.n_volumes}
        return " of ".join(f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items())

    @property
    def choice(self) -> str:
        """How policies with weights chose columns, in words; empty if there are none."""
        words = {"sampled": "sampled columns", "best": "highest-scoring columns"}
        names: dict[str, list[str]] = {}
        for policy in self.policies:
            if policy.columns is not None:
                n = policy.n_trajectories
                count = f" ({n} trajectories per slice)" if policy.columns == "sampled" else ""
                names.setdefault(words[policy.columns] + count, []).append(policy.policy)
        if len(names) < 2:
            return "".join(names)
        return "; ".join(f"{word} for {', '.join(group)}" for word, group in names.items())

    @property
    def moments(self) -> tuple[int, ...]:
        """Columns acquired at the start and after each step."""
        n_steps = -(-self.steps // self.columns_per_step)
        return tuple(min(t * self.columns_per_step, self.steps) for t in range(n_steps + 1))

    @property
    def has_intervals(self) -> bool:
        """Whether there were enough volumes for confidence intervals."""
        return any(policy.final["ssim"].interval for policy in self.policies)

    @property
    def ranked(self) -> list[PolicySummary]:
        """Policies by final SSIM, best first, oracles after the rest."""
        return sorted(self.policies, key=lambda policy: (policy.is_oracle, -policy.ssim))

    @property
    def headline_policy(self) -> PolicySummary | None:
        """The best trained policy except the reference and oracles, else the best one, or None."""
        others = [x for x in self.ranked if not x.is_oracle and x.policy != self.reference]
        return next((x for x in others if x.is_trained), others[0] if others else None)

    @property
    def shown_first(self) -> tuple[str, ...]:
        """The policies that a page shows at first: the headline, the reference and two bounds."""
        headline = [] if self.headline_policy is None else [self.headline_policy.policy]
        oracles = [x.policy for x in self.ranked if x.is_oracle][:1]
        feasible = [x.policy for x in self.ranked if not x.is_oracle]
        worst = ["random"] if "random" in feasible else feasible[-1:]
        return tuple(dict.fromkeys([*headline, self.reference, *worst, *oracles]))

    def comparison(self, name: str) -> Comparison | None:
        """Return the paired comparison of a policy with the reference."""
        return next((x for x in self.comparisons if x.policy == name), None)

    @property
    def paper_setting(self) -> PaperSetting | None:
        """The paper's setting with the same anatomy, size, budget and protocol; None if none has.

        A dataset without an anatomy has to contain its name.
        """
        if self.protocol != "paper" or self.initial or self.columns_per_step > 1:
            return None
        setting = same_setting(self.n_cols, self.n_initial, self.steps)
        if setting is None or setting.anatomy not in (self.anatomy or self.store).lower():
            return None
        return setting


def policy_table(summary: Summary, *, name: str = "policies") -> Table:
    """Return final scores of all policies and the paired comparison.

    It has a column of the paper if image size, start, number of steps and protocol are the same.
    """
    setting, ranked = summary.paper_setting, summary.ranked
    has_psnr = setting is not None and setting.name in ORACLE_PSNR
    columns = (
        Column("policy"),
        Column("SSIM", best="max"),
        Column("PSNR (dB)", digits=2, best="max"),
        Column("NMSE", best="min"),
        Column(f"SSIM minus {summary.reference}", is_signed=True),
        Column("p (corrected)", digits=3, is_probability=True),
        *([Column(f"paper: {setting.title}", is_paper=True)] if setting else []),
        *([Column("paper: PSNR (dB)", digits=2, is_paper=True)] if has_psnr else []),
    )
    rows = tuple(
        _policy_row(summary, policy, setting.name if setting else None) for policy in ranked
    )
    shown = [
        index
        for index, column in enumerate(columns)
        if not column.is_paper or any(row.cells[index] is not None for row in rows)
    ]
    columns = tuple(columns[index] for index in shown)
    rows = tuple(replace(row, cells=tuple(row.cells[i] for i in shown)) for row in rows)
    title = f"Scores after {summary.steps} acquired columns"
    title += f"; {summary.choice}" if summary.choice else ""
    return Table(title, columns, rows, _note(summary), name)


def _note(summary: Summary) -> str:
    n_seeds = max(policy.n_seeds for policy in summary.ranked)
    paper = (
        f"What is headed paper is printed in {ARXIV}, for the same image size, start and number of "
        "steps on fastMRI data under protocol paper: not our measurement, and the data are others "
        "unless this store holds fastMRI."
        if summary.paper_setting
        else NOT_SHOWN
    )
    limits = sorted({f" Tests: {x.note}." for x in summary.comparisons if x.note})
    seeds = f" and seeds; ± is the standard deviation over up to {n_seeds} seeds"
    return (
        f"Means after the last of {summary.steps} steps over slices and trajectories"
        f"{seeds if n_seeds > 1 else ''}. "
        f"{IN_BRACKETS if summary.has_intervals else NO_INTERVALS} Protocol {summary.protocol}. "
        f"Best values of feasible policies are marked.{''.join(limits)} {paper}"
    )


def _policy_row(summary: Summary, policy: PolicySummary, setting: str | None) -> Row:
    ssim, compared = policy.final["ssim"], summary.comparison(policy.policy)
    paper_psnr = ORACLE_PSNR.get(setting or "")
    return Row(
        (
            policy.policy,
            Measured(ssim.mean, ssim.std, ssim.interval),
            Measured(policy.final["psnr"].mean),
            Measured(policy.final["nmse"].mean),
            Measured(compared.difference, interval=compared.interval) if compared else None,
            Measured(compared.p_value_corrected) if compared else None,
            *([paper_cell(policy, setting)] if setting else []),
            *([measured(paper_psnr.get(policy.paper_method or ""))] if paper_psnr else []),
        ),
        is_oracle=policy.is_oracle,
    )


def paper_cell(policy: PolicySummary, setting: str) -> Measured | None:
    """Return the paper's SSIM of a method in one of its settings."""
    spread = SSIM[setting].get(policy.paper_method or "")
    return Measured(*spread) if spread else None


@final
@dataclass(frozen=True)
class EvaluationFolder:
    """The folder of an evaluation."""

    label: str
    """Its name on pages."""
    path: Path
    summary: Summary


def read_summary(path: Path | str) -> Summary:
    """Read `summary.json`, from the file or its folder."""
    path = Path(path)
    file = path / SUMMARY if path.is_dir() else path
    try:
        summary = read(Summary, _of_today(read_file(file, error=DataError)))
    except (ConfigError, DataError) as error:
        raise DataError(
            f"{file} is not the summary of an evaluation ({error}); run `kscout evaluate` again"
        ) from error
    if fault := _fault(summary):
        raise DataError(f"{file} {fault}; run `kscout evaluate` again")
    return summary


def _of_today(table: JsonObject) -> JsonObject:
    """Return a summary without the keys that describe slices with different numbers of columns.

    Version 0.3 could evaluate such acquisitions; at the values of all others they are dropped.
    """
    initial = table.get("initial")
    is_uneven = isinstance(initial, list) and len(initial) > 1
    for key in ("budgets", "stop_below"):
        is_uneven |= table.pop(key, None) is not None
    if is_uneven:
        raise DataError("its slices differ in their start or number of columns; use version 0.3")
    policies = table.get("policies")
    for section in (table.get("request"), *(policies if isinstance(policies, list) else ())):
        if isinstance(section, dict):
            for key in ("budget", "stop_below", "n_acquired"):
                section.pop(key, None)
    return table


def _fault(summary: Summary) -> str | None:
    """Return a contradiction in a summary, which no evaluation writes."""
    if not summary.policies:
        return "holds no policy"
    if summary.columns_per_step < 1 or not 0 <= summary.steps <= summary.n_cols:
        return f"describes {summary.steps} columns, {summary.columns_per_step} a step"
    for policy in summary.policies:
        for metric in METRICS:
            if metric not in policy.final or metric not in policy.by_step:
                return f"has no {metric} of {policy.policy!r}"
    tables = [vars(scores) for policy in summary.policies for scores in policy.by_step.values()]
    tables += [vars(comparison.by_step) for comparison in summary.comparisons]
    n_moments = len(summary.moments)
    lengths = {len(values) for table in tables for values in table.values()} - {n_moments}
    return f"describes {n_moments} steps, and has {min(lengths)} values" if lengths else None


def write_summary(path: Path, summary: Summary) -> None:
    """Write `summary.json` into a folder."""
    save(path / SUMMARY, summary)
