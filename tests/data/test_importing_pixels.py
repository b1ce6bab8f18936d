"""Importing cuts, pads, turns and scales images as asked for, and passes none over silently."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from command_line import kscout
from dicom_files import write_dicom
from fastmri_layout import IMAGES, SETTINGS, write_layout, write_volume
from kscout.config.bounds import parse_size
from kscout.data import ImportSettings, import_folder
from kscout.data.importing.images import resample, resampled_size
from kscout.data.importing.settings import parse_spacing
from kscout.data.importing.volumes import find_volumes, read_volume
from kscout.errors import ConfigError, DataError


def test_rows_that_are_encoded_by_phase_become_columns(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", test=1)
    usual, turned = (
        import_folder(
            source, tmp_path / way, ImportSettings(size=(6, 8), phase_encoding=way)
        ).split("test")
        for way in ("columns", "rows")
    )
    assert usual.magnitudes().shape == turned.magnitudes().shape == (4, 6, 8)
    assert torch.equal(usual.magnitudes()[:, :, 1:7], turned.magnitudes()[:, :, 1:7].mT)


def test_pixels_well_below_zero_are_no_magnitudes(tmp_path: Path) -> None:
    source = tmp_path / "images"
    source.mkdir()
    for name in "abcd":
        np.save(source / f"{name}.npy", IMAGES)
    slightly, well_below = IMAGES.copy(), IMAGES.copy()
    slightly[1, 5, 5] = -0.009 * IMAGES.max()
    well_below[1, 5, 5] = -0.02
    np.save(source / "b.npy", slightly)
    for images, told in ((well_below, r"-0\.02 to 0\.\d+"), (-IMAGES, r"-0\.\d+ to -\S+")):
        np.save(source / "c.npy", images)
        sentence = rf"c\.npy has pixels from {told} instead of magnitudes, .*; take absolute values"
        with pytest.raises(DataError, match=sentence):
            import_folder(source, tmp_path / "store", SETTINGS)
    store = import_folder(source, tmp_path / "store", ImportSettings(size=7, skip_bad=True))
    assert [entry["source"] for entry in store.manifest.left_out] == ["c.npy"]


def test_fastmris_own_data_sets_are_taken_as_they_are(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES - 0.5)
    store = import_folder(source, tmp_path / "store", SETTINGS)
    assert np.array_equal(store.split("val").magnitudes().numpy(), IMAGES[:, 2:9, 2:9] - 0.5)
    with h5py.File(source / "singlecoil_val" / "file1.h5", "a") as file:
        file.move("reconstruction_esc", "mine")
    with pytest.raises(DataError, match="instead of magnitudes"):
        import_folder(source / "singlecoil_val", tmp_path / "own", ImportSettings(key="mine"))


def test_slices_of_nothing_but_zeros_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    images = IMAGES.copy()
    images[0] = images[3, 2:9, 2:9] = 0  # Of the last one, only the frame is cut away.
    write_volume(source / "singlecoil_val" / "file1.h5", images)
    store = import_folder(source, tmp_path / "store", SETTINGS)
    assert np.array_equal(store.split("val").magnitudes().numpy(), IMAGES[1:3, 2:9, 2:9])
    assert store.split("val").slices == (1, 2)
    assert store.manifest.splits == {"train": 4, "val": 2, "test": 4}
    assert store.manifest.warnings == ("left out 2 slices that contain only zeros",)
    assert store.manifest.warnings[0] in caplog.text


def test_the_middle_of_images_that_are_not_square_is_kept_where_it_fits(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES[:, :, :9])
    with pytest.raises(
        DataError, match=r"12x9, smaller than --size 12; lower it to 12x9, .*--pad 12, "
    ):
        import_folder(source, tmp_path / "store", ImportSettings(size=12))
    store = import_folder(source, tmp_path / "store", SETTINGS)
    assert np.array_equal(store.split("val").magnitudes().numpy(), IMAGES[:, 2:9, 1:8])


def test_rectangles_are_kept_whole_cut_and_padded(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    for file in source.glob("*/*.h5"):
        write_volume(file, IMAGES[:, :, :9])
    kept = {
        "whole": (ImportSettings(), IMAGES[:, :, :9]),
        "cut": (ImportSettings(size=(7, 4)), IMAGES[:, 2:9, 2:6]),
        "padded": (
            ImportSettings(size=(10, 8), pad=(13, 11)),
            np.pad(IMAGES[:, :, :9], [(0, 0), (1, 0), (1, 1)])[:, 1:11, 1:9],
        ),
    }
    for name, (settings, images) in kept.items():
        store = import_folder(source, tmp_path / name, settings)
        assert np.array_equal(store.split("test").magnitudes().numpy(), images)
        assert not store.manifest.warnings
        assert import_folder(source, tmp_path / name, settings).fingerprint == store.fingerprint


def test_pixels_are_divided_as_the_warning_of_large_ones_advises(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    for file in source.glob("*/*.h5"):
        write_volume(file, IMAGES * np.float32(1059 / IMAGES.max()))
    plain = import_folder(source, tmp_path / "plain", ImportSettings())
    (told,) = plain.manifest.warnings
    assert told.startswith("the largest data_range is 1059, and PSNR by the convention paper")
    assert "import with --divide 1000, the same" in told and told in caplog.text
    divided = import_folder(source, tmp_path / "divided", ImportSettings(divide=1000))
    assert not divided.manifest.warnings
    found, whole = (store.split("test").magnitudes() for store in (divided, plain))
    assert np.allclose(found * 1000, whole) and found.max() == pytest.approx(1.059)
    assert "divide" not in plain.manifest.recipe["settings"]
    with pytest.raises(ConfigError, match=r"divide is nan; expected a number"):
        ImportSettings(divide=float("nan"))
    for number in (0, -1):
        with pytest.raises(ConfigError, match=r"divide is .*; it must be above 0"):
            ImportSettings(divide=number)


def test_absolute_values_are_taken_where_asked_for(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(2, 9, 7)).astype(np.float32)
    np.save(tmp_path / "a.npy", images)
    with pytest.raises(DataError, match="take absolute values with --absolute"):
        import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings())
    store = import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings(absolute=True))
    assert np.array_equal(store.split("test").magnitudes().numpy(), np.abs(images))
    assert store.manifest.recipe["settings"]["absolute"] is True


def test_images_of_several_sizes_are_told_with_sizes_that_fit_all(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES[:, :9, :])
    store = import_folder(source, tmp_path / "store", ImportSettings())
    (warning,) = store.manifest.warnings
    assert "2 sizes (9x12, 12)" in warning and "--size 9x12 keeps" in warning
    assert "--pad 12 pads" in warning


def test_a_size_on_the_command_line_is_a_side_or_rows_and_columns() -> None:
    found = [parse_size(text, "--size") for text in ("64", "64x64", "640x368")]
    assert found == [64, 64, (640, 368)]
    for text in ("", "x", "1x2x3", "a", "3.5"):
        with pytest.raises(ConfigError, match=r"--pad '.*' is no image size; write pixels as in"):
            parse_size(text, "--pad")
    for size in ("0", "12x-3", "5000x12"):
        with pytest.raises(ConfigError, match="is no image size; give 1 to 4096"):
            ImportSettings(size=parse_size(size, "--size"))


@pytest.mark.parametrize("suffix", ["npy", "npz", "h5"])
def test_axes_of_images_may_have_any_order(tmp_path: Path, suffix: str) -> None:
    stack = np.random.default_rng(0).random((5, 9, 8), dtype=np.float32)
    for number in range(3):
        path, array = tmp_path / f"{number}.{suffix}", (stack + number).transpose(1, 2, 0)[:, None]
        if suffix == "npy":
            np.save(path, array)
        elif suffix == "npz":
            np.savez(path, array)
        else:
            with h5py.File(path, "w") as file:
                file["data"] = array
    key = "data" if suffix == "h5" else None
    settings = ImportSettings(axes=("row", "-", "col", "slice"), key=key)
    store = import_folder(tmp_path, tmp_path / "out" / "store", settings)
    assert (store.kind.name, store.manifest.warnings) == ("images", ())
    name = int(store.manifest.volumes[0].volume[0])
    np.testing.assert_array_equal(store.split("train").magnitudes()[:5], stack + name)
    assert import_folder(tmp_path, store.path, settings).fingerprint == store.fingerprint
    wrong = ImportSettings(axes=("-", "row", "slice", "col"), key=key)
    with pytest.raises(DataError, match=r"marks an axis that is longer than 1 as -; name it slice"):
        import_folder(tmp_path, tmp_path / "out" / "wrong", wrong)


def test_a_last_axis_that_may_be_the_slices_is_warned_of(tmp_path: Path) -> None:
    source = tmp_path / "arrays"
    source.mkdir()
    for number in range(3):
        np.save(source / f"{number}.npy", np.ones((9, 11, 4 + number)))
    (told,) = import_folder(source, tmp_path / "alone", ImportSettings(size=4)).manifest.warnings
    assert told.startswith("3 volumes: the last axis of the array is the shortest and became the")
    named = ImportSettings(axes=("row", "col", "slice"))
    store = import_folder(source, tmp_path / "named", named)
    assert not store.manifest.warnings
    assert {record.size for record in store.manifest.volumes} == {(9, 11)}


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
        "4 rows and 84 columns (8 and 67.2 mm)"
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
