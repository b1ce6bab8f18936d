"""The backward kernels, run thread by thread on the CPU, agree with autograd."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from emulated import Emulated, emulate, nan
from torch import Tensor
from torch.nn import functional as F

from fused_policies import scores_from
from kscout.core import Measurement, Observation
from kscout.kernels.convolution_backward import FILE, LAYERS, THIN, backward_order
from kscout.layers import UNetNetwork
from kscout.policies.conv import ConvPolicy
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.reconstruction.unet import HalfPrecisionUNet, UNet
from kscout.reconstruction.unet_fused import FusedUNet

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


@pytest.mark.parametrize(("n_rows", "n_cols", "width"), [(8, 8, 8), (8, 96, 32), (12, 80, 80)])
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


def test_kernels_of_several_sizes_share_a_workspace_and_other_sizes_run_the_plain_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("kscout.kernels.convolution", "kscout.reconstruction.unet_fused"):
        monkeypatch.setattr(f"{module}.compile_kernel", Emulated)
    asked = []

    def kernels_of(network: UNetNetwork, *size: Any) -> FusedUNet | None:
        asked.append(size[:2])
        return None if size[1] == 24 else FusedUNet(network, *size)

    monkeypatch.setattr("kscout.reconstruction.unet.kernels_of", kernels_of)
    torch.manual_seed(3)
    unet = UNet(n_channels=16, n_pools=2, dropout=0.0).eval().requires_grad_(False)
    view = HalfPrecisionUNet(unet, n_rows=16, n_cols=24)
    assert view.precision == "fp32"
    # The third image is padding.
    n_images = torch.tensor(2, dtype=torch.int32)
    measured = {
        n: Measurement(torch.rand(3, 1, 16, n) + 0j, torch.ones(3, n).bool(), n_images)
        for n in (16, 24, 32)
    }
    images: dict[int, Tensor] = {}
    for n_cols in (24, 32, 16, 32):
        found, expected = (one.reconstruct(measured[n_cols]).image[:2] for one in (view, unet))
        assert torch.equal(found, expected) == (n_cols == 24)
        assert (found - expected).abs().max() < 0.02 * expected.std()
        # The size in between used the same memory.
        assert torch.equal(found, images.setdefault(n_cols, found))
    (block,) = view.workspace.blocks
    buffers = [x for fused in view.by_size.values() if fused for x in fused.buffers.values()]
    assert {x[0].values.untyped_storage().data_ptr() for x in buffers} == {
        block.untyped_storage().data_ptr()
    }
    view.refresh()
    assert asked == [(16, 24), (16, 32), (16, 16)]
    assert HalfPrecisionUNet(unet, n_rows=16, n_cols=32).precision == "fp16"


SIZE = 16


@pytest.fixture(params=[16, 8])
def policy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ConvPolicy:
    for module in ("kernels.convolution", "kernels.convolution_backward", "policies.conv_fused"):
        monkeypatch.setattr(f"kscout.{module}.compile_kernel", Emulated)
    few = SimpleNamespace(multi_processor_count=2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: few)
    multiply = torch.mm

    def mm(a: Tensor, b: Tensor, *, out_dtype: torch.dtype) -> Tensor:
        return multiply(a.to(out_dtype), b.to(out_dtype))

    monkeypatch.setattr(torch, "mm", mm)
    torch.manual_seed(0)
    made = ConvPolicy(n_cols=SIZE, n_channels=request.param, n_blocks=2, n_hidden=32)
    return made


def test_fused_policy_has_the_gradients_of_the_network(
    policy: ConvPolicy, generator: torch.Generator
) -> None:
    n_images = 3
    image = 2 * torch.randn(n_images, SIZE, SIZE, generator=generator)
    seen = Observation(image=image, mask=torch.zeros(n_images, SIZE, dtype=torch.bool))
    weight = 1e-4 * torch.randn(n_images, SIZE, generator=generator)
    fused: Any = HalfPrecisionConvPolicy(policy)
    fused.keep(n_images, 2**30)
    with torch.no_grad():
        expected = policy(seen)
        assert (fused(seen) - expected).abs().max() < 2e-2 * expected.std()
    outputs = [features.values.clone() for features in fused.kept.features]
    flat, weights = fused.kept.flat[:n_images], fused.packed_dense.T
    dense = torch.mm(flat, weights, out_dtype=torch.float32) + fused.dense.bias
    found = []
    for scores in (scores_from(policy, image, outputs, dense), fused(seen), fused.recall(seen, 0)):
        policy.zero_grad()
        (scores.log_softmax(-1) * weight).sum().backward()
        found.append({name: p.grad for name, p in policy.named_parameters() if p.grad is not None})
    slow, *fast = found
    for name, gradient in slow.items():
        for own in fast:
            if name.endswith("layers.0.bias"):
                assert not own[name].any()
            else:
                assert (own[name] - gradient).norm() < 5e-3 * gradient.norm(), name


def test_many_batch_sizes_share_few_buffers(
    policy: ConvPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kscout.reconstruction.unet_fused.compile_kernel", Emulated)
    unet: Any = FusedUNet(UNetNetwork(n_channels=16, n_pools=1, dropout=0.0), SIZE, SIZE)
    fused: Any = HalfPrecisionConvPolicy(policy)
    for n_images in range(1, 34):
        assert all(len(x.values) == n_images for x in unet._buffers(n_images))
        assert len(fused._room(n_images).flat) == n_images
    assert sum(len(x[0].values) for x in unet.buffers.values()) == 127
    assert sum(len(x.flat) for x in fused.rooms.values()) == 127
