"""What becomes of k-space in an import: cut, resized, kept undersampled, coils compressed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread

from coil_data import AXES, coil_kspace, imported, imported_array, stored
from coil_data import COIL_KSPACE as KSPACE
from kscout import reconstruction
from kscout.acquisition.episode import Simulator
from kscout.data import ImportSettings, import_folder
from kscout.data.info import describe
from kscout.data.montage import save_montage
from kscout.data.slices import LEAST_PEAK, MOST_PEAK, SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError, KScoutError
from kscout.physics.coils import compress
from kscout.physics.fourier import ifft2c
from kscout.physics.normalization import magnitude
from kscout.physics.sampling import center_mask


def test_cutting_rows_keeps_measured_columns(tmp_path: Path) -> None:
    store = imported_array(tmp_path, KSPACE, crop=(12, 20))
    images = ifft2c(torch.from_numpy(KSPACE))[:, :, 3:15]
    torch.testing.assert_close(store.split("test").magnitudes(), magnitude(images))
    # Along columns nothing was transformed: a column holds what the scanner measured in it.
    rows = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(KSPACE, 2), axis=2, norm="ortho"), 2)
    cut = np.fft.ifftshift(rows[:, :, 3:15], 2)
    expected = np.fft.fftshift(np.fft.fft(cut, axis=2, norm="ortho"), 2)
    np.testing.assert_allclose(stored(store), expected, atol=1e-5)
    assert describe(store)["columns"] == "measured"
    assert not any("no scanner" in warning for warning in store.manifest.warnings)


def test_cutting_columns_is_told_everywhere(tmp_path: Path) -> None:
    store = imported_array(tmp_path, KSPACE, size=(18, 12))
    images = ifft2c(torch.from_numpy(KSPACE))[..., 4:16]
    torch.testing.assert_close(store.split("test").magnitudes(), magnitude(images))
    facts = describe(store)
    assert facts["columns"] == store.columns == "computed"
    assert facts["geometry"][0]["description"] == (
        "1 volume of 18x20 pixels, cut to 18x12 (columns computed, not measured)"
    )
    assert any("not measured by a scanner" in warning for warning in facts["warnings"])


def test_resizing_keeps_the_center_of_kspace_and_the_brightness(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", KSPACE)
    small, large = (
        imported(tmp_path / "a.npy", str(size), resize=size, axes=AXES) for size in (13, (21, 24))
    )
    scale = np.sqrt(13 * 13 / (18 * 20))
    expected = scale * KSPACE[:, :, 3:16, 4:17]
    np.testing.assert_allclose(stored(small), expected, rtol=1e-5, atol=1e-6)
    assert small.split("test").selectable.all() and describe(small)["columns"] == "measured"
    wide = large.split("test")
    assert wide.selectable[0].tolist() == [False] * 2 + [True] * 20 + [False] * 2
    whole = ifft2c(torch.from_numpy(KSPACE)).abs().mean()
    for store in (small, large):
        found = ifft2c(torch.from_numpy(stored(store))).abs().mean()
        assert found == pytest.approx(float(whole), rel=0.1)
    assert describe(large)["geometry"][0]["description"].endswith("k-space resized to 21x24 pixels")


def test_columns_outside_the_matrix_are_not_selectable(tmp_path: Path) -> None:
    padded = np.pad(KSPACE, [(0, 0), (0, 0), (0, 0), (3, 2)])
    padded[1] = 0
    store = imported_array(tmp_path, padded)
    selectable = store.split("test").selectable
    assert selectable.shape == (2, 25) and selectable[:, 3:23].all()
    assert not selectable[:, :3].any() and not selectable[:, 23:].any()
    assert store.split("test").slices == (0, 2)
    assert "left out 1 slice that contains only zeros" in store.manifest.warnings


def test_undersampled_kspace_is_refused_or_kept_to_be_reconstructed(tmp_path: Path) -> None:
    lacking = KSPACE.copy()
    lacking[..., [2, 8, 12]] = 0
    with pytest.raises(DataError, match=r"undersampled: 17 of 20 columns .* --prospective"):
        imported_array(tmp_path, lacking)
    np.save(tmp_path / "odd.npy", KSPACE * (np.arange(20) % 2).astype(np.float32))
    words = "10 of 19 columns were measured, from column 1 to 19, and"
    with pytest.raises(DataError, match=words):
        imported(tmp_path / "odd.npy", axes=AXES)
    store = imported(tmp_path / "a.npy", axes=AXES, prospective=True)
    assert describe(store)["is_prospective"]
    assert any("no ground truth for training" in warning for warning in store.manifest.warnings)
    with pytest.raises(DataError, match="without ground truth for training or scoring"):
        store.split("test")
    measured = Store.open(store.path).measured("test")
    batch = measured.batch(torch.arange(3))
    assert batch.selectable[0].nonzero().flatten().tolist() == [
        column for column in range(20) if column not in (2, 8, 12)
    ]
    assert np.array_equal(batch.kspace.numpy(), lacking)
    # Nothing is estimated from columns that are missing: there are too few about the center.
    save_montage(store, tmp_path / "a.png", n_images=1, coils=True)
    assert imread(tmp_path / "a.png").shape == (18, 6 * 20 + 5 * 2)
    with pytest.raises(DataError, match="cropping its phase direction would mix"):
        imported(tmp_path / "a.npy", "cut", axes=AXES, prospective=True, crop=12)


@pytest.mark.parametrize("origin", ["corner", "plain"])
@pytest.mark.parametrize("size", [(18, 20), (17, 21)])
def test_columns_that_lack_do_so_wherever_the_centers_are(
    origin: str, size: tuple[int, int], tmp_path: Path
) -> None:
    kspace = coil_kspace(2, 3, *size, noise=0.001).numpy()
    kspace[..., 4] = 0
    images = ifft2c(torch.from_numpy(kspace)).numpy()
    if origin == "corner":
        images = np.fft.ifftshift(images, axes=(-2, -1))
    found = np.fft.fft2(images, norm="ortho")
    found[np.abs(found) < 1e-5] = 0
    np.save(tmp_path / "a.npy", found.astype(np.complex64))
    given = {"axes": AXES, "origin": origin}
    with pytest.raises(DataError, match=f"undersampled: {size[1] - 1} of {size[1]} columns"):
        imported(tmp_path / "a.npy", **given)
    store = imported(tmp_path / "a.npy", **given, prospective=True)
    np.testing.assert_allclose(stored(store), kspace, atol=3e-5)
    assert (stored(store)[..., 4] == 0).all()
    assert np.flatnonzero(~store.measured("test").selectable[0].numpy()).tolist() == [4]


def test_slices_of_a_prospective_volume_may_lack_different_columns(tmp_path: Path) -> None:
    lacking = KSPACE.copy()
    for number, missing in enumerate(([2, 8], [], [0, 5, 19])):
        lacking[number, ..., missing] = 0
    store = Store.open(imported_array(tmp_path, lacking, prospective=True).path)
    assert store.manifest.is_prospective
    batch = store.measured("test").batch(torch.arange(3))
    assert np.array_equal(batch.selectable.numpy(), lacking.any(axis=(1, 2)))
    assert np.array_equal(batch.kspace.numpy(), lacking)


def test_coils_are_compressed_by_central_columns_alone(tmp_path: Path) -> None:
    is_central = center_mask(20, 9).numpy()
    found = []
    for name, kspace in {"a": KSPACE, "b": np.where(is_central, KSPACE, 7 - 5j)}.items():
        np.save(tmp_path / f"{name}.npy", kspace)
        asked = {"axes": AXES, "compress": 2, "compress_center": 9}
        store = Store.open(imported(tmp_path / f"{name}.npy", f"{name}-store", **asked).path)
        found.append(stored(store))
    expected = compress(torch.from_numpy(KSPACE), n_coils=2, n_center=9)
    assert np.array_equal(found[0], expected.numpy())
    assert np.array_equal(found[0][..., is_central], found[1][..., is_central])
    told = describe(store)
    assert (told["n_coils"], told["virtual"]) == (2, (2, 9))
    note = "1 volume: 4 coils compressed to 2 by 9 central columns, which acquisitions start from"
    assert note in told["warnings"]


@pytest.mark.parametrize("n_coils", [4, 9])
def test_acquisitions_start_anywhere_where_no_coil_was_compressed(
    tmp_path: Path, n_coils: int
) -> None:
    store = imported_array(tmp_path, KSPACE, compress=n_coils)
    assert store.split("test").check_start(1) is None
    assert describe(store)["virtual"] is None
    assert f"1 volume: all 4 coils kept, since --compress is {n_coils}" in store.manifest.warnings


def test_kspace_whose_coils_are_kept_may_lack_the_center(tmp_path: Path) -> None:
    store = imported_array(
        tmp_path, np.where(np.arange(20) == 10, 0, KSPACE), prospective=True, compress=4
    )
    assert np.array_equal(stored(store), np.load(tmp_path / "a.npy"))


def test_acquisitions_start_from_the_center_where_some_coils_were_compressed(
    tmp_path: Path,
) -> None:
    """Also where the import is interrupted before the others come."""
    (tmp_path / "source").mkdir()
    np.save(tmp_path / "source" / "a.npy", KSPACE)
    np.save(tmp_path / "source" / "b.npy", KSPACE[:, :2])
    given = ImportSettings(axes=AXES, compress=2, held_out=0)

    def stop(n_done: int, *_: object) -> None:
        if n_done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_folder(tmp_path / "source", tmp_path / "store", given, stop)
    store = import_folder(tmp_path / "source", tmp_path / "store", given)
    assert store.manifest.virtual == (2, 8)


def test_an_acquisition_starts_from_what_its_coils_were_compressed_by(tmp_path: Path) -> None:
    slices = imported_array(tmp_path, KSPACE, compress=3).split("test")
    slices.check_start(8)
    slices.check_start([*range(5, 15)])
    for initial in (7, [*range(7, 14)]):
        with pytest.raises(ConfigError, match="compressed by 8 central columns"):
            slices.check_start(initial)
    assert imported(tmp_path / "a.npy", "all", axes=AXES).split("test").check_start(1) is None


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"compress": 0}, "compress is 0; it must be 1 or more"),
        ({"compress": 2, "compress_center": 21}, "1 to 20 central columns, found 21"),
        ({"compress": 2, "prospective": True}, "lacks some of the 8 central columns"),
    ],
)
def test_coils_that_cannot_be_compressed_leave_nothing(
    asked: dict[str, Any], told: str, tmp_path: Path
) -> None:
    np.save(
        tmp_path / "a.npy", KSPACE * (np.arange(20) != 10) if "prospective" in asked else KSPACE
    )
    with pytest.raises(KScoutError, match=told):
        imported(tmp_path / "a.npy", axes=AXES, **asked)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


@pytest.mark.parametrize("unit", [1e-30, 1e-8, 1e10])
def test_units_that_spoil_scores_are_refused_with_a_divisor_that_mends_them(
    unit: float, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r"pixels up to .*--divide|pixels up to 0") as told:
        imported_array(tmp_path, (KSPACE * unit).astype(np.complex64))
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
    named = re.findall(r"such as (\S+) ", str(told.value))
    store = imported(tmp_path / "a.npy", axes=AXES, divide=float(named[0]) if named else unit)
    assert 0.1 < float(store.split("test").data_range[0]) < 10


@pytest.mark.parametrize("peak", [LEAST_PEAK, MOST_PEAK])
def test_scores_are_the_same_in_all_units_that_are_taken(peak: float) -> None:
    def score(kspace: torch.Tensor) -> torch.Tensor:
        batch = SliceSet.from_kspace(kspace, ["a"] * 3).batch(torch.arange(3))
        return Simulator(batch, reconstruction.load("zero-filled"), protocol="blind").start(9).score

    kspace = torch.from_numpy(KSPACE)
    own = float(SliceSet.from_kspace(kspace, ["a"] * 3).data_range[0])
    # A hair inside of what is taken, whichever way 32 bit round.
    inside = peak * (1.001 if peak < 1 else 0.999)
    torch.testing.assert_close(score(kspace / own * inside), score(kspace), atol=3e-5, rtol=0)


def test_the_page_reconstructs_undersampled_kspace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "a.npy", KSPACE * (np.arange(20) != 3))
    import_folder(
        tmp_path / "a.npy", tmp_path / "stores/scan", ImportSettings(axes=AXES, prospective=True)
    )
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "import-kspace.md").read_text(
        encoding="utf-8"
    )
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["found"].image.shape == (3, 18, 20)
