"""Importing puts every volume where it belongs, and says what is wrong."""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from fastmri_layout import IMAGES, SETTINGS, write_layout, write_volume
from kscout.data import ImportSettings, import_folder
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError


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
    seen: list[int] = []
    for wanted in ("AXT2", "CORPD"):
        settings = ImportSettings(size=7, acquisition=wanted)
        with pytest.raises(DataError, match=f"'{wanted}'; found: CORPDFS_FBK, CORPD_FBK"):
            import_folder(source, tmp_path / "none", settings, lambda *call: seen.append(call[0]))
    assert not seen
    np.save(source / "singlecoil_test" / "array.npy", IMAGES)
    with pytest.raises(DataError, match="'CORPD'; found: CORPDFS_FBK, CORPD_FBK"):
        import_folder(source, tmp_path / "none", settings, lambda *call: seen.append(call[0]))
    assert not seen


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
    assert volumes(store) == {"test": ["a.npy"]}
    (told,) = store.manifest.warnings
    assert told.startswith("the only volume is in test") and "at least 3 volumes" in told
    assert told in caplog.text
    held_in = import_folder(source, tmp_path / "all", replace(SETTINGS, held_out=0))
    (told,) = held_in.manifest.warnings
    assert told.startswith("no volume is in val or test: ") and "--split train" in told
    np.save(source / "b.npy", IMAGES)
    (told,) = import_folder(source, tmp_path / "two", SETTINGS).manifest.warnings
    assert told.startswith("no volume is in val: ")
    assert "existing split" not in told
    np.save(source / "c.npy", IMAGES)
    assert not import_folder(source, tmp_path / "three", SETTINGS).manifest.warnings


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
    sentence = "b.npy became a volume of one slice"
    assert store.manifest.warnings == (sentence,)
    assert sentence in caplog.text
    np.save(source / "c.npy", IMAGES[1])
    (told,) = import_folder(source, tmp_path / "two", SETTINGS).manifest.warnings
    assert told.startswith("2 files became a volume of one slice each (b.npy first): if they are")
    assert "training and test share patients, and intervals over volumes are too narrow" in told


def write_slices(source: Path, pattern: str, n_patients: int = 5, n_slices: int = 11) -> None:
    for patient in range(n_patients):
        for number in range(n_slices):
            path = source / pattern.format(patient, number)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.full((9, 8), 1 + patient + number / 100, dtype=np.float32))


@pytest.mark.parametrize(
    ("pattern", "group"),
    [("p{}_z{}.npy", r"p\d"), ("p{}/z{}.npy", "(.+)/"), ("p{}z{}.npy", r"(p\d)z")],
)
def test_files_of_single_slices_are_joined_to_patients(
    tmp_path: Path, pattern: str, group: str
) -> None:
    source, alone = tmp_path / "slices", ImportSettings()
    write_slices(source, pattern)
    (told,) = import_folder(source, tmp_path / "leaking", alone).manifest.warnings
    assert told.startswith("55 files became") and 'join them by --group, as in --group "' in told
    store = import_folder(source, tmp_path / "store", ImportSettings(group=group))
    assert not store.manifest.warnings
    assert {split: len(found) for split, found in volumes(store).items()} == {
        **{"train": 3, "val": 1, "test": 1}
    }
    for split, names in volumes(store).items():
        slices = store.split(split)
        assert slices.slices == tuple(range(11)) * len(names)
        expected = [1 + int(name[1]) + number / 100 for name in names for number in range(11)]
        assert slices.magnitudes()[:, 0, 0].tolist() == pytest.approx(expected)


def test_text_files_name_the_joined_volumes(tmp_path: Path) -> None:
    write_slices(tmp_path / "slices", "p{}_z{}.npy", 3, 2)
    lists = tmp_path / "lists"
    lists.mkdir()
    for split, name in (("train", "p1"), ("val", "p0"), ("test", "p2")):
        (lists / f"{split}.txt").write_text(name)
    settings = ImportSettings(group="(.+)_", splits=lists)
    store = import_folder(tmp_path / "slices", tmp_path / "store", settings)
    assert volumes(store) == {"train": ["p1"], "val": ["p0"], "test": ["p2"]}


def test_groups_that_cannot_be_are_rejected(tmp_path: Path) -> None:
    source, out = tmp_path / "slices", tmp_path / "store"
    write_slices(source, "p{}_z{}.npy", 3, 2)
    with pytest.raises(ConfigError, match=r"--group '\(' is no regular expression"):
        ImportSettings(group="(")
    with pytest.raises(ConfigError, match="--group applies to images, and --raw to k-space"):
        ImportSettings(group="p", raw=True)
    with pytest.raises(DataError, match=r"--group 'q' finds no name of a volume in 'p0_z0\.npy'"):
        import_folder(source, out, ImportSettings(group="q"))
    np.save(source / "p1_z1.npy", np.ones((9, 7)))
    with pytest.raises(DataError, match=r"p1_z1\.npy has images of 9x7, and .*p1_z0\.npy of the"):
        import_folder(source, out, ImportSettings(group="(.+)_"))


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
