"""A training that is killed again and again ends with the bytes of one that never was."""

import random
import signal
from pathlib import Path

import pytest
from training_stores import blob_store
from victims import run_trainings

from kscout.runs import read_run

N_EPOCHS = 9
N_KILLS = 4


def command(store: Path, out: Path) -> list[str]:
    options = {
        "--data": str(store),
        "--out": str(out),
        "--epochs": str(N_EPOCHS),
        "--batch-size": "8",
        "--channels": "4",
        "--device": "cpu",
        "--set": "reconstructor.n_pools=2",
        "--convolution": "native",
    }
    return ["reconstructor", *(word for pair in options.items() for word in pair)]


@pytest.mark.slow
def test_kills_change_no_byte(tmp_path: Path) -> None:
    store, cut, draws = tmp_path / "store", tmp_path / "cut", random.Random(0)
    blob_store(store, n_train=21)
    # About 200 events are an epoch, and every second kill falls inside a checkpoint's writing.
    moments = [
        f"write {draws.randint(1, 2)}" if kill % 2 else f"event {draws.randint(50, 500)}"
        for kill in range(N_KILLS)
    ]
    trainings = [(command(store, cut), moment) for moment in (*moments, "")]
    codes = run_trainings([(command(store, tmp_path / "whole"), ""), *trainings])
    killed = [-signal.SIGKILL] * N_KILLS
    assert codes == [0, *killed, 0], "a run ended before it could be killed"

    for name in ("weights.safetensors", "best.safetensors"):
        assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    runs = [read_run(path) for path in (tmp_path / "whole", cut)]
    losses = [[(r["epoch"], r["train_loss"], r["val_ssim"]) for r in run.metrics] for run in runs]
    assert losses[0] == losses[1]
    assert [epoch for epoch, *_ in losses[1]] == list(range(1, N_EPOCHS + 1))
    assert not list(cut.glob(".*.part"))
