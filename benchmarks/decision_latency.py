"""How long one decision of a column network takes.

    python benchmarks/decision_latency.py --threads 2 --record benchmarks/decision_latency.json
    python benchmarks/decision_latency.py --device cuda --batch 256

Prints a JSON object per network and size: parameters, floating-point operations of a decision, the
shortest and the middle time in ms per image of one batch after the other. The shortest is what a
quiet machine takes; run it on one. `--record` keeps them beside those of other devices and batches,
from which `benchmarks/tables.py` writes a table of docs/dense.md.
"""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from tables import markdown
from torch.utils.flop_counter import FlopCounterMode

from kscout.core import Measurement, Observation
from kscout.device import describe_device, resolve_device
from kscout.files import write_json
from kscout.physics.sampling import center_mask
from kscout.policies.column import ColumnPolicy

NETWORKS: dict[str, dict[str, object]] = {
    "column": {},
    "paired": {"paired": True},
    "first": {"width": 192, "n_heads": 6, "channels": [32, 48, 64, 96]},
    "large": {"width": 320, "n_heads": 8, "channels": [32, 64, 96]},
}
"""As trained by default, and others: `first` is the network of the first trials."""
RECORD = Path(__file__).with_name("decision_latency.json")
_SAME = ("network", "size", "device", "threads", "batch")
"""What tells one measurement from another."""


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


def table(path: Path = RECORD) -> str:
    """Return what the record says, a line for each network, device and batch."""
    head = ("network", "parameters", "on", "images at once", "ms an image, shortest", "median")
    lines = [
        (
            *(f"`{one['network']}`", f"{one['parameters']:,}", one["device"], str(one["batch"])),
            *(f"{one[key]:.2g}" for key in ("shortest_ms", "median_ms")),
        )
        for one in json.loads(path.read_text(encoding="utf-8"))
    ]
    return markdown(head, lines)


def kept(path: Path, found: Sequence[dict[str, Any]]) -> None:
    """Write measurements in place of former ones of the same network, device and batch."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    known = {tuple(one[key] for key in _SAME): one for one in [*before, *found]}
    write_json(path, [*known.values()])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure all networks at all sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path)
    wanted = parser.parse_args(arguments)
    torch.set_num_threads(wanted.threads)
    device = resolve_device(wanted.device)
    where = describe_device(device)
    if device.type == "cpu":
        where = f"{wanted.threads} threads of a CPU ({platform.machine()})"
    how = {"device": where, "threads": wanted.threads, "batch": wanted.batch}
    found = []
    for name, arguments_of in NETWORKS.items():
        for size in wanted.sizes:
            own = measure(arguments_of, size, wanted.times, wanted.batch, device)
            found.append({"network": name, "size": size, **how, **own})
            print(json.dumps(found[-1]))
    if wanted.record:
        kept(wanted.record, found)


if __name__ == "__main__":
    main()
