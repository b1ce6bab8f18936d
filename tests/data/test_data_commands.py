"""`kscout data` does what its help says."""

import json
import os
from inspect import signature
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from matplotlib.image import imread

from coil_data import coil_store
from command_line import kscout
from kscout.apps.campaign.file import ImportedStore
from kscout.apps.cli.data import import_
from kscout.config import read, to_table
from kscout.config.options import options_of
from kscout.data import ImportSettings, import_folder, info
from kscout.data.info import describe
from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, DataError
from kscout.physics.coils import sensitivities
from kscout.physics.fourier import ifft2c


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for split in ("train", "val", "test"):
        folder = tmp_path / "knee" / f"singlecoil_{split}"
        folder.mkdir(parents=True)
        with h5py.File(folder / f"{split}.h5", "w") as file:
            file["reconstruction_esc"] = rng.random((6, 80, 80), dtype=np.float32)
            file.attrs["acquisition"] = "CORPD_FBK"
    return tmp_path / "knee"


def test_import_keeps_the_documented_form(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    said = kscout("data", "import", source, "--out", out, "--size", 64, "--center-volume")
    assert "3 train, 3 val, 3 test slices" in said and "already" not in said
    again = kscout("data", "import", source, "--out", out, "--size", 64, "--center-volume")
    assert f"{out}: already imported; 3 train, 3 val, 3 test slices" in again
    store = Store.open(out)
    assert store.split("val").magnitudes().shape == (3, 64, 64)
    assert store.split("val").slices == (1, 2, 3)


def test_import_answers_a_machine(source: Path, tmp_path: Path) -> None:
    with h5py.File(source / "singlecoil_val" / "bad.h5", "w") as file:
        file["other"] = np.ones(3)
    arguments = ("import", source, "--out", tmp_path / "store", "--size", 64, "--json")
    with pytest.raises(DataError, match=r"bad\.h5"):
        kscout("data", *arguments)
    answer = json.loads(kscout("data", *arguments, "--skip-bad"))
    assert answer["splits"] == {"train": 6, "val": 6, "test": 6}
    assert answer["left_out"][0]["source"] == "singlecoil_val/bad.h5"
    assert answer["fingerprint"] == Store.open(tmp_path / "store").fingerprint


def test_options_override_a_preset(source: Path, tmp_path: Path) -> None:
    options = ("--preset", "knee", "--size", 48, "--sample-rate", 1)
    kscout("data", "import", source, "--out", tmp_path / "store", *options)
    settings = Store.open(tmp_path / "store").manifest.recipe["settings"]
    assert (settings["size"], settings["center_volume"], settings["sample_rate"]) == (48, True, 1)


def test_a_preset_that_leaves_nothing_says_that_it_is_the_preset(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    np.save(tmp_path / "one" / "a.npy", np.ones((4, 320, 320)))
    arguments = ("import", tmp_path / "one", "--preset", "brain", "--out", tmp_path / "store")
    with pytest.raises(DataError, match=r"0\.2 \(as --preset brain has it\) .*--sample-rate 1"):
        kscout("data", *arguments)
    kscout("data", *arguments, "--sample-rate", 1)


def test_text_files_and_draws_exclude_each_other(source: Path, tmp_path: Path) -> None:
    arguments = ("import", source, "--out", tmp_path / "store", "--splits", tmp_path)
    for option in (("--held-out", 0.2), ("--test-from-train",)):
        with pytest.raises(ConfigError, match=f"--splits names .*; remove it or {option[0]}"):
            kscout("data", *arguments, *option)


@pytest.fixture
def store(source: Path, tmp_path: Path) -> Store:
    return import_folder(source, tmp_path / "store", ImportSettings(size=9))


def test_info_counts_and_measures(store: Store) -> None:
    facts = json.loads(kscout("data", "info", store.path, "--json", "--verify"))
    train = store.split("train")
    assert facts == {**describe(store), "verified": True}
    assert facts["arrays"][0]["slices"] == 6
    assert facts["arrays"][0]["pixels"] == pytest.approx(
        [train.magnitudes().min().item(), train.magnitudes().max().item()]
    )
    assert facts["arrays"][0]["data_range"] == pytest.approx([train.data_range[0].item()] * 2)
    assert facts["acquisitions"] == {"CORPD_FBK": 3}
    said = kscout("data", "info", store.path)
    assert "CORPD_FBK 3" in said
    assert "9x9" in said


def test_show_writes_a_picture_of_the_slices(store: Store, tmp_path: Path) -> None:
    kscout("data", "show", store.path, "--split", "val", "--images", 4, "--out", tmp_path / "a.png")
    picture = imread(tmp_path / "a.png")
    first = store.split("val")
    expected = (first.magnitudes()[0] / first.data_range[0]).clamp(0, 1).numpy()
    assert np.abs(picture[:9, :9] - expected).max() <= 2 / 255


def test_show_takes_one_of_several_sizes_by_its_columns_or_by_rows_and_columns(
    tmp_path: Path,
) -> None:
    writer = StoreWriter(tmp_path / "store", {"command": "test"})
    for name, size in {"a": (9, 11), "b": (7, 11), "c": (9, 13)}.items():
        writer.append("val", name, np.random.default_rng(0).random((1, *size), dtype=np.float32))
    path, out = writer.finish().path, tmp_path / "a.png"
    for size, shown in {"9x11": "a:0", "7x11": "b:0", "13": "c:0"}.items():
        assert kscout("data", "show", path, "--size", size, "--out", out).endswith(
            f"1 slice, {shown}\n"
        )
    for size in ("11", "13x13"):
        with pytest.raises(DataError, match="name one as in --size 9x11"):
            kscout("data", "show", path, "--size", size, "--out", out)
    with pytest.raises(ConfigError, match="--size '9x' is no image size"):
        kscout("data", "show", path, "--size", "9x", "--out", out)


def test_lines_of_pictures_show_image_kspace_coils_and_maps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coils = coil_store(tmp_path / "coils", n_coils=3, size=(9, 11))
    told = kscout("data", "show", coils.path, "--coils", "--images", 2, "--out", tmp_path / "a.png")
    assert "image, k-space, coils; below, for several coils: combination, phase, maps" in told
    picture = imread(tmp_path / "a.png")
    assert picture.shape == (4 * 9 + 3 * 2, 5 * 11 + 4 * 2)
    batch = coils.split("train").batch(torch.tensor([0]))
    heard = ifft2c(batch.kspace[0]).abs()
    assert np.abs(picture[:9, 39:50] - (heard[1] / heard.amax()).numpy()).max() <= 2 / 255
    spectrum = picture[:9, 13:24]
    assert spectrum.argmax() == batch.kspace.abs().square().sum(dim=1).argmax()
    maps = sensitivities(batch.kspace[0], n_center=11).abs().numpy()
    assert np.abs(picture[11:20, 39:50] - maps[1]).max() <= 2 / 255
    facts = json.loads(kscout("data", "info", coils.path, "--json"))
    assert (facts["kind"], facts["n_coils"]) == ("kspace", 3)
    assert facts["target"] == "root sum of squares of all coils"
    monkeypatch.setattr(info, "_LOOKED_AT", 2)
    seen = json.loads(kscout("data", "info", coils.path, "--json"))["arrays"][0]["pixels"]
    some = coils.split("train").magnitudes(torch.tensor([0, 3]))
    assert seen == pytest.approx([float(some.min()), float(some.max())])
    assert "3 coils; simulated columns; target: root sum of squares" in kscout(
        "data", "info", coils.path
    )


def test_more_pictures_than_slices_are_all_slices(store: Store, tmp_path: Path) -> None:
    more = ("--images", 10**18, "--out", tmp_path / "a.png")
    said = kscout("data", "show", store.path, "--split", "val", *more)
    assert "6 slices" in said


def test_a_picture_replaces_neither_a_device_nor_a_link(store: Store, tmp_path: Path) -> None:
    pipe, link, file = (tmp_path / name for name in ("pipe", "link.png", "file.png"))
    os.mkfifo(pipe)
    file.write_bytes(b"kept")
    link.symlink_to(file)
    for out in (pipe, link):
        with pytest.raises(FileExistsError, match="not a regular file"):
            kscout("data", "show", store.path, "--out", out)
    assert pipe.is_fifo() and link.is_symlink() and file.read_bytes() == b"kept"


@pytest.mark.parametrize("out", ["", "/"])
def test_a_store_needs_a_name(out: str) -> None:
    with pytest.raises(DataError, match=r"cannot be the name of a store; name a new folder"):
        kscout("data", "make", "knee", "--volumes", "1,0,0", "--out", out)


def test_a_campaign_may_use_every_option_of_an_import() -> None:
    options = set(signature(import_).parameters) - {"source", "out", "as_json"}
    assert {option.name for option in options_of(ImportSettings)} | {"preset"} == options
    table = {"import": "a", "size": "64x32", "splits": "b", "skip_bad": True, "divide": 2}
    assert to_table(read(ImportedStore, table)) == table
    for name, value in (("divide", "2"), ("size", "64x"), ("skip_bad", 1), ("unknown", 1)):
        with pytest.raises(ConfigError, match=name):
            read(ImportedStore, {"import": "a", name: value})


@pytest.mark.parametrize("option", [("--volumes", "1,1,1"), ("--slices", 1)])
def test_the_papers_numbers_admit_no_others(tmp_path: Path, option: tuple[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"--paper decides {option[0]}; drop one"):
        kscout("data", "make", "knee", "--paper", *option, "--out", tmp_path / "store")
    assert not list(tmp_path.iterdir())


def test_heads_take_several_files_after_one_option(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.npy" for name in "ab"]
    with pytest.raises(DataError, match=r"no head volume at .*a\.npy"):
        kscout("data", "make", "heads", "--source", *files, "--out", tmp_path / "store")
    np.save(files[0], np.ones((9, 9, 9)))
    with pytest.raises(DataError, match=r"no head volume at .*b\.npy"):
        kscout("data", "make", "heads", "--source", *files, "--out", tmp_path / "store")
