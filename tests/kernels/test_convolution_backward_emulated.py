"""The backward kernels, run thread by thread on the CPU, agree with autograd."""

import pytest
import torch
from emulated import HAS_COMPILER, emulate, nan
from torch import Tensor
from torch.nn import functional as F

from kscout.kernels.convolution_backward import FILE, backward_order

pytestmark = pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")

N_IMAGES = 2


def channels_last(values: Tensor) -> Tensor:
    return values.permute(0, 2, 3, 1).contiguous()


def norms_of(values: Tensor) -> Tensor:
    """Scale and shift: [image, channel, 2] of values [image, channel, row, col]."""
    variance, mean = torch.var_mean(values.float(), dim=(2, 3), correction=0)
    scale = (variance + 1e-5).rsqrt()
    return torch.stack([scale, -mean * scale], dim=-1).contiguous()


@pytest.mark.parametrize("pools", [False, True])
def test_gradient_goes_back_through_pooling_relu_and_norm(
    pools: bool, generator: torch.Generator
) -> None:
    n_rows, n_cols, n_channels, n_parts = 16, 8, 16, 2
    values = torch.randn(N_IMAGES, n_channels, n_rows, n_cols, generator=generator)
    # Few different values, so that windows hold equal ones.
    values = (values * 2).round().half().div(2).add(0.25)
    leaf = values.float().requires_grad_()
    after = F.instance_norm(leaf).relu()
    after = F.max_pool2d(after, 2) if pools else after
    gradient = torch.randn(after.shape, generator=generator).half()
    after.backward(gradient.float())

    laid, norms, given = channels_last(values), norms_of(values), channels_last(gradient)
    sums = nan(N_IMAGES, n_parts, n_channels, 2)
    found = nan(N_IMAGES, n_rows, n_cols, n_channels, dtype=torch.half)
    sizes, grid = (n_rows, n_cols, n_channels, int(pools)), (n_parts, N_IMAGES, 1)
    largest = channels_last(F.max_pool2d(values.float(), 2).half() if pools else values)
    arguments = [largest, norms, given, sums]
    emulate(FILE, "gradient_sums", largest.shape[1:], grid, 256, arguments)
    emulate(FILE, "through_norm", sizes, grid, 256, [laid, norms, given, sums, n_parts, found])
    assert leaf.grad is not None
    torch.testing.assert_close(found.float(), channels_last(leaf.grad), atol=2e-3, rtol=2e-3)


def test_weight_gradients_are_those_of_a_convolution(generator: torch.Generator) -> None:
    size, n_in, n_out, n_workers = 16, 32, 64, 3
    source = torch.randn(N_IMAGES, n_in, size, size, generator=generator).half()
    derivative = torch.randn(N_IMAGES, n_out, size, size, generator=generator).half()
    found = nan(n_workers, 9, n_out, n_in)
    arguments = (size, size, n_in, n_out, 8, 16, 32, 16)
    values = [channels_last(source), norms_of(source), channels_last(derivative), found]
    grid = (n_workers, 2, 2)
    emulate(FILE, "weight_gradients", arguments, grid, 288, [*values, N_IMAGES])

    read = F.instance_norm(source.float()).relu()
    weight = torch.zeros(n_out, n_in, 3, 3, requires_grad=True)
    F.conv2d(read, weight, padding=1).backward(derivative.float())
    assert weight.grad is not None
    expected = weight.grad.permute(2, 3, 0, 1).reshape(9, n_out, n_in)
    assert (found.sum(0) - expected).norm() < 1e-3 * expected.norm()


def test_first_weight_gradients_are_those_of_a_convolution(generator: torch.Generator) -> None:
    size, n_out, n_workers = 16, 32, 2
    images = torch.randn(N_IMAGES, size, size, generator=generator)
    derivative = torch.randn(N_IMAGES, n_out, size, size, generator=generator).half()
    found = nan(n_workers, n_out, 16)
    arguments = (size, size, n_out, 8, 16)
    values = [images, channels_last(derivative), found]
    grid = (n_workers, 1, 1)
    emulate(FILE, "first_weight_gradients", arguments, grid, 256, [*values, N_IMAGES])
    weight = torch.zeros(n_out, 1, 3, 3, requires_grad=True)
    F.conv2d(images[:, None], weight, padding=1).backward(derivative.float())
    assert weight.grad is not None
    expected = weight.grad.reshape(n_out, 9)
    assert (found.sum(0)[:, :9] - expected).norm() < 1e-3 * expected.norm()


def test_derivative_goes_back_through_the_convolution(generator: torch.Generator) -> None:
    size, n_in, n_out = 16, 16, 128
    derivative = torch.randn(N_IMAGES, n_out, size, size, generator=generator).half()
    weight = (torch.randn(n_out, n_in, 3, 3, generator=generator) / 30).half().float()
    flat = torch.cat([torch.zeros(1), weight.reshape(-1)])
    packed = flat[backward_order(n_out, n_in)].half().contiguous()
    found = nan(N_IMAGES, size, size, n_in, dtype=torch.half)
    arguments = (size, size, n_out, n_in, 8, 16, 4, 1, 1)
    values = [channels_last(derivative), packed, found]
    emulate(FILE, "convolve_plain", arguments, (2, N_IMAGES, 1), 128, values)
    expected = F.conv_transpose2d(derivative.float(), weight, padding=1)
    torch.testing.assert_close(found.float(), channels_last(expected), atol=2e-3, rtol=2e-3)


def test_norms_come_from_the_sums_of_tiles(generator: torch.Generator) -> None:
    values = torch.randn(N_IMAGES, 16, 6, 10, generator=generator)
    tiles = values.unflatten(2, (3, 2)).permute(0, 2, 1, 3, 4).flatten(3)
    sums = torch.stack([tiles.sum(-1), tiles.square().sum(-1)], dim=-1).contiguous()
    found = nan(N_IMAGES, 16, 2)
    emulate(FILE, "finish_norms", (16,), (N_IMAGES, 1, 1), 16, [sums, 3, 60, found])
    torch.testing.assert_close(found, norms_of(values), atol=1e-5, rtol=1e-5)
