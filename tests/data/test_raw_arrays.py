"""k-space in arrays becomes a store as it was measured, whatever the order of its axes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
import torch

from coil_data import AXES, imported, imported_array, stored
from coil_data import COIL_KSPACE as KSPACE
from kscout.data import ImportSettings, import_folder
from kscout.data.importing import kspace as importing_kspace
from kscout.data.importing.kspace_cutting import Cutting
from kscout.data.importing.settings import parse_axes
from kscout.data.info import describe
from kscout.errors import ConfigError, DataError
from kscout.physics.fourier import ifft2c


def write_bart(path: Path, array: np.ndarray, **at: int) -> Path:
    """Write an array whose axes lie at numbered dimensions of BART."""
    names = {"read": 0, "phs1": 1, "phs2": 2, "coil": 3, "maps": 4, "te": 5, "slice": 13}
    names |= {"avg": 14}
    shape = [1] * 16
    for axis, name in enumerate(at):
        shape[names[name]] = array.shape[axis]
    order = np.argsort([names[name] for name in at])
    path.with_suffix(".hdr").write_text(f"# Dimensions\n{' '.join(map(str, shape))}\n# Creator\n")
    path.write_bytes(array.transpose(order).astype("<c8").tobytes(order="F"))
    return path


def save_npy(folder: Path) -> tuple[Path, dict[str, Any]]:
    np.save(folder / "a.npy", KSPACE.transpose(2, 0, 3, 1))
    return folder / "a.npy", {"axes": ("row", "slice", "col", "coil")}


def save_npz(folder: Path) -> tuple[Path, dict[str, Any]]:
    np.savez_compressed(folder / "a.npz", other=np.zeros(3), data=KSPACE[:, :, None])
    return folder / "a.npz", {"axes": ("slice", "coil", "-", "row", "col"), "key": "data"}


def save_mat(folder: Path) -> tuple[Path, dict[str, Any]]:
    scipy.io.savemat(folder / "a.mat", {"k": KSPACE.transpose(2, 3, 1, 0), "n": "text"})
    return folder / "a.mat", {"axes": ("row", "col", "coil", "slice")}


def save_mat73(folder: Path) -> tuple[Path, dict[str, Any]]:
    pairs = np.empty(KSPACE.shape, [("real", "f8"), ("imag", "f8")])
    pairs["real"], pairs["imag"] = KSPACE.real, KSPACE.imag
    with h5py.File(folder / "a.mat", "w", userblock_size=512) as file:
        file["k"] = pairs
    return folder / "a.mat", {"axes": ("col", "row", "coil", "slice")}


def save_hdf5(folder: Path) -> tuple[Path, dict[str, Any]]:
    with h5py.File(folder / "a.h5", "w") as file:
        file["some/data"] = np.stack([KSPACE + 1, KSPACE - 1])
    return folder / "a.h5", {"axes": ("average", *AXES), "key": "some/data"}


def save_pair(folder: Path) -> tuple[Path, dict[str, Any]]:
    with h5py.File(folder / "a.h5", "w") as file:
        file["real"], file["imaginary"] = KSPACE.real, KSPACE.imag
    return folder / "a.h5", {"axes": AXES, "key": "real,imaginary"}


def save_corner(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Both centers at the first index, as `numpy.fft` has them."""
    images = np.fft.ifftshift(ifft2c(torch.from_numpy(KSPACE)).numpy(), axes=(-2, -1))
    np.save(folder / "a.npy", np.fft.fft2(images, norm="ortho"))
    return folder / "a.npy", {"axes": AXES, "origin": "corner"}


def save_plain(folder: Path) -> tuple[Path, dict[str, Any]]:
    np.save(folder / "a.npy", np.fft.fft2(ifft2c(torch.from_numpy(KSPACE)).numpy(), norm="ortho"))
    return folder / "a.npy", {"axes": AXES, "origin": "plain"}


def save_bart(folder: Path) -> tuple[Path, dict[str, Any]]:
    return write_bart(folder / "a.cfl", KSPACE, slice=0, coil=0, read=0, phs1=0), {}


def save_bart_without_readout(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = write_bart(folder / "a.cfl", KSPACE, te=0, coil=0, phs1=0, phs2=0)
    return path.with_suffix(".hdr"), {}


def save_bart_averages(folder: Path) -> tuple[Path, dict[str, Any]]:
    twice = np.stack([KSPACE + 1, KSPACE - 1])
    path = write_bart(folder / "a.cfl", twice, avg=0, slice=0, coil=0, read=0, phs1=0)
    return path.with_suffix(""), {}


def save_bart_renamed(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = write_bart(folder / "a.cfl", KSPACE, coil=0, read=0, phs1=0, phs2=0)
    return path, {"axes": ("coil", "row", "col", "slice")}


FORMATS: list[Callable[[Path], tuple[Path, dict[str, Any]]]] = [
    *(save_npy, save_npz, save_mat, save_mat73, save_hdf5, save_pair, save_corner, save_plain),
    *(save_bart, save_bart_without_readout, save_bart_averages, save_bart_renamed),
]


@pytest.mark.parametrize("save", FORMATS)
def test_every_format_brings_the_same_kspace(
    save: Callable[[Path], tuple[Path, dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Every slice is a part of its own.
    monkeypatch.setattr(importing_kspace, "CHUNK_BYTES", 1)
    source, settings = save(tmp_path)
    store = imported(source, **settings)
    # One file is too little to train on.
    assert store.manifest.splits == {"test": 3}
    np.testing.assert_allclose(stored(store), KSPACE, atol=1e-6)
    assert store.split("test").selectable.all()
    facts = describe(store)
    assert (facts["kind"], facts["n_coils"], facts["columns"]) == ("kspace", 4, "measured")
    assert facts["geometry"][0]["description"] == "1 volume of 18x20 pixels"


@pytest.mark.parametrize("save", [save_corner, save_plain])
def test_a_center_that_is_not_in_the_middle_is_noticed(
    save: Callable[[Path], tuple[Path, dict[str, Any]]], tmp_path: Path
) -> None:
    source, settings = save(tmp_path)
    sentence = r"% of its energy in the outer quarter of the columns, .* with --origin corner, or"
    with pytest.raises(DataError, match=sentence):
        imported(source, axes=AXES)
    imported(source, **settings)
    np.save(source, KSPACE)
    with pytest.raises(DataError, match="import it with another --origin than corner"):
        imported(source, "other", axes=AXES, origin="corner")


def test_unusually_many_coils_are_warned_of(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["kspace"] = np.tile(KSPACE.transpose(0, 2, 3, 1), (1, 2, 1, 4))
    store = imported(tmp_path / "a.h5")
    (told,) = (one for one in store.manifest.warnings if "coils" in one)
    assert told.startswith("1 volume: 36 coils with 20 rows and 16 columns are unusual")
    assert "--axes, as in slice,row,col,coil" in told


def test_slices_in_files_of_their_own_and_few_pixels_cause_warnings(tmp_path: Path) -> None:
    folder = tmp_path / "single"
    folder.mkdir()
    for number in range(6):
        np.save(folder / f"patient{number // 2}_z{number}.npy", KSPACE[number % 3])
    warnings = imported(folder, axes=("coil", "row", "col")).manifest.warnings
    (sentence,) = [one for one in warnings if "one slice each" in one]
    assert sentence.endswith("narrow; save the slices of a patient in one file")
    np.save(tmp_path / "turned.npy", KSPACE.transpose(2, 3, 1, 0))
    warnings = imported(tmp_path / "turned.npy", "turned", axes=AXES).manifest.warnings
    assert any("20 coils with 4 rows and 3 columns are unusual" in one for one in warnings)


def test_complex_images_keep_their_phase_and_are_told(tmp_path: Path) -> None:
    store = imported_array(tmp_path, ifft2c(torch.from_numpy(KSPACE)).numpy(), origin="image")
    np.testing.assert_allclose(stored(store), KSPACE, atol=1e-5)
    assert describe(store)["columns"] == "computed"
    assert any("made of complex images" in warning for warning in store.manifest.warnings)


def test_arrays_in_the_other_domain_cause_a_warning(tmp_path: Path) -> None:
    kspace, images = KSPACE, ifft2c(torch.from_numpy(KSPACE)).numpy()
    warnings = {}
    for name, array in {"kspace": kspace, "image": images}.items():
        np.save(tmp_path / f"{name}.npy", array)
        for origin in ("center", "image"):
            store = imported(tmp_path / f"{name}.npy", f"{name}-{origin}", axes=AXES, origin=origin)
            found = [one for one in store.manifest.warnings if "seems to contain" in one]
            warnings[name, origin] = found
    assert not warnings["kspace", "center"] and not warnings["image", "image"]
    (sentence,) = warnings["image", "center"]
    assert sentence.endswith("complex images; import those with --origin image")
    (sentence,) = warnings["kspace", "image"]
    assert sentence.endswith("contain k-space; import k-space without --origin image")


@pytest.mark.parametrize(
    ("array", "advice"),
    [
        (KSPACE[:, 0], "as in --axes slice,row,col "),
        (KSPACE[0, 0], "as in --axes row,col "),
        (KSPACE, "as in --axes slice,coil,row,col "),
        (np.ones((2, 9, 11, 3)), "save gray values with these axes"),
    ],
)
def test_advice_has_the_axes_of_the_array(array: np.ndarray, advice: str, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=advice):
        import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings())


@pytest.mark.parametrize("option", ["size", "crop"])
def test_the_error_about_small_kspace_names_the_given_option(option: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"18x20, smaller than --{option} 500; lower it"):
        imported_array(tmp_path, KSPACE, **{option: 500})


@pytest.mark.parametrize("name", ["ksp", "scan/ksp"])
def test_the_first_error_of_an_unknown_file_names_the_way_to_its_kspace(
    name: str, tmp_path: Path
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[name] = KSPACE
    advice = f"has: {name}.*k-space with its axes, as in --key {name} --axes slice,coil,row,col"
    with pytest.raises(DataError, match=advice):
        import_folder(tmp_path / "a.h5", tmp_path / "store", ImportSettings())
    with pytest.raises(DataError, match=r"if they are k-space, name its axes, as in --axes"):
        import_folder(tmp_path / "a.h5", tmp_path / "store", ImportSettings(key=name))
    assert np.array_equal(stored(imported(tmp_path / "a.h5", axes=AXES)), KSPACE)


def test_a_folder_is_split_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for name in "abcde":
        write_bart(tmp_path / "source" / f"{name}.cfl", KSPACE[:1], slice=0, coil=0, read=0, phs1=0)
    store = imported(tmp_path / "source")
    assert store.manifest.splits == {"train": 3, "val": 1, "test": 1}
    assert imported(tmp_path / "source").fingerprint == store.fingerprint
    with pytest.raises(DataError, match="crop is None there and 16 here"):
        imported(tmp_path / "source", crop=16)


def test_an_interrupted_import_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "source").mkdir()
    for name in "ab":
        np.save(tmp_path / "source" / f"{name}.npy", KSPACE * (1 + (name == "b")))
    settings: dict[str, Any] = {"axes": AXES, "held_out": 0.0}
    whole = imported(tmp_path / "source", "whole", **settings)
    monkeypatch.setattr(importing_kspace, "CHUNK_BYTES", 1)
    sizes: list[int] = []

    def interrupted(cutting: Cutting, kspace: np.ndarray) -> np.ndarray:
        sizes.append(len(kspace))
        if len(sizes) == 5:
            raise KeyboardInterrupt
        return apply(cutting, kspace)

    apply = Cutting.apply
    with monkeypatch.context() as patch:
        patch.setattr(Cutting, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt):
            imported(tmp_path / "source", **settings)
    # Memory held one slice at a time, and the second volume had begun.
    assert sizes == [1] * 5
    assert imported(tmp_path / "source", **settings).fingerprint == whole.fingerprint


def spoiled(*place: Any, value: float = 0) -> np.ndarray:
    """Return k-space with other values at an index."""
    kspace = KSPACE.copy()
    kspace[place] = value
    return kspace


BAD: dict[str, tuple[np.ndarray | bytes, str]] = {
    "slices": (spoiled(0, ..., 4), "measured 19 columns of slice 0, and others, or 20 columns"),
    "coil": (
        spoiled(1, 2, slice(None), slice(7, 9)),
        "empty in column 7 of coil 2 of slice 1, which other coils measured",
    ),
    "lines": (spoiled(2, 1, 3, value=np.nan), "NaN or infinite values in slice 2; repair it"),
    "zeros": (0 * KSPACE, "only zeros in the 3 slices"),
    "reals": (KSPACE.real, r"float32 of shape \(3, 4, 18, 20\) instead of complex k-space"),
    "axes": (KSPACE[0], r"shape \(4, 18, 20\), and 4 axes are named \(slice,coil,row,col\)"),
    "length": (b"\x93NUMPY\1\0", "cannot be read as an array of k-space"),
}


def test_a_coil_that_hears_nothing_at_all_is_one(tmp_path: Path) -> None:
    store = imported_array(tmp_path, spoiled(slice(None), 3))
    assert store.manifest.splits == {"test": 3}


@pytest.mark.parametrize("name", BAD)
def test_bad_arrays_are_one_sentence_and_leave_nothing(name: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    content, sentence = BAD[name]
    if isinstance(content, bytes):
        (source / "bad.npy").write_bytes(content)
    else:
        np.save(source / "bad.npy", content)
    with pytest.raises(DataError, match=sentence):
        imported(source, axes=AXES)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    np.save(source / "good.npy", KSPACE[:, :2])
    store = imported(source, axes=AXES, skip_bad=True, held_out=0.0)
    assert store.manifest.splits == {"train": 3}
    assert [entry["source"] for entry in store.manifest.left_out] == ["bad.npy"]


@pytest.mark.parametrize("held_out", [0.0, 0.3])
def test_coils_of_all_volumes_are_as_many_whatever_their_splits_and_sizes(
    held_out: float, tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    for number, n_coils in enumerate((4, 3, 4, 4)):
        np.save(tmp_path / "source" / f"{number}.npy", KSPACE[:, :n_coils, : 18 - number])
    given = {"axes": AXES, "held_out": held_out}
    with pytest.raises(DataError, match=r"have \d coils, and others \d; .*--compress 3"):
        imported(tmp_path / "source", **given)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    store = imported(tmp_path / "source", **given, compress=3)
    assert {array.shape[1] for array in store.manifest.arrays} == {3}


def test_bad_bart_files_are_told(tmp_path: Path) -> None:
    path = write_bart(tmp_path / "a.cfl", KSPACE, slice=0, coil=0, read=0, phs1=0)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(DataError, match="has 34552 bytes, and its header declares 34560"):
        imported(path)
    path.with_suffix(".hdr").write_text("# Dimensions\n99999999999 2\n")
    with pytest.raises(DataError, match=r"a\.hdr contains no dimensions"):
        imported(path)
    path.with_suffix(".hdr").write_bytes(bytes(2**20 + 1))
    with pytest.raises(DataError, match=r"a\.hdr has 1048577 bytes, and a header has at most"):
        imported(path)
    path.with_suffix(".hdr").unlink()
    with pytest.raises(DataError, match=r"has no a\.hdr next to it"):
        imported(path)
    write_bart(path, KSPACE, phs2=0, coil=0, read=0, phs1=0)
    with pytest.raises(DataError, match="three-dimensional k-space of 18 x 20 x 3"):
        imported(path)
    write_bart(path, KSPACE, maps=0, coil=0, read=0, phs1=0)
    with pytest.raises(DataError, match="has 3 along MAPS, which k-space does not have"):
        imported(path)


def test_arrays_without_named_axes_are_told_what_to_name(tmp_path: Path) -> None:
    source, _ = save_mat(tmp_path)
    with pytest.raises(DataError, match="name them, as in --axes slice,coil,row,col"):
        imported(source)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("slice,row", "lacks row or col"),
        ("row,col,row", "names 'row' twice"),
        ("row,col,foo", "names 'foo'; name row"),
    ],
)
def test_odd_axes_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_axes(text, "--axes")
    assert parse_axes("slice, -,row,col", "--axes") == ("slice", "-", "row", "col")


def test_options_of_images_are_not_those_of_kspace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--pad applies to images, and --raw to k-space"):
        ImportSettings(raw=True, pad=9)
    with pytest.raises(ConfigError, match="--phase-encoding applies to images, and --raw to k-spa"):
        imported_array(tmp_path, KSPACE, phase_encoding="rows")
    with pytest.raises(ConfigError, match="--size and --crop are the same"):
        ImportSettings(size=9, crop=9)
