"""A checkpoint holds all that a training needs, and a damaged or interrupted one is told."""

import math
import os
from pathlib import Path

import pytest
import torch
from torch import nn

from kscout.errors import RunError
from kscout.training.checkpointing import (
    best_of,
    checkpoint_of,
    load_checkpoint,
    restore,
    save_checkpoint,
)


def model_and_optimizer() -> tuple[nn.Linear, torch.optim.Adam]:
    model = nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def train(model: nn.Linear, optimizer: torch.optim.Adam, n_steps: int) -> None:
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()


def test_training_goes_on_bit_equal_from_a_checkpoint(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    train(model, optimizer, 3)
    save_checkpoint(
        tmp_path / "c.pt", checkpoint_of(4, model, optimizer, {"best": 0.5, "name": "x"})
    )
    train(model, optimizer, 2)

    other, other_optimizer = model_and_optimizer()
    found = load_checkpoint(tmp_path / "c.pt")
    assert found is not None
    restore(found, other, other_optimizer)
    train(other, other_optimizer, 2)
    assert found["epoch"] == 4 and found["facts"] == {"best": 0.5, "name": "x"}
    assert torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias)


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    path = tmp_path / "c.pt"
    save_checkpoint(path, checkpoint_of(1, model, optimizer, {}))
    before = path.read_bytes()
    with pytest.raises(AttributeError):
        save_checkpoint(path, checkpoint_of(2, model, optimizer, {"no pickle": lambda: 0}))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["c.pt"]


def test_a_full_disk_is_told_and_the_old_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer = model_and_optimizer()
    path = tmp_path / "c.pt"
    save_checkpoint(path, checkpoint_of(1, model, optimizer, {}))
    before = path.read_bytes()

    def full(_: object, aside: Path) -> None:
        aside.write_bytes(b"half")
        raise RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match=r"cannot write .*c\.pt .*free some disk space"):
        save_checkpoint(path, checkpoint_of(2, model, optimizer, {}))
    assert path.read_bytes() == before and [f.name for f in tmp_path.iterdir()] == ["c.pt"]


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    model, optimizer = model_and_optimizer()
    path = tmp_path / "c.pt"
    save_checkpoint(path, checkpoint_of(1, model, optimizer, {}))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RunError, match=r"c\.pt is damaged .*delete it to train from the start"):
        load_checkpoint(path)
    cut = torch.zeros(2**12)
    torch.save({"model": {"cut": cut}}, path)
    os.truncate(path, 9000)
    with pytest.raises(RunError, match=r"c\.pt is damaged \((?!\[Errno)"):
        load_checkpoint(path)
    with torch.no_grad():
        next(model.parameters()).view(-1)[-1] = math.nan
    save_checkpoint(path, checkpoint_of(1, model, optimizer, {}))
    with pytest.raises(RunError, match=r"c\.pt has weights that are NaN; delete it to train"):
        load_checkpoint(path)
    torch.save({"model": {}}, path)
    with pytest.raises(RunError, match="no checkpoint of a training: it has no 'epoch'"):
        load_checkpoint(path)
    for misplace in (os.mkfifo, lambda path: path.symlink_to("nowhere")):
        path.unlink()
        misplace(path)
        with pytest.raises(RunError, match=r"c\.pt is damaged \(no plain file\)"):
            load_checkpoint(path)


@pytest.mark.parametrize(
    ("content", "lacks"),
    [
        (3, "epoch"),
        ({}, "epoch"),
        ({"epoch": "x", "model": {}, "optimizer": {}, "facts": {}}, "epoch"),
        ({"epoch": 1, "model": [], "optimizer": {}, "facts": {}}, "model"),
    ],
)
def test_a_file_of_other_things_is_told(tmp_path: Path, content: object, lacks: str) -> None:
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(RunError, match=f"no checkpoint of a training: it has no '{lacks}'; delete"):
        load_checkpoint(tmp_path / "checkpoint.pt")


def test_a_checkpoint_without_its_best_epoch_is_told() -> None:
    model, optimizer = model_and_optimizer()
    for facts in ({}, {"best_epoch": "x", "best_ssim": 0.5}, {"best_epoch": 3}):
        with pytest.raises(RunError, match="of epoch 7 does not contain the best epoch so far"):
            best_of(checkpoint_of(7, model, optimizer, facts))


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_checkpoint_of_another_network_is_told(part: str) -> None:
    model, other = nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    optimizers = [torch.optim.Adam(one.parameters()) for one in (model, other)]
    found = checkpoint_of(7, model, optimizers[0], {})
    found[part] = checkpoint_of(7, other, optimizers[1], {})[part]  # type: ignore[literal-required]
    with pytest.raises(RunError, match=r"the checkpoint of epoch 7 does not fit the run \("):
        restore(found, model, optimizers[0])
