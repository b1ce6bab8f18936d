"""Images per second of each part of the engine beside its limit, and the cost of whole batches."""

from typing import Any

import torch

from kscout.bench.engine import Engine
from kscout.bench.limits import Ceilings, Work, best_time, count_work, ssim_work, wait
from kscout.bench.yardstick import plain_copies
from kscout.core import Observation
from kscout.metrics import SsimScorer

N_CANDIDATES = 8


def measure_parts(engine: Engine, ceilings: Ceilings, *, at_least_s: float) -> list[dict[str, Any]]:
    """Return one record per part: images per second, the limit, and their quotient."""
    device, size = engine.slices.device, engine.size
    bytes_per_value = 2 if device.type == "cuda" else 4
    image = torch.zeros(1, 1, size, size, device=device)
    unet = count_work(engine.unet.network, image, bytes_per_value=bytes_per_value)
    scored = unet.plus(ssim_work(size, size))
    # A backward pass multiplies twice for each product of the forward pass, and reads it all again.
    _, plain_policy = plain_copies(engine)
    policy = count_work(plain_policy, image[:, 0], bytes_per_value=bytes_per_value).times(3)
    functions = {
        "U-Net forward": (_unet(engine), unet),
        "SSIM": (_ssim(engine), ssim_work(size, size)),
        "candidate scoring": (_scoring(engine), scored),
        "policy forward + backward": (_policy(engine), policy),
    }
    records = []
    for name, ((function, n_images), work) in functions.items():
        seconds = best_time(function, device, at_least_s=at_least_s)
        records.append(_record(name, size, n_images / seconds, work, ceilings))
    return records


def _record(
    name: str, size: int, images_per_s: float, work: Work, ceilings: Ceilings
) -> dict[str, Any]:
    limit = ceilings.limit(work)
    return {
        "part": name,
        "size": size,
        "images_per_s": images_per_s,
        "limit_images_per_s": limit,
        "share_of_limit": images_per_s / limit,
        "flops_per_image": work.flops,
        "bytes_per_image": work.n_bytes,
    }


def _unet(engine: Engine) -> tuple[Any, int]:
    kspace, mask = engine.batch.kspace, torch.ones_like(engine.batch.selectable)
    zero_filled = torch.fft.ifft2(kspace)

    @torch.no_grad()
    def run() -> None:
        with engine.ready():
            engine.frozen.from_zero_filled(zero_filled, mask)

    return run, len(mask)


def _ssim(engine: Engine) -> tuple[Any, int]:
    batch = engine.batch
    scorer = SsimScorer(batch.target, data_range=batch.data_range)
    rows = torch.arange(len(batch), device=batch.target.device)
    images, scale = batch.target.clone(), torch.ones(len(batch), device=batch.target.device)

    def run() -> None:
        scorer.score(images, rows, scale=scale, shift=0 * scale)

    return run, len(batch)


def _scoring(engine: Engine) -> tuple[Any, int]:
    with engine.ready() as simulator:
        state = simulator.start(engine.size // 8)
    columns = torch.arange(N_CANDIDATES, device=engine.slices.device).expand(len(state), -1)

    def run() -> None:
        with engine.ready() as again:
            again.score_columns(state, columns)

    return run, columns.numel()


def _policy(engine: Engine) -> tuple[Any, int]:
    seen = Observation(image=engine.slices.images, mask=~engine.slices.selectable)

    def run() -> None:
        engine.policy.zero_grad()
        with engine.ready():
            engine.policy(seen).sum().backward()

    return run, len(engine.slices)


def measure_batches(engine: Engine, *, horizon: int, q: int) -> list[dict[str, Any]]:
    """Return the time of one greedy and one non-greedy batch, the second run of each."""
    records = []
    for name, run in (("greedy", engine.greedy), ("non-greedy", engine.non_greedy)):
        run(horizon, q)
        begun = wait(engine.slices.device)
        run(horizon, q)
        seconds = wait(engine.slices.device) - begun
        n_reconstructions = len(engine.slices) * (1 + horizon * q)
        records.append(
            {
                "method": name,
                "size": engine.size,
                "n_slices": len(engine.slices),
                "horizon": horizon,
                "q": q,
                "seconds": seconds,
                "reconstructions_per_s": n_reconstructions / seconds,
            }
        )
    return records
