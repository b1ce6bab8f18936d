"""The checker passes sound policies and names what a broken one breaks."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kscout.contracts import check_policy, check_reconstructor
from kscout.core import Measurement, Observation, Policy, Reconstruction, Reconstructor
from kscout.errors import ConfigError, KScoutError
from kscout.physics.normalization import magnitude, normalize
from kscout.policies.fixed import CenterOut
from kscout.reconstruction import RECONSTRUCTORS


def policy_of(forward: Callable[[Observation], Any], **marks: bool) -> Policy:
    """Return a policy with these scores."""
    return type("Broken", (Policy,), {"forward": lambda _, seen: forward(seen), **marks})()


BROKEN_POLICIES: dict[str, tuple[Callable[[Observation], Any], str]] = {
    "one score per image": (
        lambda seen: seen.image.mean(dim=(1, 2))[:, None],
        r"shape \(3, 1\); return floating point of \(3, 11\)",
    ),
    "whole numbers": (lambda seen: seen.mask.long(), "torch.int64"),
    "no tensor": (lambda _: [0.0], "returned a list"),
    "excludes columns itself": (
        lambda seen: seen.image.mean(dim=1).masked_fill(seen.mask, -torch.inf),
        "not finite",
    ),
    "random": (lambda seen: torch.rand(seen.mask.shape), "different scores the second time"),
    "changes the mask": (
        lambda seen: seen.image.mean(dim=1) + seen.mask[:, :1].fill_(1),
        "in place",
    ),
    "depends on the batch": (
        lambda seen: seen.image.mean(dim=1) - seen.image.mean(dim=(0, 1)),
        "other images of its batch",
    ),
    "uses the ground truth": (
        lambda seen: seen.image.mean(dim=1) if seen.truth is None else seen.truth.kspace_error,
        "uses the ground truth; set needs_target = True",
    ),
    "needs the ground truth": (lambda seen: seen.truth.kspace_error, "raised AttributeError"),
}


@pytest.mark.parametrize("name", BROKEN_POLICIES)
def test_a_broken_policy_is_told_what_it_breaks(name: str) -> None:
    forward, sentence = BROKEN_POLICIES[name]
    with pytest.raises(ConfigError, match=f"^Broken breaks the contract: .*{sentence}"):
        check_policy(policy_of(forward), n_rows=9, n_cols=11)


def test_candidate_scores_need_the_target() -> None:
    asking = policy_of(lambda seen: seen.image.mean(dim=1), needs_candidate_scores=True)
    with pytest.raises(ConfigError, match="candidate scores without needs_target"):
        check_policy(asking, n_rows=9, n_cols=11)


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


SMALL = {
    "unet": {"n_channels": 2, "n_pools": 2},
    "fastmri-unet": {"n_channels": 2, "n_pools": 2},
    "sense-tv": {"n_iterations": 6},
    "varnet": {"n_cascades": 2, "n_channels": 2, "sensitivity_channels": 2},
}

WIDE = ("sense", "sense-tv", "zero-filled-weighted")
"""Sensitivities need eight central columns, which the checks start from at 64."""


@pytest.mark.parametrize("n_coils", [1, 3])
@pytest.mark.parametrize("name", RECONSTRUCTORS)
def test_registered_reconstructors_keep_the_contract(name: str, n_coils: int) -> None:
    torch.manual_seed(0)
    reconstructor = RECONSTRUCTORS[name](**SMALL.get(name, {}))
    n_cols = 65 if name in WIDE else 25
    check_reconstructor(reconstructor, n_rows=18, n_cols=n_cols, n_coils=n_coils)


def plain(zero_filled: Tensor) -> Reconstruction:
    return Reconstruction(*normalize(magnitude(zero_filled)))


Reconstruct = Callable[[Measurement], Any]


def reconstructor_of(reconstruct: Reconstruct, **changes: Any) -> Reconstructor:
    """Return a reconstructor that computes this."""
    methods = {"reconstruct": lambda _, measured: reconstruct(measured), **changes}
    return type("Broken", (Reconstructor,), methods)()


def changed(change: Callable[[Reconstruction], Reconstruction]) -> Reconstruct:
    return lambda measured: change(plain(measured.zero_filled))


def normalized_by_batch(measured: Measurement) -> Reconstruction:
    image = magnitude(measured.zero_filled)
    std, mean = torch.std_mean(image)
    n_batch = len(image)
    return Reconstruction((image - mean) / std, mean.expand(n_batch), std.expand(n_batch))


def in_place(measured: Measurement) -> Reconstruction:
    found = plain(measured.zero_filled)
    measured.mask.logical_not_()
    return found


def with_gradient(measured: Measurement) -> Reconstruction:
    image = magnitude(measured.zero_filled).requires_grad_()
    (slope,) = torch.autograd.grad(image.square().sum(), image)
    return Reconstruction(*normalize(image - 0.1 * slope))


BROKEN_RECONSTRUCTORS: dict[str, tuple[Reconstruct, str]] = {
    "size": (
        lambda measured: plain(measured.zero_filled[..., 1:]),
        r"image has shape \(3, 18, 24\), expected \(3, 18, 25\)",
    ),
    "precision": (
        lambda measured: plain(measured.zero_filled.to(torch.complex128)),
        "image is torch.float64, expected torch.float32",
    ),
    "not finite": (
        changed(lambda found: replace(found, image=found.image / (found.image > 0))),
        "image has values that are not finite",
    ),
    "random": (
        changed(lambda found: replace(found, image=found.image + torch.rand(found.image.shape))),
        "the same k-space gave two different images",
    ),
    "normalized by batch": (normalized_by_batch, "image 0 differs"),
    "in place": (in_place, "it wrote into its inputs"),
    "gradient": (with_gradient, "RuntimeError on k-space of 3x1x18x25 without gradients"),
    "no deviation": (
        changed(lambda found: replace(found, std=0 * found.std)),
        "std is not above zero",
    ),
    "tensor": (changed(lambda found: found.image), ""),
}


@pytest.mark.parametrize("name", BROKEN_RECONSTRUCTORS)
def test_a_broken_promise_is_named(name: str) -> None:
    reconstruct, sentence = BROKEN_RECONSTRUCTORS[name]
    with pytest.raises(ConfigError, match=f"^Broken breaks the contract: {sentence}"):
        check_reconstructor(reconstructor_of(reconstruct), n_rows=18, n_cols=25)


def test_memory_and_gradients_are_checked() -> None:
    free = reconstructor_of(changed(lambda found: found), n_bytes=lambda *_: 0)
    with pytest.raises(ConfigError, match="n_bytes is 0"):
        check_reconstructor(free, n_rows=18, n_cols=25)
    fixed = reconstructor_of(changed(lambda found: found))
    fixed.weight = torch.nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigError, match="the gradients of its loss are not finite"):
        check_reconstructor(fixed, n_rows=18, n_cols=25)


def test_a_reconstructor_that_peeks_is_caught() -> None:
    class Peeking(Reconstructor):
        """Gets around the masking of `forward` by replacing the call."""

        def reconstruct(self, measured: Measurement) -> Reconstruction:
            return plain(measured.zero_filled)

        def __call__(self, kspace: Tensor, mask: Tensor) -> Reconstruction:
            return self.reconstruct(Measurement(torch.fft.ifft2(kspace), mask))

    with pytest.raises(ConfigError, match="depends on columns that are not measured"):
        check_reconstructor(Peeking(), n_rows=18, n_cols=25)


def test_a_reconstructor_left_in_training_mode_is_put_in_evaluation_mode() -> None:
    unet = RECONSTRUCTORS["unet"](n_channels=4, n_pools=2, dropout=0.5)
    check_reconstructor(unet, n_rows=18, n_cols=25)
    assert not unet.training


def test_sizes_that_a_network_cannot_take_keep_its_own_sentence() -> None:
    with pytest.raises(ConfigError, match="too small for 4 poolings"):
        check_reconstructor(RECONSTRUCTORS["unet"](n_channels=2), n_rows=18, n_cols=25)
