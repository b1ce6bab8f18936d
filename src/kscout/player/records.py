"""One slice acquired by several policies, step by step: the record and its file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from jaxtyping import Float

from kscout.errors import DataError
from kscout.files import read_arrays, written_whole


@final
@dataclass(frozen=True)
class PolicySteps:
    """How one policy acquired a slice; step 0 is the start."""

    name: str
    images: Float[np.ndarray, "step row col"]
    """Reconstructions from step 0 on, in the target's units."""
    ssim: Float[np.ndarray, " step"]
    columns: tuple[int, ...]
    """Acquired columns in order: one fewer than there are images."""
    is_oracle: bool = False


@final
@dataclass(frozen=True)
class Acquisition:
    """One slice acquired by several policies from the same start."""

    target: Float[np.ndarray, "row col"]
    start_columns: tuple[int, ...]
    policies: tuple[PolicySteps, ...]
    title: str = "One slice"

    def __post_init__(self) -> None:
        lengths = {len(policy.images) for policy in self.policies}
        if len(lengths) != 1:
            raise DataError(f"policies of one acquisition have {sorted(lengths)} images each")
        for policy in self.policies:
            if len(policy.columns) != len(policy.images) - 1:
                raise DataError(
                    f"{policy.name} has {len(policy.images)} images and {len(policy.columns)} "
                    "columns; expected one column fewer than images"
                )


def save_acquisition(acquisition: Acquisition, path: Path) -> None:
    """Write one .npz file, which `report` finds by the name `acquisition*.npz`."""
    arrays = {"target": acquisition.target, "start_columns": np.array(acquisition.start_columns)}
    for index, policy in enumerate(acquisition.policies):
        arrays[f"images_{index}"] = policy.images.astype(np.float32)
        arrays[f"ssim_{index}"] = policy.ssim
        arrays[f"columns_{index}"] = np.array(policy.columns)
    about = {
        "title": acquisition.title,
        "policies": [
            {"name": policy.name, "is_oracle": policy.is_oracle} for policy in acquisition.policies
        ],
    }
    with written_whole(path) as aside, aside.open("wb") as file:
        np.savez_compressed(file, about=np.array(json.dumps(about)), **arrays)  # type: ignore[arg-type]


def load_acquisition(path: Path) -> Acquisition:
    """Read what `save_acquisition` wrote."""
    try:
        arrays = read_arrays(path)
        about = json.loads(str(arrays["about"]))
        policies = tuple(
            PolicySteps(
                name=policy["name"],
                images=arrays[f"images_{index}"],
                ssim=arrays[f"ssim_{index}"],
                columns=tuple(int(column) for column in arrays[f"columns_{index}"]),
                is_oracle=policy["is_oracle"],
            )
            for index, policy in enumerate(about["policies"])
        )
        start = tuple(int(column) for column in arrays["start_columns"])
        return Acquisition(arrays["target"], start, policies, about["title"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is not a recorded acquisition ({error}); record it anew"
        ) from error
