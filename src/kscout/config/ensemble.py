"""Settings of ensembles: the section `[training]`; nothing here needs torch."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from kscout.config.bounds import AtLeast, OneOf
from kscout.config.policy import PolicyTraining
from kscout.names import ESTIMATORS


@final
@dataclass(frozen=True)
class EnsembleTraining(PolicyTraining):
    """How the weights of several policies are fitted."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "ensemble"
    """Name of the estimator."""
    n_epochs: Annotated[int, AtLeast(1)] = 1
    """How often weights are fitted, each time on other slices."""
    decay_epochs: tuple[int, ...] = ()
    """Without effect: nothing is learned step by step."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are stored in addition to the last and the best."""
    split: Literal["train", "val"] = "train"
    """Split whose slices weights are fitted on. If members were trained on the same slices, they
    predict gains better there than elsewhere: use `val` then. Validation scores are then no
    longer independent."""
    n_slices: Annotated[int, AtLeast(1)] = 96
    """Slices that are acquired, at most."""
    n_best: Annotated[int, AtLeast(1)] = 8
    """Columns tried at each step for each member: those with its highest scores."""
    ordered: tuple[Annotated[int, AtLeast(0)], ...] = ()
    """Number of first steps that acquire the columns of a fixed order, the same for all slices; of
    several numbers the one with the best final scores is selected. None: no step."""
    n_baseline_slices: Annotated[int, AtLeast(1)] = 256
    """Slices per step on which the fixed order is fitted."""
    n_validated: Annotated[int, AtLeast(1)] = 64
    """Slices that are validated, at most: members may try many columns of each."""

    @property
    def learns_from(self) -> Literal["train", "val"]:
        return self.split

    @property
    def n_tried(self) -> int:
        return self.n_best
