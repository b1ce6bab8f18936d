"""What a part must cost at least: its arithmetic and its memory traffic, and what a machine can do.

Counted from the model itself: every convolution and dense layer multiplies once, reads its input
once and writes its output once. Norms, activations, pooling and upsampling are taken to be folded
into those passes, so the limit is one that no implementation can pass without other arithmetic.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn


@final
@dataclass(frozen=True)
class Work:
    """What one image costs."""

    flops: float
    n_bytes: float

    def times(self, factor: int) -> "Work":
        """Return the work of several such passes."""
        return Work(self.flops * factor, self.n_bytes * factor)

    def plus(self, other: "Work") -> "Work":
        """Return the work of both."""
        return Work(self.flops + other.flops, self.n_bytes + other.n_bytes)


@final
@dataclass(frozen=True)
class Ceilings:
    """What the machine reached in this run."""

    flops_per_s: float
    """By a product of large square matrices."""
    bytes_per_s: float
    """By a copy larger than the caches, reading and writing counted."""

    def limit(self, work: Work) -> float:
        """Return the images per second that the tighter of the two ceilings allows."""
        return min(self.flops_per_s / work.flops, self.bytes_per_s / work.n_bytes)


def count_work(network: nn.Module, image: Tensor, *, bytes_per_value: int = 4) -> Work:
    """Count the forward pass of one image by walking the modules it goes through.

    Args:
        network: any module of convolutions and dense layers.
        image: what it is called with, a batch of one.
        bytes_per_value: 2 for 16-bit arithmetic.
    """
    flops, n_values = 0.0, 0.0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal flops, n_values
        per_output = module.weight[0].numel() if isinstance(module.weight, Tensor) else 0
        flops += 2.0 * per_output * output.numel()
        n_values += inputs[0].numel() + output.numel()
        if isinstance(module, nn.Linear):
            n_values += module.weight.numel()

    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        network(image)
    for hook in hooks:
        hook.remove()
    return Work(flops, n_values * bytes_per_value)


def ssim_work(n_rows: int, n_cols: int) -> Work:
    """Count SSIM against a known target: three separable blurs of 11 taps, four images read."""
    n_pixels = float(n_rows * n_cols)
    return Work(n_pixels * (3 * 2 * 2 * 11 + 20), n_pixels * 4 * 4)


def wait(device: torch.device) -> float:
    """Return the time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def best_time(function: Callable[[], Any], device: torch.device, *, at_least_s: float) -> float:
    """Return the best time in seconds of repeated calls, three or more, after one to warm up."""
    function()
    best, n_calls, begun = float("inf"), 0, wait(device)
    while n_calls < 3 or wait(device) - begun < at_least_s:
        before = wait(device)
        function()
        best, n_calls = min(best, wait(device) - before), n_calls + 1
    return best


def measure_ceilings(device: torch.device, *, at_least_s: float) -> Ceilings:
    """Measure a matrix product in float32 (16 bit on CUDA) and a copy."""
    on_cuda = device.type == "cuda"
    size = 8192 if on_cuda else 1024
    dtype = torch.float16 if on_cuda else torch.float32
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    product_s = best_time(lambda: torch.mm(a, b, out=product), device, at_least_s=at_least_s)
    source = torch.zeros(2**28 if on_cuda else 2**25, device=device)
    copied = torch.empty_like(source)
    copy_s = best_time(lambda: copied.copy_(source), device, at_least_s=at_least_s)
    return Ceilings(2 * size**3 / product_s, 2 * source.numel() * 4 / copy_s)
