"""Whatever one file holds, an import tells it in one sentence, and goes on without it if asked."""

import logging
import os
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from dicom_files import write_dicom
from kscout.data import ImportSettings, formats, import_folder
from kscout.data.importing.volumes import FORMATS, VolumeFile, find_volumes, read_volume
from kscout.data.store import Store
from kscout.errors import DataError

IMAGES = np.random.default_rng(0).random((3, 9, 9), dtype=np.float32)
HUGE = (40_000, 50_000, 50_000)


def write_source(folder: Path) -> Path:
    folder.mkdir()
    for name in "abc":
        np.save(folder / f"{name}.npy", IMAGES)
    return folder


def imported(source: Path, out: Path) -> tuple[Store, str]:
    """Import with and without the bad file; return the store without it and the reason."""
    with pytest.raises(DataError) as caught:
        import_folder(source, out, ImportSettings(size=7))
    assert not out.exists() and [path.name for path in out.parent.iterdir()] == [source.name]
    store = import_folder(source, out, ImportSettings(size=7, skip_bad=True))
    assert sorted(record.volume for record in store.manifest.volumes) == ["a.npy", "b.npy", "c.npy"]
    (left_out,) = store.manifest.left_out
    assert str(caught.value) == f"{left_out['reason']}, or leave it out with --skip-bad"
    assert "\n" not in left_out["reason"]
    return store, left_out["reason"]


def npy_header(path: Path, shape: tuple[int, ...]) -> None:
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)


def huge_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        npy_header(path.with_name(".header"), HUGE)
        archive.write(path.with_name(".header"), "images.npy")


def encrypted_npz(path: Path) -> None:
    np.savez(path, images=IMAGES)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"PK\1\2\x2d\3\x2d\0\0\0", b"PK\1\2\x2d\3\x2d\0\1\0", 1))


def cut_npz(path: Path) -> None:
    np.savez_compressed(path, images=IMAGES)
    path.write_bytes(path.read_bytes()[:500])


def overwritten_npz(path: Path) -> None:
    np.savez_compressed(path, images=IMAGES)
    content = bytearray(path.read_bytes())
    content[200:300] = bytes(range(100))
    path.write_bytes(content)


def text_npz(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.txt", "no array")


def hdf5(fill: Callable[[h5py.File], object]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            fill(file)

    return write


def cut_hdf5(path: Path) -> None:
    hdf5(lambda file: file.create_dataset("reconstruction_esc", data=IMAGES))(path)
    path.write_bytes(path.read_bytes()[:1500])


def outside(path: Path) -> Path:
    """A file of images that lies hidden beside the one that points to it."""
    with h5py.File(path.parent / ".secret", "w") as file:
        file["reconstruction_esc"] = IMAGES
    return path.parent / ".secret"


def external_link(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["reconstruction_esc"] = h5py.ExternalLink(str(outside(path)), "reconstruction_esc")


def external_storage(path: Path) -> None:
    (path.parent / ".raw").write_bytes(IMAGES.tobytes())
    with h5py.File(path, "w") as file:
        external = [(str(path.parent / ".raw"), 0, h5py.h5f.UNLIMITED)]
        file.create_dataset("reconstruction_esc", IMAGES.shape, "f4", external=external)


def virtual(path: Path) -> None:
    layout = h5py.VirtualLayout(IMAGES.shape, "f4")
    layout[:] = h5py.VirtualSource(outside(path), "reconstruction_esc", IMAGES.shape)
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("reconstruction_esc", layout)


def nifti(images: np.ndarray = IMAGES, **fields: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        nibabel = pytest.importorskip("nibabel")
        image = nibabel.Nifti1Image(images, np.eye(4))
        image.header.set_sform(np.eye(4), 2)
        nibabel.save(image, path)
        header = nibabel.Nifti1Header(path.read_bytes()[:348], check=False)
        for name, value in fields.items():
            header[name] = value
        path.write_bytes(header.binaryblock + path.read_bytes()[348:])

    return write


def dicom(**tags: Any) -> Callable[[Path], None]:
    return lambda path: write_dicom(path, np.ones((9, 9)), **tags)


def nested(path: Path) -> None:
    """A file whose sequences lie 3000 deep inside each other."""
    dicom()(path)
    sequence = bytes.fromhex("08004011") + b"SQ\0\0" + b"\xff" * 4
    item = bytes.fromhex("feff00e0") + b"\xff" * 4
    path.write_bytes(path.read_bytes() + 3000 * (sequence + item))


def odd_number(path: Path) -> None:
    dicom(InstanceNumber=12)(path)
    path.write_bytes(path.read_bytes().replace(b"IS\2\x0012", b"IS\2\0xy"))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "huge.npy": (lambda path: npy_header(path, HUGE), "declares float32 of shape .*; it may be"),
    "minus.npy": (lambda path: npy_header(path, (3, -9, 9)), "cannot be read as NumPy"),
    "huge.npz": (huge_npz, "declares float32 of shape .*; it may be truncated"),
    "encrypted.npz": (encrypted_npz, "cannot be read as NumPy .*encrypted"),
    "cut.npz": (cut_npz, "cannot be read as NumPy"),
    "overwritten.npz": (overwritten_npz, "cannot be read as NumPy"),
    "text.npz": (text_npz, r"cannot be read as NumPy|holds \|S8"),
    "nonsense.npy": (lambda path: path.write_bytes(b"nonsense"), "cannot be read"),
    "complex.npy": (lambda path: np.save(path, 1j * IMAGES), "holds .*complex64"),
    "four.npy": (lambda path: np.save(path, IMAGES[None]), r"holds .*\(1, 3, 9, 9\)"),
    "words.npy": (lambda path: np.save(path, np.array(["a"])), "holds .*<U1"),
    "flat.npy": (lambda path: np.save(path, IMAGES[:, :0, :0]), "has images of 0x0, without"),
    "zeros.npy": (lambda path: np.save(path, 0 * IMAGES), "only zeros in the 3 slices"),
    "nan.npy": (
        lambda path: np.save(path, np.where(IMAGES == IMAGES[1, 5, 5], np.nan, IMAGES)),
        "1 pixels that are NaN",
    ),
    "narrow.npy": (lambda path: np.save(path, IMAGES[:, :, :5]), "9x5, smaller than --size 7"),
    "small.npy": (lambda path: np.save(path, IMAGES[:, :5, :5]), "5x5, smaller than --size 7"),
    "empty.npy": (lambda path: np.save(path, IMAGES[:0]), "0 slices"),
    "huge.h5": (
        hdf5(lambda file: file.create_dataset("reconstruction_esc", HUGE, "f4", chunks=True)),
        "which are 400 TB, and has .*; images do not compress that much",
    ),
    "cut.h5": (cut_hdf5, "cannot be read"),
    "link.h5": (external_link, "holds reconstruction_esc as a link to /reconstruction|as a link"),
    "storage.h5": (external_storage, "without its values, which are in other files"),
    "virtual.h5": (virtual, "without its values, which are in other files"),
    "group.h5": (hdf5(lambda file: file.create_group("reconstruction_esc")), "as a group; name"),
    "null.h5": (
        hdf5(lambda file: file.create_dataset("reconstruction_esc", data=h5py.Empty("f4"))),
        "of shape None instead of real images",
    ),
    "huge.nii": (nifti(dim=[3, 30000, 30000, 30000, 1, 1, 1, 1]), "declares float32 of shape"),
    "type.nii": (nifti(datatype=77), "cannot be read as NIfTI"),
    "flat.nii": (nifti(srow_x=[0, 0, 0, 0]), "cannot be read as NIfTI"),
    "four.nii": (nifti(np.ones((9, 9, 9, 2))), r"has shape \(9, 9, 9, 2\)"),
    "two.nii": (nifti(np.ones((9, 9))), r"shape \(9, 9\) instead of a volume .* one as \.npy"),
    "complex.nii": (nifti(datatype=32, bitpix=64), "complex64 of shape .* instead of real"),
    "huge/a.dcm": (dicom(Rows=65000, Columns=65000), "declares uint16 of shape"),
    "report/a.dcm": (dicom(Rows=None, Columns=None), "no image, or is cut off .no Rows, Co"),
    "bits/a.dcm": (dicom(BitsAllocated=24), "cannot be read as DICOM images"),
    "number/a.dcm": (odd_number, "cannot be read as DICOM"),
    "nested/a.dcm": (nested, "cannot be read as DICOM"),
    "pipe.h5": (os.mkfifo, "is no regular file"),
    "pipe.npy": (os.mkfifo, "is no regular file"),
    "pipe.nii.gz": (os.mkfifo, "is no regular file"),
    "gone.npz": (lambda path: path.symlink_to("nowhere"), "is no regular file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_told_and_can_be_left_out(tmp_path: Path, name: str) -> None:
    source = write_source(tmp_path / "source")
    make, sentence = BAD[name]
    make(source / name)
    _, reason = imported(source, tmp_path / "store")
    assert name in reason or str(Path(name).parent) in reason
    assert re.search(sentence, reason)


@pytest.mark.parametrize(
    "error", [MemoryError, RecursionError, KeyError, OverflowError, OSError, AssertionError]
)
def test_whatever_a_library_raises_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def read(path: Path) -> None:
        raise error("first line\nsecond line")

    source = write_source(tmp_path / "source")
    (source / "bad.odd").touch()
    entry = formats.FORMATS["numpy"]
    monkeypatch.setattr("kscout.data.importing.volumes.SUFFIXES", {".npy": "numpy", ".odd": "odd"})
    monkeypatch.setitem(FORMATS, "odd", type(entry)(f"{__name__}:read", "an odd format"))  # type: ignore[arg-type]
    monkeypatch.setattr(f"{__name__}.read", read, raising=False)
    _, reason = imported(source, tmp_path / "store")
    assert "bad.odd" in reason


@pytest.mark.parametrize("name", ["pydicom", "pydicom.pixels.decoders.base", "nibabel.global"])
def test_libraries_are_quiet_about_files_and_speak_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    # Their modules have loggers of their own.
    chatter = logging.getLogger(name)
    caplog.set_level(logging.WARNING, logger=name)
    with formats.reading(tmp_path, "a folder"), formats.reading(tmp_path / "a", "a file"):
        chatter.warning("inside")
    with formats.reading(tmp_path, "a folder"):
        with formats.reading(tmp_path / "a", "a file"):
            pass
        chatter.warning("still inside")
    chatter.warning("afterwards")
    assert [record.message for record in caplog.records] == ["afterwards"]


def test_messages_list_few_names_and_no_addresses(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in range(200):
            file[f"group-{number:05d}/a"] = 0.0
    np.savez(tmp_path / "a.npz", **{f"array-{number}": IMAGES for number in range(50)})
    content = b"{'descr': '<f4' + '<f4', 'fortran_order': False, 'shape': (1, 1), }"
    header = b"\x93NUMPY\x01\x00" + len(content).to_bytes(2, "little") + content
    (tmp_path / "a.npy").write_bytes(header + bytes(4))
    messages = []
    for volume in find_volumes(tmp_path):
        with pytest.raises(DataError) as caught:
            read_volume(volume)
        messages.append(str(caught.value).removeprefix(str(tmp_path)))
    first, second, third = sorted(messages, key=len)
    assert "malformed node or string" in first and "object at" not in first
    assert "array-1, " in second and "... (50 in all)" in second
    assert "(it has: group-00000/a, " in third and ", ... (200 in all)" in third
    assert len(third) < 500


def test_volumes_larger_than_the_free_memory_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", IMAGES)
    monkeypatch.setattr("kscout.data.formats._NEGLIGIBLE", 0)
    monkeypatch.setattr("kscout.device.free_memory", lambda device: 16 * IMAGES.size - 1)
    with pytest.raises(
        DataError, match=r"243 pixels, which take 3\.89 kB .* and 3\.89 kB are free"
    ):
        read_volume(VolumeFile("a.npy", tmp_path / "a.npy", "numpy"))


def test_names_and_attributes_of_any_bytes_come_through(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    np.save(source / "caf\udce9\x1b.npy", IMAGES)
    with h5py.File(source / "d.h5", "w") as file:
        file["reconstruction_esc"] = IMAGES
        file.attrs["acquisition"] = b"T2\xff\n"
    store = import_folder(source, tmp_path / "store", ImportSettings())
    (odd,) = (record for record in store.manifest.volumes if record.volume.startswith("caf"))
    assert odd.volume == odd.source == r"caf\udce9\x1b.npy"
    assert [r.acquisition for r in store.manifest.volumes if r.volume == "d.h5"] == [r"T2\udcff\n"]
    assert Store.open(tmp_path / "store").fingerprint == store.fingerprint


FOREIGN: dict[str, tuple[bytes, str]] = {
    "a.NRRD": (b"NRRD0004", r"an image of 3D Slicer \(NRRD\); convert it to NIfTI"),
    "a.png": (b"\x89PNG", "a picture; put the slices"),
    "brain.img": (b"\0" * 344 + b"n+1\0", r"NIfTI; let its name end in \.nii"),
    "stack": (b"\x93NUMPY\1\0", r"an array of NumPy; let its name end in \.npy"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_files_of_others_are_told_by_name_with_an_advice(tmp_path: Path, name: str) -> None:
    content, sentence = FOREIGN[name]
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / name).write_bytes(content)
    for source in (tmp_path / "source", tmp_path / "source" / name):
        with pytest.raises(DataError, match=rf"no volumes .*{name} is {sentence}"):
            import_folder(source, tmp_path / "store", ImportSettings())


@pytest.mark.parametrize("name", ["IM0001", "MR.1.2.840.113619", "scan.MRDC", "one.dcm"])
def test_dicom_is_known_by_its_content(tmp_path: Path, name: str) -> None:
    write_dicom = dicom(PixelSpacing=[1.5, 1.2])
    write_dicom(tmp_path / "source" / name)
    (tmp_path / "source" / "DICOMDIR").write_bytes(b"\0" * 128 + b"DICM")
    for source in (tmp_path / "source", tmp_path / "source" / name):
        store = import_folder(source, tmp_path / f"{source.name}-store", ImportSettings())
        assert store.manifest.splits == {"test": 1}


def test_kspace_beside_images_is_told_with_the_option_for_all(tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    for name, key in (("a.h5", "reconstruction_rss"), ("b.h5", "kspace")):
        with h5py.File(tmp_path / "mixed" / name, "w") as file:
            file[key] = IMAGES
    with pytest.raises(DataError, match=r"b\.h5 has no .* the k-space of all files with --raw"):
        import_folder(tmp_path / "mixed", tmp_path / "store", ImportSettings())


def test_folders_linked_in_circles_are_looked_at_once(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    for name in ("again", "more"):
        (source / name).symlink_to(source)
    assert [volume.name for volume in find_volumes(source)] == ["a.npy", "b.npy", "c.npy"]


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path: Path) -> None:
    missing = tmp_path / "scan.mrd"
    with pytest.raises(DataError, match=r"scan\.mrd does not exist; name a file"):
        with formats.reading(missing, "MRD"):
            h5py.File(missing, "r")


def test_nobody_is_told_to_remove_a_device(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="/dev/null is no regular file; name files and folders"):
        import_folder("/dev/null", tmp_path / "store", ImportSettings())


@pytest.mark.parametrize("options", [{}, {"axes": ("row", "col", "slice")}, {"acquisition": "PD"}])
def test_pipes_that_come_first_block_no_import(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "source").mkdir()
    for name in ("0.h5", "1.h5"):
        os.mkfifo(tmp_path / "source" / name)
    with pytest.raises(DataError, match=r"[01]\.h5 is no regular file"):
        import_folder(tmp_path / "source", tmp_path / "store", ImportSettings(**options))


def test_a_file_of_no_format_is_answered_with_those_of_images_and_of_kspace(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("hi")
    with pytest.raises(DataError, match=r"DICOM, .*, or k-space as HDF5, MRD, "):
        import_folder(tmp_path / "note.txt", tmp_path / "store", ImportSettings())
