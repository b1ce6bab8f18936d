"""A store that was tampered with, or half written, is not used."""

import hashlib
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fuzz.judge import snapshot
from kscout.data import integrity
from kscout.data.store import Store, unfinished_path
from kscout.data.store_writer import StoreWriter
from kscout.errors import DataError, RunError

RECIPE = {"command": "test"}
VOLUMES = np.random.default_rng(0).random((3, 2, 9, 11), dtype=np.float32)
FILE = "train_9x11.npy"


def write(path: Path, n_volumes: int = 3) -> Store:
    with StoreWriter(path, RECIPE) as writer:
        for number, images in enumerate(VOLUMES[:n_volumes]):
            if not writer.holds("train", str(number)):
                writer.append("train", str(number), images)
        return writer.finish()


def rewrite(file: Path, array: np.ndarray) -> None:
    """Replace an array, and its checksum with it."""
    np.save(file, array)
    manifest = json.loads((file.parent / "manifest.json").read_text())
    manifest["arrays"][0]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    (file.parent / "manifest.json").write_text(json.dumps(manifest))


def with_nan(file: Path) -> None:
    array = np.load(file)
    array[5, 3, 4] = np.nan
    rewrite(file, array)


def moved_out(file: Path) -> None:
    file.replace(file.parent.parent / "secret.npy")
    file.symlink_to(file.parent.parent / "secret.npy")


def replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.unlink()
        make(file)

    return damage


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pixel": (
        lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\7"),
        "differs from its checksum",
    ),
    "NaN": (with_nan, "NaN or infinite"),
    "type": (lambda file: rewrite(file, np.load(file).astype("i4")), "holds int32 of shape"),
    "order": (lambda file: rewrite(file, np.asfortranarray(np.load(file))), "instead of float32"),
    "shape": (lambda file: rewrite(file, np.load(file)[:, :, ::2].copy()), r"\(6, 9, 6\) instead"),
    "length": (lambda file: file.write_bytes(file.read_bytes()[:-4]), "bytes instead of"),
    "text": (lambda file: file.write_text("no array"), "cannot be read as an array"),
    "header": (
        lambda file: file.write_bytes(file.read_bytes().replace(b"}", b"(", 1)),
        "cannot be read as an array",
    ),
    "missing": (Path.unlink, "missing or damaged"),
    "link": (moved_out, "no regular file"),
    "pipe": (replaced_by(os.mkfifo), "no regular file"),
    "folder": (replaced_by(Path.mkdir), "no regular file"),
}


@pytest.mark.parametrize("fault", DAMAGE)
def test_a_damaged_array_is_not_opened(tmp_path: Path, fault: str) -> None:
    damage, sentence = DAMAGE[fault]
    damage(write(tmp_path / "store").path / FILE)
    store = Store.open(tmp_path / "store")
    for lazy in (True, False):
        with pytest.raises(DataError, match=rf"{FILE} .*{sentence}"):
            store.split("train", lazy=lazy)


def test_of_a_large_array_a_sample_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity, "READ_WHOLE", 1000)
    monkeypatch.setattr(integrity, "_BLOCK_BYTES", 16)
    monkeypatch.setattr(integrity, "_N_BLOCKS", 9)
    store = write(tmp_path / "store")
    (array,) = store.manifest.arrays
    assert array.sample_sha256 is not None
    file, values = store.path / FILE, np.load(store.path / FILE)
    starts = [(values.nbytes - 16) * number // 8 // 16 * 16 for number in range(9)]
    seen = b"".join(values.tobytes()[start : start + 16] for start in starts)
    assert hashlib.sha256(seen).hexdigest() == array.sample_sha256
    assert store.split("train", lazy=True).magnitudes().shape == values.shape
    for place in (0, values.size - 4):  # The first block, and the last.
        changed = values.copy()
        changed.flat[place] += 1
        np.save(file, changed)
        with pytest.raises(DataError, match="differs from its checksum"):
            store.split("train")
    values.flat[7] = np.nan  # Between blocks: seen where all is read.
    np.save(file, values)
    with pytest.raises(DataError, match="NaN or infinite"):
        store.split("train", lazy=False)
    with pytest.raises(DataError, match="differs from its checksum"):
        store.verify()


def test_pixels_that_are_not_finite_are_not_stored(tmp_path: Path) -> None:
    for value in (np.nan, np.inf):
        with (
            pytest.raises(DataError, match=r"volume 'a' has pixels up to .* must be finite"),
            StoreWriter(tmp_path / "store", RECIPE) as writer,
        ):
            writer.append("train", "a", np.where(VOLUMES[0] > 0.5, np.float32(value), VOLUMES[0]))
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_told_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    whole = write(tmp_path / "a" / "store")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = unfinished_path(tmp_path / "b" / "store")
    for n_bytes, n_held in ((128 + 2 * VOLUMES[0].nbytes + 100, 2), (300, 0)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
        try:
            with pytest.raises(RunError) as caught:
                write(tmp_path / "b" / "store")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert f"{folder / FILE} cannot be written" in str(caught.value)
        assert "792 bytes more are needed, and " in str(caught.value)
        assert (folder / FILE).stat().st_size == 128 + n_held * VOLUMES[0].nbytes
        if n_held == 2:
            again = write(tmp_path / "b" / "store")
            assert snapshot(again.path) == snapshot(whole.path)
            for file in again.path.iterdir():
                file.unlink()
            again.path.rmdir()


def test_no_volume_is_begun_for_which_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 700})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(RunError, match="792 bytes more are needed, and 700 bytes are free"):
        write(tmp_path / "store")
    assert not list(unfinished_path(tmp_path / "store").glob("*.npy"))


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"\xff\xfe\n", "cannot be read as the journal of a store"),
        (b"[" * 100_000 + b"\n", "cannot be read as the journal of a store"),
        (b"3\n", "cannot be read as the journal of a store"),
        (b'{"left_out": {"source": 3}}\n', "cannot be read as the journal of a store"),
        (b'{"left_out": 3}\n', "cannot be read as the journal of a store"),
        (b'{"volume": {"split": "train"}}\n', "cannot be read as the journal of a store"),
        (None, "lacks slices that its journal lists"),
        (b"", "lacks slices that its journal lists"),
    ],
)
def test_a_damaged_journal_is_told(tmp_path: Path, line: bytes | None, sentence: str) -> None:
    with StoreWriter(tmp_path / "store", RECIPE) as writer:
        writer.append("train", "0", VOLUMES[0])
    folder = unfinished_path(tmp_path / "store")
    if line is None:
        os.truncate(folder / FILE, 500)
    elif not line:
        (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-4] + b"\0\0\xc0\x7f")
    else:
        with (folder / "journal.jsonl").open("ab") as journal:
            journal.write(line)
    with pytest.raises(DataError, match=rf"{sentence}.*; delete .*unfinished to start again"):
        write(tmp_path / "store")
