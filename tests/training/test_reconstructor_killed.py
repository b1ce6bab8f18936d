"""A training that is killed again and again ends with the bytes of one that never was."""

import multiprocessing
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from training_stores import blob_store, run_command

from kscout.runs import read_run

N_EPOCHS = 60
N_KILLS = 20


def start(store: Path, out: Path) -> ForkServerProcess:
    # A server that has torch loaded forks each victim in milliseconds; each is its own process.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kscout.training.reconstructor", "kscout.cli.train"])
    options = {
        "--data": str(store),
        "--out": str(out),
        "--epochs": str(N_EPOCHS),
        "--batch-size": "8",
        "--channels": "12",
        "--device": "cpu",
        "--set": "reconstructor.n_pools=2",
        "--convolution": "native",
    }
    words = [word for pair in options.items() for word in pair]
    process = context.Process(target=run_command, args=(["reconstructor", *words],))
    process.start()
    return process


def wait_for_write(out: Path, process: ForkServerProcess) -> None:
    """Return while a checkpoint is being written."""
    while process.is_alive():
        if any(out.glob(".checkpoint.pt.*.part")):
            return


@pytest.mark.slow
def test_twenty_kills_change_no_byte(tmp_path: Path) -> None:
    store = tmp_path / "store"
    blob_store(store, n_train=21)
    whole = start(store, tmp_path / "whole")
    draws = random.Random(0)
    cut, n_inside = tmp_path / "cut", 0
    for kill in range(N_KILLS):
        process = start(store, cut)
        if kill % 2:
            wait_for_write(cut, process)
        else:
            time.sleep(draws.uniform(0.05, 0.6))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run ended before it could be killed"
        n_inside += any(cut.glob(".checkpoint.pt.*.part"))
    assert n_inside >= 3, "too few kills fell inside a checkpoint's writing"

    process = start(store, cut)
    process.join()
    whole.join()
    assert (process.exitcode, whole.exitcode) == (0, 0)
    for name in ("weights.safetensors", "best.safetensors"):
        assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    runs = [read_run(path) for path in (tmp_path / "whole", cut)]
    losses = [[(r["epoch"], r["train_loss"], r["val_ssim"]) for r in run.metrics] for run in runs]
    assert losses[0] == losses[1]
    assert [epoch for epoch, *_ in losses[1]] == list(range(1, N_EPOCHS + 1))
    assert not list(cut.glob(".*.part"))
