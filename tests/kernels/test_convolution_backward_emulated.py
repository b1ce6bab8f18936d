"""The backward kernels, run thread by thread on the CPU, agree with autograd."""

import pytest
import torch
from emulated import emulate, nan
from torch import Tensor
from torch.nn import functional as F

from kscout.kernels.convolution_backward import FILE, LAYERS, THIN, backward_order

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("compiler")]

N_IMAGES = 2


def channels_last(values: Tensor) -> Tensor:
    return values.permute(0, 2, 3, 1).contiguous()


def norms_of(values: Tensor) -> Tensor:
    """Scale and shift: [image, channel, 2] of values [image, channel, row, col]."""
    variance, mean = torch.var_mean(values.float(), dim=(2, 3), correction=0)
    scale = (variance + 1e-5).rsqrt()
    return torch.stack([scale, -mean * scale], dim=-1).contiguous()


def coarse(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Few different values, so that windows hold equal ones."""
    return (torch.randn(shape, generator=generator) * 2).round().half().div(2).add(0.25)


def sums_of(values: Tensor, gradient: Tensor) -> Tensor:
    """Of a gradient that passes ReLU, and of it times the normalized values."""
    normalized = F.instance_norm(values.float())
    passed = gradient.float() * (normalized > 0)
    both = [passed.sum(dim=(2, 3)), (passed * normalized).sum(dim=(2, 3))]
    return torch.stack(both, dim=-1)[:, None].contiguous()


def factors_of(values: Tensor, gradient: Tensor, largest: Tensor | None = None) -> Tensor:
    """What the kernels make of a gradient's sums, given as two parts."""
    n_channels, n_pixels = values.shape[1], values[0, 0].numel()
    norms, read = norms_of(values), values if largest is None else largest
    sums = nan(N_IMAGES, 2, n_channels, 2)
    arguments = [channels_last(read), norms, channels_last(gradient), sums]
    emulate(FILE, "gradient_sums", (*read.shape[2:], n_channels), (2, N_IMAGES, 1), 256, arguments)
    factors = nan(N_IMAGES, n_channels, 4)
    finish: list[Tensor | int] = [sums, 2, n_pixels, norms, factors]
    emulate(FILE, "finish_sums", (n_channels,), (N_IMAGES, 1, 1), 256, finish)
    return factors


def packed_backward(weight: Tensor) -> Tensor:
    flat = torch.cat([torch.zeros(1), weight.reshape(-1)])
    return flat[backward_order(*weight.shape[:2])].half().contiguous()


def weight_gradients(
    values: Tensor, gradient: Tensor, source: Tensor, *, n_workers: int, own_out: int
) -> tuple[Tensor, Tensor]:
    """Run the kernel on a convolution's output and input and the gradient by its pooled output."""
    n_out, (n_in, n_rows, n_cols) = values.shape[1], source.shape[1:]
    found = nan(n_workers, 9, n_out, n_in)
    derivative = nan(N_IMAGES, n_rows, n_cols, n_out, dtype=torch.half)
    factors = factors_of(values, gradient, F.max_pool2d(values.float(), 2).half())
    given = [channels_last(values), factors, channels_last(gradient)]
    given += [channels_last(source), norms_of(source), derivative, found]
    own_in = 2048 // own_out
    arguments = (n_rows, n_cols, n_in, n_out, 8, min(n_cols, 16), own_out, own_in)
    grid = (n_workers, n_out // own_out, n_in // own_in)
    emulate(LAYERS, "weight_gradients", arguments, grid, 512, [*given, N_IMAGES])
    return found.sum(0), derivative


@pytest.mark.parametrize(("n_rows", "n_cols", "own_out"), [(8, 32, 64), (16, 8, 32)])
def test_gradient_goes_back_through_pooling_relu_and_norm_to_weights(
    n_rows: int, n_cols: int, own_out: int, generator: torch.Generator
) -> None:
    n_in, n_out = 64, 128
    source = torch.randn(N_IMAGES, n_in, n_rows, n_cols, generator=generator).half()
    values = coarse((N_IMAGES, n_out, n_rows, n_cols), generator)
    leaf = values.float().requires_grad_()
    after = F.max_pool2d(F.instance_norm(leaf).relu(), 2)
    gradient = torch.randn(after.shape, generator=generator).half()
    after.backward(gradient.float())
    read = F.instance_norm(source.float()).relu()
    weight = torch.zeros(n_out, n_in, 3, 3, requires_grad=True)
    F.conv2d(read, weight, padding=1).backward(leaf.grad)

    found, derivative = weight_gradients(values, gradient, source, n_workers=3, own_out=own_out)
    assert leaf.grad is not None and weight.grad is not None
    torch.testing.assert_close(derivative.float(), channels_last(leaf.grad), atol=2e-3, rtol=2e-3)
    expected = weight.grad.permute(2, 3, 0, 1).reshape(9, n_out, n_in)
    assert (found - expected).norm() < 1e-3 * expected.norm()


def test_gradients_beyond_16_bit_are_bounded(generator: torch.Generator) -> None:
    source = torch.randn(N_IMAGES, 32, 8, 8, generator=generator).half()
    values = torch.randn(N_IMAGES, 64, 8, 8, generator=generator).mul(1e-3).half()
    gradient = 6e4 * torch.randn(N_IMAGES, 64, 4, 4, generator=generator).sign().half()
    found, derivative = weight_gradients(values, gradient, source, n_workers=1, own_out=64)
    assert found.isfinite().all() and derivative.isfinite().all()
    assert derivative.max() == 65504 and derivative.min() == -65504


def test_first_weight_gradients_are_those_of_convolution_norm_and_relu(
    generator: torch.Generator,
) -> None:
    size, n_out, n_workers = 16, 32, 3
    images = torch.randn(N_IMAGES, size, size, generator=generator)
    weight = torch.zeros(n_out, 1, 3, 3, requires_grad=True)
    values = torch.randn(N_IMAGES, n_out, size, size, generator=generator).half()
    after = F.instance_norm(values.float() + F.conv2d(images[:, None], weight, padding=1)).relu()
    gradient = torch.randn(after.shape, generator=generator).half()
    after.backward(gradient.float())

    found = nan(n_workers, n_out, 16)
    given = [images, channels_last(values), factors_of(values, gradient), channels_last(gradient)]
    arguments = (size, size, n_out, 8, 16)
    grid = (n_workers, 1, 1)
    emulate(FILE, "first_weight_gradients", arguments, grid, 256, [*given, found, N_IMAGES])
    assert weight.grad is not None
    expected = weight.grad.reshape(n_out, 9)
    assert (found.sum(0)[:, :9] - expected).norm() < 1e-3 * expected.norm()


@pytest.mark.parametrize(
    ("tile", "n_in", "warps_n"), [((16, 16), 64, 2), ((8, 16), 32, 1), ((8, 8), 32, 1)]
)
def test_derivative_goes_back_through_the_convolution(
    tile: tuple[int, int], n_in: int, warps_n: int, generator: torch.Generator
) -> None:
    n_out, n_rows, n_cols = 64, 16, 2 * tile[1]
    warps_m = tile[0] * tile[1] // 64
    n_parts = n_rows * n_cols // 64
    derivative = torch.randn(N_IMAGES, n_out, n_rows, n_cols, generator=generator).half()
    values = torch.randn(N_IMAGES, n_in, n_rows, n_cols, generator=generator).half()
    weight = (torch.randn(n_out, n_in, 3, 3, generator=generator) / 30).half().float()
    found, sums = (
        nan(*channels_last(values).shape, dtype=torch.half),
        nan(N_IMAGES, n_parts, n_in, 2),
    )
    arguments = (n_rows, n_cols, n_out, n_in, *tile, warps_m, warps_n)
    given = [channels_last(derivative), packed_backward(weight)]
    given += [channels_last(values), norms_of(values), found, sums]
    grid, n_threads = (2, n_in // (32 * warps_n), 1), 32 * warps_m * warps_n
    emulate(LAYERS, "convolve_plain", arguments, grid, n_threads, [*given, N_IMAGES])
    expected = F.conv_transpose2d(derivative.float(), weight, padding=1)
    torch.testing.assert_close(found.float(), channels_last(expected), atol=2e-3, rtol=2e-3)
    total = sums.sum(dim=1, keepdim=True)
    torch.testing.assert_close(total, sums_of(values, expected), atol=0.01, rtol=0.01)


@pytest.mark.parametrize(
    ("n_rows", "n_cols", "width"), [(16, 32, 32), (8, 8, 8), (8, 96, 32), (12, 80, 80)]
)
def test_thin_layer_goes_back_at_once(
    n_rows: int, n_cols: int, width: int, generator: torch.Generator
) -> None:
    n_in, n_out, n_blocks = 16, 32, 3
    source = torch.randn(N_IMAGES, n_in, n_rows, n_cols, generator=generator).half()
    values = coarse((N_IMAGES, n_out, n_rows, n_cols), generator)
    weight = (torch.randn(n_out, n_in, 3, 3, generator=generator) / 30).half().float()
    weight.requires_grad_()
    read = F.instance_norm(source.float()).relu().requires_grad_()
    leaf = values.float().requires_grad_()
    after = F.max_pool2d(F.instance_norm(leaf).relu(), 2)
    gradient = torch.randn(after.shape, generator=generator).half()
    after.backward(gradient.float())
    F.conv2d(read, weight, padding=1).backward(leaf.grad)

    n_parts = (n_rows // 4 + 1) * max(n_cols // 16, 1)
    back = nan(N_IMAGES, n_rows, n_cols, n_in, dtype=torch.half)
    sums, found = nan(N_IMAGES, n_parts, n_in, 2), nan(2 * n_blocks, 9, n_out, n_in)
    factors = factors_of(values, gradient, F.max_pool2d(values.float(), 2).half())
    given = [channels_last(values), channels_last(gradient), factors]
    given += [packed_backward(weight.detach()), channels_last(source), norms_of(source)]
    arguments, grid = (n_rows, n_cols, width), (n_blocks, 1, 1)
    given += [back, sums, found]
    emulate(THIN, "differentiate_thin", arguments, grid, 512, [*given, N_IMAGES])
    assert weight.grad is not None and read.grad is not None
    expected = weight.grad.permute(2, 3, 0, 1).reshape(9, n_out, n_in)
    assert (found.sum(0) - expected).norm() < 1e-3 * expected.norm()
    torch.testing.assert_close(back.float(), channels_last(read.grad), atol=3e-3, rtol=2e-3)
    total = sums.sum(dim=1, keepdim=True)
    torch.testing.assert_close(total, sums_of(source, read.grad), atol=0.01, rtol=0.01)


def test_norms_come_from_the_sums_of_tiles(generator: torch.Generator) -> None:
    values = torch.randn(N_IMAGES, 16, 6, 10, generator=generator)
    tiles = values.unflatten(2, (3, 2)).permute(0, 2, 1, 3, 4).flatten(3)
    sums = torch.stack([tiles.sum(-1), tiles.square().sum(-1)], dim=-1).contiguous()
    found = nan(N_IMAGES, 16, 2)
    emulate(FILE, "finish_norms", (16,), (N_IMAGES, 1, 1), 16, [sums, 3, 60, found])
    torch.testing.assert_close(found, norms_of(values), atol=1e-5, rtol=1e-5)


def test_what_workers_found_is_added_by_weight(generator: torch.Generator) -> None:
    found, total = torch.randn(11, 9, 32, 16, generator=generator), nan(32, 16, 3, 3)
    emulate(FILE, "add_workers", (32, 16), (36, 1, 1), 256, [found, 11, total])
    expected = found.sum(0).view(3, 3, 32, 16).permute(2, 3, 0, 1)
    torch.testing.assert_close(total, expected, atol=1e-5, rtol=1e-5)
