"""Importing puts every volume where it belongs, says what is wrong, and survives being killed."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from kscout.data.importing import ImportSettings, import_folder
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError

SETTINGS = ImportSettings(size=7)


def write_volume(
    path: Path, images: np.ndarray | None = None, acquisition: str = "CORPD_FBK"
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if images is None:
        seed = sum(path.stem.encode())
        images = np.random.default_rng(seed).random((4, 12, 12), dtype=np.float32)
    with h5py.File(path, "w") as file:
        file["reconstruction_esc"] = images
        file.attrs["acquisition"] = acquisition
    return path


def write_layout(root: Path, **counts: int) -> Path:
    number = 0
    for split, count in counts.items():
        for _ in range(count):
            write_volume(root / f"singlecoil_{split}" / f"file{number}.h5")
            number += 1
    return root


def volumes(store: Store) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in store.manifest.volumes:
        found.setdefault(record.split, []).append(record.volume)
    return found


def test_folders_are_splits(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=2, val=1, test=1)
    store = import_folder(source, tmp_path / "store", SETTINGS)
    assert volumes(store) == {
        "train": ["file0.h5", "file1.h5"],
        "val": ["file2.h5"],
        "test": ["file3.h5"],
    }
    assert store.manifest.splits == {"train": 8, "val": 4, "test": 4}
    assert store.manifest.volumes[2].source == "singlecoil_val/file2.h5"


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


def test_without_a_test_folder_a_fifth_of_training_is_the_test(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=10, val=1)
    found = volumes(import_folder(source, tmp_path / "store", SETTINGS))
    assert [len(found[split]) for split in ("train", "val", "test")] == [8, 1, 2]
    assert not set(found["train"]) & set(found["test"])
    again = volumes(import_folder(source, tmp_path / "again", SETTINGS))
    other = ImportSettings(size=7, seed=1)
    assert again == found
    assert volumes(import_folder(source, tmp_path / "other", other))["test"] != found["test"]


def test_a_test_folder_without_targets_can_be_passed_over(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=5, val=1)
    (source / "singlecoil_test").mkdir()
    with h5py.File(source / "singlecoil_test" / "public.h5", "w") as file:
        file["kspace"] = np.zeros((2, 9, 9), np.complex64)
    with pytest.raises(DataError, match="--test-from-train"):
        import_folder(source, tmp_path / "store", SETTINGS)
    settings = ImportSettings(size=7, test_from_train=True)
    assert len(volumes(import_folder(source, tmp_path / "store", settings))["test"]) == 1


def test_sampling_and_middle_slices_apply_to_each_split(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=6, val=4, test=2)
    settings = ImportSettings(size=7, sample_rate=0.5, center_volume=True)
    store = import_folder(source, tmp_path / "store", settings)
    assert {split: len(found) for split, found in volumes(store).items()} == {
        "train": 3,
        "val": 2,
        "test": 1,
    }
    assert {record.slices for record in store.manifest.volumes} == {(1, 2)}


def test_acquisitions_are_filtered(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=2, val=1, test=1)
    write_volume(source / "singlecoil_train" / "fat.h5", acquisition="CORPDFS_FBK")
    settings = ImportSettings(size=7, acquisition="CORPDFS_FBK")
    assert volumes(import_folder(source, tmp_path / "store", settings)) == {"train": ["fat.h5"]}
    with pytest.raises(DataError, match="'AXT2'; found: CORPDFS_FBK, CORPD_FBK"):
        import_folder(source, tmp_path / "none", ImportSettings(size=7, acquisition="AXT2"))


def test_text_files_name_splits_with_or_without_suffix(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=3, val=1)
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "train.txt").write_text("# ours\nfile3.h5\n\nfile0\n")
    (lists / "test.txt").write_text("file1.h5\n")
    with pytest.raises(DataError, match=r"file2\.h5 is named in no split; .*--skip-bad"):
        import_folder(source, tmp_path / "store", ImportSettings(size=7, splits=lists))
    (lists / "val.txt").write_text("singlecoil_train/file2.h5\n")
    store = import_folder(source, tmp_path / "store", ImportSettings(size=7, splits=lists))
    assert volumes(store) == {
        "train": ["file0.h5", "file3.h5"],
        "val": ["file2.h5"],
        "test": ["file1.h5"],
    }
    (lists / "val.txt").write_text("file2\nfile77.h5\n")
    with pytest.raises(DataError, match=r"val\.txt names file77\.h5, which is not in the source"):
        import_folder(source, tmp_path / "more", ImportSettings(size=7, splits=lists))


def test_a_volume_in_two_splits_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_layout(tmp_path / "knee", train=2, val=1, test=1)
    write_volume(source / "singlecoil_test" / "file0.h5")
    store = import_folder(source, tmp_path / "store", SETTINGS)
    assert "file0.h5 is in two splits, train and test" in store.manifest.warnings[0]
    assert "file0.h5" in caplog.text
    assert volumes(store)["test"] == ["file0.h5", "file3.h5"]


def test_splits_without_a_volume_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "images"
    source.mkdir()
    np.save(source / "a.npy", IMAGES)
    store = import_folder(source, tmp_path / "one", SETTINGS)
    (told,) = store.manifest.warnings
    assert told.startswith("no volume is in val or test: ") and "at least 3 volumes" in told
    assert told in caplog.text
    np.save(source / "b.npy", IMAGES)
    (told,) = import_folder(source, tmp_path / "two", SETTINGS).manifest.warnings
    assert told.startswith("no volume is in val: ")
    np.save(source / "c.npy", IMAGES)
    assert not import_folder(source, tmp_path / "three", SETTINGS).manifest.warnings


def damage(make: Callable[[Path], object], path: Path) -> None:
    path.unlink()
    make(path)


IMAGES = np.random.default_rng(0).random((4, 12, 12), dtype=np.float32)
WITH_NAN = np.where(IMAGES == IMAGES[1, 5, 5], np.float32(np.nan), IMAGES)
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda p: p.write_bytes(write_volume(p).read_bytes()[:1500]), "cannot be read"),
    "missing key": (lambda p: h5py.File(p, "w").close(), "has no reconstruction_esc"),
    "zeros": (lambda p: write_volume(p, 0 * IMAGES), "nothing but zeros in the 4 slices"),
    "nan": (lambda p: write_volume(p, WITH_NAN), "1 pixels that are NaN"),
    "too narrow": (lambda p: write_volume(p, IMAGES[:, :, :5]), "12x5, smaller than --size 7"),
    "too small": (lambda p: write_volume(p, IMAGES[:, :5, :5]), "5x5, smaller than --size 7"),
    "no slices": (lambda p: write_volume(p, IMAGES[:0]), "0 slices"),
}


@pytest.mark.parametrize("fault", BAD)
def test_bad_volumes_stop_with_one_sentence_or_are_left_out(tmp_path: Path, fault: str) -> None:
    source = write_layout(tmp_path / "knee", train=3, val=1, test=1)
    make, sentence = BAD[fault]
    damage(make, source / "singlecoil_train" / "file1.h5")
    with pytest.raises(DataError, match=sentence) as caught:
        import_folder(source, tmp_path / "store", SETTINGS)
    assert "file1.h5" in str(caught.value)
    assert "--skip-bad" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["knee"]
    store = import_folder(source, tmp_path / "store", ImportSettings(size=7, skip_bad=True))
    assert volumes(store)["train"] == ["file0.h5", "file2.h5"]
    (left_out,) = Store.open(store.path).manifest.left_out
    assert left_out["source"] == "singlecoil_train/file1.h5"
    assert sentence in left_out["reason"]


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
    damage(lambda p: write_volume(p, images), source / "singlecoil_val" / "file1.h5")
    store = import_folder(source, tmp_path / "store", SETTINGS)
    assert np.array_equal(store.split("val").magnitudes().numpy(), IMAGES[1:3, 2:9, 2:9])
    assert store.split("val").slices == (1, 2)
    assert store.manifest.splits == {"train": 4, "val": 2, "test": 4}
    assert store.manifest.warnings == ("left out 2 slices that hold nothing but zeros",)
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


def interrupted(source: Path, out: Path, settings: ImportSettings, n_volumes: int) -> None:
    def on_volume(done: int, total: int, name: str) -> None:
        if done == n_volumes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_folder(source, out, settings, on_volume)


def test_an_interrupted_import_may_go_on_with_bad_input_skipped(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=3, val=1, test=1)
    write_volume(source / "singlecoil_train" / "file1.h5", 0 * IMAGES)
    skipping = ImportSettings(size=7, skip_bad=True)
    whole = import_folder(source, tmp_path / "a" / "store", skipping)
    out = tmp_path / "b" / "store"
    interrupted(source, out, SETTINGS, 1)
    again = import_folder(source, out, skipping)
    assert {f.name: f.read_bytes() for f in again.path.iterdir()} == {
        f.name: f.read_bytes() for f in whole.path.iterdir()
    }


def test_what_was_left_out_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=3, val=1, test=1)
    write_volume(source / "singlecoil_train" / "file1.h5", 0 * IMAGES)
    skipping, out = ImportSettings(size=7, skip_bad=True), tmp_path / "store"
    interrupted(source, out, skipping, 3)
    with pytest.raises(DataError, match=r"has left out singlecoil_train/file1\.h5; go on with"):
        import_folder(source, out, SETTINGS)
    import_folder(source, out, skipping)
    with pytest.raises(DataError, match=r"exists already \(skip_bad is True there and False here"):
        import_folder(source, out, SETTINGS)


def test_a_store_without_bad_input_is_done_with_and_without_skipping(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    store = import_folder(source, tmp_path / "store", SETTINGS)
    again = import_folder(source, tmp_path / "store", ImportSettings(size=7, skip_bad=True))
    assert again.fingerprint == store.fingerprint


def test_the_middle_of_images_that_are_not_square_is_kept_where_it_fits(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    damage(lambda p: write_volume(p, IMAGES[:, :, :9]), source / "singlecoil_val" / "file1.h5")
    with pytest.raises(
        DataError, match=r"12x9, smaller than --size 12; .*--size 12x9, .*--pad 12, "
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
    for number in (0, -1, float("nan")):
        with pytest.raises(ConfigError, match=r"--divide .* is not a number above 0"):
            ImportSettings(divide=number)


def test_absolute_values_are_taken_where_asked_for(tmp_path: Path) -> None:
    images = np.random.default_rng(0).normal(size=(2, 9, 7)).astype(np.float32)
    np.save(tmp_path / "a.npy", images)
    with pytest.raises(DataError, match="take absolute values with --absolute"):
        import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings())
    store = import_folder(tmp_path / "a.npy", tmp_path / "store", ImportSettings(absolute=True))
    assert np.array_equal(store.split("train").magnitudes().numpy(), np.abs(images))
    assert store.manifest.recipe["settings"]["absolute"] is True


def test_images_of_several_sizes_are_told_with_sizes_that_fit_all(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    write_volume(source / "singlecoil_val" / "file1.h5", IMAGES[:, :9, :])
    store = import_folder(source, tmp_path / "store", ImportSettings())
    (warning,) = store.manifest.warnings
    assert "2 sizes (9x12, 12)" in warning and "--size 9x12 keeps" in warning
    assert "--pad 12 surrounds" in warning


def test_a_size_on_the_command_line_is_a_side_or_rows_and_columns() -> None:
    found = [ImportSettings.parse_size(text, "--size") for text in ("64", "64x64", "640x368")]
    assert found == [64, 64, (640, 368)]
    for text in ("", "x", "1x2x3", "a", "3.5"):
        with pytest.raises(ConfigError, match=r"--pad '.*' is no image size; write pixels as in"):
            ImportSettings.parse_size(text, "--pad")
    for size in ("0", "12x-3", "5000x12"):
        with pytest.raises(ConfigError, match="is no image size; give 1 to 4096"):
            ImportSettings(size=ImportSettings.parse_size(size, "--size"))


def test_what_leaves_nothing_says_why(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=2)
    for name in ("file0", "file1"):
        (source / "singlecoil_train" / f"{name}.h5").write_text("no volume")
    with pytest.raises(DataError, match=r"everything was left out: .*file\d\.h5 cannot .*1 more"):
        import_folder(source, tmp_path / "store", ImportSettings(skip_bad=True))


def test_a_store_for_evaluation_alone_needs_no_other_split(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", test=2)
    assert not import_folder(source, tmp_path / "store", SETTINGS).manifest.warnings


def test_single_images_are_told_apart_from_stacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "images"
    source.mkdir()
    for name in ("a", "b", "c"):
        np.save(source / f"{name}.npy", IMAGES)
    assert not import_folder(source, tmp_path / "stacks", SETTINGS).manifest.warnings
    np.save(source / "b.npy", IMAGES[0])
    store = import_folder(source, tmp_path / "one", SETTINGS)
    sentence = "b.npy holds one image, not a stack: it became a volume of one slice"
    assert store.manifest.warnings == (sentence,)
    assert sentence in caplog.text
    np.save(source / "c.npy", IMAGES[1])
    (told,) = import_folder(source, tmp_path / "two", SETTINGS).manifest.warnings
    assert told.startswith("2 .npy files hold one image each")


def test_padding_takes_images_of_any_shape(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    damage(lambda p: write_volume(p, IMAGES[:, :5, :4]), source / "singlecoil_val" / "file1.h5")
    store = import_folder(source, tmp_path / "store", ImportSettings(size=7, pad=9))
    image = store.split("val").magnitudes().numpy()
    assert np.array_equal(image[:, 1:6, 2:6], IMAGES[:, :5, :4])
    assert image.sum() == pytest.approx(IMAGES[:, :5, :4].sum())


def test_empty_or_missing_sources_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="empty holds no volumes that kscout reads; give a folder"):
        import_folder(tmp_path / "empty", tmp_path / "store", SETTINGS)
    with pytest.raises(DataError, match="nowhere does not exist"):
        import_folder(tmp_path / "nowhere", tmp_path / "store", SETTINGS)
    source = write_layout(tmp_path / "knee", train=1)
    (source / "singlecoil_val").mkdir()
    with pytest.raises(DataError, match="singlecoil_val holds no volumes"):
        import_folder(source, tmp_path / "store", SETTINGS)


def test_settings_that_cannot_be_are_refused() -> None:
    for values in (
        {"size": 0},
        {"size": 9, "pad": 8},
        {"pad": 100_000},
        {"size": 4097},
        {"sample_rate": 0.0},
        {"held_out": 1.0},
    ):
        with pytest.raises(ConfigError):
            ImportSettings(**values)  # type: ignore[arg-type]


def test_a_finished_import_is_not_done_again(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=2, val=1, test=1)
    seen: list[tuple[int, int, str]] = []
    import_folder(source, tmp_path / "store", SETTINGS, lambda *call: seen.append(call))
    assert seen == [(i + 1, 4, f"file{i}.h5") for i in range(4)]
    import_folder(source, tmp_path / "store", SETTINGS, lambda *call: seen.append(call))
    assert len(seen) == 4
    with pytest.raises(DataError, match=r"exists already \(size is 7 there and 9 here\); choose"):
        import_folder(source, tmp_path / "store", ImportSettings(size=9, skip_bad=True))
    write_volume(source / "singlecoil_val" / "more.h5")
    with pytest.raises(DataError, match=r"exists already \(made of other files\); choose"):
        import_folder(source, tmp_path / "store", ImportSettings(size=7, skip_bad=True))


KILLED = """
import os, signal, sys
from kscout.data import importing, journal, manifest, store_writer
kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
source, out = sys.argv[1:]
def killed(moment):
    if moment == "before journaling":
        line = journal.Journal.write
        def write_line(self, value):
            kill() if "file2" in str(value.get("volume")) else line(self, value)
        journal.Journal.write = write_line
    if moment == "inside the manifest":
        def write_json(path, value):
            path.write_text("{")
            kill()
        manifest.write_json = write_json
    if moment == "before the journal goes":
        replace = store_writer.Path.replace
        store_writer.Path.replace = lambda self, path: (replace(self, path), kill())
    def on_volume(done, total, name):
        if moment == "after a volume" and done == 4:
            kill()
    settings = importing.ImportSettings(size=7, skip_bad=True)
    importing.import_folder(source, f"{out}/{moment}/store", settings, on_volume)
for moment in sys.stdin.read().splitlines():
    if (child := os.fork()) == 0:
        killed(moment)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL, moment
"""
MOMENTS = (
    "after a volume",
    "before journaling",
    "inside the manifest",
    "before the journal goes",
)


@pytest.mark.slow
def test_a_killed_import_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=4, val=1, test=2)
    write_volume(source / "singlecoil_train" / "file1.h5", 0 * IMAGES)
    half = np.concatenate([0 * IMAGES[:1], IMAGES])
    write_volume(source / "singlecoil_train" / "file0.h5", half)
    settings = ImportSettings(size=7, skip_bad=True)
    whole = import_folder(source, tmp_path / "undisturbed" / "store", settings)
    command = [sys.executable, "-c", KILLED, str(source), str(tmp_path)]
    subprocess.run(command, check=True, input="\n".join(MOMENTS), text=True)
    for moment in MOMENTS:
        out = tmp_path / moment / "store"
        if moment != "before the journal goes":
            with pytest.raises(DataError, match="unfinished"):
                Store.open(out)
        again = import_folder(source, out, settings)
        assert {f.name: f.read_bytes() for f in again.path.iterdir()} == {
            f.name: f.read_bytes() for f in whole.path.iterdir()
        }
        assert [path.name for path in out.parent.iterdir()] == ["store"]
