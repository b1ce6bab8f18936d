"""Settings of posterior samplers: the section `[training]`; nothing here needs torch."""

import math
from dataclasses import dataclass
from typing import Annotated, final

from kscout.config.bounds import Above, AtLeast, Between, OneOf
from kscout.config.policy import PolicyTraining
from kscout.config.variation import VariedSlices
from kscout.errors import ConfigError
from kscout.names import ESTIMATORS


@final
@dataclass(frozen=True)
class PosteriorTraining(PolicyTraining, VariedSlices):
    """How a policy learns to sample images that agree with the measurement."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "posterior"
    """Name of the estimator."""
    n_epochs: Annotated[int, AtLeast(1)] = 20
    """Passes over the training split."""
    batch_size: Annotated[int, AtLeast(1)] = 32
    """Slices per optimizer step, over all processes."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 1e-3
    """Adam's largest step size: it rises to it over `n_warm` steps, then falls to zero."""
    decay_epochs: tuple[int, ...] = ()
    """Epochs after which the step size is also multiplied by `decay_factor`."""
    n_warm: Annotated[int, AtLeast(0)] = 200
    """Optimizer steps over which the step size rises."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    clip: Annotated[float, Above(0)] = 1.0
    """Largest norm of the gradient of a batch."""
    starts: tuple[Annotated[int, AtLeast(1)], ...] = ()
    """Numbers of central columns to start from, sampled for each slice, with the same budget in
    total; none: those of `acquisition`."""
    follows: str = ""
    """A trained policy, as for `kscout.policies.load`: training masks have the columns that it
    selects, half of them with some random other columns. None: columns are sampled by their mean
    gains along a fixed order."""
    n_baseline_slices: Annotated[int, AtLeast(1)] = 256
    """Slices per step on which the fixed order is fitted."""
    n_validated: Annotated[int, AtLeast(1)] = 64
    """Slices that are validated, at most: many columns of each are tried on every sample."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.starts and self.follows:
            raise ConfigError(
                "training.follows measures from the start of the acquisition; leave out "
                "training.starts"
            )

    def n_bytes(self, n_slices: int, horizon: int, n_pixels: int) -> int:
        """Add one number for each column."""
        draws = 4 * n_slices * math.isqrt(n_pixels)
        return super().n_bytes(n_slices, horizon, n_pixels) + draws
