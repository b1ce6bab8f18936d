"""Assignment of volumes to training, validation and test: by folder, text file or at random."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, final

from kscout.data.formats import printable
from kscout.data.importing.settings import ImportSettings
from kscout.data.importing.volumes import (
    RAW_SUFFIXES,
    SUFFIXES,
    VolumeFile,
    find_stores,
    find_volumes,
    is_store,
    why_no_volumes,
)
from kscout.data.manifest import SPLITS
from kscout.errors import DataError
from kscout.files import read_bytes
from kscout.names import IMPORT_PRESETS

_PREFIXES = ("singlecoil_", "multicoil_", "")
_EMPTY_FOLDER = "put HDF5, NIfTI, DICOM or NumPy files there, or remove the folder"
_NO_FOLDERS = (
    "give a folder with singlecoil_train, singlecoil_val and singlecoil_test, or with NIfTI, "
    "DICOM, .npy or .npz files, or k-space as HDF5, MRD, .cfl, .dat, .mat, .npy or .npz"
)
_NO_KSPACE = (
    "give k-space: HDF5 of fastMRI or MRD, BART's .cfl and .hdr, Siemens' .dat, or an array with "
    "--axes"
)

_STORE = "a store already, which commands accept directly (--data)"

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Assignment:
    """Volumes by split, and the volumes without a split."""

    volumes: Mapping[str, list[VolumeFile]]
    left_out: tuple[tuple[str, str], ...] = ()
    """Names and reasons."""

    @property
    def files(self) -> list[Path]:
        return [path for found in self.volumes.values() for one in found for path in one.files]

    def sampled(self, rate: float) -> "Assignment":
        kept = {split: sample_volumes(found, rate) for split, found in self.volumes.items()}
        if empty := [split for split, found in kept.items() if not found]:
            presets = [name for name, one in IMPORT_PRESETS.items() if one["sample_rate"] == rate]
            source = f" (as --preset {presets[0]} has it)" if presets else ""
            raise DataError(
                f"a sample rate of {rate}{source} leaves none of the volumes of {empty[0]}, which "
                f"has {len(self.volumes[empty[0]])}; keep all with --sample-rate 1"
            )
        return replace(self, volumes=kept)

    def doubles(self) -> list[str]:
        """Return a message on each volume that is in several splits."""
        splits: dict[str, list[str]] = {}
        for split, volumes in self.volumes.items():
            for volume in volumes:
                splits.setdefault(volume.name, []).append(split)
        return [
            f"volume {name} is in two splits, {' and '.join(where)}: scores on it do not measure "
            "performance on unseen volumes"
            for name, where in splits.items()
            if len(where) > 1
        ]


def assign_splits(source: Path, settings: ImportSettings) -> Assignment:
    """Assign the volumes of a source to splits, without reading them.

    A source is a folder of volumes, a layout of one folder per split, or a file. A single volume is
    for test if `held_out` is above 0, because training needs several.
    """
    raw, group, lists = settings.raw, settings.group, settings.splits
    if not source.exists():
        raise DataError(f"{source} does not exist; give the folder that holds the volumes")
    if source.is_dir() and is_store(source):
        raise DataError(f"{source} is {_STORE}; give the folder that it was imported from")
    if lists is not None and (named := _unique_volumes(source, raw, group)):
        return _split_by_lists(named, _read_lists(lists), lists)
    folders = _split_folders(source)
    if settings.test_from_train:
        folders.pop("test", None)
    volumes = {
        split: find_volumes(place, raw=raw, group=group)
        for split, place in (folders or {"train": source}).items()
    }
    for split, found in volumes.items():
        if not found:
            place = folders.get(split, source)
            usual = _EMPTY_FOLDER if folders else _NO_KSPACE if raw else _NO_FOLDERS
            stores = find_stores(place)
            held = f"except {place / stores[0]}, which is {_STORE}; {usual}" if stores else ""
            advice = held or f"that kscout reads; {why_no_volumes(place) or usual}"
            raise DataError(printable(f"{place} holds no volumes {advice}"))
    if settings.held_out > 0 and not folders and len(volumes["train"]) == 1:
        volumes = {"test": volumes["train"]}
    for split in ("test", "val"):
        if "train" in volumes and split not in volumes:
            volumes["train"], volumes[split] = _draw(
                volumes["train"], settings.held_out, settings.seed
            )
    return Assignment({split: volumes[split] for split in SPLITS if volumes.get(split)})


def _split_folders(source: Path) -> dict[str, Path]:
    """Return the folders of a fastMRI layout (or plain train, val, test) by split."""
    for prefix in _PREFIXES:
        folders = {split: source / f"{prefix}{split}" for split in SPLITS}
        found = {split: folder for split, folder in folders.items() if folder.is_dir()}
        if found:
            return found
    return {}


def _split_by_lists(
    volumes: list[VolumeFile], lists: Mapping[str, list[str]], folder: Path
) -> Assignment:
    """Assign volumes by text files that name them, with or without the files' suffixes."""
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


def _read_lists(folder: Path) -> dict[str, list[str]]:
    """Read `train.txt`, `val.txt` and `test.txt`: one volume's name per line, `#` for remarks."""
    files = {split: folder / f"{split}.txt" for split in SPLITS}
    lists = {
        split: [
            Path(line.strip()).name
            for line in read_bytes(file).decode(errors="backslashreplace").splitlines()
            if line.strip() and not line.startswith("#")
        ]
        for split, file in files.items()
        if file.is_file()
    }
    if not lists:
        raise DataError(f"{folder} has none of train.txt, val.txt and test.txt; write them there")
    return lists


def _unique_volumes(source: Path, raw: bool, group: str | None) -> list[VolumeFile]:
    """Return the volumes of a source, each name once in all folders.

    Text files name volumes without folders; of equal names, the first is used.
    """
    by_name: dict[str, VolumeFile] = {}
    for volume in find_volumes(source, raw=raw, group=group):
        name = volume.name if volume.parts else printable(volume.path.name)
        by_name.setdefault(name, replace(volume, name=name))
    return list(by_name.values())


def _draw(
    volumes: list[VolumeFile], share: float, seed: int
) -> tuple[list[VolumeFile], list[VolumeFile]]:
    """Return the rest and a random fraction of volumes in their order, one each if possible."""
    order = list(range(len(volumes)))
    random.Random(seed).shuffle(order)
    n_drawn = round(len(volumes) * share)
    if share > 0 and len(volumes) > 1:
        n_drawn = min(max(n_drawn, 1), len(volumes) - 1)
    drawn = set(order[:n_drawn])
    stay = [volume for i, volume in enumerate(volumes) if i not in drawn]
    return stay, [volume for i, volume in enumerate(volumes) if i in drawn]


def sample_volumes(volumes: Sequence[T], rate: float) -> list[T]:
    """Return a sorted random fraction of a sorted list, equal to that of the authors' code."""
    if rate >= 1:
        return list(volumes)
    order = list(range(len(volumes)))
    random.Random(0).shuffle(order)
    return [volumes[i] for i in sorted(order[: round(len(order) * rate)])]


def _stem(name: str) -> str:
    known = (*SUFFIXES, *RAW_SUFFIXES)
    return next((name.removesuffix(suffix) for suffix in known if name.endswith(suffix)), name)
