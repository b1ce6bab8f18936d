"""The plan of acquisitions: where they start and end, how they are scored, and random seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from jaxtyping import Bool
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.columns import center_columns, check_named
from kscout.config import JointConfig, PolicyConfig
from kscout.core import Protocol, Reconstructor, SliceBatch
from kscout.errors import ConfigError
from kscout.names import check_protocol
from kscout.physics.sampling import Initial, start_mask


@final
@dataclass(frozen=True)
class Plan:
    """Start, number of columns, scores and random seed of acquisitions."""

    start: Initial
    """Number of central columns measured at the start, or a list of columns."""
    horizon: int
    """Columns to acquire after the start."""
    columns_per_step: int = 1
    """Columns selected before each reconstruction; the last step may have fewer."""
    n_trajectories: int = 1
    """Acquisitions per slice of a policy that samples columns."""
    seed: int = 0
    """Random seed for sampling; compared policies use the same one."""
    is_argmax: bool = False
    """Acquire the column with the highest score instead of sampling: one acquisition per slice."""
    protocol: Protocol | None = None
    """How images are un-normalized before they are scored; None: as the reconstruction was trained,
    else `blind`."""
    metric: str = "ssim"
    """Metric of the scores: a name of `kscout.names.METRICS`, or `module:function`."""
    batch_size: int | None = None
    """Slices per batch; results do not depend on it. (default: chosen for the device)"""

    def __post_init__(self) -> None:
        if self.columns_per_step < 1:
            raise ConfigError(
                f"cannot acquire {self.columns_per_step} columns per step; give 1 or more, e.g. 2"
            )
        for name in ("n_trajectories", "batch_size"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ConfigError(f"{name} is {count}; it must be 1 or more")
        if self.protocol is not None:
            check_protocol(self.protocol)

    @property
    def n_initial(self) -> int:
        """Number of columns measured at the start."""
        if isinstance(self.start, int):
            return self.start
        return len(self.start)

    @property
    def listed(self) -> Sequence[int] | None:
        """Columns of the start if they are listed; None if they are central."""
        return None if isinstance(self.start, int) else self.start

    def check(self, selectable: Bool[Tensor, "slice col"]) -> None:
        """Raise an error if a slice lacks columns of the start or columns to acquire."""
        check_budget(selectable, n_initial=self.start, horizon=self.horizon)

    def simulator(self, batch: SliceBatch, reconstructor: Reconstructor) -> Simulator:
        """Return the simulator of a batch of slices, which scores by protocol and metric."""
        return Simulator(batch, reconstructor, protocol=self.protocol, metric=self.metric)


def training_plan(config: PolicyConfig | JointConfig) -> Plan:
    """Return the plan of a training, whose random numbers have seeds of their own."""
    setting, training = config.acquisition, config.training
    return Plan(setting.start, setting.horizon, protocol=training.protocol, metric=training.metric)


def check_budget(
    selectable: Bool[Tensor, "slice n_col"], *, n_initial: Initial, horizon: int
) -> None:
    """Raise a ConfigError if a slice lacks columns of the start or columns to acquire."""
    n_slices, n_cols = selectable.shape
    if horizon < 0:
        raise ConfigError(f"cannot acquire {horizon} columns; set the number of steps to 0 or more")
    start = _checked_start(selectable, n_initial)
    left = (selectable & ~start).sum(dim=-1)
    n_short = int((left < horizon).sum())
    if not n_short:
        return
    at = int(left.argmin())
    n_start, n_left = int(start[at].sum()), int(left[at])
    raise ConfigError(
        f"no column left to acquire in {n_short} of {n_slices} slices: {n_start} + {horizon} "
        f"columns were asked of {n_cols}, of which {n_left + n_start} can be measured; lower the "
        f"number of steps to {n_left} or less"
    )


def _checked_start(
    selectable: Bool[Tensor, "slice n_col"], initial: Initial
) -> Bool[Tensor, "slice n_col"]:
    n_cols = selectable.shape[1]
    if isinstance(initial, int):
        if not 0 < initial <= n_cols:
            raise ConfigError(
                f"cannot start from {initial} of {n_cols} columns; set n_initial to 1..{n_cols}"
            )
        start = start_mask(initial, selectable.shape, selectable.device)
        _check_center(selectable, start, initial)
        return start
    check_columns(initial, n_cols)
    start = start_mask(initial, selectable.shape, selectable.device)
    outside = (start & ~selectable).nonzero()
    if len(outside):
        row, column = outside[0].tolist()
        raise ConfigError(
            f"column {column} of the start lies outside the matrix of slice {row}, whose columns "
            "there are empty; leave it out"
        )
    return start


def _check_center(
    selectable: Bool[Tensor, "slice n_col"], start: Bool[Tensor, "slice n_col"], n_initial: int
) -> None:
    """Raise an error if a slice with a narrower or off-center matrix lacks a central column."""
    n_slices, n_cols = selectable.shape
    n_lacking = int((start & ~selectable).any(dim=-1).sum())
    if not n_lacking:
        return
    everywhere = selectable.all(dim=0).tolist()
    fitting = (n for n in range(n_cols) if all(everywhere[x] for x in center_columns(n_cols, n)))
    n_most = max(fitting)
    advice = f"start from {n_most} or fewer" if n_most else "name columns that it has"
    raise ConfigError(
        f"the {n_initial} central columns of the start reach outside the matrix of {n_lacking} of "
        f"{n_slices} slices, whose columns there are empty; {advice}"
    )


def check_columns(columns: Sequence[int], n_cols: int) -> None:
    """Raise an error if a list has duplicate columns or columns outside images of this width."""
    if not columns:
        raise ConfigError("the start names no column; measure 1 or more at the start")
    check_named(columns, n_cols, "start")
