"""fastMRI volumes are cut as the reference cuts them."""

import random
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from coil_data import AXES, imported, stored
from coil_data import COIL_KSPACE as KSPACE
from golden_numbers import Golden
from kscout.data import ImportSettings, import_folder
from kscout.data.formats.hdf5 import read_hdf5
from kscout.data.importing.images import center_crop, middle_slices, zero_pad
from kscout.data.importing.splits import sample_volumes
from kscout.data.info import describe
from kscout.errors import DataError
from kscout.names import IMPORT_PRESETS
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import magnitude


def test_brain_padding_and_crop_are_the_references(golden: Golden) -> None:
    image = golden("inputs", "brain_in").numpy()[None]
    padded = zero_pad(image, 384)
    (top, bottom), (left, right) = golden("inputs", "brain_pad384_nonzero_box").tolist()
    assert padded.shape == (1, 384, 384)
    assert np.array_equal(padded[0, top : bottom + 1, left : right + 1], image[0])
    expected = golden("inputs", "brain_padcrop256").numpy()
    assert np.array_equal(center_crop(padded, 256)[0], expected)


def test_knee_crop_is_the_references(golden: Golden) -> None:
    raw = golden("inputs", "raw320_slice0").numpy()[None]
    assert np.array_equal(center_crop(raw, 128)[0], golden("inputs", "images128")[0].numpy())


def write_golden_volumes(folder: Path, golden: Golden) -> None:
    """Write both golden volumes, 320x320 with six slices, of which 1, 2 and 3 are known."""
    folder.mkdir(parents=True)
    images = golden("inputs", "images128").numpy()
    for number in range(2):
        volume = np.random.default_rng(number).random((6, 320, 320), dtype=np.float32)
        volume[1:4, 96:224, 96:224] = images[3 * number : 3 * number + 3]
        with h5py.File(folder / f"file190000{number}.h5", "w") as file:
            file["reconstruction_esc"] = volume
            file.attrs["acquisition"] = "CORPD_FBK"


@pytest.mark.parametrize("size", [64, 128])
def test_an_imported_knee_has_the_references_slices_and_ranges(
    tmp_path: Path, golden: Golden, size: int
) -> None:
    write_golden_volumes(tmp_path / "knee" / "singlecoil_val", golden)
    settings = ImportSettings(size=size, center_volume=True)
    val = import_folder(tmp_path / "knee", tmp_path / "store", settings).split("val")
    margin = (128 - size) // 2
    images = golden("inputs", "images128")[:, margin : margin + size, margin : margin + size]
    assert torch.equal(val.magnitudes(), images)
    batch = val.batch(torch.arange(6))
    expected = {"data_range": "data_range", "target_mean": "gt_mean", "target_std": "gt_std"}
    expected |= {"target": "unnorm_gt"} if size == 128 else {}
    for name, key in expected.items():
        values = golden("inputs", f"{key}_r{size}")
        found = getattr(batch, name)[: len(values)]
        assert (found - values).abs().max() <= 1e-5 * values.abs().max()
    # Slice 1 has pixels beyond six deviations, which are clamped in its target.
    assert size == 64 or (batch.target[1] - images[1]).abs().max() > 1e-3 * batch.target[1].max()
    with np.load(Path(__file__).parents[1] / "golden" / "inputs.npz") as arrays:
        assert list(val.volumes) == arrays["fname"].tolist()
        assert list(val.slices) == arrays["slice"].tolist()


@pytest.mark.parametrize(
    ("n_slices", "kept"), [(1, []), (2, [0]), (6, [1, 2, 3]), (7, [1, 2, 3, 4])]
)
def test_the_middle_half_of_a_volume(n_slices: int, kept: list[int]) -> None:
    assert list(middle_slices(n_slices)) == kept


def test_sampling_is_the_references_seeded_shuffle() -> None:
    names = [f"file{number}.h5" for number in range(11)]
    shuffled = list(names)
    random.seed(0)
    random.shuffle(shuffled)
    assert sample_volumes(names, 0.5) == sorted(shuffled[: round(5.5)], key=names.index)
    assert sample_volumes(names, 1.0) == names


def test_presets_are_the_papers_rules() -> None:
    knee, brain = (ImportSettings(**IMPORT_PRESETS[name]) for name in ("knee", "brain"))
    assert (knee.size, knee.pad, knee.center_volume, knee.sample_rate) == (128, None, True, 0.5)
    assert (brain.size, brain.pad, brain.center_volume, brain.sample_rate) == (256, 384, False, 0.2)


def write_hdf5(path: Path, **datasets: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in datasets.items():
            file[name] = values
        file.attrs["acquisition"] = "AXT1"
    return path


def test_brain_targets_and_acquisitions_are_found(tmp_path: Path) -> None:
    volume = np.arange(24, dtype=np.float64).reshape(2, 3, 4)
    images, acquisition, *_ = read_hdf5(write_hdf5(tmp_path / "a.h5", reconstruction_rss=volume))
    assert acquisition == "AXT1"
    assert images.dtype == np.float32
    assert np.array_equal(images, volume)


def test_a_file_without_targets_says_what_it_has(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.h5", kspace=np.zeros((2, 3, 4), np.complex64))
    with pytest.raises(DataError, match=r"a\.h5 has no reconstruction_esc .*kspace.*test-from-tr"):
        read_hdf5(path)
    with pytest.raises(DataError, match=r"has no image \(it has: kspace\).*--key"):
        read_hdf5(path, "image")
    with pytest.raises(DataError, match=r"complex64 of shape \(2, 3, 4\)"):
        read_hdf5(path, "kspace")


FASTMRI_HEADER = """<?xml version="1.0"?>
<ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><encoding>
<encodedSpace><matrixSize><x>18</x><y>20</y><z>1</z></matrixSize>
<fieldOfView_mm><x>90</x><y>60</y><z>3</z></fieldOfView_mm></encodedSpace>
<reconSpace><matrixSize><x>9</x><y>14</y><z>1</z></matrixSize>
<fieldOfView_mm><x>45</x><y>42</y><z>3</z></fieldOfView_mm></reconSpace>
<trajectory>cartesian</trajectory></encoding></ismrmrdHeader>"""


def write_fastmri(path: Path, kspace: np.ndarray, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["kspace"] = kspace
        file.attrs["acquisition"] = "AXT2"
        for name, value in more.items():
            file[name] = value
    return path


def test_fastmris_raw_files_come_in_with_their_splits(tmp_path: Path) -> None:
    for split, part in (("train", 0), ("val", 1), ("test", 2)):
        write_fastmri(tmp_path / f"source/multicoil_{split}/{split}.h5", KSPACE[part : part + 1])
    store = imported(tmp_path / "source")
    assert store.manifest.splits == {"train": 1, "val": 1, "test": 1}
    assert store.manifest.volumes[0].acquisition == "AXT2"
    np.testing.assert_array_equal(stored(store, "val"), KSPACE[1:2])


def test_a_header_tells_oversampling_and_spacing(tmp_path: Path) -> None:
    source = write_fastmri(tmp_path / "a.h5", KSPACE, ismrmrd_header=FASTMRI_HEADER)
    store = imported(source)
    assert store.split("test").shape == (4, 9, 20)
    images = magnitude(ifft2c(torch.from_numpy(KSPACE)))[:, 5:14]
    torch.testing.assert_close(store.split("test").magnitudes(), images)
    description = describe(store)["geometry"][0]["description"]
    assert description == "1 volume of 18x20 at 5x3 mm, cut to 9x20"
    whole = imported(source, "whole", crop=(18, 20))
    np.testing.assert_array_equal(stored(whole), KSPACE)
    small = imported(source, "small", resize=(9, 10))
    assert small.manifest.volumes[0].geometry is not None
    assert small.manifest.volumes[0].geometry.stored_mm == (5, 6)


def test_single_coils_have_no_axis_of_coils(tmp_path: Path) -> None:
    store = imported(write_fastmri(tmp_path / "a.h5", KSPACE[:, 0]))
    np.testing.assert_array_equal(stored(store), KSPACE[:, :1])


def test_files_with_images_are_images_unless_asked(tmp_path: Path) -> None:
    images = magnitude(ifft2c(torch.from_numpy(KSPACE))).numpy()
    source = write_fastmri(tmp_path / "a.h5", KSPACE, reconstruction_rss=images)
    assert imported(source, "images").kind.name == "images"
    raw = imported(source, "raw", raw=True)
    torch.testing.assert_close(raw.split("test").magnitudes(), torch.from_numpy(images))


def test_the_mask_of_fastmris_test_set_is_read(tmp_path: Path) -> None:
    mask = np.arange(20) % 3 != 0
    source = write_fastmri(tmp_path / "a.h5", KSPACE * mask, mask=mask)
    with pytest.raises(DataError, match="undersampled: 13 of 19 columns"):
        imported(source)
    store = imported(source, prospective=True)
    assert store.measured("test").selectable[0].tolist() == mask.tolist()


def test_pairs_that_do_not_match_are_told(tmp_path: Path) -> None:
    source = write_fastmri(tmp_path / "a.h5", KSPACE, other=KSPACE.real[:1])
    with pytest.raises(DataError, match="does not hold other,kspace as two arrays of real numbers"):
        imported(source, axes=AXES, key="other,kspace")


def test_hdf5_without_kspace_is_told(tmp_path: Path) -> None:
    source = write_fastmri(tmp_path / "a.h5", KSPACE[0, 0])
    with pytest.raises(DataError, match=r"kspace is of shape \(18, 20\); .*--key and --axes"):
        imported(source)
    with pytest.raises(DataError, match=r"foo is missing; the file contains kspace"):
        imported(source, raw=True, key="foo")
