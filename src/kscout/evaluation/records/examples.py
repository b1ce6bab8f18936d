"""Reconstruction examples on disk, `examples.npz`; nothing here needs torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Bool, Float

from kscout.errors import DataError
from kscout.files import checked_array, read_arrays, written_whole

EXAMPLES = "examples.npz"
_ARRAYS = {
    **{"policy": ("U", 1), "seed": ("iu", 1), "volume": ("U", 1), "slice": ("iu", 1)},
    **{"mask": ("b", 2), "image": ("f", 3), "target": ("f", 3), "ssim": ("f", 1)},
}
"""Kinds of dtype and number of axes of each array."""


@final
@dataclass(frozen=True)
class Example:
    """One slice at the end of one acquisition."""

    policy: str
    seed: int
    volume: str
    slice: int
    mask: Bool[np.ndarray, " col"]
    image: Float[np.ndarray, "row col"]
    """The reconstruction in the target's units."""
    target: Float[np.ndarray, "row col"]
    ssim: float

    @property
    def title(self) -> str:
        return f"{self.policy}\n{self.volume}:{self.slice}"


def save_examples(path: Path, examples: Sequence[Example]) -> None:
    """Write all arrays to one .npz file: mask, image, target [example, ...], and their names."""
    with written_whole(path) as aside, aside.open("wb") as file:
        np.savez_compressed(
            file,
            policy=np.array([example.policy for example in examples]),
            seed=np.array([example.seed for example in examples]),
            volume=np.array([example.volume for example in examples]),
            slice=np.array([example.slice for example in examples]),
            ssim=np.array([example.ssim for example in examples]),
            mask=np.stack([example.mask for example in examples]),
            image=np.stack([example.image for example in examples]),
            target=np.stack([example.target for example in examples]),
        )


def read_examples(path: Path) -> list[Example]:
    """Read what `save_examples` wrote."""
    try:
        arrays = read_arrays(path)
        if arrays["image"].shape != arrays["target"].shape:
            raise ValueError("images and targets of different shapes")
        columns = [checked_array(arrays[key], *kind) for key, kind in _ARRAYS.items()]
        return [
            Example(
                *(str(policy), int(seed), str(volume), int(number)),
                *(mask, image, target, float(ssim)),
            )
            for policy, seed, volume, number, mask, image, target, ssim in zip(
                *columns, strict=True
            )
        ]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); run `kscout analyze examples`") from error
