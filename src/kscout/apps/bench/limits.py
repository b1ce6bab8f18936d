"""Lower bounds of the cost of each part: arithmetic and memory traffic, and the machine's rates.

Counts follow the model: every convolution and dense layer multiplies once, reads its input once
and writes its output once. Norms, activations, pooling and upsampling are assumed to be fused into
these passes, so no implementation with the same arithmetic can be faster than the limit.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_COUNTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear)


class Work(NamedTuple):
    """Cost of one image."""

    flops: float
    n_bytes: float


class Ceilings(NamedTuple):
    """Rates that the machine reached in this run."""

    flops_per_s: float
    """Product of large square matrices in 32 bit."""
    half_flops_per_s: float
    """The same in 16 bit, on CUDA; on a CPU equal to the 32-bit rate."""
    bytes_per_s: float
    """Copy of an array larger than the caches; reads and writes are counted."""

    def limit(self, work: Work, *, in_half: bool = False) -> float:
        """Return the largest possible number of images per second."""
        flops_per_s = self.half_flops_per_s if in_half else self.flops_per_s
        return min(flops_per_s / work.flops, self.bytes_per_s / work.n_bytes)


def count_work(
    network: nn.Module, image: Tensor, *, bytes_per_value: int = 4, n_together: int = 1
) -> Work:
    """Count the forward pass of one image by its modules.

    Args:
        network: any module of convolutions and dense layers.
        image: its input, a batch of one.
        bytes_per_value: 2 for 16-bit arithmetic.
        n_together: images per reading of dense layers' weights.
    """
    flops, n_values = 0.0, 0.0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal flops, n_values
        per_value = module.weight[0].numel() if isinstance(module.weight, Tensor) else 0
        # A transposed convolution multiplies each input by weights, others sum to each output.
        from_input = isinstance(module, nn.ConvTranspose2d)
        flops += 2.0 * per_value * (inputs[0] if from_input else output).numel()
        n_values += inputs[0].numel() + output.numel()
        if isinstance(module, nn.Linear):
            n_values += module.weight.numel() / n_together

    layers = [m for m in network.modules() if isinstance(m, _COUNTED)]
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
    """Wait until the device is idle and return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def best_time(
    function: Callable[[], Any], device: torch.device, *, at_least_s: float, n_least: int = 3
) -> float:
    """Return the best time in seconds of repeated calls, after one to warm up."""
    function()
    best, n_calls, begun = float("inf"), 0, wait(device)
    while n_calls < n_least or wait(device) - begun < at_least_s:
        before = wait(device)
        function()
        best, n_calls = min(best, wait(device) - before), n_calls + 1
    return best


def measure_ceilings(device: torch.device, *, at_least_s: float) -> Ceilings:
    """Measure a product of matrices and a copy."""
    on_cuda = device.type == "cuda"
    size, flops_per_s = 8192 if on_cuda else 1024, []
    for dtype in (torch.float32, torch.float16) if on_cuda else (torch.float32,):
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(a)
        seconds = best_time(lambda: torch.mm(a, b, out=product), device, at_least_s=at_least_s)  # noqa: B023 - called at once
        flops_per_s.append(2 * size**3 / seconds)
    source = torch.zeros(2**28 if on_cuda else 2**25, device=device)
    copied = torch.empty_like(source)
    copy_s = best_time(lambda: copied.copy_(source), device, at_least_s=at_least_s)
    return Ceilings(flops_per_s[0], flops_per_s[-1], 2 * source.numel() * 4 / copy_s)
