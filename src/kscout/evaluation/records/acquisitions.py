"""One slice acquired by several policies, step by step: the record and its file, without torch."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float, UInt8

from kscout.errors import DataError
from kscout.files import checked_array, parse_json, read_arrays, written_whole

ACQUISITIONS = "acquisition*.npz"
"""The files of such records in the folder of an evaluation."""


@final
@dataclass(frozen=True)
class PolicySteps:
    """The acquisition of a slice by one policy."""

    name: str
    images: Float[np.ndarray, "frame row col"]
    """Reconstructions in the target's units, one per stored step."""
    ssim: Float[np.ndarray, " frame"]
    columns: tuple[int, ...]
    """All acquired columns in order; fewer if the policy stopped early."""
    is_oracle: bool = False
    ratings: UInt8[np.ndarray, "frame col"] | None = None
    """Ratings of every column at each stored step, from 0 to 255; not stored in files."""

    def at(self, rows: list[int]) -> "PolicySteps":
        """Return the same with some of the images."""
        ratings = None if self.ratings is None else self.ratings[rows]
        return replace(self, images=self.images[rows], ssim=self.ssim[rows], ratings=ratings)


@final
@dataclass(frozen=True)
class SliceRecord:
    """One slice acquired by several policies from the same start."""

    target: Float[np.ndarray, "row col"]
    start_columns: tuple[int, ...]
    policies: tuple[PolicySteps, ...]
    title: str = "One slice"
    steps: tuple[int, ...] = ()
    """Number of acquired columns at each image; by default 0, 1, 2, ..."""
    shown: tuple[str, ...] = ()
    """Policies that a page shows at first; by default the first ones."""
    kspace: Float[np.ndarray, "row col"] | None = None
    """Magnitude of the full k-space for display, from 0 to 1; not stored in files."""

    def __post_init__(self) -> None:
        lengths = {len(policy.images) for policy in self.policies}
        if len(lengths) != 1 or 0 in lengths:
            raise DataError(
                f"policies of one acquisition have {sorted(lengths)} images each; record as many "
                "of each"
            )
        if not self.steps:
            object.__setattr__(self, "steps", tuple(range(lengths.pop())))
        for policy in self.policies:
            n_frames, n_columns = len(self.steps), len(policy.columns)
            if n_columns > self.steps[-1] or len(policy.ssim) != n_frames:
                raise DataError(
                    f"{policy.name} has {len(policy.ssim)} scores and {n_columns} columns; "
                    f"expected {n_frames} scores and at most {self.steps[-1]} columns"
                )
            if policy.images.shape != (n_frames, *self.target.shape):
                raise DataError(
                    f"{policy.name} has images of shape {policy.images.shape}; expected "
                    f"{(n_frames, *self.target.shape)}"
                )

    def thinned(self, n_images: int) -> "SliceRecord":
        """Return the same with at most `n_images` images, spread from the first to the last."""
        last = len(self.steps) - 1
        places = np.linspace(0 if n_images > 1 else last, last, min(n_images, last + 1))
        rows = sorted(set(places.round().astype(int).tolist()))
        policies = tuple(policy.at(rows) for policy in self.policies)
        return replace(self, policies=policies, steps=tuple(self.steps[row] for row in rows))


def save_acquisition(acquisition: SliceRecord, path: Path) -> None:
    """Write one .npz file; images have 256 levels."""
    top = float(acquisition.target.max())
    arrays = {
        "target": acquisition.target.astype(np.float32),
        "start_columns": np.array(acquisition.start_columns),
        "steps": np.array(acquisition.steps),
        "top": np.array(top),
    }
    for index, policy in enumerate(acquisition.policies):
        arrays[f"images_{index}"] = _levels(policy.images, top)
        arrays[f"ssim_{index}"] = policy.ssim.astype(np.float32)
        arrays[f"columns_{index}"] = np.array(policy.columns)
    about = {
        "title": acquisition.title,
        "shown": list(acquisition.shown),
        "policies": [
            {"name": policy.name, "is_oracle": policy.is_oracle} for policy in acquisition.policies
        ],
    }
    with written_whole(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def _levels(
    images: Float[np.ndarray, "frame row col"], top: float
) -> UInt8[np.ndarray, "frame row col"]:
    return np.rint(np.clip(np.nan_to_num(images) / (top or 1.0), 0, 1) * 255).astype(np.uint8)


def load_acquisition(path: Path) -> SliceRecord:
    """Read the file of `save_acquisition`."""
    try:
        arrays = read_arrays(path)
        about = parse_json(str(arrays["about"]))
        unit = float(checked_array(arrays["top"], "f", 0)) / 255
        target = checked_array(arrays["target"], "f", 2)
        n_cols = target.shape[1]
        policies = tuple(
            PolicySteps(
                name=str(policy["name"]),
                images=checked_array(arrays[f"images_{index}"], "u", 3) * np.float32(unit),
                ssim=checked_array(arrays[f"ssim_{index}"], "f", 1).astype(np.float64),
                columns=_whole(arrays[f"columns_{index}"], n_cols),
                is_oracle=bool(policy["is_oracle"]),
            )
            for index, policy in enumerate(about["policies"])
        )
        return SliceRecord(
            *(target.astype(np.float32), _whole(arrays["start_columns"], n_cols), policies),
            title=str(about["title"]),
            steps=_whole(arrays["steps"], n_cols + 1),
            shown=tuple(map(str, about["shown"])),
        )
    # A damaged archive may raise almost anything.
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise DataError(f"{path} is not a recorded acquisition ({why}); record it again") from error


def _whole(values: np.ndarray, end: int) -> tuple[int, ...]:
    """Return the numbers of a list; raise an error for duplicates and those not below `end`."""
    numbers = tuple(int(value) for value in values)
    if len({*numbers} & {*range(end)}) < len(numbers):
        raise ValueError(f"{numbers[:5]}... has duplicates, or numbers that are not below {end}")
    return numbers
