"""A policy that keeps its features on a CPU scores and learns as it does without."""

import pytest
import torch
from torch import Tensor

from kscout.core import Observation
from kscout.kernels.registry import compiled_kernels
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_cpu import KeptConvPolicy
from kscout.training.convolution import can_compile

N_ROWS, N_COLS = 20, 28


@pytest.fixture
def policy() -> ConvPolicy:
    if not can_compile():
        pytest.skip("this machine has no C compiler that knows it")
    torch.manual_seed(5)
    size = {"n_rows": N_ROWS, "n_cols": N_COLS, "n_channels": 16, "n_blocks": 2}
    return ConvPolicy(**size, n_hidden=12)


@pytest.fixture
def image(generator: torch.Generator) -> Tensor:
    return torch.randn(5, N_ROWS, N_COLS, generator=generator)


def see(image: Tensor) -> Observation:
    return Observation(image=image, mask=torch.zeros(len(image), N_COLS, dtype=torch.bool), step=0)


def gradients(policy: ConvPolicy) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    return found


def test_images_of_two_steps_go_back_together(
    policy: ConvPolicy, image: Tensor, generator: torch.Generator
) -> None:
    view = KeptConvPolicy(policy)
    weights = torch.randn(5, N_COLS, generator=generator)
    view.keep(5, 2**28)
    with torch.no_grad():
        chosen = torch.cat([view(see(image[:2])), view(see(image[2:]))])
    for part in (slice(0, 4), slice(4, 5)):
        scores = view.recall(see(image[part]), part.start)
        torch.testing.assert_close(scores.detach(), chosen[part])
        (scores * weights[part]).sum().backward()
    found = gradients(policy)
    exact = policy.double()(see(image.double()))
    torch.testing.assert_close(chosen.double(), exact, atol=2e-5, rtol=0)
    (exact * weights).sum().backward()
    for name, expected in gradients(policy).items():
        # Biases before a norm have none but rounding's.
        scale = 1.0 if name.endswith("layers.0.bias") else expected.abs().max()
        assert (found[name] - expected).abs().max() <= 1e-4 * scale, name


def test_memory_is_what_was_said_and_stays(policy: ConvPolicy) -> None:
    view = KeptConvPolicy(policy)
    view.keep(6, 2**28)
    assert view.kept is not None
    tensors = [view.kept.flat, view.kept.hidden]
    for layer in view.kept.layers:
        tensors += [layer.convolved, layer.normalized.output]
    assert view.n_bytes_kept(6) == sum(x.numel() * x.element_size() for x in tensors)
    place = view.kept.flat.data_ptr()
    view.keep(4, 2**28)
    assert view.kept is not None and view.kept.flat.data_ptr() == place


def test_changed_weights_are_seen_after_the_next_keep(policy: ConvPolicy, image: Tensor) -> None:
    view = KeptConvPolicy(policy)
    view.keep(5, 2**28)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(0.75)
        view.keep(5, 2**28)
        torch.testing.assert_close(view(see(image)), policy(see(image)))


def test_without_kernels_it_is_the_policy_itself(policy: ConvPolicy, image: Tensor) -> None:
    view = KeptConvPolicy(policy)
    with compiled_kernels(enabled=False):
        view.keep(5, 2**28)
        assert view.kept is None
        assert torch.equal(view(see(image)), policy(see(image)))
