"""A training that is stopped by a signal or a kill continues from its last step."""

import logging
import math
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from pickle import PicklingError
from typing import Any

import pytest
import torch
from torch import nn
from training_stores import CONV, check_continued, small_config, stopping_at, weights

from kscout.config import PolicyConfig
from kscout.data.store import Store
from kscout.errors import RunError
from kscout.runs import Progress, read_run
from kscout.training import loop
from kscout.training.loop import deferred_signals
from kscout.training.policy import train_policy
from kscout.training.training_run import (
    best_of,
    checkpoint_of,
    load_checkpoint,
    restore,
    save_checkpoint,
)

TRAINING = {"method": "greedy", "n_epochs": 2, "batch_size": 4, "n_trajectories": 2, "seed": 3}
CONFIG: PolicyConfig = small_config(CONV, TRAINING)


def train(
    store: Store, out: Path, on_step: loop.OnStep = lambda _: None, config: PolicyConfig = CONFIG
) -> None:
    train_policy(config, store, "zero-filled", out, device="cpu", on_step=on_step)


@pytest.fixture(scope="module")
def expected(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("whole")
    train(store, out)
    return weights(out)


def check_resumed(
    store: Store,
    out: Path,
    expected: dict[str, torch.Tensor],
    *,
    epoch: int,
    step: int,
    is_done: bool = False,
) -> None:
    taken: list[Progress] = []
    train(store, out, taken.append)
    if is_done:
        assert (taken[0].epoch, taken[0].step) == (epoch + 1, 1)
    else:
        check_continued(taken[0], epoch, step)
    found = weights(out)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_inside_a_step_takes_effect_after_it_and_says_what_is_saved(
    store: Store,
    expected: dict[str, torch.Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: signal.Signals,
) -> None:
    caplog.set_level(logging.INFO)
    original, calls = torch.optim.Adam.step, []

    def step(self: torch.optim.Adam) -> None:
        original(self)
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with monkeypatch.context() as patch, pytest.raises((KeyboardInterrupt, SystemExit)):
            patch.setattr(torch.optim.Adam, "step", step)
            train(store, tmp_path)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert f"{tmp_path}: saved after update 2 of 3 in epoch 1 of 2" in caplog.text
    check_resumed(store, tmp_path, expected, epoch=1, step=2)
    assert f"{tmp_path}: resumed after update 2 of 3 in epoch 1 of 2" in caplog.text


def test_a_signal_during_validation_saves_all_steps(
    store: Store, expected: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("kscout.training.policy.final_scores", stop_validation)
        train(store, tmp_path)
    check_resumed(store, tmp_path, expected, epoch=1, step=3)


def stop_validation(*_: object) -> dict[str, float]:
    raise KeyboardInterrupt


def test_a_killed_training_continues_from_the_last_checkpoint_in_time(
    store: Store, expected: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SAVE_EVERY_S", -1.0)

    def kill(progress: Progress) -> None:
        if (progress.epoch, progress.step) == (2, 2):
            raise MemoryError

    with pytest.raises(MemoryError):
        train(store, tmp_path, kill)
    check_resumed(store, tmp_path, expected, epoch=2, step=1)


def test_a_signal_while_a_checkpoint_is_written_leaves_it_complete(
    store: Store, expected: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*arguments: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        save_checkpoint(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "SAVE_EVERY_S", -1.0)
        patch.setattr("kscout.training.training_run.save_checkpoint", save)
        train(store, tmp_path)
    check_resumed(store, tmp_path, expected, epoch=1, step=1)


def test_a_stop_before_the_first_update_and_a_resumption_are_logged(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("kscout.training.loop.TrainingLoop.take_steps", stop_validation)
        train(store, tmp_path)
    assert f"{tmp_path}: stopped before the first update" in caplog.text
    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path, lambda progress: progress.record and stop_validation())
    train(store, tmp_path)
    assert f"{tmp_path}: resumed after epoch 1 of 2" in caplog.text


def test_a_finished_training_continues_for_more_epochs(
    store: Store, expected: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    short = replace(CONFIG, training=replace(CONFIG.training, n_epochs=1))
    train(store, tmp_path, config=short)
    check_resumed(store, tmp_path, expected, epoch=1, step=3, is_done=True)
    run = read_run(tmp_path)
    assert run.config["training"]["n_epochs"] == 2
    assert run.provenance.notes["earlier_n_epochs"] == [1]
    with pytest.raises(RunError, match="n_epochs is 2 there and 1 here"):
        train(store, tmp_path, config=short)
    other = replace(CONFIG, training=replace(CONFIG.training, n_epochs=3, seed=4))
    with pytest.raises(RunError, match=r"training\.seed is 3 there and 4 here"):
        train(store, tmp_path, config=other)
    assert read_run(tmp_path).is_finished


def test_a_checkpoint_of_other_steps_is_rejected(store: Store, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(store, tmp_path, stopping_at(1, 1))
    checkpoint = load_checkpoint(tmp_path / "checkpoint.pt")
    assert checkpoint is not None
    checkpoint["facts"]["part"]["n_steps"] = 7
    save_checkpoint(tmp_path / "checkpoint.pt", checkpoint)
    with pytest.raises(RunError, match="inside an epoch of 7 steps, and here it has 3"):
        train(store, tmp_path)


def test_a_second_signal_takes_effect_at_once() -> None:
    after = []
    with pytest.raises(KeyboardInterrupt), deferred_signals():
        signal.raise_signal(signal.SIGINT)
        after.append("first")
        signal.raise_signal(signal.SIGINT)
        after.append("second")
    assert after == ["first"]


def model_and_optimizer() -> tuple[nn.Linear, torch.optim.Adam]:
    model = nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a checkpoint of the first epoch."""
    path = tmp_path / "c.pt"
    save_checkpoint(path, checkpoint_of(1, *model_and_optimizer(), {}))
    return path


def full_disk(_: object, aside: Path) -> None:
    aside.write_bytes(b"half")
    raise RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed")


@pytest.mark.parametrize(
    ("write", "facts", "error", "words"),
    [
        (torch.save, {"no pickle": lambda: 0}, PicklingError, "pickle"),
        (full_disk, {}, RunError, r"cannot write .*c\.pt .*free some disk space"),
    ],
)
def test_a_failed_write_is_told_and_leaves_the_old_checkpoint(
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    write: Any,
    facts: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr(torch, "save", write)
    with pytest.raises(error, match=words):
        save_checkpoint(saved, checkpoint_of(2, *model_and_optimizer(), facts))
    assert saved.read_bytes() == before and [*saved.parent.iterdir()] == [saved]


def test_a_damaged_checkpoint_is_told(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:200])
    with pytest.raises(RunError, match=r"c\.pt is damaged .*delete it to train from the start"):
        load_checkpoint(saved)
    torch.save({"model": {"cut": torch.zeros(2**12)}}, saved)
    os.truncate(saved, 9000)
    with pytest.raises(RunError, match=r"c\.pt is damaged \((?!\[Errno)"):
        load_checkpoint(saved)
    model, optimizer = model_and_optimizer()
    with torch.no_grad():
        next(model.parameters()).view(-1)[-1] = math.nan
    save_checkpoint(saved, checkpoint_of(1, model, optimizer, {}))
    with pytest.raises(RunError, match=r"c\.pt has weights that are NaN; delete it to train"):
        load_checkpoint(saved)
    for misplace in (os.mkfifo, lambda path: path.symlink_to("nowhere")):
        saved.unlink()
        misplace(saved)
        with pytest.raises(RunError, match=r"c\.pt is damaged \(no plain file\)"):
            load_checkpoint(saved)


@pytest.mark.parametrize(
    ("content", "lacks"),
    [
        (3, "epoch"),
        ({"model": {}}, "epoch"),
        ({"epoch": "x", "model": {}, "optimizer": {}, "facts": {}}, "epoch"),
        ({"epoch": 1, "model": [], "optimizer": {}, "facts": {}}, "model"),
    ],
)
def test_a_file_of_other_things_is_told(tmp_path: Path, content: object, lacks: str) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match=f"no checkpoint of a training: it has no '{lacks}'; delete"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def test_a_checkpoint_without_its_best_epoch_is_told() -> None:
    for facts in ({}, {"best_epoch": "x", "best_ssim": 0.5}, {"best_epoch": 3}):
        with pytest.raises(RunError, match="of epoch 7 does not contain the best epoch so far"):
            best_of(checkpoint_of(7, *model_and_optimizer(), facts))


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_checkpoint_of_another_network_is_told(part: str) -> None:
    model, other = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    optimizers = [torch.optim.Adam(one.parameters()) for one in (model, other)]
    found = checkpoint_of(7, model, optimizers[0], {})
    found[part] = checkpoint_of(7, other, optimizers[1], {})[part]  # type: ignore[literal-required]
    with pytest.raises(RunError, match=r"the checkpoint of epoch 7 does not fit the run \("):
        restore(found, model, optimizers[0])
