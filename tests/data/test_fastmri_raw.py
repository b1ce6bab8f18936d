"""fastMRI's raw files come in with what their headers and masks tell."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from coil_data import coil_kspace, imported, stored
from kscout.data.info import describe
from kscout.errors import DataError
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import magnitude

KSPACE = coil_kspace(3, 4, 18, 20, noise=0.001).numpy()
AXES = ("slice", "coil", "row", "col")


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


def test_rows_may_be_what_is_encoded_by_phase_and_that_is_told(tmp_path: Path) -> None:
    padded = KSPACE * (np.arange(20) > 2)
    source = write_fastmri(tmp_path / "a.h5", padded, ismrmrd_header=FASTMRI_HEADER)
    store = imported(source, phase_encoding="rows")
    slices = store.split("test")
    # Without the oversampling of what was the readout; what was no column is no row to choose.
    assert slices.shape == (4, 20, 9) and slices.selectable.all()
    images = magnitude(ifft2c(torch.from_numpy(padded)))[:, 5:14].mT
    torch.testing.assert_close(slices.magnitudes(), images)
    facts = describe(store)
    assert facts["columns"] == "computed"
    assert facts["geometry"][0]["description"] == (
        "1 volume of 20x9 at 3x5 mm (columns computed, not measured)"
    )
    small = imported(source, "small", phase_encoding="rows", crop=(12, 9), compress=2)
    assert small.split("test").shape == (2, 12, 9)
    lacking = write_fastmri(tmp_path / "b.h5", KSPACE * (np.arange(20) != 3))
    with pytest.raises(DataError, match=r"b\.h5 is undersampled: 19 of 20 columns"):
        imported(lacking, "other", phase_encoding="rows")


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
