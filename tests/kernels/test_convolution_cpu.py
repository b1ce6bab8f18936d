"""Compiled convolutions compute what torch computes in double precision, at any size."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from kscout.kernels import convolution_cpu as compiled
from kscout.kernels import native
from kscout.training.convolution import can_compile

N_IMAGES, N_IN, N_OUT = 3, 32, 48
SIZES = [(8, 12), (13, 9), (4, 4), (21, 34), (2, 3)]


pytestmark = pytest.mark.skipif(not can_compile(), reason="no C compiler that knows this machine")


def last(features: Tensor) -> Tensor:
    return features.permute(0, 2, 3, 1).contiguous()


def first(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert (found.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize(("n_rows", "n_cols"), SIZES)
def test_convolutions_and_their_gradients(
    n_rows: int, n_cols: int, generator: torch.Generator
) -> None:
    features = torch.randn(N_IMAGES, N_IN, n_rows, n_cols, generator=generator)
    weight = torch.randn(N_OUT, N_IN, 3, 3, generator=generator).double().requires_grad_()
    expected = F.conv2d(features.double(), weight, padding=1)
    transformed = compiled.transform_weights(weight.float())
    close(first(compiled.convolve(last(features), transformed)), expected.detach())
    gradient = torch.randn(expected.shape, generator=generator)
    (wanted,) = torch.autograd.grad(expected, weight, gradient.double())
    close(compiled.weight_gradient(last(features), last(gradient)), wanted)


@pytest.mark.parametrize(("n_rows", "n_cols"), SIZES)
def test_the_first_convolution_and_its_gradient(
    n_rows: int, n_cols: int, generator: torch.Generator
) -> None:
    image = torch.randn(N_IMAGES, n_rows, n_cols, generator=generator)
    weight = torch.randn(N_OUT, 1, 3, 3, generator=generator).double().requires_grad_()
    expected = F.conv2d(image[:, None].double(), weight, padding=1)
    close(first(compiled.convolve_first(image, weight.float())), expected.detach())
    gradient = torch.randn(expected.shape, generator=generator)
    (wanted,) = torch.autograd.grad(expected, weight, gradient.double())
    close(compiled.first_weight_gradient(image, last(gradient)), wanted)


@pytest.mark.parametrize("pools", [False, True])
@pytest.mark.parametrize(("n_rows", "n_cols"), SIZES)
def test_norm_with_pooling_and_its_gradient(
    pools: bool, n_rows: int, n_cols: int, generator: torch.Generator
) -> None:
    # Far from zero: sums of squares alone would lose the deviations.
    features = 40 + torch.randn(N_IMAGES, N_OUT, n_rows, n_cols, generator=generator)
    exact = features.double().requires_grad_()
    expected = F.instance_norm(exact).relu()
    expected = F.max_pool2d(expected, 2) if pools else expected
    found = compiled.normalize(last(features), pools=pools)
    close(first(found.output), expected.detach(), tolerance=1e-4)
    gradient = torch.randn(expected.shape, generator=generator)
    (wanted,) = torch.autograd.grad(expected, exact, gradient.double())
    pixels = last(features)
    arguments = (last(gradient), pixels, found)
    back = compiled.normalize_backward(*arguments, pools=pools)
    close(first(back), wanted, tolerance=1e-4)
    compiled.normalize_backward(*arguments, pools=pools, in_place=True)
    assert torch.equal(pixels, back)


def test_equal_pixels_share_no_gradient() -> None:
    pixels = torch.zeros(1, 4, 4, 16)
    pixels[:, :2] = 1.0
    found = compiled.normalize(pixels, pools=True)
    arguments = (torch.ones_like(found.output), pixels, found)
    gradient = compiled.normalize_backward(*arguments, pools=True)[0, :2]
    # The first of four equal pixels takes it all, as in torch.
    assert (gradient[0, 0] > gradient[0, 1]).all() and torch.equal(gradient[0, 1], gradient[1, 0])


@pytest.mark.usefixtures("threads")
def test_threads_change_no_bit(generator: torch.Generator) -> None:
    features = torch.randn(5, 11, 14, N_IN, generator=generator)
    gradient = torch.randn(5, 11, 14, N_OUT, generator=generator)
    weights = compiled.transform_weights(torch.randn(N_OUT, N_IN, 3, 3, generator=generator))
    results = []
    for n_threads in (1, 3):
        torch.set_num_threads(n_threads)
        results.append(
            (compiled.convolve(features, weights), compiled.weight_gradient(features, gradient))
        )
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("file", ["convolution_cpu.c", "ssim_cpu.c"])
@pytest.mark.parametrize("target", ["x86-64", "skylake-avx512"])
def test_sources_compile_for_narrower_and_wider_vectors(
    file: str, target: str, tmp_path: Path
) -> None:
    compiler = shutil.which("gcc")
    if compiler is None or platform.machine() != "x86_64":
        pytest.skip("names of CPUs are those of gcc on x86")
    source = Path(native.__file__).with_name(file)
    # How fast the result is does not matter here.
    flags = [*native._FLAGS, "-O0", f"-march={target}"]
    command = [compiler, *flags, "-o", str(tmp_path / "made.so")]
    # Elsewhere a source that does not compile is no error, and tests of kernels are skipped.
    subprocess.run([*command, str(source), "-lm"], check=True)
