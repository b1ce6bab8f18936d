"""Columns with the largest gain that a policy almost never samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, final

from kscout.config.bounds import AtLeast
from kscout.errors import ConfigError
from kscout.evaluation.analyses.analysis import Page, PolicyAnalysis, SliceSetting
from kscout.evaluation.progress import OnStep, Step
from kscout.figures.blocks import Block
from kscout.figures.tables import Column, Row, Table, measured

if TYPE_CHECKING:
    from kscout.evaluation.unexplored import Tally

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
    largest shares of unexplored states. A state is a slice at a step.
    best: share of states in which no column has a larger gain.
    unexplored: share in which it is also almost never sampled (--rare); for a deterministic policy,
    such as a dense one, almost never taken in any state.
    gain: mean gain in SSIM over unexplored states.
    forgone: its difference to the expected gain of the policy's choice.

    Example: kscout analyze unexplored runs/greedy/epoch-0001.safetensors runs/greedy --data
    stores/knee --reconstructor runs/unet --out analyses
    """

    file = "unexplored"
    title = "Unexplored columns"
    row = UnexploredRow

    rare: float = 1e-4
    """A column with less than this probability, or share of states, is unexplored."""
    limit: int | None = 64
    """Largest number of slices, spread over the split."""
    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Slices per batch; not given: chosen for the device."""

    def __post_init__(self) -> None:
        if not 0 < self.rare < 1:
            raise ConfigError(f"rare is {self.rare}; it is a probability above 0 and below 1")

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[UnexploredRow]:
        """Count for each policy over all its seeds; the largest shares come first."""
        from kscout.evaluation.running.prepare import open_policies
        from kscout.evaluation.unexplored import tally_policy

        ready = open_policies(given, SliceSetting.of(self))
        found = {}
        for name, contenders in ready.by_name.items():
            tallies = []
            for one in contenders:
                plan = ready.plan_of(one)
                where = (ready.slices, ready.reconstructor, plan)
                tallies.append(tally_policy(one.policy, *where, rare=self.rare))
                if on_step is not None:
                    n_slices = len(ready.slices)
                    on_step(Step(f"{name}, seed {one.seed}", n_slices, n_slices))
            found[name] = sum(tallies[1:], start=tallies[0])
        return unexplored_rows(found)

    @classmethod
    def told(cls, rows: Sequence[UnexploredRow]) -> Sequence[UnexploredRow]:
        """Return all columns together, then those with the largest shares."""
        totals = [row for row in rows if row.column == ANY]
        columns = [row for row in rows if row.column != ANY and row.unexplored > _TOLD]
        return totals + columns[:_N_TOLD]

    @classmethod
    def blocks(cls, rows: Sequence[UnexploredRow], page: Page, folder: Path) -> list[Block]:
        """Tabulate all columns together for every policy, then those with the largest shares."""
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


def unexplored_rows(found: Mapping[str, "Tally"]) -> list[UnexploredRow]:
    """Return the rows of policies: all columns together first, then single ones.

    Columns are sorted by their share of unexplored states, without those that are never best.
    """
    columns = [
        _row(tally, name, column)
        for name, tally in found.items()
        for column in tally.n_best.nonzero()[:, 0].tolist()
    ]
    columns.sort(key=lambda row: row.unexplored, reverse=True)
    return [_row(tally, name) for name, tally in found.items()] + columns


def _row(tally: "Tally", policy: str, column: int | str = ANY) -> UnexploredRow:
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
