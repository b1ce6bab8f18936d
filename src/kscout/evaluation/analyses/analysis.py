"""The base classes of analyses: `Analysis`, and `PolicyAnalysis` if it runs policies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, final

from kscout.config import to_table
from kscout.errors import ConfigError
from kscout.evaluation.progress import OnStep
from kscout.evaluation.summaries.summary import EvaluationFolder
from kscout.exports import lazily
from kscout.figures.blocks import Block
from kscout.figures.series import LineStyle
from kscout.figures.tables import plain_table
from kscout.names import Protocol

with lazily():
    from matplotlib.figure import Figure

Row = TypeVar("Row")
"""A frozen dataclass: one row of the table of an analysis."""
K = TypeVar("K", bound=Hashable)
Split = Literal["train", "val", "test"]
_RENAMED = {"told": "printed_rows", "unasked": "blocks_without_table"}
"""Methods of analyses since version 0.2."""


def grouped(rows: Sequence[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    """Return rows by key, in the order in which keys first appear."""
    groups: dict[K, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


@final
@dataclass(frozen=True)
class Page:
    """Settings that the sections of a page share."""

    styles: Mapping[str, LineStyle] = field(default_factory=dict)
    """Line styles of methods."""
    settings: Mapping[tuple[int, int], str | None] = field(default_factory=dict)
    """The paper's setting by start and number of steps; None if it has none."""

    def looks_of(self, names: set[str]) -> Mapping[str, LineStyle] | None:
        """Return the line styles of the page if they contain all names."""
        return self.styles if names <= set(self.styles) else None


@final
@dataclass(frozen=True)
class ReportInputs:
    """Runs and evaluations in the folders of a report."""

    runs: Sequence[Path] = ()
    """Run folders that have logged an epoch."""
    evaluations: Sequence[EvaluationFolder] = ()


@dataclass(frozen=True, kw_only=True)
class Analysis(ABC, Generic[Row]):
    """An analysis: its fields are the options, each with a docstring that becomes its help.

    The docstring of the class is the help of its command and ends with an example.
    """

    reads: ClassVar[Literal["policies", "reconstructions", "runs", "results"]]
    """The arguments of the command: policies or reconstructions (names, run folders, weights
    files), run folders, or folders that `evaluate` wrote."""
    file: ClassVar[str]
    """Name of its files: `entropies` for `entropies.csv`, `.json` and figures."""
    row: ClassVar[type[Any]]
    """The dataclass of a row."""
    title: ClassVar[str] = ""
    """Title of its section in reports; without one it has no section."""
    required: ClassVar[tuple[str, ...]] = ()
    """Options that the command line requires."""
    free: ClassVar[frozenset[str]] = frozenset({"device", "batch_size"})
    """Options that do not affect rows; tables may differ in them."""
    one_seed: ClassVar[bool] = False
    """Whether a campaign passes the first seed of each method only, by default."""

    def __init_subclass__(cls, **keywords: Any) -> None:  # noqa: ANN401 - of other bases
        super().__init_subclass__(**keywords)
        for old, new in _RENAMED.items():
            if old in vars(cls):
                raise ConfigError(f"{cls.__name__}.{old} of version 0.2 is called {new}; rename it")

    @abstractmethod
    def compute(
        self, sources: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[Row]:
        """Compute the rows of the table.

        Args:
            sources: the arguments; see `reads`.
            out: folder of the table, for additional files.
            on_step: called with the progress.
        """

    def figures(self, rows: Sequence[Row], folder: Path) -> dict[str, Figure]:
        """Draw the table: matplotlib figures by file name.

        Args:
            rows: the table.
            folder: its folder, with the files that `compute` wrote.
        """
        return {}

    @classmethod
    def blocks(cls, rows: Sequence[Row], page: Page, folder: Path) -> list[Block]:
        """Return the section of a report; by default all columns of the table."""
        return [plain_table(cls.title, cls.file, [to_table(row, nulls=True) for row in rows])]

    @classmethod
    def blocks_without_table(cls, inputs: ReportInputs, page: Page) -> list[Block]:
        """Return the section of a report that contains the inputs but no table of the analysis."""
        return []

    @classmethod
    def printed_rows(cls, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that the command prints; the files contain all."""
        return rows


@dataclass(frozen=True, kw_only=True)
class PolicyAnalysis(Analysis[Row]):
    """An analysis that runs policies on slices."""

    reads = "policies"
    required = ("data", "reconstructor")

    data: Path | None = None
    """Dataset."""
    reconstructor: str | None = None
    """Reconstruction, as for `evaluate`."""
    split: Split = "test"
    """Split to use: train, val or test."""
    n_initial: int | None = None
    """Columns at the start. (default: the runs')"""
    steps: int | None = None
    """Columns to acquire. (default: the runs')"""
    seed: tuple[int, ...] = (0,)
    """Random seed of sampling."""
    protocol: Protocol | None = None
    """paper or blind. (default: as the reconstruction was trained, else blind)"""
    device: str = "auto"
    """auto, cpu or cuda."""
