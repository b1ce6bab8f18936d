"""Parameters of exports; nothing here needs torch."""

from dataclasses import dataclass
from typing import Annotated, final

from kscout.columns import MOST_COLUMNS
from kscout.config.bounds import AtLeast, Between, Form, MultipleOf
from kscout.config.records import check
from kscout.errors import ConfigError
from kscout.names import POLICIES, RECONSTRUCTION_WORDS, ImageFormat

_POLICY = "Selects the columns; without it all measured columns are used. " + POLICIES.words(
    "a run folder", "a weights file", "a zoo name"
)


@final
@dataclass(frozen=True, kw_only=True)
class OrderSetting:
    """The acquisition that a scan table describes, of a policy or of an evaluation."""

    n_cols: Annotated[int | None, Between(2, MOST_COLUMNS)] = None
    """Columns of the image, for a policy."""
    n_initial: int | None = None
    """Central columns measured first, for a policy."""
    steps: int | None = None
    """Columns measured afterwards, for a policy."""
    policy: str | None = None
    """Policy of the evaluation."""
    slice: Annotated[str | None, Form("VOLUME:NUMBER")] = None
    """Slice of the evaluation, VOLUME:NUMBER."""

    def __post_init__(self) -> None:
        check(self)

    def check_for(self, what: str, *names: str) -> None:
        """Raise an error for settings that have no effect on a source."""
        table = vars(self)
        unused = [x for x in table if x not in names and table[x] is not None]
        if unused:
            options = " and ".join(f"--{name.replace('_', '-')}" for name in unused)
            raise ConfigError(f"{options} cannot be used with {what}; leave it out")


@final
@dataclass(frozen=True, kw_only=True)
class GradientEcho:
    """Parameters of the sequence, except for the order of its lines."""

    n_rows: Annotated[int, Between(2, 4096)]
    """Samples per readout. (default: number of columns)"""
    readout_mm: Annotated[float, Between(1, 1000)]
    """Field of view along the readout. (default: --fov-mm)"""
    slice_mm: Annotated[float, Between(0.1, 500)] = 5.0
    """Slice thickness."""
    flip_deg: Annotated[float, Between(0.1, 180)] = 15.0
    """Flip angle."""
    echo_ms: Annotated[float, Between(0.1, 1000), MultipleOf(0.01)] = 8.0
    """Echo time, from the middle of the pulse to the center of k-space."""
    repetition_ms: Annotated[float, Between(1, 30_000), MultipleOf(0.01)] = 20.0
    """Repetition time."""
    dwell_us: Annotated[float, Between(10, 1000), MultipleOf(10)] = 20.0
    """Dwell time of a sample, a multiple of 10."""
    field_t: Annotated[float, Between(0.01, 25)] = 3.0
    """Field strength for the header."""

    def __post_init__(self) -> None:
        check(self)


@final
@dataclass(frozen=True, kw_only=True)
class ExportSetting:
    """Which reconstructions are exported, and in which format."""

    reconstructor: Annotated[str, Form(help=RECONSTRUCTION_WORDS)]
    policy: Annotated[str | None, Form(help=_POLICY)] = None
    format: ImageFormat
    """Format of the files."""
    split: str = "test"
    """Split to use: train, val or test."""
    n_initial: int | None = None
    """Central columns at the start. (default: as in training)"""
    steps: int | None = None
    """Columns to acquire. (default: as in training)"""
    seed: int | None = None
    """Seed of a policy that samples columns, as in training. (default: 0)"""
    argmax: bool = False
    """Trained policies acquire the columns with the highest scores."""
    batch_size: Annotated[int | None, AtLeast(1)] = None
    """Slices per batch."""
    device: str = "auto"
    """auto, cpu or cuda."""

    def __post_init__(self) -> None:
        check(self)
