"""Reconstruction examples: mask, image, target and difference of chosen slices under policies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float32

from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.errors import DataError
from kscout.evaluation.entrants import Entrant
from kscout.evaluation.trajectories import AcquisitionPlan, trajectories
from kscout.files import written_whole
from kscout.physics.sampling import center_mask


@final
@dataclass(frozen=True)
class Example:
    """One slice at the end of one acquisition."""

    policy: str
    seed: int
    volume: str
    slice: int
    mask: Bool[np.ndarray, " col"]
    image: Float32[np.ndarray, "row col"]
    """The reconstruction in the target's units."""
    target: Float32[np.ndarray, "row col"]
    ssim: float

    @property
    def difference(self) -> Float32[np.ndarray, "row col"]:
        """Absolute difference of reconstruction and target."""
        return np.abs(self.image - self.target)


def choose_slices(slices: SliceSet, wanted: Sequence[str]) -> SliceSet:
    """Return slices named by position (`12`) or as `VOLUME:NUMBER`, in the order asked for."""
    found = []
    places = {pair: i for i, pair in enumerate(zip(slices.volumes, slices.slices, strict=True))}
    for name in wanted:
        volume, colon, number = name.rpartition(":")
        try:
            place = places[volume, int(number)] if colon else int(name)
            if not 0 <= place < len(slices):
                raise IndexError
        except (KeyError, ValueError, IndexError) as error:
            raise DataError(
                f"no slice {name!r}; give a position 0..{len(slices) - 1} or VOLUME:NUMBER, "
                f"e.g. {slices.volumes[0]}:{slices.slices[0]}"
            ) from error
        found.append(place)
    return slices.subset(torch.tensor(found, dtype=torch.long))


def reconstruction_examples(
    entrants: Sequence[Entrant],
    slices: SliceSet,
    reconstructor: Reconstructor,
    plan: AcquisitionPlan,
) -> list[Example]:
    """Run each policy once over the slices; examples come slice by slice, then by policy."""
    found: list[tuple[int, Example]] = []
    for entrant in entrants:
        own = replace(plan, n_trajectories=1, seed=entrant.draw_seed)
        place = 0
        for batch, done in trajectories(
            entrant.policy, slices, reconstructor, own, keep_images=True
        ):
            assert done.images is not None
            for i in range(len(batch)):
                mask = center_mask(slices.n_cols, plan.n_initial)
                mask[done.columns[i, 0].cpu()] = True
                example = Example(
                    policy=entrant.name,
                    seed=entrant.seed,
                    volume=slices.volumes[place],
                    slice=slices.slices[place],
                    mask=mask.numpy(),
                    image=done.images[-1, i, 0].float().cpu().numpy(),
                    target=batch.target[i].float().cpu().numpy(),
                    ssim=done.ssim[i, 0, -1].item(),
                )
                found.append((place, example))
                place += 1
    return [example for _, example in sorted(found, key=lambda pair: pair[0])]


def save_examples(path: Path, examples: Sequence[Example]) -> None:
    """Write all arrays to one .npz file: mask, image, target [example, ...], and their names."""
    with written_whole(path) as aside, aside.open("wb") as file:
        np.savez_compressed(
            file,
            policy=np.array([example.policy for example in examples]),
            volume=np.array([example.volume for example in examples]),
            slice=np.array([example.slice for example in examples]),
            ssim=np.array([example.ssim for example in examples]),
            mask=np.stack([example.mask for example in examples]),
            image=np.stack([example.image for example in examples]),
            target=np.stack([example.target for example in examples]),
        )


def example_rows(examples: Sequence[Example]) -> list[dict[str, object]]:
    """Return a table: policy, seed, volume, slice, ssim, and the columns measured at the end."""
    return [
        {
            "policy": example.policy,
            "seed": example.seed,
            "volume": example.volume,
            "slice": example.slice,
            "ssim": example.ssim,
            "columns": " ".join(str(column) for column in np.flatnonzero(example.mask)),
        }
        for example in examples
    ]
