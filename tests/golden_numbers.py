"""Numbers computed with the authors' implementation; `golden/README.md` says what they are."""

from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parent / "golden"


class Golden:
    """Stored numbers as tensors, by file and key."""

    def __call__(self, file: str, key: str) -> torch.Tensor:
        with np.load(GOLDEN / f"{file}.npz") as arrays:
            return torch.from_numpy(arrays[key])

    def state(self, file: str, prefix: str) -> dict[str, torch.Tensor]:
        """Return the state dict stored under `prefix/`."""
        with np.load(GOLDEN / f"{file}.npz") as arrays:
            return {
                key.removeprefix(f"{prefix}/"): torch.from_numpy(arrays[key])
                for key in arrays.files
                if key.startswith(f"{prefix}/")
            }
