"""Columns with the largest gain that a policy almost never samples.

A training that only tries the columns that its policy samples gets no gradient from a column that
the policy has ruled out. For a deterministic policy, the share of states in which it takes a column
replaces the probability of the column.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, final

from jaxtyping import Float, Int

from kscout.config.bounds import AtLeast
from kscout.errors import ConfigError
from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis
from kscout.evaluation.progress import OnStep
from kscout.exports import lazily
from kscout.figures.blocks import Block
from kscout.figures.tables import Column, Row, Table, measured

with lazily():
    import torch
    from torch import Tensor

    from kscout.acquisition.choose import choose_columns, column_log_probabilities
    from kscout.acquisition.episode import Simulator
    from kscout.acquisition.loop import Acquisition
    from kscout.acquisition.plan import Plan
    from kscout.core import Policy, Reconstructor
    from kscout.data.slices import SliceSet
    from kscout.evaluation.running.prepare import open_policies
    from kscout.evaluation.running.trajectories import ready_batches
    from kscout.policies import oracle

ANY = "any"
"""The column of a row that is of all columns together."""
_TOLD, _N_TOLD = 0.02, 10
"""Columns unexplored in fewer states, or beyond this number, are in the files of the table only."""
_NOTE = (
    "Best: share of states (a slice at a step) in which no column has a larger gain in SSIM. "
    "Unexplored: share in which the policy also almost never samples it or, if the policy is "
    "deterministic, almost never takes it in any state. Over unexplored states, gain is the mean "
    "gain in SSIM, and forgone its difference to the expected gain of the policy's choice. Of "
    f"single columns at most the {_N_TOLD} with the largest shares are listed."
)


@final
@dataclass
class Tally:
    """Sums over states; there is one state per slice and step."""

    n_states: int
    n_best: Float[Tensor, " col"]
    """States in which no column has a larger gain."""
    n_unexplored: Float[Tensor, " col"]
    """Those of them in which the policy almost never samples the column."""
    gain: Float[Tensor, " col"]
    """Gains in SSIM, over the unexplored states."""
    forgone: Float[Tensor, " col"]
    """Their differences to the expected gain of the policy's choice."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, x.name) + getattr(other, x.name) for x in fields(self)))


def tally_states(
    gains: Float[Tensor, "state col"],
    probabilities: Float[Tensor, "state col"],
    rare: float,
    chances: Float[Tensor, "state col"] | None = None,
) -> Tally:
    """Count the columns with the largest gain, and those of them that are unexplored.

    Gains are -inf, and probabilities zero, for columns that cannot be measured. `chances` are those
    that a column is ever sampled, by default the probabilities; below `rare` means almost never.
    """
    gain = gains.double().amax(dim=-1)
    # Mirrored columns may have equal gains: the first represents them, and any may be sampled.
    is_best = gains >= gain[:, None] - oracle.TIE
    best = is_best.to(torch.int8).argmax(dim=-1)
    expected = (probabilities.double() * gains.double().clamp_min(-1)).sum(dim=-1)
    is_rare = ((probabilities if chances is None else chances) * is_best).sum(dim=-1) < rare
    n_cols = gains.shape[-1]

    def by_column(values: Tensor) -> Tensor:
        total = torch.zeros(n_cols, dtype=torch.float64, device=values.device)
        return total.index_add(0, best, values.double()).cpu()

    return Tally(
        len(gains),
        by_column(torch.ones_like(gain)),
        by_column(is_rare),
        by_column(is_rare * gain),
        by_column(is_rare * (gain - expected)),
    )


def tally_choices(
    gains: Float[Tensor, "state col"], chosen: Int[Tensor, " state"], rare: float
) -> Tally:
    """Count the same for a deterministic policy, from the columns chosen in all of its states."""
    taken = torch.nn.functional.one_hot(chosen, gains.shape[-1]).double()
    shares = taken.sum(dim=0) / gains.isfinite().sum(dim=0).clamp(min=1)
    return tally_states(gains, taken, rare, shares.expand(taken.shape))


def tally_policy(
    policy: Policy, slices: SliceSet, reconstructor: Reconstructor, plan: Plan, *, rare: float
) -> Tally:
    """Run a policy once on each slice, and try every column at every step."""
    tallies, states = [], []
    with torch.no_grad():
        for ready in ready_batches(policy, slices, reconstructor, plan):
            for gains, probabilities, chosen in _decisions(*ready):
                if policy.is_stochastic:
                    tallies.append(tally_states(gains, probabilities, rare))
                else:
                    states.append((gains.cpu(), chosen.cpu()))
    if states:
        all_gains, all_chosen = (torch.cat(part) for part in zip(*states, strict=True))
        tallies.append(tally_choices(all_gains, all_chosen, rare))
    if not tallies:
        raise ConfigError("nothing is unexplored in no step; raise the number of steps")
    return sum(tallies[1:], start=tallies[0])


def _decisions(
    policy: Policy,
    simulator: Simulator,
    plan: Plan,
    uniforms: Float[Tensor, "batch trajectory column"] | None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the gains of all columns, the policy's probabilities and its choice at each step."""
    policy, acquisition = policy.bind(simulator.context), Acquisition(simulator, plan)
    while acquisition.n_next:
        state, blocked, scores = acquisition.state, acquisition.blocked, acquisition.scores(policy)
        gains = simulator.score_every_column(state) - state.score[:, None]
        draws = None if uniforms is None else uniforms[:, 0, acquisition.n_acquired]
        chosen = choose_columns(policy, scores, blocked, draws)
        acquisition.measure(chosen[:, None])
        acquisition.finish(type(policy).__name__)
        yield gains, column_log_probabilities(scores, blocked).exp(), chosen


@final
@dataclass(frozen=True)
class UnexploredRow:
    """How often one column, or any column, is best and unexplored by a policy."""

    policy: str
    column: int | str
    best: float
    """Share of states in which no column has a larger gain."""
    unexplored: float
    """Share of states in which the policy also almost never samples it."""
    gain: float | None
    """Mean gain in SSIM over unexplored states."""
    forgone: float | None
    """Its difference to the expected gain of the policy's choice."""
    n_states: int


@final
@dataclass(frozen=True, kw_only=True)
class Unexplored(PolicyAnalysis[UnexploredRow]):
    """Columns with the largest gain that a policy almost never samples.

    A training that only tries the columns that its policy samples cannot learn their gains until
    one is sampled by chance. Every column is tried at every step, as by the oracle.

    The table has one row for all columns together (any) of every policy, then the columns with the
    largest fractions of unexplored states. A state is a slice at a step.
    best: fraction of states in which no column has a larger gain.
    unexplored: fraction in which it is also almost never sampled (--rare); for a deterministic
    policy, such as a dense one, almost never acquired in any state.
    gain: mean gain in SSIM over unexplored states.
    forgone: its difference to the expected gain of the policy's choice.

    Example: kscout analyze unexplored runs/greedy/epoch-0001.safetensors runs/greedy --data
    stores/knee --reconstructor runs/unet --out analyses
    """

    file = "unexplored"
    title = "Unexplored columns"
    row = UnexploredRow

    rare: float = 1e-4
    """A column with less than this probability, or fraction of states, is unexplored."""
    limit: int | None = 64
    """Largest number of slices, spread evenly over the split. (default: all)"""
    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Slices per batch. (default: chosen for the device)"""

    def __post_init__(self) -> None:
        if not 0 < self.rare < 1:
            raise ConfigError(f"rare is {self.rare}; it is a probability above 0 and below 1")

    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[UnexploredRow]:
        ready = open_policies(sources, self)
        tallies = ready.by_name(
            lambda entry: tally_policy(*ready.inputs(entry), rare=self.rare), on_step
        )
        return unexplored_rows({name: sum(x[1:], start=x[0]) for name, x in tallies.items()})

    @classmethod
    def printed_rows(cls, rows: Sequence[UnexploredRow]) -> Sequence[UnexploredRow]:
        totals = [row for row in rows if row.column == ANY]
        columns = [row for row in rows if row.column != ANY and row.unexplored > _TOLD]
        return totals + columns[:_N_TOLD]

    @classmethod
    def blocks(cls, rows: Sequence[UnexploredRow], page: Page, folder: Path) -> list[Block]:
        totals = [row for row in rows if row.column == ANY]
        columns = [row for row in rows if row.column != ANY and row.unexplored]
        columns.sort(key=lambda row: -row.unexplored)
        lines = tuple(
            Row(
                (
                    row.policy,
                    str(row.column),
                    *map(measured, (row.best, row.unexplored, row.gain, row.forgone)),
                )
            )
            for row in (*totals, *columns[:_N_TOLD])
        )
        shares = (Column("best", digits=3), Column("unexplored", digits=3))
        names = (Column("policy"), Column("column"), *shares, Column("gain"), Column("forgone"))
        return [Table("Columns that policies do not explore", names, lines, _NOTE, "unexplored")]


def unexplored_rows(tallies: Mapping[str, Tally]) -> list[UnexploredRow]:
    """Return the rows of policies: all columns together first, then single ones.

    Columns are sorted by their share of unexplored states, without those that are never best.
    """
    columns = [
        _row(tally, name, column)
        for name, tally in tallies.items()
        for column in tally.n_best.nonzero()[:, 0].tolist()
    ]
    columns.sort(key=lambda row: row.unexplored, reverse=True)
    return [_row(tally, name) for name, tally in tallies.items()] + columns


def _row(tally: Tally, policy: str, column: int | str = ANY) -> UnexploredRow:
    """Return the counts of a policy at one column, or at all columns together."""
    chosen = slice(None) if isinstance(column, str) else [column]
    n_unexplored = float(tally.n_unexplored[chosen].sum())
    gain, forgone = (
        float(sums[chosen].sum()) / n_unexplored if n_unexplored else None
        for sums in (tally.gain, tally.forgone)
    )
    best, unexplored = float(tally.n_best[chosen].sum()), n_unexplored / tally.n_states
    shares = (best / tally.n_states, unexplored, gain, forgone)
    return UnexploredRow(policy, column, *shares, tally.n_states)
