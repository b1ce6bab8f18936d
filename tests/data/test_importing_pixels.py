"""Importing cuts, pads, turns and scales images as asked for, and passes none over silently."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from fastmri_layout import IMAGES, SETTINGS, write_layout, write_volume
from kscout.config.forms import parse_size
from kscout.data.importing import ImportSettings, import_folder
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


def test_scanner_units_are_told_to_spoil_psnr(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES * 9)
    assert not import_folder(source, tmp_path / "small", SETTINGS).manifest.warnings
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES * 1900)
    store = import_folder(source, tmp_path / "large", SETTINGS)
    peak = store.split("val").data_range.max().item()
    (told,) = store.manifest.warnings
    assert told.startswith(
        f"the largest data_range is {peak:.4g}, and PSNR by the convention paper"
    )
    assert told in caplog.text


def test_the_middle_of_images_that_are_not_square_is_kept_where_it_fits(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES[:, :, :9])
    with pytest.raises(
        DataError, match=r"12x9, smaller than --size 12; keep their .*--size 12x9, .*--pad 12, "
    ):
        import_folder(source, tmp_path / "store", ImportSettings(size=12))
    store = import_folder(source, tmp_path / "store", SETTINGS)
    assert np.array_equal(store.split("val").magnitudes().numpy(), IMAGES[:, 2:9, 1:8])


def test_a_size_is_advised_that_fits_every_volume(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=2, val=1, test=1)
    write_volume(source / "singlecoil_train" / "file0.h5", IMAGES[:, :, :11])
    write_volume(source / "singlecoil_val" / "file2.h5", IMAGES[:, :, :8])
    for size in (12, (12, 9)):
        with pytest.raises(
            DataError, match=r"smaller than --size 12.*; .* --size 12x8, .*--pad 12,"
        ):
            import_folder(source, tmp_path / "store", ImportSettings(size=size))
    for number in range(30, 60):
        write_volume(source / "singlecoil_train" / f"file{number}.h5")
    with pytest.raises(DataError, match=r" --size 12x8, or pad them"):
        import_folder(source, tmp_path / "store", ImportSettings(size=12))
    import_folder(source, tmp_path / "small", ImportSettings(size=8))
    import_folder(source, tmp_path / "padded", ImportSettings(pad=12))


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


def test_pixels_are_divided_as_the_warning_of_large_ones_advises(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    for file in source.glob("*/*.h5"):
        write_volume(file, IMAGES * np.float32(1059 / IMAGES.max()))
    plain = import_folder(source, tmp_path / "plain", ImportSettings())
    assert "import with --divide 1000, the same" in plain.manifest.warnings[0]
    divided = import_folder(source, tmp_path / "divided", ImportSettings(divide=1000))
    assert not divided.manifest.warnings
    found, whole = (store.split("test").magnitudes() for store in (divided, plain))
    assert np.allclose(found * 1000, whole) and found.max() == pytest.approx(1.059)
    assert "divide" not in plain.manifest.recipe["settings"]
    with pytest.raises(ConfigError, match=r"divide is nan; expected a number"):
        ImportSettings(divide=float("nan"))
    for number in (0, -1):
        with pytest.raises(ConfigError, match=r"--divide is .*; give a number above 0"):
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


def test_padding_takes_images_of_any_shape(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES[:, :5, :4])
    store = import_folder(source, tmp_path / "store", ImportSettings(size=7, pad=9))
    image = store.split("val").magnitudes().numpy()
    assert np.array_equal(image[:, 1:6, 2:6], IMAGES[:, :5, :4])
    assert image.sum() == pytest.approx(IMAGES[:, :5, :4].sum())


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
