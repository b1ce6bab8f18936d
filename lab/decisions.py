"""Time of one decision of a session: from a measured column to the next column to measure.

    python lab/decisions.py knee-general-16-column --reconstructor knee-general-unet --threads 2
    python lab/decisions.py knee-general-16-ensemble --reconstructor knee-general-unet --device cuda

A decision reconstructs the image and scores the columns. Each policy acquires procedural knees,
one column at a time. The median over all decisions but the first of each knee is recorded; run
this on a machine that is idle.
"""

import platform
import time
from statistics import median

import torch
from commands import parser
from results import record, result

from kscout import policies, reconstruction
from kscout.acquisition import Advisor, Scan, Session
from kscout.data.makers.knee import draw_knee_volume
from kscout.device import describe_device, resolve_device
from kscout.physics.fourier import fft2c
from kscout.provenance import commit

N_COLS, N_INITIAL, STEPS = 128, 16, 16


def decision_times(
    policy_name: str, network: str, volume: int, device: torch.device
) -> list[float]:
    """Acquire one slice; return the milliseconds of each decision."""
    knee = draw_knee_volume(seed=0, volume=volume, n_slices=1, size=N_COLS)
    kspace = fft2c(torch.as_tensor(knee.stored)).to(torch.complex64)
    reconstructor = reconstruction.load(network).frozen(
        precision="auto", n_rows=N_COLS, n_cols=N_COLS, device=device
    )
    policy = policies.load(policy_name).to(device)
    scan = Scan(n_rows=N_COLS, n_cols=N_COLS, budget=N_INITIAL + STEPS, initial=N_INITIAL)
    times = []
    with Advisor(reconstructor, policy, device=device) as advisor:
        session = Session(advisor, scan)
        columns = session.advise().columns
        while columns:
            begin = time.perf_counter()
            session.measure(columns, kspace[:, :, list(columns)].permute(2, 0, 1))
            columns = session.advise().columns
            times.append(1e3 * (time.perf_counter() - begin))
    return times[1:]


def main() -> None:
    """Measure the policies, and record."""
    options = parser(__doc__)
    options.set_defaults(device="cpu")
    options.add_argument("policies", nargs="+", help="names of the zoo, run folders or files")
    options.add_argument("--reconstructor", required=True)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--knees", type=int, default=3)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    device = resolve_device(asked.device)
    place = describe_device(device)
    if device.type == "cpu":
        place = f"{asked.threads} threads of a CPU ({platform.machine()})"
    for name in asked.policies:
        times = [
            one
            for volume in range(asked.knees)
            for one in decision_times(name, asked.reconstructor, volume, device)
        ]
        kind = type(policies.load(name)).__name__.removesuffix("Policy").lower()
        fields = {"experiment": "decision-time", "reconstruction": asked.reconstructor}
        fields |= {"n_initial": N_INITIAL, "steps": STEPS, "n_cols": N_COLS, "device": place}
        fields |= {"method": kind, "metric": "median_ms", "commit": commit()}
        command = f"python lab/decisions.py {name} --reconstructor {asked.reconstructor}"
        record([result(**fields, value=median(times), command=command)])
        print(f"{name}: median {median(times):.1f} ms, longest {max(times):.1f} ms on {place}")


if __name__ == "__main__":
    main()
