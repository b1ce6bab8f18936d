"""A policy's training that is killed ends with the bytes of one that never was."""

import signal
from pathlib import Path

import pytest
from training_stores import blob_store
from victims import run_trainings

from kscout.runs import read_run

N_EPOCHS = 5
# Both seeds write a checkpoint after each epoch, of about 1800 events.
MOMENTS = ("event 400", "write 2", "event 2100", "write 3")


def command(store: Path, out: Path) -> list[str]:
    return [
        *("policy", "--data", str(store), "--reconstructor", "zero-filled", "--out", str(out)),
        *("--n-initial", "2", "--steps", "3", "--epochs", str(N_EPOCHS), "--batch-size", "8"),
        *("--trajectories", "3", "--device", "cpu", "--convolution", "native", "--seeds", "2"),
        *(
            "--set",
            "policy.n_channels=2",
            "--set",
            "policy.n_blocks=2",
            "--set",
            "policy.n_hidden=9",
        ),
        *("--set", "training.learning_rate=0.01"),
    ]


@pytest.mark.slow
def test_kills_change_no_byte_of_two_seeds(tmp_path: Path) -> None:
    store, cut = tmp_path / "store", tmp_path / "cut"
    blob_store(store, n_rows=16, n_cols=16, n_train=21)
    trainings = [(command(store, cut), moment) for moment in (*MOMENTS, "")]
    codes = run_trainings([(command(store, tmp_path / "whole"), ""), *trainings])
    killed = [-signal.SIGKILL] * len(MOMENTS)
    assert codes == [0, *killed, 0], "a run ended before it could be killed"
    for seed in ("seed-0", "seed-1"):
        for name in ("weights.safetensors", "best.safetensors", "epoch-0001.safetensors"):
            paths = [tmp_path / run / seed / name for run in ("whole", "cut")]
            assert paths[0].read_bytes() == paths[1].read_bytes(), name
        scores = [
            [(r["epoch"], r["train_ssim"], r["val_ssim"]) for r in read_run(path / seed).metrics]
            for path in (tmp_path / "whole", cut)
        ]
        assert scores[0] == scores[1]
        assert [epoch for epoch, *_ in scores[1]] == list(range(1, N_EPOCHS + 1))
