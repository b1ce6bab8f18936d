"""Files of scanners and of other programs come in as those programs see them, where they are there.

`KSCOUT_RAW_FILES` names a folder of `VFA_cart_smalltest.h5` (source distribution of pyqmri 1.3.0),
`gre.dat` and `epi.dat` (of twixtools 0.24); `bart` and `ismrmrd_generate_cartesian_shepp_logan` are
Debian packages. What is not there is skipped.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from golden_numbers import Golden
from kscout.data import ImportSettings, import_folder
from kscout.data.store import Store
from kscout.errors import DataError
from kscout.physics.fourier import ifft2c

SHEPP_LOGAN = "ismrmrd_generate_cartesian_shepp_logan"


def real_file(name: str) -> Path:
    path = Path(os.environ.get("KSCOUT_RAW_FILES", "")) / name
    if not path.is_file():
        pytest.skip(f"needs {name} in the folder KSCOUT_RAW_FILES")
    return path


def call(folder: Path, *words: str) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


def take(source: Path, out: Path, **settings: Any) -> Store:
    return import_folder(source, out, ImportSettings(**settings))


def test_a_brain_of_13_coils_is_the_one_that_bart_saw(tmp_path: Path, golden: Golden) -> None:
    source = real_file("VFA_cart_smalltest.h5")
    axes = ("slice", "coil", "-", "row", "col")
    store = take(source, tmp_path / "brain", axes=axes, key="real_dat,imag_dat", origin="plain")
    kspace = store.split("test").batch(torch.tensor([5])).kspace[0]
    center = torch.view_as_complex(golden("multicoil", "center_times_1000").float())
    found = kspace[:, 100:124, 100:124]
    likeness = torch.vdot(found.flatten(), center.flatten()).abs() / found.norm() / center.norm()
    assert float(likeness) == pytest.approx(1, abs=2e-3)


def test_a_phantom_of_a_siemens_scanner_is_whole(tmp_path: Path) -> None:
    store = take(real_file("gre.dat"), tmp_path / "gre")
    slices = store.split("test")
    assert slices.shape == (2, 160, 160) and slices.selectable.all()
    # A disc that fills the field of view, in air.
    image = slices.magnitudes()[0]
    assert image[70:90, 20:60].mean() > 5 * image[:10, :10].mean()


def test_an_echo_planar_measurement_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="echo-planar measurement"):
        take(real_file("epi.dat"), tmp_path / "epi")


def test_barts_phantom_has_barts_image(tmp_path: Path) -> None:
    call(tmp_path, "bart", "phantom", "-k", "-s", "8", "-x", "64", "kspace")
    call(tmp_path, "bart", "fft", "-u", "-i", "3", "kspace", "images")
    call(tmp_path, "bart", "rss", "8", "images", "combined")
    expected = np.fromfile(tmp_path / "combined.cfl", "<c8").reshape(64, 64, order="F").real
    store = take(tmp_path / "kspace.cfl", tmp_path / "store")
    found = store.split("test").magnitudes()[0].numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6 * expected.max())


def test_ismrmrds_phantom_has_its_coil_images(tmp_path: Path) -> None:
    call(tmp_path, SHEPP_LOGAN, "-c", "4", "-m", "64", "-n", "0", "-r", "3", "-o", "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        pairs = file["dataset/coil_images"][0]
    expected = (pairs["real"] + 1j * pairs["imag"])[:, :, 32:96]
    slices = take(tmp_path / "a.h5", tmp_path / "store").split("test")
    found = ifft2c(slices.batch(torch.arange(3)).kspace).numpy()
    for repetition in found:
        np.testing.assert_allclose(repetition.transpose(0, 2, 1), expected, atol=1e-5)
