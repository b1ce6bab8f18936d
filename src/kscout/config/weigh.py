"""Settings of weighed policies: the section `[training]`; nothing here needs torch."""

from dataclasses import dataclass
from typing import Annotated, Literal, final

from kscout.config.bounds import AtLeast, OneOf
from kscout.config.policy import PolicyTraining
from kscout.names import ESTIMATORS


@final
@dataclass(frozen=True)
class WeighTraining(PolicyTraining):
    """How weights of several policies are found."""

    method: Annotated[str, OneOf("estimator", ESTIMATORS)] = "weigh"
    """Name of the estimator."""
    n_epochs: Annotated[int, AtLeast(1)] = 1
    """How often weights are found anew, each time on other slices."""
    decay_epochs: tuple[int, ...] = ()
    """Without effect: nothing is learned step by step."""
    keep_epochs: tuple[int, ...] = ()
    """Epochs whose weights are kept beside the last and the best."""
    split: Literal["train", "val"] = "train"
    """Slices that weights are found on. Members know those that they have learned from better than
    any others, so that what they expect there tells too much: then `val`, of which validation
    scores are no longer apart."""
    n_slices: Annotated[int, AtLeast(1)] = 96
    """Slices that are acquired, at most."""
    n_best: Annotated[int, AtLeast(1)] = 8
    """Columns tried at each step for each member: those that it scores highest."""
    ordered: tuple[Annotated[int, AtLeast(0)], ...] = ()
    """In how many of the first steps all slices take the columns of a fixed order; of several
    numbers the one is kept after which the slices end best. None: in no step."""
    n_prior_slices: Annotated[int, AtLeast(1)] = 256
    """Slices per step on which that order is fitted."""
    n_validated: Annotated[int, AtLeast(1)] = 64
    """Slices that are validated, at most: members may try many columns of each."""

    @property
    def learns_from(self) -> Literal["train", "val"]:
        return self.split

    @property
    def n_tried(self) -> int:
        return self.n_best
