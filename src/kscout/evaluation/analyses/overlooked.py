"""Columns that would raise SSIM most and that a policy hardly ever draws."""

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
    from kscout.evaluation.overlooked import Tally

ANY = "any"
"""The column of a row that is of all columns together."""
_TOLD, _N_TOLD = 0.02, 10
"""Columns overlooked in fewer states, or after so many, are in the table's files alone."""
_NOTE = (
    "Best: share of states (a slice at a step) in which no column would raise SSIM more. "
    "Overlooked: share in which the policy moreover hardly ever draws it or, where it draws "
    "nothing, hardly ever takes it in any state. Over overlooked states, gain is the mean rise in "
    "SSIM, forgone by how much it exceeds what the policy can "
    f"expect of its draw. Of single columns at most the {_N_TOLD} overlooked most are listed."
)


@final
@dataclass(frozen=True)
class OverlookedRow:
    """How often one column, or any, is best and overlooked by a policy."""

    policy: str
    column: int | str
    best: float
    """Share of states in which no column is worth more."""
    overlooked: float
    """Share of states in which, moreover, the policy hardly ever draws it."""
    gain: float | None
    """What it would add to SSIM, mean over overlooked states."""
    forgone: float | None
    """By how much that exceeds what the policy can expect of its draw."""
    n_states: int


@final
@dataclass(frozen=True, kw_only=True)
class Overlooked(PolicyAnalysis[OverlookedRow]):
    """Columns that would help most and that a policy hardly ever draws.

    A training that only tries what its policy draws cannot learn their worth: validation stands
    still until one is drawn by chance. Every column is tried at every step, as by the oracle.

    The table has a row for all columns together (any) of every policy,
    then the columns overlooked most. A state is a slice at a step.
    best: share of states in which no column would raise SSIM more.
    overlooked: share in which, moreover, it is hardly ever drawn (--rare); by a policy that draws
    nothing, such as a dense one, hardly ever taken in any state.
    gain: what it would add to SSIM, mean over overlooked states.
    forgone: by how much that exceeds what the policy can expect of its draw.

    Example: kscout analyze overlooked runs/greedy/epoch-0001.safetensors runs/greedy --data
    stores/knee --reconstructor runs/unet --out analyses
    """

    file = "overlooked"
    title = "Overlooked columns"
    row = OverlookedRow

    rare: float = 1e-4
    """A column with less than this probability, or share of states, is overlooked."""
    limit: int | None = 64
    """Only so many slices, spread over the split."""
    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Slices at once; what suits the device where not given."""

    def __post_init__(self) -> None:
        if not 0 < self.rare < 1:
            raise ConfigError(f"rare is {self.rare}; it is a probability above 0 and below 1")

    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[OverlookedRow]:
        """Tally each policy over all its seeds; columns come most overlooked first."""
        from kscout.evaluation.overlooked import tally_policy
        from kscout.evaluation.running.prepare import open_policies

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
        return overlooked_rows(found)

    @classmethod
    def told(cls, rows: Sequence[OverlookedRow]) -> Sequence[OverlookedRow]:
        """Return all columns together, then those overlooked most."""
        totals = [row for row in rows if row.column == ANY]
        columns = [row for row in rows if row.column != ANY and row.overlooked > _TOLD]
        return totals + columns[:_N_TOLD]

    @classmethod
    def blocks(cls, rows: Sequence[OverlookedRow], page: Page, folder: Path) -> list[Block]:
        """Tabulate all columns together for every policy, then those overlooked most."""
        totals = [row for row in rows if row.column == ANY]
        columns = [row for row in rows if row.column != ANY and row.overlooked]
        columns.sort(key=lambda row: -row.overlooked)
        lines = tuple(
            Row(
                (
                    row.policy,
                    str(row.column),
                    *map(measured, (row.best, row.overlooked, row.gain, row.forgone)),
                )
            )
            for row in (*totals, *columns[:_N_TOLD])
        )
        shares = (Column("best", digits=3), Column("overlooked", digits=3))
        names = (Column("policy"), Column("column"), *shares, Column("gain"), Column("forgone"))
        return [Table("Columns that policies overlook", names, lines, _NOTE, "overlooked")]


def overlooked_rows(found: Mapping[str, "Tally"]) -> list[OverlookedRow]:
    """Return the rows of policies: all columns together first, then single ones.

    Columns are sorted by how often any policy overlooks them; columns that are never best are left
    out.
    """
    columns = [
        _row(tally, name, column)
        for name, tally in found.items()
        for column in tally.n_best.nonzero()[:, 0].tolist()
    ]
    columns.sort(key=lambda row: row.overlooked, reverse=True)
    return [_row(tally, name) for name, tally in found.items()] + columns


def _row(tally: "Tally", policy: str, column: int | str = ANY) -> OverlookedRow:
    """Return the counts of a policy at one column, or at all columns together."""
    chosen = slice(None) if isinstance(column, str) else [column]
    n_overlooked = float(tally.n_overlooked[chosen].sum())
    gain, forgone = (
        float(sums[chosen].sum()) / n_overlooked if n_overlooked else None
        for sums in (tally.gain, tally.forgone)
    )
    best, overlooked = float(tally.n_best[chosen].sum()), n_overlooked / tally.n_states
    shares = (best / tally.n_states, overlooked, gain, forgone)
    return OverlookedRow(policy, column, *shares, tally.n_states)
