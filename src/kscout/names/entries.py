"""Facts about a component that are available without importing it."""

from dataclasses import dataclass
from typing import Literal, final


@dataclass(frozen=True)
class Entry:
    """Location and summary of a component."""

    target: str
    """`module:Name` of the class or function."""
    summary: str = ""
    """One line for `--help` and the docs."""


@final
@dataclass(frozen=True)
class PolicyEntry(Entry):
    """A policy."""

    origin: Literal["name", "fit", "training"] = "name"
    """What it needs: nothing else (`name`), a fitted order, or trained weights."""
    is_oracle: bool = False
    """Whether it uses the ground truth, which no scanner has."""


@final
@dataclass(frozen=True)
class ReconstructorEntry(Entry):
    """A reconstruction."""

    is_learnable: bool = True
    """Whether it has weights, so that its name does not determine it."""
    is_for_coils: bool = False
    """Whether it only differs for several coils: comparisons on images omit it."""


@final
@dataclass(frozen=True)
class EstimatorEntry(Entry):
    """A method of policy training: a value of `training.method`."""

    settings: str = ""
    """`module:Class` of its settings, the section `[training]`; imports no torch. Empty for an
    estimator of another package, whose class defines them (`settings`)."""
    label: str = ""
    """Label of its runs, formatted with the settings in `varies`; by default its name."""
    policy: str = "conv"
    """Default network."""
    varies: tuple[str, ...] = ()
    """Additional settings in which runs of one command may differ, next to the seed."""


@final
@dataclass(frozen=True)
class SourceEntry(Entry):
    """A kind of images for `data make`."""

    size: int = 128
    """Default number of rows and columns."""
    variants: tuple[str, ...] = ("realistic",)
    """The first is the default."""
    paper_slices: tuple[int, int, int] | None = None
    """The paper's numbers of slices in training, validation and test, if it has these images."""
    paper_slices_per_volume: int = 16
    """Slices per volume with which the paper's numbers of volumes give its numbers of slices."""
    needs_sources: bool = False
    """Whether the images are cut from real volumes."""


@final
@dataclass(frozen=True)
class FormatEntry(Entry):
    """A file format for `data import`; the target reads one volume."""

    suffixes: tuple[str, ...] = ()
    """Suffixes of its files."""
    options: tuple[str, ...] = ()
    """Import options of the reader: `key`, `plane`, `axes`, `header`."""
    needs: str = ""
    """Package that the reader imports."""
    extra: str = "formats"
    """Extra of kscout that installs the package."""
    is_series: bool = False
    """Whether the files of one folder are one volume."""
