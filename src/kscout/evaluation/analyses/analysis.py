"""What an analysis is: derive from `Analysis`, or from `PolicyAnalysis` to run policies."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, final

from kscout.config import FrozenPrecision, read, to_table
from kscout.evaluation.progress import OnStep
from kscout.evaluation.summaries.summary import EvaluationFolder
from kscout.figures.blocks import Block
from kscout.figures.series import LineStyle
from kscout.figures.tables import plain_table
from kscout.names import Protocol

Row = TypeVar("Row")
"""A frozen dataclass: one row of the table of an analysis."""
K = TypeVar("K", bound=Hashable)
Split = Literal["train", "val", "test"]


def grouped(rows: Sequence[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    """Return rows by key, in the order in which keys first appear."""
    groups: dict[K, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


@final
@dataclass(frozen=True)
class Page:
    """What the sections of a page share."""

    styles: Mapping[str, LineStyle] = field(default_factory=dict)
    """The looks of methods."""
    settings: Mapping[tuple[int, int], str | None] = field(default_factory=dict)
    """The paper's setting by start and number of steps, as evaluations tell; None for none."""

    @property
    def setting(self) -> str | None:
        """The paper's setting, where all evaluations are of one."""
        found = set(self.settings.values())
        return next(iter(found)) if len(found) == 1 else None

    def looks_of(self, names: set[str]) -> Mapping[str, LineStyle] | None:
        """Return the page's looks where they cover all names."""
        return self.styles if names <= set(self.styles) else None


@final
@dataclass(frozen=True)
class Material:
    """What lies in the folders of a report beside the tables of analyses."""

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
    """Name of the files that it writes: `entropies` for `entropies.csv`, `.json` and figures."""
    row: ClassVar[type[Any]]
    """The dataclass of a row."""
    title: ClassVar[str] = ""
    """The section of a report; empty where reports leave it out."""
    required: ClassVar[tuple[str, ...]] = ()
    """Options that the command line insists on."""
    free: ClassVar[frozenset[str]] = frozenset({"device", "batch_size"})
    """Options that change no row, so that no table is refused or replaced because of them."""
    one_seed: ClassVar[bool] = False
    """A campaign hands over the first seed of each method where its file names none."""
    spans_horizons: ClassVar[bool] = False
    """A campaign runs it once over the evaluations of all horizons, and not for each."""

    @abstractmethod
    def compute(
        self, given: Sequence[str], *, out: Path, on_step: OnStep | None = None
    ) -> list[Row]:
        """Compute the rows of the table.

        Args:
            given: the arguments; see `reads`.
            out: folder of the table, for what is written beside it.
            on_step: told how far the work has come.
        """

    def figures(self, rows: Sequence[Row], folder: Path) -> dict[str, Any]:
        """Draw the table: matplotlib figures by file name.

        Args:
            rows: the table.
            folder: where it was written, with what `compute` left there.
        """
        return {}

    @classmethod
    def blocks(cls, rows: Sequence[Row], page: Page, folder: Path) -> list[Block]:
        """Lay out the table for a report: all columns as they are, where not overridden."""
        return [plain_table(cls.title, cls.file, cls.document(rows))]

    @classmethod
    def unasked(cls, material: Material, page: Page) -> list[Block]:
        """Return what a report shows where nobody ran the analysis and its material lies there."""
        return []

    @classmethod
    def told(cls, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that the command prints; all are in the files."""
        return rows

    @classmethod
    def document(cls, rows: Sequence[Row]) -> Any:  # noqa: ANN401 - any JSON value
        """Return the content of the JSON file."""
        return [to_table(row, nulls=True) for row in rows]

    @classmethod
    def parse(cls, document: Any) -> list[Row]:  # noqa: ANN401 - any JSON value
        """Return the rows that a JSON file holds."""
        return [read(cls.row, line) for line in document]


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
    """train, val or test."""
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
    precision: FrozenPrecision = "fp32"
    """Precision of reconstructions: fp32, fp16, or auto as in `evaluate`."""
