"""Images per second of each part of a training next to its limit.

Parts run in the arithmetic of a training: on CUDA by the fused 16-bit kernels, as graphs. Limits
follow the model: every convolution and dense layer multiplies once, reads its input once and writes
its output once. Norms, activations, pooling and upsampling are assumed to be fused into these
passes, so no implementation with the same arithmetic can be faster than the limit.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kscout.acquisition.episode import Simulator
from kscout.apps.bench.engine import Engine, TrainingBatch, Workload, best_time, release
from kscout.apps.bench.yardstick import plain_policy
from kscout.core import Measurement, Observation
from kscout.json_types import JsonObject
from kscout.kernels.graphs import BatchGradients
from kscout.metrics import SsimScorer
from kscout.policies.conv_fused import HalfPrecisionConvPolicy

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

    The image is a batch of one. Dense layers read their weights once per `n_together` images.
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


N_IMAGES = {"cpu": (32,), "cuda": (128, 640, 2048)}
"""Images per call of the U-Net: q = 8 candidates of a batch of 4 on a CPU; of 16, of 80, and many
on CUDA."""

N_POLICY_IMAGES = {"cpu": 4, "cuda": 256}
"""States per gradient computation: those of a step on a CPU, of 16 steps on CUDA."""


class Part(NamedTuple):
    """One part, ready to be timed."""

    name: str
    run: Callable[[], object]
    n_images: int
    work: Work
    """Work of one image."""
    in_half: bool


def measure_parts(engine: Engine, ceilings: Ceilings, *, at_least_s: float) -> list[JsonObject]:
    """Return one record per part: images per second, the limit, and their quotient."""
    records = []
    for part in _parts(engine):
        speed = part.n_images / best_time(part.run, engine.device, at_least_s=at_least_s)
        limit = ceilings.limit(part.work, in_half=part.in_half)
        records.append(
            {
                "part": part.name,
                "size": engine.size,
                "n_images": part.n_images,
                "bits": 16 if part.in_half else 32,
                "images_per_s": speed,
                "limit_images_per_s": limit,
                "share_of_limit": speed / limit,
                "flops_per_image": part.work.flops,
                "bytes_per_image": part.work.n_bytes,
            }
        )
    release(engine.device)
    return records


def _parts(engine: Engine) -> Iterator[Part]:
    size, in_half = engine.size, engine.frozen.precision == "fp16"
    image = torch.zeros(1, 1, size, size, device=engine.device)
    unet = count_work(engine.unet.network, image, bytes_per_value=2 if in_half else 4)
    counts = N_IMAGES[engine.device.type]
    for n_images in counts:
        yield Part("U-Net forward", _unet(engine, n_images), n_images, unet, in_half)
    ssim = ssim_work(size, size)
    yield Part("SSIM", _ssim(engine, counts[-1]), counts[-1], ssim, in_half=False)
    both = Work(unet.flops + ssim.flops, unet.n_bytes + ssim.n_bytes)
    for n_images in counts[:: max(1, len(counts) - 1)]:
        yield Part("candidate scoring", *_scoring(engine, n_images), both, in_half)
    yield _policy(engine)


def replayed(
    engine: Engine,
    function: Callable[[Sequence[Tensor]], Tensor],
    parameters: Sequence[nn.Parameter] = (),
    inputs: Sequence[Tensor] = (),
) -> Callable[[], Tensor]:
    """Return a function as a graph on CUDA, with the engine's convolutions on a CPU."""

    def run(given: Sequence[Tensor]) -> Tensor:
        with engine.ready_convolutions(), torch.set_grad_enabled(bool(parameters)):
            return function(given)

    if engine.device.type != "cuda":
        eager = BatchGradients(run, parameters)
        return lambda: eager(inputs)
    graph = BatchGradients(run, parameters, inputs)
    return lambda: graph(inputs)


def _repeated(engine: Engine, n_images: int) -> Tensor:
    return torch.arange(n_images, device=engine.device) % len(engine.slices)


def _unet(engine: Engine, n_images: int) -> Callable[[], Tensor]:
    batch = engine.slices.batch(_repeated(engine, n_images))
    full = Measurement.of(batch.kspace, batch.selectable)
    # Magnitudes and statistics are computed before the timed part, as the simulator's kernel does.
    summary = (full.magnitude, full.mean, full.std)
    measured = Measurement(full.zero_filled, full.mask, summary=summary)
    return replayed(engine, lambda _: engine.frozen.reconstruct(measured).image)


def _ssim(engine: Engine, n_images: int) -> Callable[[], Tensor]:
    batch, rows = engine.batch, _repeated(engine, n_images)
    scorer = SsimScorer(batch.target, data_range=batch.data_range)
    images, scale = batch.target[rows], torch.ones(n_images, device=engine.device)
    shift = torch.zeros_like(scale)
    return replayed(engine, lambda _: scorer.score(images, rows, scale=scale, shift=shift))


def _scoring(engine: Engine, n_images: int) -> tuple[Callable[[], Tensor], int]:
    with engine.ready_convolutions():
        simulator = Simulator(engine.batch, engine.frozen)
        state = simulator.start(engine.size // 8)
    n_columns = min(n_images // len(state), state.n_left)
    blocked = simulator.blocked(state)
    columns = blocked.to(torch.int8).argsort(dim=-1, stable=True)[:, :n_columns].contiguous()
    run = replayed(engine, lambda _: simulator.score_columns(state, columns))
    return run, columns.numel()


def _policy(engine: Engine) -> Part:
    """Forward and backward pass of the policy as a training runs it."""
    n_images = N_POLICY_IMAGES[engine.device.type]
    batch = TrainingBatch(engine, Workload(2, 1, 2))
    learned = batch.estimator.view
    mask = torch.zeros(n_images, engine.size, dtype=torch.bool, device=engine.device)

    def backward(inputs: Sequence[Tensor]) -> Tensor:
        loss = learned(Observation(image=inputs[0], mask=mask)).sum()
        loss.backward()
        return loss

    inputs = [engine.slices.magnitudes(_repeated(engine, n_images))]
    run = replayed(engine, backward, [*batch.policy.parameters()], inputs)
    in_half = isinstance(learned, HalfPrecisionConvPolicy)
    forward = count_work(
        plain_policy(batch),
        torch.zeros(1, engine.size, engine.size, device=engine.device),
        bytes_per_value=2 if in_half else 4,
        n_together=n_images,
    )
    # A backward pass multiplies twice for each product of the forward pass, and reads it all again.
    work = Work(3 * forward.flops, 3 * forward.n_bytes)
    return Part("policy forward + backward", run, n_images, work, in_half)
