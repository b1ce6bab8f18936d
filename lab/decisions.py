"""Time of one decision of a `column` network.

    python lab/decisions.py --threads 2
    python lab/decisions.py --device cuda --batch 256

Records the median time per image of one batch after another; run it on a machine that is idle.
"""

import platform
import time
from statistics import median

import torch
from commands import parser
from results import record, result

from kscout.core import Measurement, Observation
from kscout.device import describe_device, resolve_device
from kscout.physics.sampling import center_mask
from kscout.policies.column import ColumnPolicy
from kscout.provenance import commit

NETWORKS: dict[str, dict[str, object]] = {
    "column": {},
    "large": {"width": 320, "n_heads": 8, "channels": [32, 64, 96]},
}


def observation(n_images: int, size: int, device: torch.device) -> Observation:
    """Return what a policy observes of some images of noise."""
    generator = torch.Generator().manual_seed(0)
    shape = (n_images, size, size)
    kspace = torch.randn(*shape, dtype=torch.complex64, generator=generator)[:, None].to(device)
    mask = center_mask(size, size // 8, device).expand(n_images, -1)
    measured = Measurement.of(kspace, mask)
    image = torch.randn(shape, generator=generator).to(device)
    given = (measured.zero_filled, measured.mean, measured.std)
    return Observation(image, mask, 3, *given, n_left=size // 8)


@torch.no_grad()
def median_ms(
    arguments: dict[str, object], size: int, n_times: int, n_images: int, device: torch.device
) -> float:
    """Time one network on one batch."""
    sizes = {"n_cols": size, "horizon": size // 8, "n_initial": size // 8}
    policy = ColumnPolicy(**sizes, **arguments).eval().to(device)  # type: ignore[arg-type]
    observed = observation(n_images, size, device)
    policy(observed)
    times = []
    for _ in range(n_times):
        begin = time.perf_counter()
        # Reading a score waits for the device.
        float(policy(observed)[0, 0])
        times.append(1e3 * (time.perf_counter() - begin) / n_images)
    return median(times)


def main() -> None:
    """Measure both networks, and record."""
    options = parser(__doc__)
    options.set_defaults(device="cpu")
    options.add_argument("--size", type=int, default=128)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--times", type=int, default=200)
    options.add_argument("--batch", type=int, default=1)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    device = resolve_device(asked.device)
    place = describe_device(device)
    if device.type == "cpu":
        place = f"{asked.threads} threads of a CPU ({platform.machine()})"
    for name, arguments in NETWORKS.items():
        found = median_ms(arguments, asked.size, asked.times, asked.batch, device)
        method = name if asked.batch == 1 else f"{name}, batch {asked.batch}"
        fields = {"experiment": "speed", "n_cols": asked.size, "method": method, "device": place}
        command = f"python lab/decisions.py --device {asked.device} --batch {asked.batch}"
        record(
            [result(**fields, metric="median_ms", value=found, commit=commit(), command=command)]
        )
        print(f"{name}: {found:.2f} ms on {place}")


if __name__ == "__main__":
    main()
