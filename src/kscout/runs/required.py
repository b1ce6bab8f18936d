"""The content of run files that tables and figures need, and its validation."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, final

from kscout.config import read, read_file
from kscout.config.bounds import REST
from kscout.errors import ConfigError, RunError
from kscout.json_types import JsonObject


@final
@dataclass(frozen=True)
class _Training:
    seed: int
    method: str | None = None
    protocol: str | None = None
    n_trajectories: int | None = None
    gamma: float | None = None
    others: Annotated[JsonObject, REST] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class _Acquisition:
    n_initial: int
    horizon: int
    others: Annotated[JsonObject, REST] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Settings:
    """Settings of a run that tables and figures need, for any estimator."""

    kind: Literal["reconstructor", "policy", "joint"]
    training: _Training
    acquisition: _Acquisition | None = None
    others: Annotated[JsonObject, REST] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Done:
    """Summary of a finished run."""

    best_epoch: int
    """Epoch with the best value of the training's metric."""
    best_val_ssim: float
    """SSIM of that epoch."""
    metric: str
    """Name of the metric, whose value is in `best_val_...`."""
    others: Annotated[JsonObject, REST] = field(default_factory=dict)


def read_checked(kind: type[Settings | Done], file: Path) -> JsonObject:
    """Return a file as plain tables with all required content."""
    table = read_file(file, error=RunError)
    check_content(kind, table, file)
    return table


def check_content(kind: type[Settings | Done], table: JsonObject, file: Path) -> None:
    """Raise an error for a table that lacks required content."""
    try:
        read(kind, table)
    except ConfigError as error:
        raise RunError(f"{file} is damaged ({error}); restore it") from error
