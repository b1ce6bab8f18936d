"""A store gives back what was written, and is whole or not there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import lock_descriptor

from fuzz.judge import snapshot
from kscout.data import store_writer
from kscout.data.slices import SliceSet
from kscout.data.store import Store, unfinished_path
from kscout.data.store_writer import StoreWriter
from kscout.errors import DataError

RECIPE = {"command": "test", "seed": 3}


def volume(seed: int, n_slices: int = 3, rows: int = 9, cols: int = 11) -> np.ndarray:
    return np.random.default_rng(seed).random((n_slices, rows, cols), dtype=np.float32)


def write(path: Path) -> Store:
    writer = StoreWriter(path, RECIPE)
    writer.append("train", "a", volume(0), slices=[4, 5, 6], source="a.h5", acquisition="PD")
    writer.append("test", "c", volume(2, n_slices=2))
    writer.append("train", "b", volume(1, n_slices=1))
    return writer.finish()


def test_a_split_comes_back_as_it_was_written(tmp_path: Path) -> None:
    train = write(tmp_path / "store").split("train")
    expected = np.concatenate([volume(0), volume(1, n_slices=1)])
    assert torch.equal(train.magnitudes(), torch.from_numpy(expected))
    assert np.array_equal(np.load(tmp_path / "store" / "train_9x11.npy"), expected)
    assert train.volumes == ("a", "a", "a", "b")
    assert train.slices == (4, 5, 6, 0)
    assert train.position.tolist() == [0, 1, 2, 3]
    assert train.selectable.all()
    in_memory = SliceSet.from_images(train.magnitudes(), train.volumes)
    assert torch.equal(train.data_range, in_memory.data_range)


def test_the_manifest_tells_sources_recipe_and_counts(tmp_path: Path) -> None:
    value = json.loads((write(tmp_path / "store").path / "manifest.json").read_text())
    assert value["kind"] == "image"
    assert value["recipe"] == RECIPE
    assert value["splits"] == {"train": 4, "test": 2}
    assert value["volumes"][0]["source"] == "a.h5"
    assert value["volumes"][0]["acquisition"] == "PD"


def test_several_sizes_must_be_named(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", RECIPE)
    writer.append("val", "a", volume(0))
    writer.append("val", "b", volume(1, rows=7, cols=7))
    writer.append("val", "c", volume(2))
    store = writer.finish()
    with pytest.raises(DataError, match="sizes 9x11, 7x7, and one is needed; import again"):
        store.split("val")
    assert store.split("val", size=7).volumes == ("b", "b", "b")
    assert torch.equal(
        store.split("val", size=(9, 11)).magnitudes()[3:], torch.from_numpy(volume(2))
    )
    with pytest.raises(DataError, match=r"no split 'Val'; it has: val; did you mean 'val'\?"):
        store.split("Val")
    with pytest.raises(DataError, match=r"no split 'test'; .* name it with --split val"):
        store.split("test")
    with pytest.raises(DataError, match="no split 'train'; it has: val; to create it, import"):
        store.split("train")
    with pytest.raises(DataError, match=r"no split 'tset'; it has: val$"):
        store.split("tset")


@pytest.mark.parametrize("rows", [7, 11])
def test_rows_tell_sizes_of_as_many_columns_apart(tmp_path: Path, rows: int) -> None:
    writer = StoreWriter(tmp_path / "store", RECIPE)
    writer.append("val", "a", volume(0))
    writer.append("val", "b", volume(1, rows=rows))
    store = writer.finish()
    told = rf"sizes 9x11, {rows}x11, .* name one as in --size 9x11$"
    for size in (None, 11, (13, 11)):
        with pytest.raises(DataError, match=told):
            store.split("val", size=size)
    assert store.split("val", size=(rows, 11)).volumes == ("b", "b", "b")


def test_the_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    first = write(tmp_path / "first").fingerprint
    assert write(tmp_path / "other").fingerprint == first
    writer = StoreWriter(tmp_path / "third", RECIPE)
    writer.append("train", "a", np.nextafter(volume(0), 2, dtype=np.float32))
    assert writer.finish().fingerprint != first


@pytest.mark.parametrize("path", [".", "/"])
def test_a_folder_without_a_name_may_be_no_store(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"is not a store: it has no manifest\.json"):
        Store.open(path)


@pytest.mark.parametrize("torn", [b"", b'{"volume": {"spl'])
def test_an_interrupted_writer_goes_on_to_the_same_bytes(tmp_path: Path, torn: bytes) -> None:
    whole = write(tmp_path / "whole" / "store")
    writer = StoreWriter(tmp_path / "store", RECIPE)
    writer.append("train", "a", volume(0), slices=[4, 5, 6], source="a.h5", acquisition="PD")
    writer.append("test", "c", volume(2, n_slices=2))
    writer.close()
    folder = unfinished_path(tmp_path / "store")
    with (folder / "journal.jsonl").open("ab") as journal:
        journal.write(torn)
    with (folder / "train_9x11.npy").open("ab") as array:
        array.write(b"pixels that no journal line vouches for")
    writer = StoreWriter(tmp_path / "store", RECIPE)
    assert writer.holds("train", "a")
    assert not writer.holds("train", "b")
    writer.append("train", "b", volume(1, n_slices=1))
    again = writer.finish()
    assert snapshot(again.path) == snapshot(whole.path)


@pytest.mark.parametrize("target", ["store", "nowhere"])
def test_a_link_that_leads_nowhere_is_refused_before_any_work(tmp_path: Path, target: str) -> None:
    (tmp_path / "store").symlink_to(target)
    with pytest.raises(DataError, match="leads nowhere"):
        StoreWriter(tmp_path / "store", RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_a_journal_that_is_no_plain_file_is_told(tmp_path: Path) -> None:
    journal = unfinished_path(tmp_path / "store") / "journal.jsonl"
    journal.parent.mkdir()
    journal.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="Not a plain file"):
        StoreWriter(tmp_path / "store", RECIPE)


def test_other_settings_do_not_go_on_with_an_unfinished_store(tmp_path: Path) -> None:
    StoreWriter(tmp_path / "store", RECIPE).close()
    with pytest.raises(DataError, match=r"other settings \(seed is 3 there and 4 here\)"):
        StoreWriter(tmp_path / "store", {**RECIPE, "seed": 4})


def test_two_processes_cannot_write_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        with pytest.raises(DataError, match=r"another process|exists already"):
            StoreWriter(tmp_path / "store", RECIPE)

    def appear(writer: StoreWriter) -> None:
        refused()
        finish(writer)
        refused()

    finish = StoreWriter._appear
    writer = StoreWriter(tmp_path / "store", RECIPE)
    refused()
    writer.append("train", "a", volume(0))
    monkeypatch.setattr(store_writer.StoreWriter, "_appear", appear)
    writer.finish()
    refused()


def test_a_store_that_appears_while_another_process_waits_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = StoreWriter(tmp_path / "store", RECIPE)
    writer.append("train", "a", volume(0))

    def lock(descriptor: int, blocking: bool) -> bool:
        writer.finish()
        return lock_descriptor(descriptor, blocking=blocking)

    monkeypatch.setattr("kscout.data.unfinished.lock_descriptor", lock)
    with pytest.raises(DataError, match="another process"):
        StoreWriter(tmp_path / "store", RECIPE)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    assert Store.open(tmp_path / "store").split("train").volumes == ("a", "a", "a")


def test_a_folder_in_use_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match="exists already"):
        StoreWriter(tmp_path, RECIPE)
    with pytest.raises(DataError, match="not a store"):
        Store.open(tmp_path)


def test_what_is_discarded_leaves_nothing(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", RECIPE)
    writer.append("train", "a", volume(0))
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_an_empty_store_is_refused(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", RECIPE)
    with pytest.raises(DataError, match="no slices"):
        writer.finish()
    writer.discard()


def test_a_volume_may_come_once(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", RECIPE)
    writer.append("train", "a", volume(0))
    with pytest.raises(DataError, match="occurs twice"):
        writer.append("train", "a", volume(1))
    writer.close()


def test_a_manifest_of_another_schema_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "store").path / "manifest.json"
    file.write_text(file.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(DataError, match="schema version 99, this kscout reads 1"):
        Store.open(file.parent)
    file.write_text("{}")
    with pytest.raises(DataError, match="not a manifest"):
        Store.open(file.parent)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("arrays", 0, "file"), "../secret.npy", r"\[arrays\[0\]\] file '../secret.npy' does not"),
        (("arrays", 0, "shape"), [4, -9, 11], r"arrays\[0\]\.shape\[1\] is -9; it must be 0 or"),
        (("volumes", 0, "slices"), 3, r"volumes\[0\]\.slices is 3; expected a list of whole"),
        (("name",), None, r"name is None; expected a string"),
        (("arrays", 0, "file"), "/train_9x11.npy", r"file '/train_9x11\.npy' does not lie in"),
        (
            ("arrays", 0, "axes"),
            ["row", "col"],
            r"has shape \(4, 9, 11\) and axes \('row', 'col'\)",
        ),
        (("arrays", 0, "shape"), [0, 9, 11], r"has shape \(0, 9, 11\)"),
        (("arrays", 0, "split"), "test", r"volumes and its arrays list different slices"),
        (("arrays", 0, "dtype"), "float99", r"holds float99 of axes slice, row, col by the manif"),
        (("volumes", 0, "slices"), [1], r"volumes and its arrays list different slices"),
        (("volumes", 0, "slices"), [], r"volume 'a' has 0 slices of 11 columns"),
        (("volumes", 2, "volume"), "a", r"a volume occurs twice in one split"),
        (
            ("volumes", 0, "data_range"),
            float("nan"),
            r"volumes\[0\]\.data_range is nan; expected a",
        ),
        (("volumes", 0, "data_range"), 0, r"data_range 0 and selectable columns 0 to 11"),
        (("volumes", 0, "selectable"), [3, 12], r"selectable columns 3 to 12, which cannot be"),
    ],
)
def test_a_damaged_manifest_is_told_by_its_place(
    tmp_path: Path, place: tuple[str | int, ...], value: Any, words: str
) -> None:
    file = write(tmp_path / "store").path / "manifest.json"
    table = inner = json.loads(file.read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file.write_text(json.dumps(table))
    with pytest.raises(DataError, match=words):
        Store.open(file.parent)


def test_the_size_to_import_again_with_fits_every_split(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path / "store", RECIPE)
    writer.append("train", "a", volume(0))
    writer.append("train", "b", volume(1, rows=12))
    writer.append("test", "c", volume(2, rows=10, cols=8))
    store = writer.finish()
    with pytest.raises(DataError, match="import again with --size 9x8, which all images have"):
        store.split("train")
