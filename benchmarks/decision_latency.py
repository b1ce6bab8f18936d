"""How long one decision of a column network takes.

    python benchmarks/decision_latency.py --threads 2
    python benchmarks/decision_latency.py --device cuda --batch 256

Prints a JSON object per network and size: parameters, floating-point operations of a decision, the
shortest and the middle time in ms per image of one batch after the other. The shortest is what a
quiet machine takes; run it on one.
"""

import argparse
import json
import time
from statistics import median

import torch
from torch.utils.flop_counter import FlopCounterMode

from kscout.core import Measurement, Observation
from kscout.physics.sampling import center_mask
from kscout.policies.column import ColumnPolicy

NETWORKS: dict[str, dict[str, object]] = {
    "column": {},
    "paired": {"paired": True},
    "first": {"width": 192, "n_heads": 6, "channels": [32, 48, 64, 96]},
    "large": {"width": 320, "n_heads": 8, "channels": [32, 64, 96]},
}
"""As trained by default, and others: `first` is the network of the first trials."""


def observation(n_images: int, n_rows: int, n_cols: int, device: torch.device) -> Observation:
    """Return what a policy sees of some slices."""
    generator = torch.Generator().manual_seed(0)
    shape = (n_images, n_rows, n_cols)
    kspace = torch.randn(*shape, dtype=torch.complex64, generator=generator)[:, None].to(device)
    mask = center_mask(n_cols, n_cols // 8, device).expand(n_images, -1)
    measured = Measurement.of(kspace, mask)
    image = torch.randn(shape, generator=generator).to(device)
    return Observation(
        image, mask, 3, measured.zero_filled, measured.mean, measured.std, n_left=n_cols // 8
    )


@torch.no_grad()
def measure(
    arguments: dict[str, object], size: int, n_times: int, n_images: int, device: torch.device
) -> dict[str, float]:
    """Time one network on one batch."""
    n_initial = size // 8
    sizes = {"n_cols": size, "horizon": n_initial, "n_initial": n_initial}
    policy = ColumnPolicy(**sizes, **arguments).eval().to(device)  # type: ignore[arg-type]
    seen = observation(n_images, size, size, device)
    with FlopCounterMode(display=False) as counter:
        policy(seen)
    times = []
    for _ in range(n_times):
        begin = time.perf_counter()
        # To read a score is to wait for the device.
        float(policy(seen)[0, 0])
        times.append(1e3 * (time.perf_counter() - begin) / n_images)
    return {
        "parameters": sum(p.numel() for p in policy.parameters()),
        "gflop": counter.get_total_flops() / n_images / 1e9,
        "shortest_ms": min(times),
        "median_ms": median(times),
    }


def main() -> None:
    """Measure all networks at all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    wanted = parser.parse_args()
    torch.set_num_threads(wanted.threads)
    for name, arguments in NETWORKS.items():
        for size in wanted.sizes:
            found = measure(
                arguments, size, wanted.times, wanted.batch, torch.device(wanted.device)
            )
            how = {"device": wanted.device, "threads": wanted.threads, "batch": wanted.batch}
            print(json.dumps({"network": name, "size": size, **how, **found}))


if __name__ == "__main__":
    main()
