"""Which volume belongs to training, validation and test: by folder, by text file or by draw."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, final

from kscout.data.store import SPLITS
from kscout.data.volumes import SUFFIXES, VolumeFile, find_volumes
from kscout.errors import DataError

_PREFIXES = ("singlecoil_", "multicoil_", "")

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Assignment:
    """Volumes by split, and the volumes that nothing assigns."""

    volumes: Mapping[str, list[VolumeFile]]
    left_out: tuple[tuple[str, str], ...] = ()
    """Names and reasons."""

    def doubles(self) -> list[str]:
        """Name each volume that is in several splits."""
        splits: dict[str, list[str]] = {}
        for split, volumes in self.volumes.items():
            for volume in volumes:
                splits.setdefault(volume.name, []).append(split)
        return [
            f"volume {name} is in two splits, {' and '.join(where)}: scores on it tell nothing "
            "about unseen volumes"
            for name, where in splits.items()
            if len(where) > 1
        ]


def split_folders(source: Path) -> dict[str, Path]:
    """Return the folders of a fastMRI layout (or plain train, val, test) by split."""
    for prefix in _PREFIXES:
        folders = {split: source / f"{prefix}{split}" for split in SPLITS}
        found = {split: folder for split, folder in folders.items() if folder.is_dir()}
        if found:
            return found
    return {}


def split_by_folder(folders: Mapping[str, Path], *, held_out: float, seed: int) -> Assignment:
    """Take the folders' volumes; a split without a folder is drawn from the training volumes."""
    volumes = {split: find_volumes(folder) for split, folder in folders.items()}
    for split, found in volumes.items():
        if not found:
            raise DataError(
                f"{folders[split]} holds no volumes; put HDF5, NIfTI, DICOM or NumPy files there, "
                "or remove the folder"
            )
    for split in ("test", "val"):
        if "train" in volumes and split not in volumes:
            volumes["train"], volumes[split] = draw(volumes["train"], held_out, seed)
    return Assignment({split: volumes[split] for split in SPLITS if volumes.get(split)})


def split_by_draw(volumes: list[VolumeFile], *, held_out: float, seed: int) -> Assignment:
    """Draw test volumes from all volumes, and validation volumes from the rest."""
    rest, test = draw(volumes, held_out, seed)
    train, val = draw(rest, held_out, seed)
    drawn = {"train": train, "val": val, "test": test}
    return Assignment({split: found for split, found in drawn.items() if found})


def split_by_lists(
    volumes: list[VolumeFile], lists: Mapping[str, list[str]], folder: Path
) -> Assignment:
    """Assign volumes as text files name them, with or without the files' suffixes."""
    by_name = {volume.name: volume for volume in volumes}
    by_name.update({_stem(volume.name): volume for volume in volumes})
    assigned = {
        split: [by_name[name] for name in sorted(set(names)) if name in by_name]
        for split, names in lists.items()
    }
    named = {volume.path for found in assigned.values() for volume in found}
    left_out = [
        (volume.name, f"{volume.path} is named in no split; add it to a text file in {folder}")
        for volume in volumes
        if volume.path not in named
    ]
    left_out += [
        (name, f"{folder / split}.txt names {name}, which is not in the source; remove the name")
        for split, names in lists.items()
        for name in names
        if name not in by_name
    ]
    return Assignment({split: found for split, found in assigned.items() if found}, tuple(left_out))


def read_lists(folder: Path) -> dict[str, list[str]]:
    """Read `train.txt`, `val.txt` and `test.txt`: one volume's name per line, `#` for remarks."""
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    lists = {
        split: [
            Path(line.strip()).name
            for line in file.read_text(encoding="utf-8").splitlines()
            if line.strip() and not line.startswith("#")
        ]
        for split, file in files.items()
        if file.is_file()
    }
    if not lists:
        raise DataError(f"{folder} has none of train.txt, val.txt and test.txt; write them there")
    return lists


def unique_volumes(source: Path) -> list[VolumeFile]:
    """Return the volumes of a whole source, each by its own name whatever its folder.

    Text files name volumes without folders; where two folders hold one name, the first serves.
    """
    by_name: dict[str, VolumeFile] = {}
    for volume in find_volumes(source):
        by_name.setdefault(volume.path.name, replace(volume, name=volume.path.name))
    return list(by_name.values())


def draw(
    volumes: list[VolumeFile], share: float, seed: int
) -> tuple[list[VolumeFile], list[VolumeFile]]:
    """Split volumes into a random share and the rest, at least one each where possible.

    Args:
        volumes: in any order, which both parts keep.
        share: of the volumes, from 0 to 1.
        seed: of the draw.

    Returns:
        The rest, and the share.
    """
    order = list(range(len(volumes)))
    random.Random(seed).shuffle(order)
    n_drawn = round(len(volumes) * share)
    if share > 0 and len(volumes) > 1:
        n_drawn = min(max(n_drawn, 1), len(volumes) - 1)
    drawn = set(order[:n_drawn])
    stay = [volume for i, volume in enumerate(volumes) if i not in drawn]
    return stay, [volume for i, volume in enumerate(volumes) if i in drawn]


def sample_volumes(volumes: Sequence[T], rate: float) -> list[T]:
    """Return a random share of a sorted list, the same as the authors' code draws, still sorted."""
    if rate >= 1:
        return list(volumes)
    order = list(range(len(volumes)))
    random.Random(0).shuffle(order)
    return [volumes[i] for i in sorted(order[: round(len(order) * rate)])]


def _stem(name: str) -> str:
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
