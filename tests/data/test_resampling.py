"""Resampled images show the same anatomy at the same place, as sharp as the new grid allows."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from command_line import kscout
from dicom_files import write_dicom
from kscout.data.importing import ImportSettings, import_folder
from kscout.data.importing.resampling import resample, resampled_size
from kscout.data.importing.settings import parse_spacing
from kscout.data.importing.volumes import find_volumes, read_volume
from kscout.errors import ConfigError, DataError

OLD_MM, NEW_MM = (0.9, 1.3), (2.0, 0.8)
SIZE = (150, 91)


def grid(size: tuple[int, int], spacing: tuple[float, float]) -> list[np.ndarray]:
    """Coordinates of pixels in mm, from the middle of the image."""
    axes = ((np.arange(n) - (n - 1) / 2) * mm for n, mm in zip(size, spacing, strict=True))
    return np.meshgrid(*axes, indexing="ij")


def blob(size: tuple[int, int], spacing: tuple[float, float]) -> np.ndarray:
    y, x = grid(size, spacing)
    return np.exp(-(((y - 7) / 9) ** 2 + ((x + 11) / 6) ** 2) / 2)[None].astype(np.float32)


def moments(image: np.ndarray, spacing: tuple[float, float]) -> list[float]:
    """Center and width of an image in mm, by rows and by columns."""
    found = []
    for place in grid(image.shape, spacing):  # type: ignore[arg-type]
        center = float((image * place).sum() / image.sum())
        found += [center, float(np.sqrt((image * (place - center) ** 2).sum() / image.sum()))]
    return found


def test_a_blob_keeps_its_place_and_width_in_mm() -> None:
    image = resample(blob(SIZE, OLD_MM), OLD_MM, NEW_MM)
    assert image.shape[1:] == resampled_size(SIZE, OLD_MM, NEW_MM) == (68, 148)
    assert moments(image[0], NEW_MM) == pytest.approx([7, 9, -11, 6], rel=2e-3)
    assert np.abs(image - blob((68, 148), NEW_MM)).max() < 3e-3


@pytest.mark.parametrize("new_mm", [(2.0, 2.6), (0.5, 0.5), (0.9, 1.3)])
def test_what_both_grids_can_show_stays(new_mm: tuple[float, float]) -> None:
    def waves(size: tuple[int, int], spacing: tuple[float, float]) -> np.ndarray:
        y, x = grid(size, spacing)
        return 2 + np.cos(2 * np.pi * (y / 17 + x / 23)) + np.sin(2 * np.pi * x / 14)

    image = resample(waves(SIZE, OLD_MM)[None].astype(np.float32), OLD_MM, new_mm)[0]
    expected = waves(resampled_size(SIZE, OLD_MM, new_mm), new_mm)
    inside = tuple(slice(n // 8, -n // 8) for n in image.shape)  # Beyond the edge nothing is known.
    assert np.abs(image - expected)[inside].max() < 0.02


def test_what_the_new_grid_cannot_show_is_removed_not_folded() -> None:
    y, _ = grid(SIZE, OLD_MM)
    image = resample(
        (1 + np.cos(2 * np.pi * y / 2.2))[None].astype(np.float32), OLD_MM, (3.0, 3.0)
    )[0]
    assert np.abs(image - 1)[5:-5].max() < 0.02
    flat = resample(np.full((1, *SIZE), 3, np.float32), OLD_MM, NEW_MM)
    assert np.abs(flat - 3).max() < 1e-5
    edge = resample((blob(SIZE, OLD_MM) > 0.5).astype(np.float32), OLD_MM, NEW_MM)
    assert edge.min() == 0


def write_nifti(path: Path, image: np.ndarray, spacing: tuple[float, float], **header: Any) -> None:
    """Write axial slices of rows to the back and columns to the left."""
    nibabel = pytest.importorskip("nibabel")
    volume = np.repeat(image[:, ::-1, ::-1].transpose(2, 1, 0), 4, axis=2)
    file = nibabel.Nifti1Image(volume, np.diag([spacing[1], spacing[0], 3, 1]))
    file.header.set_xyzt_units(header.get("unit", "mm"))
    nibabel.save(file, path)


def test_files_tell_their_spacing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_nifti(tmp_path / "a.nii", blob(SIZE, OLD_MM), OLD_MM)
    write_nifti(tmp_path / "b.nii", blob(SIZE, OLD_MM), (900, 1300), unit="micron")
    write_dicom(tmp_path / "c" / "x.dcm", np.ones((9, 11)), PixelSpacing=[0.9, 1.3])
    write_dicom(tmp_path / "d" / "x.dcm", np.ones((9, 11)))
    with h5py.File(tmp_path / "e.h5", "w") as file:
        file["reconstruction_rss"] = np.ones((2, 9, 11))
        file["ismrmrd_header"] = HEADER
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["reconstruction_rss"] = np.ones((2, 9, 11))
        file["ismrmrd_header"] = HEADER[:100]
    np.save(tmp_path / "g.npy", np.ones((2, 9, 11)))
    spacings = [read_volume(volume).spacing_mm for volume in find_volumes(tmp_path)]
    told = [spacing and pytest.approx(spacing) for spacing in spacings]
    assert told == [OLD_MM, OLD_MM, OLD_MM, None, OLD_MM, None, None]
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "f.h5 has an ismrmrd_header that cannot be read (unclosed token" in warning


HEADER = """<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>640</x><y>368</y><z>1</z></matrixSize></encodedSpace>
<reconSpace><matrixSize><x>320</x><y>300</y><z>1</z></matrixSize>
<fieldOfView_mm><x>288.0</x><y>390.0</y><z>4.5</z></fieldOfView_mm></reconSpace>
</encoding></ismrmrdHeader>"""


def test_an_import_resamples_then_cuts_and_tells_both(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / "source").mkdir(exist_ok=True)
        write_nifti(tmp_path / "source" / f"{name}.nii.gz", blob(SIZE, OLD_MM), OLD_MM)
    options = ("import", tmp_path / "source", "--size", 64)
    said = kscout("data", *options, "--resample", "2x0.8", "--out", tmp_path / "store")
    sentence = (
        "3 volumes of 150x91 at 0.9x1.3 mm, resampled to 68x148 at 2x0.8 mm, cropped to 64x64 by "
        "4 rows and 84 columns (8 and 67.2 mm); --resample 2.13 would keep all"
    )
    assert sentence in said
    assert sentence in " ".join(kscout("data", "info", tmp_path / "store").split())
    (found,) = json.loads(kscout("data", "info", tmp_path / "store", "--json"))["geometry"]
    assert (found["stored_mm"], found["cropped"]) == ([2.0, 0.8], [4, 84])
    whole = kscout("data", *options, "--resample", "2.13", "--out", tmp_path / "whole")
    assert "resampled to 63x56 at 2.13x2.13 mm, padded to 64x64\n" in whole
    whole = kscout("data", *options[:2], "--resample", 2.13, "--out", tmp_path / "rectangle")
    assert "resampled to 63x56 at 2.13x2.13 mm\n" in whole
    plain = kscout("data", *options, "--out", tmp_path / "plain")
    assert "3 volumes of 150x91 at 0.9x1.3 mm, cropped to 64x64 by 86 rows and 27 columns" in plain


def test_one_spacing_is_advised_for_all_volumes(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for name, side in {"a": 64, "b": 96, "c": 80}.items():
        write_nifti(tmp_path / "source" / f"{name}.nii", blob((side, 64), (1, 1)), (1, 1))
    options = ("import", tmp_path / "source", "--resample", 1, "--size", 32)
    said = kscout("data", *options, "--out", tmp_path / "store")
    assert re.findall("--resample .*", said) == ["--resample 3 would keep all of every volume"]
    whole = kscout("data", *options[:3], 3, *options[4:], "--out", tmp_path / "whole")
    assert "cropped" not in whole


def test_resampling_needs_a_spacing_and_sensible_numbers(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 9, 9)))
    with pytest.raises(DataError, match=r"a\.npy has no pixel spacing"):
        import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings(resample=(1.0, 1.0)))
    write_nifti(tmp_path / "b.nii", blob(SIZE, OLD_MM), OLD_MM)
    with pytest.raises(DataError, match="images of 13500x11830 by --resample, beyond 4096"):
        import_folder(tmp_path / "b.nii", tmp_path / "store", ImportSettings(resample=(0.01, 0.01)))
    for text in ("", "x", "1x2x3", "a"):
        with pytest.raises(ConfigError, match="is no spacing; write mm as in"):
            parse_spacing(text, "--resample")
    with pytest.raises(ConfigError, match=r"is no spacing; give 0\.01 to 100 mm"):
        ImportSettings(resample=parse_spacing("0", "--resample"))
    for spacing in ("nan", "1x1e400"):
        with pytest.raises(ConfigError, match=r"resample\[.\] is ...; expected a finite number"):
            ImportSettings(resample=parse_spacing(spacing, "--resample"))


def test_an_import_without_resampling_is_what_it_was(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((2, 9, 9)))
    store = import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings())
    assert "resample" not in store.manifest.recipe["settings"]
    (record,) = store.manifest.volumes
    without = replace(store.manifest, volumes=(replace(record, geometry=None),))
    assert record.geometry is not None and without.fingerprint == store.fingerprint
