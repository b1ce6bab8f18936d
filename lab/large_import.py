"""Peak memory of the import of a large file of k-space.

    python lab/large_import.py --gigabytes 2

Writes slices of 16 coils and 640 x 368 pixels and imports them in a separate process.
"""

import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from commands import kscout, parser
from results import record, result

from kscout.provenance import commit

N_COILS, N_ROWS, N_COLS = 16, 640, 368
OPTIONS = ("--crop", "320x368", "--compress", "8")


def one_slice() -> np.ndarray:
    """Return noise with a bright center; content costs nothing to memory."""
    random = np.random.default_rng(0)
    parts = random.standard_normal((2, N_COILS, N_ROWS, N_COLS), dtype=np.float32)
    kspace = (parts[0] + 1j * parts[1]).astype(np.complex64)
    kspace[:, N_ROWS // 2, N_COLS // 2] *= 1000
    return kspace


def make_cfl(folder: Path, n_slices: int) -> Path:
    """Write BART's pair, slices last."""
    path, content = folder / "large.cfl", one_slice().transpose(1, 2, 0).tobytes(order="F")
    lengths = [N_ROWS, N_COLS, 1, N_COILS, *[1] * 9, n_slices, 1, 1]
    path.with_suffix(".hdr").write_text(f"# Dimensions\n{' '.join(map(str, lengths))}\n")
    with path.open("wb") as file:
        for _ in range(n_slices):
            file.write(content)
    return path


def peak_bytes() -> int:
    """Return the most memory that any process had which this one has waited for."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def main() -> None:
    """Measure and record."""
    options = parser(__doc__)
    options.add_argument("--gigabytes", type=float, default=2.0)
    asked = options.parse_args()
    n_slices = max(1, round(1e9 * asked.gigabytes / (8 * N_COILS * N_ROWS * N_COLS)))
    asked.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=asked.work) as folder:
        source, out = make_cfl(Path(folder), n_slices), Path(folder) / "data"
        begin = time.monotonic()
        command = kscout("data", "import", source, "--out", out, *OPTIONS)
        fields = {
            "experiment": "speed",
            "method": f"import of a .cfl file of {asked.gigabytes:g} GB",
        }
        fields |= {"n_slices": n_slices, "metric": "peak_bytes", "value": peak_bytes()}
        fields |= {"seconds": time.monotonic() - begin, "device": f"CPU ({platform.machine()})"}
    record([result(**fields, commit=commit(), command=command)])
    print(f"peak memory: {fields['value'] / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
