"""A policy's training that is killed ends with the bytes of one that never was."""

import multiprocessing
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from training_stores import blob_store, run_command

from kscout.runs import read_run

N_EPOCHS = 40


def start(store: Path, out: Path) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kscout.training.policy", "kscout.cli.train"])
    words = [
        *("policy", "--data", str(store), "--reconstructor", "zero-filled", "--out", str(out)),
        *("--n-initial", "2", "--steps", "3", "--epochs", str(N_EPOCHS), "--batch-size", "8"),
        *("--trajectories", "3", "--device", "cpu", "--convolution", "native", "--seeds", "2"),
        *("--set", "policy.n_channels=2", "--set", "policy.n_blocks=2"),
        *("--set", "training.learning_rate=0.01"),
    ]
    process = context.Process(target=run_command, args=(words,))
    process.start()
    return process


@pytest.mark.slow
def test_kills_change_no_byte_of_two_seeds_in_lockstep(tmp_path: Path) -> None:
    store, cut, draws = tmp_path / "store", tmp_path / "cut", random.Random(0)
    blob_store(store, n_rows=16, n_cols=16, n_train=21)
    whole = start(store, tmp_path / "whole")
    for _ in range(6):
        process = start(store, cut)
        time.sleep(draws.uniform(0.2, 1.0))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL, "the run ended before it could be killed"
    process = start(store, cut)
    process.join()
    whole.join()
    assert (process.exitcode, whole.exitcode) == (0, 0)
    for seed in ("seed-0", "seed-1"):
        for name in ("weights.safetensors", "best.safetensors", "epoch-0010.safetensors"):
            paths = [tmp_path / run / seed / name for run in ("whole", "cut")]
            assert paths[0].read_bytes() == paths[1].read_bytes(), name
        scores = [
            [(r["epoch"], r["train_ssim"], r["val_ssim"]) for r in read_run(path / seed).metrics]
            for path in (tmp_path / "whole", cut)
        ]
        assert scores[0] == scores[1]
        assert [epoch for epoch, *_ in scores[1]] == list(range(1, N_EPOCHS + 1))
