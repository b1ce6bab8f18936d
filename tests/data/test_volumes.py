"""Volumes of every format come out as slices, the right way round and in the right order."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pydicom
import pytest

from dicom_files import write_dicom
from kscout.data import ImportSettings, formats, import_folder
from kscout.data.formats import ImageScan
from kscout.data.importing.volumes import VolumeFile, find_volumes, read_volume
from kscout.errors import DataError

STACK = np.random.default_rng(0).random((3, 9, 11), dtype=np.float32)


def write_nifti(path: Path, data: np.ndarray, affine: np.ndarray | None = None) -> VolumeFile:
    nibabel = pytest.importorskip("nibabel")
    nibabel.save(nibabel.Nifti1Image(data, np.eye(4) if affine is None else affine), path)
    return VolumeFile(path.name, path, "nifti")


def test_nifti_slices_show_front_or_top_up(tmp_path: Path) -> None:
    data = np.zeros((5, 6, 7), np.float32)
    data[4, 5, 2] = 1  # Rightmost, foremost, third from below.
    volume = write_nifti(tmp_path / "a.nii.gz", data)
    where = {
        plane: tuple(
            int(i) for i in np.argwhere(read_volume(volume, ImportSettings(plane=plane))[0])[0]
        )
        for plane in ("axial", "coronal", "sagittal")
    }
    assert where == {"axial": (2, 0, 0), "coronal": (5, 4, 0), "sagittal": (4, 4, 0)}


def test_nifti_orientation_of_the_file_does_not_matter(tmp_path: Path) -> None:
    data = np.random.default_rng(1).random((5, 6, 7)).astype(np.float32)
    flipped = np.ascontiguousarray(data[::-1].transpose(2, 0, 1))
    affine = np.array([[0, -1, 0, 4], [0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 1]], np.float64)
    plain = read_volume(write_nifti(tmp_path / "a.nii", data))[0]
    turned = read_volume(write_nifti(tmp_path / "b.nii", flipped, affine))[0]
    assert np.array_equal(plain, turned)


def test_a_dicom_series_is_sorted_by_position_and_rescaled(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 4000, (3, 9, 11))
    coronal = [1, 0, 0, 0, 0, -1]  # Its normal points to the back (+y).
    for name, number, y in (("x.dcm", 2, -5.5), ("y.dcm", 0, -90.0), ("z", 1, 20.0)):
        write_dicom(
            tmp_path / "knee" / "series" / name,
            pixels[number],
            ImageOrientationPatient=coronal,
            ImagePositionPatient=[0, y, 3],
            RescaleSlope=2,
            RescaleIntercept=-1,
            SeriesDescription="PD cor",
        )
    (volume,) = find_volumes(tmp_path / "knee")
    assert (volume.name, volume.format) == ("series", "dicom")
    images, acquisition, *_ = read_volume(volume)
    assert acquisition == "PD cor"
    assert np.array_equal(images, (2 * pixels[[0, 2, 1]] - 1).astype(np.float32))


def test_dicom_without_positions_goes_by_instance_number(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 4000, (3, 9, 11))
    for number in range(3):
        write_dicom(tmp_path / f"{'cab'[number]}.dcm", pixels[number], InstanceNumber=number + 1)
    assert np.array_equal(read_volume(find_volumes(tmp_path)[0])[0], pixels.astype(np.float32))


def test_bad_dicom_folders_are_named(tmp_path: Path) -> None:
    pixels = np.ones((9, 11))
    write_dicom(tmp_path / "a.dcm", pixels)
    for name in "bc":
        write_dicom(
            tmp_path / f"{name}.dcm", pixels, SeriesInstanceUID="1.2.4", SeriesDescription="T2"
        )
    with pytest.raises(DataError, match=r"mixes 2 series \('.*: a\.dcm, 'T2': 2 files from b\.dcm"):
        read_volume(find_volumes(tmp_path)[0])
    (tmp_path / "c.dcm").unlink()
    write_dicom(tmp_path / "b.dcm", np.ones((9, 10)))
    with pytest.raises(DataError, match="slices of 2 sizes"):
        read_volume(find_volumes(tmp_path)[0])
    (tmp_path / "b.dcm").write_bytes(b"not DICOM at all")
    with pytest.raises(DataError, match=r"b\.dcm cannot be read as DICOM \(the mark DICM is miss"):
        read_volume(find_volumes(tmp_path)[0])


def read_numpy(path: Path, key: str | None = None) -> ImageScan:
    return read_volume(VolumeFile(path.name, path, "numpy"), ImportSettings(key=key))


def test_numpy_stacks_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", STACK)
    np.save(tmp_path / "b.npy", STACK[0].astype(np.float64))
    np.savez(tmp_path / "c.npz", images=STACK)
    np.savez(tmp_path / "d.npz", images=STACK, other=STACK[:1])
    assert np.array_equal(read_numpy(tmp_path / "a.npy")[0], STACK)
    assert np.array_equal(read_numpy(tmp_path / "b.npy")[0], STACK[:1])
    assert np.array_equal(read_numpy(tmp_path / "c.npz")[0], STACK)
    assert np.array_equal(read_numpy(tmp_path / "d.npz", "other")[0], STACK[:1])
    with pytest.raises(DataError, match=r"d\.npz holds the arrays images, other; name one"):
        read_numpy(tmp_path / "d.npz")


def test_an_archive_called_npy_is_an_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=STACK[:, :, :9])
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    store = import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings())
    assert store.manifest.splits == {"test": 3}
    assert store.manifest.volumes[0].source == "a.npy"


def test_volumes_of_one_name_are_called_by_their_paths(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        np.save(tmp_path / folder / "a.npy", STACK)
    np.save(tmp_path / "y" / "b.npy", STACK)
    (tmp_path / "notes.txt").write_text("not a volume")
    assert [volume.name for volume in find_volumes(tmp_path)] == ["b.npy", "x/a.npy", "y/a.npy"]


IMAGES = np.random.default_rng(0).random((3, 9, 9), dtype=np.float32)


def test_arrays_far_larger_than_their_files_are_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "ALWAYS_UNPACKED", 2**16)
    zeros = np.zeros((9, 200, 200), np.float32)
    np.savez_compressed(tmp_path / "a.npz", images=zeros)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("reconstruction_esc", data=zeros, compression="gzip")
    write_nifti(tmp_path / "a.nii.gz", zeros)
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
    rng = np.random.default_rng(0)
    for name in ("good", "bad"):
        write_nifti(tmp_path / f"{name}.nii.gz", rng.random((40, 41, 42), np.float32))
    path = tmp_path / "bad.nii.gz"
    path.write_bytes(damage(path.read_bytes()))
    bad, good = find_volumes(tmp_path)
    assert read_volume(good).images.shape == (42, 41, 40)
    with pytest.raises(DataError, match=r"bad\.nii\.gz .*; copy"):
        read_volume(bad)


def test_padding_behind_a_gzip_file_is_no_damage(tmp_path: Path) -> None:
    path = write_nifti(tmp_path / "a.nii.gz", IMAGES).path
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
