"""Importing survives being stopped and killed, and is not done twice."""

import json
import os
import signal
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from fastmri_layout import IMAGES, SETTINGS, write_layout, write_volume
from fuzz.judge import snapshot
from kscout.data import ImportSettings, import_folder, manifest, unfinished
from kscout.data.store import Store
from kscout.errors import DataError


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
    assert snapshot(again.path) == snapshot(whole.path)


def test_what_was_left_out_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=3, val=1, test=1)
    write_volume(source / "singlecoil_train" / "file1.h5", 0 * IMAGES)
    skipping, out = ImportSettings(size=7, skip_bad=True), tmp_path / "store"
    interrupted(source, out, skipping, 3)
    with pytest.raises(DataError, match=r"has left out singlecoil_train/file1\.h5; resume with"):
        import_folder(source, out, SETTINGS)
    import_folder(source, out, skipping)
    with pytest.raises(DataError, match=r"exists already \(skip_bad is True there and False here"):
        import_folder(source, out, SETTINGS)


def test_a_finished_import_is_not_done_again(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=2, val=1, test=1)
    seen: list[tuple[int, int, str]] = []
    import_folder(source, tmp_path / "store", SETTINGS, lambda *call: seen.append(call))
    assert seen == [(i + 1, 4, f"file{i}.h5") for i in range(4)]
    for settings in (SETTINGS, ImportSettings(size=7, skip_bad=True)):
        import_folder(source, tmp_path / "store", settings, lambda *call: seen.append(call))
        assert len(seen) == 4
    with pytest.raises(DataError, match=r"exists already \(size is 7 there and 9 here\); choose"):
        import_folder(source, tmp_path / "store", ImportSettings(size=9, skip_bad=True))
    write_volume(source / "singlecoil_val" / "more.h5")
    with pytest.raises(DataError, match=r"exists already \(made from other files, .*\); choose"):
        import_folder(source, tmp_path / "store", ImportSettings(size=7, skip_bad=True))
    (source / "singlecoil_val" / "more.h5").unlink()
    (source / "singlecoil_train" / "file0.h5").unlink()
    with pytest.raises(DataError, match=r"singlecoil_train/file0\.h5 was removed since\)"):
        import_folder(source, tmp_path / "store", SETTINGS)


def test_changed_pixels_in_files_of_equal_name_and_size_are_noticed(tmp_path: Path) -> None:
    source, out = write_layout(tmp_path / "knee", train=2, val=1, test=1), tmp_path / "store"
    made = import_folder(source, out, SETTINGS)
    file = source / "singlecoil_train" / "file1.h5"
    before = file.stat().st_size
    write_volume(file, IMAGES / 2)
    assert file.stat().st_size == before
    words = r"exists already \(made from .* changed: .*singlecoil_train/file1\.h5 changed since\)"
    with pytest.raises(DataError, match=words):
        import_folder(source, out, SETTINGS)
    assert import_folder(source, tmp_path / "new", SETTINGS).fingerprint != made.fingerprint


def test_large_files_are_compared_by_samples_and_time(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", np.ones((9, 400, 401), dtype=np.float32))
    file, settings = tmp_path / "1.npy", ImportSettings()
    store = import_folder(tmp_path, tmp_path / "out" / "store", settings)
    assert import_folder(tmp_path, store.path, settings).fingerprint == store.fingerprint
    with file.open("r+b") as handle:  # between two samples
        handle.seek(100_000)
        handle.write(b"\0\0\0\0")
    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    with pytest.raises(DataError, match="files that have changed"):
        import_folder(tmp_path, store.path, settings)


def test_an_interrupted_import_never_mixes_old_and_new_files(tmp_path: Path) -> None:
    source, out = write_layout(tmp_path / "knee", train=2, val=1, test=1), tmp_path / "store"
    interrupted(source, out, SETTINGS, 2)
    write_volume(source / "singlecoil_train" / "file1.h5", IMAGES / 2)
    with pytest.raises(DataError, match=r"file1\.h5 changed since\) and is unfinished; .*delete"):
        import_folder(source, out, SETTINGS)

    def change(done: int, total: int, name: str) -> None:
        write_volume(source / "singlecoil_train" / "file0.h5", IMAGES / done)

    with pytest.raises(DataError, match="changed during the import; repeat the command"):
        import_folder(source, tmp_path / "other", SETTINGS, change)
    assert not (tmp_path / "other").exists()


def test_a_store_of_0_2_counts_as_imported_until_a_source_is_newer(tmp_path: Path) -> None:
    source, out = write_layout(tmp_path / "knee", train=2, val=1, test=1), tmp_path / "store"
    made = import_folder(source, out, SETTINGS)
    names = ("train", "file0.h5"), ("train", "file1.h5"), ("val", "file2.h5"), ("test", "file3.h5")
    sizes = [
        [split, name, (source / f"singlecoil_{split}" / name).stat().st_size]
        for split, name in names
    ]
    manifest = json.loads((out / "manifest.json").read_text())
    del manifest["recipe"]["contents_sha256"]
    manifest["recipe"]["files_sha256"] = sha256(json.dumps(sizes).encode()).hexdigest()
    (out / "manifest.json").write_text(json.dumps(manifest))
    assert import_folder(source, out, SETTINGS).fingerprint == made.fingerprint
    write_volume(source / "singlecoil_train" / "file1.h5", IMAGES / 2)
    os.utime(source / "singlecoil_train" / "file1.h5", (2**32, 2**32))
    with pytest.raises(DataError, match="files that have changed"):
        import_folder(source, out, SETTINGS)


def import_until_killed(moment: str, source: Path, out: Path) -> None:
    """Run an import in a process of its own, which kills itself at a moment."""
    torch.set_num_threads(1)

    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def on_volume(done: int, total: int, name: str) -> None:
        if moment == "after a volume" and done == 4:
            kill()

    write, replace = unfinished.Journal.write, Path.replace
    if moment == "before journaling":
        unfinished.Journal.write = lambda self, value: (
            kill() if "file2" in str(value.get("volume")) else write(self, value)
        )
    elif moment == "inside the manifest":
        manifest.write_json = lambda path, value: (path.write_text("{"), kill())
    elif moment == "before the journal goes":
        Path.replace = lambda self, path: (replace(self, path), kill())
    import_folder(source, out, ImportSettings(size=7, skip_bad=True), on_volume)


MOMENTS = ("after a volume", "before journaling", "inside the manifest", "before the journal goes")


@pytest.mark.slow
def test_a_killed_import_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=4, val=1, test=2)
    write_volume(source / "singlecoil_train" / "file1.h5", 0 * IMAGES)
    half = np.concatenate([0 * IMAGES[:1], IMAGES])
    write_volume(source / "singlecoil_train" / "file0.h5", half)
    settings = ImportSettings(size=7, skip_bad=True)
    whole = import_folder(source, tmp_path / "undisturbed" / "store", settings)
    for moment in MOMENTS:
        out = tmp_path / moment / "store"
        process = get_context("fork").Process(
            target=import_until_killed, args=(moment, source, out)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        if moment != "before the journal goes":
            with pytest.raises(DataError, match="unfinished"):
                Store.open(out)
        again = import_folder(source, out, settings)
        assert snapshot(again.path) == snapshot(whole.path)
        assert [path.name for path in out.parent.iterdir()] == ["store"]


def test_a_store_inside_of_its_source_is_not_imported_again(tmp_path: Path) -> None:
    source = tmp_path / "knee"
    source.mkdir()
    for number in range(5):
        np.save(source / f"{number}.npy", IMAGES + number)
    inside = import_folder(source, source / "inside", SETTINGS)
    assert import_folder(source, source / "inside", SETTINGS).fingerprint == inside.fingerprint
    other = import_folder(source, tmp_path / "other", SETTINGS)
    assert other.fingerprint == inside.fingerprint
    words = "skipped stores in the source, which contain no new volumes: "
    assert other.manifest.warnings == (f"{words}inside",)
    unfinished = source / "unfinished"
    interrupted(source, source / "third", SETTINGS, 2)
    (source / ".third.unfinished").rename(unfinished)
    third = import_folder(source, tmp_path / "third", SETTINGS)
    assert third.fingerprint == inside.fingerprint
    assert third.manifest.warnings == (f"{words}inside, unfinished",)


def test_a_store_is_no_source(tmp_path: Path) -> None:
    source = write_layout(tmp_path / "knee", train=1, val=1, test=1)
    (tmp_path / "stores").mkdir()
    store = import_folder(source, tmp_path / "stores" / "store", SETTINGS)
    with pytest.raises(DataError, match="store is a store already, which commands accept directly"):
        import_folder(store.path, tmp_path / "other", SETTINGS)
    with pytest.raises(
        DataError, match=r"holds no volumes except .*store, which is a store already"
    ):
        import_folder(tmp_path / "stores", tmp_path / "other", SETTINGS)


def test_a_manifest_of_others_hides_no_volumes(tmp_path: Path) -> None:
    source = tmp_path / "knee"
    source.mkdir()
    (source / "manifest.json").write_text('{"schema_version": 2, "files": []}')
    for number in range(3):
        np.save(source / f"train_9x{number}.npy", IMAGES + number)
    assert len(import_folder(source, tmp_path / "store", SETTINGS).manifest.volumes) == 3
