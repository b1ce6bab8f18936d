"""Compressed files are unpacked to their end, up to a limit."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pydicom
import pytest

from dicom_files import write_dicom
from kscout.data import formats
from kscout.data.importing import ImportSettings, import_folder
from kscout.data.importing.volumes import find_volumes, read_volume
from kscout.errors import DataError

IMAGES = np.random.default_rng(0).random((3, 9, 9), dtype=np.float32)


def test_arrays_far_larger_than_their_files_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "ALWAYS_UNPACKED", 2**16)
    zeros = np.zeros((9, 200, 200), np.float32)
    np.savez_compressed(tmp_path / "a.npz", images=zeros)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("reconstruction_esc", data=zeros, compression="gzip")
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(zeros, np.eye(4)), tmp_path / "a.nii.gz")
    for volume in find_volumes(tmp_path):
        with pytest.raises(DataError, match=rf"{volume.name} .*which are 1\.44 MB, and has"):
            read_volume(volume)


@pytest.mark.parametrize("how", ["long", "twice"])
def test_chunks_that_unpack_without_end_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(formats, "ALWAYS_UNPACKED", 2**20)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk(IMAGES.shape)
        for _ in range(1 + (how == "twice")):
            properties.set_deflate(9)
        space, kind = h5py.h5s.create_simple(IMAGES.shape), h5py.h5t.IEEE_F32LE
        data = h5py.h5d.create(file.id, b"reconstruction_esc", kind, space, properties)
        packed = zlib.compress(IMAGES.tobytes() + (how == "long") * b"\0" * 2**22)
        data.write_direct_chunk((0, 0, 0), zlib.compress(packed) if how == "twice" else packed)
    with pytest.raises(DataError, match="chunks that unpack to more than their size"):
        import_folder(tmp_path / "a.h5", tmp_path / "store", ImportSettings())


def test_compressed_chunks_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "ALWAYS_UNPACKED", 2**12)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        options = {"compression": "gzip", "shuffle": True, "fletcher32": True}
        file.create_dataset("reconstruction_esc", data=IMAGES, chunks=(2, 9, 5), **options)
    assert np.array_equal(read_volume(find_volumes(tmp_path)[0]).images, IMAGES)


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return (
        content[:middle]
        + bytes(255 - x for x in content[middle : middle + 2])
        + content[middle + 2 :]
    )


@pytest.mark.parametrize(
    "damage",
    [flipped, lambda content: content[:-8], lambda content: content[:-4] + b"abcd"],
    ids=["two bytes", "no trailer", "another length"],
)
def test_a_damaged_gzip_file_is_rejected(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    nibabel = pytest.importorskip("nibabel")
    rng = np.random.default_rng(0)
    for name in ("good", "bad"):
        nibabel.save(
            nibabel.Nifti1Image(rng.random((40, 41, 42), np.float32), np.eye(4)),
            tmp_path / f"{name}.nii.gz",
        )
    path = tmp_path / "bad.nii.gz"
    path.write_bytes(damage(path.read_bytes()))
    bad, good = find_volumes(tmp_path)
    assert read_volume(good).images.shape == (42, 41, 40)
    with pytest.raises(DataError, match=r"bad\.nii\.gz .*; copy"):
        read_volume(bad)


def test_padding_behind_a_gzip_file_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.nii.gz"
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(IMAGES, np.eye(4)), path)
    content = path.read_bytes()
    middle = b"".join(gzip.compress(x) for x in (gzip.decompress(content)[:100], b""))
    rest = gzip.compress(gzip.decompress(content)[100:])
    path.write_bytes(middle + rest + b"\0" * 512)
    assert read_volume(find_volumes(tmp_path)[0]).images.shape == (9, 9, 3)


def test_a_deflated_dicom_is_unpacked_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syntax = "1.2.840.10008.1.2.1.99"
    write_dicom(tmp_path / "a.dcm", np.ones((9, 9)), syntax=syntax)
    assert read_volume(find_volumes(tmp_path)[0]).images.shape == (1, 9, 9)
    write_dicom(tmp_path / "a.dcm", np.ones((2000, 1000)), syntax=syntax)
    monkeypatch.setattr(formats, "ALWAYS_UNPACKED", 2**20)
    with pytest.raises(DataError, match=r"unpacks to more than 1\.05 MB, and has"):
        read_volume(find_volumes(tmp_path)[0])


def test_damage_in_compressed_pixels_is_reported_with_its_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.dcm"
    write_dicom(path, np.ones((9, 9)))
    data = pydicom.dcmread(path)
    data.compress(pydicom.uid.RLELossless)
    data.PixelData = pydicom.encaps.encapsulate([data.PixelData[-20:]])
    data.save_as(path)
    with pytest.raises(DataError, match=r"all available plugins: pydicom: .*; convert it to"):
        read_volume(find_volumes(tmp_path)[0])
    assert not caplog.records
