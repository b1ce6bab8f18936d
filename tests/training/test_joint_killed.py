"""A joint training that is killed ends with the bytes of one that never was."""

import signal
from pathlib import Path

import pytest
from training_stores import blob_store
from victims import run_trainings

# An epoch has about 1200 events, and writes one checkpoint after all weights.
MOMENTS = ("write 1", "event 2500")


def command(store: Path, out: Path) -> list[str]:
    settings = {
        "reconstructor.n_channels": 2,
        "reconstructor.n_pools": 2,
        "policy.n_channels": 2,
        "policy.n_blocks": 2,
        "training.convolution": "native",
        "training.n_refill": 4,
        "training.refill_every": 2,
        "training.sampler_every": 2,
        "training.sampler_batch": 3,
        "training.n_baseline_slices": 2,
        "training.n_repeats": 1,
    }
    return [
        *("joint", "--data", str(store), "--out", str(out), "--method", "dense"),
        *("--n-initial", "2", "--steps", "3", "--updates", "16", "--checkpoints", "8"),
        *("--batch-size", "4", "--device", "cpu", "--policy", "conv"),
        *(word for key, value in settings.items() for word in ("--set", f"{key}={value}")),
    ]


@pytest.mark.slow
def test_kills_change_no_byte_of_either_network(tmp_path: Path) -> None:
    store = tmp_path / "store"
    blob_store(store, n_rows=16, n_cols=16)
    trainings = [(command(store, tmp_path / "cut"), moment) for moment in (*MOMENTS, "")]
    codes = run_trainings([(command(store, tmp_path / "whole"), ""), *trainings])
    assert codes == [0, *[-signal.SIGKILL] * len(MOMENTS), 0], "a run ended before its kill"
    for name in ("weights", "weights-policy", "best", "best-policy"):
        paths = [tmp_path / run / f"{name}.safetensors" for run in ("whole", "cut")]
        assert paths[0].read_bytes() == paths[1].read_bytes(), name
