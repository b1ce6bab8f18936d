"""The policy's convolutions on a CPU are those of its modules, gradients included."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_cpu import InstanceNormLast, convolve_on_cpu
from kscout.training.convolution import can_compile


def test_instance_norm_is_torchs_in_double_precision(generator: torch.Generator) -> None:
    features = torch.randn(3, 5, 7, 4, generator=generator, dtype=torch.float64) + 2
    features = features.contiguous(memory_format=torch.channels_last).requires_grad_()
    torch.testing.assert_close(InstanceNormLast.apply(features), F.instance_norm(features))
    assert torch.autograd.gradcheck(InstanceNormLast.apply, (features,))


@pytest.mark.parametrize(("n_rows", "n_cols"), [(16, 16), (40, 24), (37, 29)])
def test_features_and_gradients_are_those_of_the_modules(
    n_rows: int, n_cols: int, generator: torch.Generator
) -> None:
    torch.manual_seed(3)
    policy = ConvPolicy(n_cols=n_cols, n_rows=n_rows, n_channels=3, n_blocks=2, n_hidden=4).double()
    blocks = [policy.channel_layer, *policy.down_sample_layers]
    # Flat parts, as outside a body, where many maxima are equal.
    image = torch.randn(2, n_rows, n_cols, generator=generator, dtype=torch.float64)
    image[:, :, n_cols // 2 :] = 0
    expected = nn.Sequential(*blocks)(image[:, None])
    found = convolve_on_cpu(image, [block.get_submodule("layers.0") for block in blocks])
    torch.testing.assert_close(found, expected)
    weights = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    parameters = [p for block in blocks for name, p in block.named_parameters() if "weight" in name]
    gradients = [torch.autograd.grad((x * weights).sum(), parameters) for x in (found, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize(("n_rows", "n_cols", "n_channels"), [(16, 16, 16), (37, 29, 32)])
def test_compiled_features_and_gradients_are_those_of_the_modules(
    n_rows: int, n_cols: int, n_channels: int, generator: torch.Generator
) -> None:
    if not can_compile():
        pytest.skip("this machine has no C compiler that knows it")
    torch.manual_seed(3)
    size = {"n_cols": n_cols, "n_rows": n_rows, "n_channels": n_channels, "n_blocks": 2}
    policy = ConvPolicy(**size, n_hidden=4)
    blocks = [policy.channel_layer, *policy.down_sample_layers]
    image = torch.randn(3, n_rows, n_cols, generator=generator)
    found = convolve_on_cpu(image, [block.get_submodule("layers.0") for block in blocks])
    weights = torch.randn(found.shape, generator=generator)
    (found * weights).sum().backward()
    gradients = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    policy.zero_grad()
    policy.double()
    expected = nn.Sequential(*blocks)(image[:, None].double())
    torch.testing.assert_close(found.double(), expected, atol=5e-5, rtol=0)
    (expected * weights).sum().backward()
    assert len(gradients) == 2 * len(blocks)
    for name, gradient in gradients.items():
        exact = policy.get_parameter(name).grad
        assert exact is not None
        # Biases before a norm have none but rounding's.
        scale = exact.abs().max() if "weight" in name else 1.0
        assert (gradient - exact).abs().max() <= 1e-4 * scale, name
