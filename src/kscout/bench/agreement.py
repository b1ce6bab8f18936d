"""Whether a faster arithmetic keeps the scores: mean SSIM, and the order of candidates' gains."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from kscout.acquisition.episode import Simulator
from kscout.bench.engine import Engine
from kscout.training.convolution import convolution

SSIM_TOLERANCE = 1e-4
RANK_TOLERANCE = 0.99


def rank_correlation(
    first: Float[Tensor, "slice candidate"], second: Float[Tensor, "slice candidate"]
) -> float:
    """Return Spearman's correlation over each slice's candidates, averaged over slices."""
    ranks = [x.argsort(dim=-1).argsort(dim=-1).double() for x in (first, second)]
    centered = [x - x.mean(dim=-1, keepdim=True) for x in ranks]
    norms = [x.square().sum(dim=-1).sqrt() for x in centered]
    products = (centered[0] * centered[1]).sum(dim=-1)
    return float((products / (norms[0] * norms[1])).mean())


def measure_agreement(engine: Engine) -> dict[str, Any]:
    """Compare what a training uses with the plain network in float32, over all candidates."""
    n_initial, batch = engine.size // 8, engine.batch
    with engine.ready() as simulator:
        fast = simulator.score_every_column(simulator.start(n_initial))
    with convolution("onednn"):
        plain = Simulator(batch, engine.unet)
        exact = plain.score_every_column(plain.start(n_initial))
    left = exact.isfinite().all(dim=0)
    exact, fast = exact[:, left], fast[:, left]
    difference = float((fast.mean() - exact.mean()).abs())
    correlation = rank_correlation(exact, fast)
    return {
        "size": engine.size,
        "reconstructor": type(engine.frozen).__name__,
        "convolution": engine.backend,
        "mean_ssim_difference": difference,
        "rank_correlation": correlation,
        "agrees": difference <= SSIM_TOLERANCE and correlation >= RANK_TOLERANCE,
        "n_candidates": exact.numel(),
    }
