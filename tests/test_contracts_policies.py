"""The checker passes sound policies and names what a broken one breaks."""

import pytest
import torch
from torch import Tensor, nn

from kscout.contracts.policies import check_policy
from kscout.core import Observation, Policy
from kscout.errors import ConfigError, KScoutError
from kscout.policies.fixed import CenterOut


class OneScorePerImage(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=(1, 2))[:, None]


class WholeNumbers(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return torch.zeros(seen.mask.shape, dtype=torch.long)


class NotATensor(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return [0.0]  # type: ignore[return-value]


class MasksItself(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1).masked_fill(seen.mask, -torch.inf)


class RollsDice(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return torch.rand(seen.mask.shape)


class ChangesTheMask(Policy):
    def forward(self, seen: Observation) -> Tensor:
        scores = seen.image.mean(dim=1)
        seen.mask[:, 0] = True
        return scores


class LooksAround(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1) - seen.image.mean(dim=(0, 1))


class Peeks(Policy):
    def forward(self, seen: Observation) -> Tensor:
        if seen.truth is None:
            return seen.image.mean(dim=1)
        return seen.truth.kspace_error


class DependsOnTruth(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.truth.kspace_error  # type: ignore[union-attr]


class AsksForTooMuch(Policy):
    needs_candidate_scores = True

    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1)


@pytest.mark.parametrize(
    "broken, sentence",
    [
        (OneScorePerImage, r"shape \(3, 1\); return floating point of \(3, 11\)"),
        (WholeNumbers, "torch.int64"),
        (NotATensor, "returned a list"),
        (MasksItself, "not finite"),
        (RollsDice, "different scores the second time"),
        (ChangesTheMask, "in place"),
        (LooksAround, "other images of its batch"),
        (Peeks, "uses the ground truth; set needs_target = True"),
        (DependsOnTruth, "raised AttributeError"),
        (AsksForTooMuch, "candidate scores without needs_target"),
    ],
)
def test_a_broken_policy_is_told_what_it_breaks(broken: type[Policy], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{broken.__name__} breaks the contract: .*{sentence}"):
        check_policy(broken(), n_rows=9, n_cols=11)


class ByImage(Policy):
    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1) - seen.mask.float() * seen.step


class NormalizesBatches(Policy):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)

    def forward(self, seen: Observation) -> Tensor:
        return self.norm(seen.image[:, None]).mean(dim=(1, 2))


class Renamed(Policy):
    def __init__(self, n_hidden: int = 2) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, n_hidden)

    def forward(self, seen: Observation) -> Tensor:
        return seen.image.mean(dim=1)


@pytest.mark.parametrize(
    "broken, sentence",
    [
        (NormalizesBatches, "has a BatchNorm2d at 'norm'"),
        (Renamed, r"takes 'n_hidden' but the object does not store it; set self\.n_hidden"),
    ],
)
def test_what_training_rejects_is_rejected(broken: type[Policy], sentence: str) -> None:
    with pytest.raises(KScoutError, match=sentence):
        check_policy(broken(), n_rows=9, n_cols=11)


def test_a_sound_policy_passes_whatever_its_mode() -> None:
    check_policy(ByImage().train(), n_rows=9, n_cols=11)


def test_a_policy_for_another_width_is_refused_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match="for 8 columns was given images of 11"):
        check_policy(CenterOut(n_cols=8), n_rows=9, n_cols=11)


def test_images_too_narrow_to_check_with_are_refused() -> None:
    with pytest.raises(ConfigError, match="n_cols = 3"):
        check_policy(ByImage(), n_rows=9, n_cols=3)
