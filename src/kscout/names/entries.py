"""What a table knows of a thing before it is imported."""

from dataclasses import dataclass
from typing import Literal, final


@dataclass(frozen=True)
class Entry:
    """Where a thing lies and what it is, told without importing it."""

    target: str
    """`module:Name` of the class or function."""
    summary: str = ""
    """One line for `--help` and the docs."""


@final
@dataclass(frozen=True)
class PolicyEntry(Entry):
    """A policy."""

    origin: Literal["name", "fit", "training"] = "name"
    """What determines it: its name and the sizes, an order fitted on data, or trained weights."""
    is_oracle: bool = False
    """Whether it looks at the truth, which no scanner has."""


@final
@dataclass(frozen=True)
class ReconstructorEntry(Entry):
    """A reconstruction."""

    is_learnable: bool = True
    """Whether it has weights, so that its name alone does not determine it."""
    is_for_coils: bool = False
    """Whether it is nothing new for one coil: comparisons on images leave it out."""


@final
@dataclass(frozen=True)
class EstimatorEntry(Entry):
    """A way to train a policy: the value of `training.method`."""

    settings: str = ""
    """`module:Class` of its settings, the section `[training]`; imports no torch. Empty for an
    estimator from outside, whose class names them itself (`settings`)."""
    title: str = ""
    """What sentences call it."""
    label: str = ""
    """What folders and tables call its runs, formatted with the settings in `varies`."""
    policy: str = "conv"
    """The network that it trains where none is named."""
    varies: tuple[str, ...] = ()
    """Settings of its own in which runs of one command may differ, as they do in their seed."""


@final
@dataclass(frozen=True)
class SourceEntry(Entry):
    """A kind of images that `data make` draws."""

    size: int = 128
    """Rows and columns where none are asked for."""
    variants: tuple[str, ...] = ("realistic",)
    """The first is the default."""
    paper_slices: tuple[int, int, int] | None = None
    """The paper's slices of training, validation and test, where it has such images."""
    paper_slices_per_volume: int = 16
    """So that as many volumes as the paper's give its numbers of slices."""
    needs_sources: bool = False
    """Whether the images are cut from real volumes."""


@final
@dataclass(frozen=True)
class FormatEntry(Entry):
    """A file format that `data import` reads; the target reads one volume."""

    suffixes: tuple[str, ...] = ()
    """File names that it is known by."""
    options: tuple[str, ...] = ()
    """Options of an import that the reader takes: `key`, `plane`, `axes`, `header`."""
    needs: str = ""
    """The package that the reader imports."""
    extra: str = "formats"
    """The extra of kscout that brings it."""
    is_series: bool = False
    """Whether the files of one folder make one volume."""
