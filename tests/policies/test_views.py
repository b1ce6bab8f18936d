"""Views of policies for inference: kept features, kernels and 16-bit numbers."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

from kscout.core import Observation, Policy
from kscout.kernels.registry import compiled_kernels
from kscout.policies import POLICIES
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_cpu import KeptConvPolicy
from kscout.policies.views import MixedPrecision, Recomputed, View, view_of
from kscout.training.convolution import can_compile

CPU = torch.device("cpu")


def view(policy: Policy, precision: str = "auto") -> View:
    return view_of(policy, device=CPU, precision=precision, compiles=False)


@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_kernels_cache_the_features_of_networks_that_they_support(precision: str) -> None:
    if not can_compile():
        pytest.skip("this machine has no C compiler that knows it")
    small = ConvPolicy(n_cols=16, n_channels=16, n_blocks=1)
    assert isinstance(view(small, precision), KeptConvPolicy)


def test_other_networks_are_looked_at_again() -> None:
    assert type(view(ConvPolicy(n_cols=16, n_channels=24, n_blocks=1))) is Recomputed
    assert type(view(POLICIES["center-out"](n_cols=16))) is Recomputed
    with compiled_kernels(enabled=False):
        assert type(view(ConvPolicy(n_cols=16, n_channels=16, n_blocks=1))) is Recomputed


class Attentive(Policy):
    """Scores by everything that an observation holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        step = torch.as_tensor(seen.step).expand(len(seen.image))[:, None]
        return self.weight * (seen.image.sum(dim=1) + 10 * step - seen.mask.float())


# Without a GPU torch says that it goes on in 32 bit, which suits this test.
@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
@pytest.mark.parametrize("step", [3, torch.tensor([3, 0])])
def test_scores_and_gradients_come_from_image_mask_and_step(
    step: int | Tensor, generator: torch.Generator
) -> None:
    image = torch.rand(2, 5, 7, generator=generator)
    mask = torch.rand(2, 7, generator=generator) < 0.5
    seen = Observation(image=image, mask=mask, step=step)
    policy = Attentive()
    expected = policy(seen)
    found = MixedPrecision(policy, compiles=False)(seen)
    assert torch.equal(found, expected)
    found.sum().backward()
    assert policy.weight.grad == pytest.approx(float(expected.detach().sum()), rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_the_first_two_sizes_with_gradients_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def watched(score: Callable[..., Tensor], **_: object) -> Callable[..., Tensor]:
        def run(image: Tensor, *rest: Tensor) -> Tensor:
            sizes.append(len(image))
            return score(image, *rest)

        return run

    monkeypatch.setattr(torch, "compile", watched)
    view = MixedPrecision(Attentive(), compiles=True)
    for n_states, has_gradients in ((5, False), (4, True), (2, True), (3, True), (4, True)):
        mask = torch.zeros(n_states, 7, dtype=torch.bool)
        with torch.set_grad_enabled(has_gradients):
            view(Observation(image=torch.ones(n_states, 5, 7), mask=mask))
    assert sizes == [4, 2, 4]
