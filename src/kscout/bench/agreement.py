"""Whether a faster arithmetic keeps the scores: mean SSIM, and the order of candidates' gains.

Judged on procedural knees with a trained network, over all candidates, where an acquisition starts
and after some more columns, against the plain network in 32 bit.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.bench.engine import Engine
from kscout.config.policy import FrozenPrecision
from kscout.physics.sampling import center_mask
from kscout.randomness import keyed_generator
from kscout.reconstruction.unet import UNet
from kscout.training.convolution import can_compile, convolution

SSIM_TOLERANCE = 1e-4
RANK_TOLERANCE = 0.99


def rank_correlations(
    first: Float[Tensor, "slice candidate"], second: Float[Tensor, "slice candidate"]
) -> list[float]:
    """Return Spearman's correlation over each slice's candidates."""
    from scipy.stats import spearmanr

    pairs = zip(first.tolist(), second.tolist(), strict=True)
    return [float(spearmanr(a, b).statistic) for a, b in pairs]


def measure_agreement(
    size: int, n_slices: int, device: torch.device, unet: UNet
) -> list[dict[str, Any]]:
    """Compare every mode that a training on the device may use with the plain network."""
    fast = [
        Engine.build(size, n_slices, device, unet=unet, precision=precision, backend=backend)
        for precision, backend in _modes(device)
    ]
    records = []
    for n_more in (0, size // 8):
        mask = measured_columns(size, size // 8, n_more).to(device)
        with _exact(device):
            exact = score_candidates(Simulator(fast[0].batch, fast[0].unet), mask)
        records += [_record(engine, mask, exact) for engine in fast]
    return records


def measured_columns(n_cols: int, n_initial: int, n_more: int) -> Bool[Tensor, " col"]:
    """Return the central columns and some drawn ones, always the same."""
    mask = center_mask(n_cols, n_initial)
    left = (~mask).nonzero()[:, 0]
    order = torch.randperm(len(left), generator=keyed_generator("agreement", n_cols))
    mask[left[order[:n_more]]] = True
    return mask


@torch.no_grad()
def score_candidates(
    simulator: Simulator, mask: Bool[Tensor, " col"]
) -> Float[Tensor, "slice candidate"]:
    """Return SSIM after each column that the mask leaves."""
    masks = mask.expand(len(simulator.batch), -1)
    state = simulator.start_from(masks, n_measured=int(mask.sum()))
    return simulator.score_every_column(state)[:, ~mask]


def _record(
    engine: Engine, mask: Bool[Tensor, " col"], exact: Float[Tensor, "slice candidate"]
) -> dict[str, Any]:
    with engine.ready() as simulator:
        found = score_candidates(simulator, mask)
    difference = float((found.mean() - exact.mean()).abs())
    correlations = rank_correlations(exact, found)
    mean = sum(correlations) / len(correlations)
    return {
        "size": engine.size,
        "n_measured": int(mask.sum()),
        "precision": engine.frozen.precision,
        "convolution": engine.backend,
        "arithmetic": engine.arithmetic,
        "reconstructor": type(engine.frozen).__name__,
        "n_slices": len(exact),
        "n_candidates": exact.numel(),
        "mean_ssim_difference": difference,
        "rank_correlation": mean,
        "lowest_rank_correlation": min(correlations),
        "agrees": difference <= SSIM_TOLERANCE and mean >= RANK_TOLERANCE,
    }


def _modes(device: torch.device) -> list[tuple[FrozenPrecision, str]]:
    """Return precision and convolutions of each way to compute that the device offers."""
    if device.type == "cuda":
        return [("auto", "auto"), ("fp32", "auto")]
    backends = ["compiled"] if can_compile() else []
    return [("fp32", name) for name in (*backends, "onednn-last")]


def _exact(device: torch.device) -> AbstractContextManager[None]:
    """Compute convolutions in full 32 bit, by torch's own code."""
    if device.type == "cuda":
        return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    return convolution("onednn")
