"""Images per second of each part of a training beside its limit, and the cost of whole batches.

Parts run in the arithmetic of a training: on CUDA through the fused 16-bit kernels, as graphs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from kscout.bench.engine import PAPER, Engine, TrainingBatch, Workload, release
from kscout.bench.limits import Ceilings, Work, best_time, count_work, ssim_work
from kscout.bench.yardstick import plain_policy
from kscout.core import Measurement, Observation
from kscout.metrics import SsimScorer
from kscout.names import ESTIMATORS
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.training.gradients import EagerGradients, GraphedGradients

N_IMAGES = {"cpu": (32,), "cuda": (128, 640, 2048)}
"""Images that go through the U-Net together: q = 8 candidates of a batch of 4 on a CPU; of 16, of
five seeds' 80, and many on CUDA."""

N_POLICY_IMAGES = {"cpu": 4, "cuda": 256}
"""States whose gradients are taken together: those of a step on a CPU, of all 16 steps on CUDA."""

N_UPDATES = {"cpu": 1, "cuda": 8}
"""Updates in a timed pass, so that what happens once in a pass weighs little on CUDA."""

PAPER_UPDATES = 21_750
PAPER_SIZE = 128


class Part(NamedTuple):
    """One part, ready to be timed."""

    name: str
    run: Callable[[], Any]
    n_images: int
    work: Work
    """Of one image."""
    in_half: bool


def measure_parts(engine: Engine, ceilings: Ceilings, *, at_least_s: float) -> list[dict[str, Any]]:
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
        eager = EagerGradients(run, parameters)
        return lambda: eager(inputs)
    graph = GraphedGradients(run, parameters, inputs)
    return lambda: graph(inputs)


def _repeated(engine: Engine, n_images: int) -> Tensor:
    """Return the numbers of slices, again and again until there are enough."""
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
    with engine.ready() as simulator:
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
    learned = batch.estimator.views[0]
    mask = torch.zeros(n_images, engine.size, dtype=torch.bool, device=engine.device)

    def backward(inputs: Sequence[Tensor]) -> Tensor:
        loss = learned(Observation(image=inputs[0], mask=mask)).sum()
        loss.backward()
        return loss

    inputs = [engine.slices.magnitudes(_repeated(engine, n_images))]
    run = replayed(engine, backward, batch.estimator.parameters(slice(None)), inputs)
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


def measure_batches(engine: Engine, *, horizon: int, q: int) -> list[dict[str, Any]]:
    """Return the time of greedy and non-greedy batches, and of five seeds in lockstep."""
    n_slices = len(engine.slices)
    records = []
    for work in (
        Workload(n_slices, horizon, q),
        Workload(n_slices, horizon, q, method="ngreedy"),
        Workload(n_slices, horizon, q, n_seeds=5),
    ):
        records.append(_batch_record(engine, work))
        release(engine.device)
    return records


def _batch_record(engine: Engine, work: Workload) -> dict[str, Any]:
    """Time a batch's gradients, and updates: draws and optimizer steps too."""
    device, n_updates = engine.device, N_UPDATES[engine.device.type]
    batch = TrainingBatch(engine, work, n_updates=n_updates)
    # Batches on a CPU are long enough; a few on CUDA would measure the clock's ramp.
    at_least_s = 0.5 if device.type == "cuda" else 0.0
    seconds = best_time(batch.gradients, device, at_least_s=at_least_s, n_least=2)
    update_s = best_time(batch.updates, device, at_least_s=at_least_s, n_least=2) / n_updates
    record: dict[str, Any] = {
        **asdict(work),
        "method": ESTIMATORS[work.method].title,
        "size": engine.size,
        "arithmetic": engine.arithmetic,
        "seconds": seconds,
        "update_seconds": update_s,
        "reconstructions_per_s": work.n_reconstructions / seconds,
    }
    if engine.size == PAPER_SIZE:
        record["extrapolated_paper_minutes"] = extrapolate(work, update_s)
        is_whole = (work.n_slices, work.horizon, work.q) == (PAPER.n_slices, PAPER.horizon, PAPER.q)
        record["extrapolated_from"] = "this batch" if is_whole else "a smaller batch"
    return record


def extrapolate(work: Workload, update_s: float) -> float:
    """Return how many minutes the paper's updates would take, of all seeds, nothing else counted.

    Where the batch is not the paper's, its time is scaled by the number of reconstructions.
    """
    growth = work.n_seeds * PAPER.n_reconstructions / work.n_reconstructions
    return PAPER_UPDATES * update_s * growth / 60
