"""Made stores have the number of slices asked for, and are the same however they came about."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuzz.judge import snapshot
from kscout.data.generate import make_store
from kscout.data.making import MakeSettings, paper_settings, parse_counts
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError, RunError
from kscout.names import SOURCES

SMALL = {"kind": "knee", "slices": 3, "size": 64, "workers": 1}


def make(path: Path, *volumes: int, **options: object) -> Store:
    return make_store(path, MakeSettings(volumes=volumes, **{**SMALL, **options}))  # type: ignore[arg-type]


def test_counts_and_images_are_what_was_asked(tmp_path: Path) -> None:
    store = make(tmp_path / "store", 2, 0, 1)
    assert store.manifest.splits == {"train": 6, "test": 3}
    train, test = store.split("train"), store.split("test")
    assert train.magnitudes().shape == (6, 64, 64)
    assert len(set(train.volumes)) == 2
    assert not torch.equal(train.magnitudes()[:3], test.magnitudes())
    assert store.manifest.recipe["settings"]["seed"] == 0


def test_a_split_does_not_depend_on_the_size_of_the_others(tmp_path: Path) -> None:
    first = make(tmp_path / "first", 2, 0, 1).split("test")
    other = make(tmp_path / "other", 0, 0, 1).split("test")
    assert torch.equal(first.magnitudes(), other.magnitudes())


def test_coils_make_a_store_of_kspace(tmp_path: Path) -> None:
    store = make(tmp_path / "store", 1, 0, 1, coils=2, phase=True)
    assert store.kind.name == "kspace" and store.split("test").shape == (2, 64, 64)
    assert store.split("train").data_range.max() < 3
    assert make(tmp_path / "store", 1, 0, 1, coils=2, phase=True).path == store.path
    with pytest.raises(DataError, match=r"snr is None there and 9\.0 here"):
        make(tmp_path / "store", 1, 0, 1, coils=2, phase=True, snr=9.0)


def test_totals_cut_the_last_volume_short(tmp_path: Path) -> None:
    store = make(tmp_path / "store", 2, 1, 0, totals=(4, 2, 0))
    assert store.manifest.splits == {"train": 4, "val": 2}
    assert [len(record.slices) for record in store.manifest.volumes] == [3, 1, 2]


def test_few_images_are_drawn_without_starting_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def no_volumes(*_: object, workers: int, **__: object) -> list[object]:
        asked.append(workers)
        return []

    monkeypatch.setattr("kscout.data.generate.make_volumes", no_volumes)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    for workers in (0, 3):
        with pytest.raises(DataError):
            make(tmp_path / "store", 2, 100, 10_000, workers=workers)
    # 6, 300 and 30,000 slices of 64 x 64 pixels.
    assert asked == [1, 2, 4, 3, 3, 3]


@pytest.mark.parametrize("kind", ["knee", "brain"])
def test_paper_settings_add_up_to_the_papers_slices(kind: str) -> None:
    settings = paper_settings(kind)
    assert settings.totals == SOURCES[kind].paper_slices
    for n_volumes, total in zip(settings.volumes, settings.totals, strict=True):
        assert (n_volumes - 1) * settings.slices < total <= n_volumes * settings.slices


@pytest.mark.parametrize(
    "stop", [KeyboardInterrupt(), RunError("a worker process died")], ids=["interrupt", "dead"]
)
def test_a_making_that_was_stopped_goes_on_to_the_same_bytes(
    tmp_path: Path, stop: BaseException
) -> None:
    whole = make(tmp_path / "a" / "store", 2, 1, 0, totals=(5, 2, 0))
    settings = MakeSettings(volumes=(2, 1, 0), totals=(5, 2, 0), **SMALL)  # type: ignore[arg-type]

    def stop_after(n_volumes: int) -> Callable[[int, int, str], None]:
        def on_volume(done: int, total: int, name: str) -> None:
            assert total == 3
            if done == n_volumes:
                raise stop

        return on_volume

    for n_volumes in (1, 2):
        with pytest.raises(type(stop)):
            make_store(tmp_path / "b" / "store", settings, stop_after(n_volumes))
        with pytest.raises(DataError, match="unfinished"):
            Store.open(tmp_path / "b" / "store")
    again = make_store(tmp_path / "b" / "store", settings)
    assert snapshot(again.path) == snapshot(whole.path)


def test_heads_are_split_by_subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # NumPy volumes need no package that reads NIfTI.
    monkeypatch.setitem(sys.modules, "nibabel", None)
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 40)] * 3, indexing="ij"))
    for number in range(3):
        ball = (np.square(grid).sum(0) < 0.8) * (1 + 0.1 * np.sin(9 * grid[number]))
        np.save(tmp_path / f"subject{number}.npy", ball.astype(np.float32))
    sources = tuple(tmp_path / f"subject{number}.npy" for number in range(3))
    store = make(tmp_path / "store", 2, 1, 1, kind="heads", sources=sources)
    subjects = {record.split: record.source for record in store.manifest.volumes}
    assert [subjects[split].split(":")[0] for split in ("train", "val", "test")] == [
        f"head subject{number}" for number in range(3)
    ]
    np.save(sources[1], np.load(sources[1]) ** 2)
    with pytest.raises(DataError, match=r"subject1\.npy changed since"):
        make(tmp_path / "store", 2, 1, 1, kind="heads", sources=sources)
    test = make(tmp_path / "test", 0, 0, 2, kind="heads", sources=sources[:1])
    assert test.manifest.splits == {"test": 6} and not test.manifest.warnings
    with pytest.raises(DataError, match="expected at least 2"):
        make(tmp_path / "other", 1, 1, 1, kind="heads", sources=sources[:1])
    assert not (tmp_path / ".other.unfinished").exists()


def test_what_does_not_fit_on_the_disk_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "shutil.disk_usage", lambda path: type("Usage", (), {"free": 10**5, "total": 1})
    )
    with pytest.raises(ConfigError, match="of 3 slices take 147 kB, and 100 kB are free in"):
        make(tmp_path / "store", 1, 1, 1)
    assert not list(tmp_path.iterdir())


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"kind": "elbow"}, "choose one of: brain, heads, knee"),
    ({"kind": "heads"}, "--source FILE"),
    ({"sources": (Path("a.nii"),)}, "knee images have no source"),
    ({"volumes": (0, 0, 0)}, "ask for one or more, up to 1000000"),
    ({"volumes": (99999999999, 1, 1)}, "ask for one or more, up to 1000000"),
    ({"volumes": (-1, 1, 1)}, "--volumes -1,1,1 has a number below 0"),
    ({"slices": 0}, r"found 0 slices per volume, .*; change --slices"),
    ({"slices": 10**9}, "10000"),
    ({"size": 10**6}, "10000"),
    ({"workers": 10**6}, "10000"),
    ({"seed": -1}, rf"--seed is -1; .* up to {2**63 - 1}"),
    ({"seed": 2**63}, f"seed is {2**63}; whole numbers must fit in 64 bits"),
    ({"kind": "brain", "variant": "structured"}, "unknown variant of brain 'structured'"),
    ({"coils": 0}, "--coils is 0; it must be 1 or more"),
    ({"coils": 2, "snr": 0}, r"--snr is 0\.0; it must be 0\.1 or more"),
    ({"coils": 2, "snr": math.nan}, r"snr is nan; expected a number"),
    ({"coils": 2, "target": "mean"}, r"'mean'.*rss, weighted"),
    ({"target": "weighted"}, "--target is of k-space"),
    ({"phase": True}, "--phase is of k-space, not of images; add --coils"),
]


@pytest.mark.parametrize(("settings", "told"), IMPOSSIBLE)
def test_what_cannot_be_made_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        MakeSettings(**{"kind": "knee", **settings})


def test_seeds_counts_and_paper_settings_are_bounded() -> None:
    # As for trainings, so that one seed serves all that a demo does.
    MakeSettings(kind="knee", seed=2**63 - 1)
    with pytest.raises(ConfigError, match="choose one of: brain, knee"):
        paper_settings("heads", download=True)
    with pytest.raises(ConfigError, match="as in 40,10,10"):
        parse_counts("40,10", "--volumes")
    assert parse_counts("3,1,2", "--volumes") == (3, 1, 2)
