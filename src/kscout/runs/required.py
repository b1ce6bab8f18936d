"""What tables and figures take from the files of a run, and how they are checked for it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, final

from kscout.config import read, read_file
from kscout.config.bounds import REST
from kscout.errors import ConfigError, RunError


@final
@dataclass(frozen=True)
class _Training:
    seed: int
    method: str | None = None
    protocol: str | None = None
    n_trajectories: int | None = None
    gamma: float | None = None
    others: Annotated[dict[str, Any], REST] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class _Acquisition:
    n_initial: int
    horizon: int
    others: Annotated[dict[str, Any], REST] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Settings:
    """What tables and figures take from the settings of a run, of any estimator."""

    kind: Literal["reconstructor", "policy", "joint"]
    training: _Training
    acquisition: _Acquisition | None = None
    others: Annotated[dict[str, Any], REST] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class Done:
    """What a run says of itself when it is finished."""

    best_epoch: int
    """Best in the training's metric."""
    best_val_ssim: float
    """SSIM of that epoch, whatever it is best in."""
    metric: str
    """What it is best in, whose value follows as `best_val_...`."""
    others: Annotated[dict[str, Any], REST] = field(default_factory=dict)


def check_settings(table: dict[str, Any], file: Path) -> None:
    """Refuse settings of a run in which something is amiss that tables and figures need."""
    _check(Settings, table, file)


def read_checked(kind: type[Settings | Done], file: Path) -> dict[str, Any]:
    """Return a file as plain tables in which everything is there that others ask for."""
    table = read_file(file, error=RunError)
    _check(kind, table, file)
    return table


def _check(kind: type[Settings | Done], table: dict[str, Any], file: Path) -> None:
    try:
        read(kind, table)
    except ConfigError as error:
        raise RunError(f"{file} is damaged ({error}); restore it") from error
