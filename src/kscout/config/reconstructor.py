"""Settings of reconstructors that learn: the section `[training]`; nothing here needs torch."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from kscout.config.bounds import Above, AtLeast, Between
from kscout.config.records import check
from kscout.errors import ConfigError
from kscout.names import Protocol

Precision = Literal["fp32", "bf16"]
Convolution = Literal["auto", "onednn", "onednn-last", "native", "native-last", "compiled"]


@final
@dataclass(frozen=True)
class ReconstructorTraining:
    """How a reconstructor learns from fully sampled slices under random masks."""

    n_epochs: Annotated[int, AtLeast(1)] = 50
    """Passes over the training split (paper: 50)."""
    batch_size: Annotated[int, AtLeast(1)] = 16
    """Slices per optimizer step, over all processes (paper: 16)."""
    learning_rate: Annotated[float, Above(0), Between(0, 1e3)] = 1e-3
    """Adam's step size (paper: 1e-3)."""
    n_warm: Annotated[int | None, AtLeast(0)] = None
    """Optimizer steps, at most a tenth of all, over which the step size rises to `learning_rate`;
    it then falls linearly to zero. Not given: it changes at `decay_epochs` alone (paper)."""
    decay_epochs: tuple[int, ...] = (40,)
    """Epochs after which the step size is multiplied by `decay_factor` (paper: 40)."""
    decay_factor: Annotated[float, Above(0), Between(0, 1)] = 0.1
    """Factor at each decay (paper: 0.1)."""
    accelerations: tuple[Annotated[float, AtLeast(1)], ...] = (4.0, 4.0, 4.0, 6.0, 6.0, 8.0)
    """All columns divided by measured columns, one sampled per slice (paper: 4, 4, 4, 6, 6, 8)."""
    center_fractions: tuple[Annotated[float, Between(0, 1)], ...] = (
        0.25,
        0.167,
        0.125,
        0.167,
        0.125,
        0.125,
    )
    """Fraction of columns at the center that are always measured, paired with `accelerations`."""
    flips: bool = False
    """Whether half of the slices are mirrored left to right (paper: no)."""
    sizes: tuple[Annotated[int, AtLeast(16)], ...] = ()
    """Columns of the images, batch by batch in turn, with rows in proportion: downsampled images of
    the same field of view. Validation SSIM is the mean over sizes. None: as stored (and in the
    paper)."""
    protocol: Protocol = "blind"
    """Statistics that normalize targets: those of the zero-filled image (blind) or of the target
    (paper). (default: blind; preset paper-unet: paper)"""
    precision: Precision = "fp32"
    """Arithmetic of the network (paper: fp32)."""
    convolution: Convolution = "auto"
    """Convolution backend and layout; `auto` is chosen by rule for the machine, and recorded."""
    patience: Annotated[int | None, AtLeast(1)] = None
    """Epochs without a better validation SSIM after which training ends, and the run's weights are
    those of the best epoch; not given: the last epoch comes (paper: so)."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    seed: int = 0
    """Random seed for initialization, order of slices and masks."""

    def __post_init__(self) -> None:
        check(self)
        if len(self.accelerations) != len(self.center_fractions) or not self.accelerations:
            raise ConfigError(
                f"{len(self.accelerations)} accelerations with {len(self.center_fractions)} "
                "center_fractions; they are sampled in pairs: give as many of each, at least one"
            )
