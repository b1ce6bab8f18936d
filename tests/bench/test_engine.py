"""The timed batch is that of a training, and growth is computed from it."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from kscout.apps.bench import growth
from kscout.apps.bench.engine import Engine, TrainingBatch, Workload, knee_images
from kscout.apps.bench.growth import BatchCost, alone, growth_exponent, measure_scaling
from kscout.apps.bench.parts import replayed
from kscout.core import Reconstructor
from kscout.training.loop import TrainingLoop
from kscout.training.training_run import TrainingRun


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.build(32, 3, torch.device("cpu"), backend="onednn-last")


def gradients_of(batch: TrainingBatch) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in batch.policy.parameters()]
    return [gradient.clone() for gradient in found if gradient is not None]


@pytest.mark.slow
def test_the_timed_gradients_are_those_of_a_training_pass(engine: Engine) -> None:
    batch = TrainingBatch(engine, Workload(3, 2, 4))
    scores = batch.gradients()
    timed = gradients_of(batch)
    with engine.ready_convolutions():
        result = TrainingLoop(batch.estimator, TrainingRun(batch.estimator.learner)).take_steps(1)
    assert result.scores["train_ssim"] == pytest.approx(float(scores), abs=1e-6)
    for a, b in zip(timed, gradients_of(batch), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * float(b.abs().max()), rtol=1e-3)


@pytest.mark.slow
def test_the_compared_gradients_are_the_timed_ones(engine: Engine) -> None:
    batch = TrainingBatch(engine, Workload(3, 2, 5))
    batch.gradients()
    timed = gradients_of(batch)
    found = batch.estimate()
    assert found.columns.shape == (2, 3, 5)
    for a, b in zip(timed, gradients_of(batch), strict=True):
        assert torch.equal(a, b)
    batch.estimate(found.columns)
    for a, b in zip(timed, gradients_of(batch), strict=True):
        torch.testing.assert_close(a, b)


def test_knees_of_any_size_are_knees() -> None:
    small, whole = knee_images(3, 32), knee_images(3, 64)
    assert small.shape == (3, 32, 32)
    assert torch.equal(small, whole[:, 16:48, 16:48])
    assert not torch.equal(whole[0], whole[2])


def test_a_power_law_is_found_again() -> None:
    assert growth_exponent([2, 4, 16], [3 * n**0.7 for n in (2, 4, 16)]) == pytest.approx(0.7)


@pytest.mark.slow
def test_growth_is_by_pixels_and_a_batch_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def pretend(_: torch.device, __: object, size: int, work: Workload, ___: str) -> BatchCost:
        asked.append((size, work))
        return BatchCost(1e-6 * size**2 * work.q**0.5, 1, "fp32", "ConvPolicy")

    monkeypatch.setattr(growth, "alone", pretend)
    steps = {"q": (2, 4, 8), "size": (32, 48, 64)}
    found = measure_scaling(torch.device("cpu"), base=(32, Workload(1, 1, 4)), steps=steps)
    assert found["scaling_growth"] == pytest.approx({"q": 0.5, "size": 1.0})
    assert len(found["scaling"]) == 6 and len(asked) == len(set(asked)) == 5
    assert [record["size"] for record in found["scaling"]] == [32, 32, 32, 32, 48, 64]


@pytest.mark.slow
def test_scaling_runs_each_batch_in_a_process_of_its_own() -> None:
    steps = {"n_slices": (1, 4)}
    found = measure_scaling(torch.device("cpu"), base=(32, Workload(1, 1, 4)), steps=steps)
    assert [record["n_slices"] for record in found["scaling"]] == [1, 4]
    assert all(record["seconds"] > 0 < record["peak_bytes"] for record in found["scaling"])
    assert math.isfinite(found["scaling_growth"]["n_slices"])
    assert len({os.getpid(), *(alone(torch.device("cpu"), os.getpid) for _ in range(2))}) == 3


def test_the_engine_freezes_its_network(engine: Engine) -> None:
    assert isinstance(engine.frozen, Reconstructor)
    assert not any(parameter.requires_grad for parameter in engine.unet.parameters())
    assert (engine.frozen.precision, engine.arithmetic) == ("fp32", "fp32, onednn-last")


def test_a_part_on_a_cpu_is_a_call(engine: Engine) -> None:
    calls: list[int] = []

    def part(_: object) -> torch.Tensor:
        calls.append(1)
        return torch.zeros(1)

    run = replayed(engine, part)
    assert calls == []
    run()
    assert calls == [1]


_WAITING = """
import os, time, torch
from kscout.apps.bench.growth import alone
def wait():
    open("worker", "w").write(str(os.getpid()))
    time.sleep(60)
if __name__ == "__main__":
    alone(torch.device("cpu"), wait)
"""


@pytest.mark.slow
def test_a_measurement_ends_when_its_parent_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("waits.py").write_text(_WAITING)
    with subprocess.Popen([sys.executable, "waits.py"], stdout=subprocess.DEVNULL) as parent:
        worker = Path("worker")
        while parent.poll() is None and not (worker.exists() and worker.read_text()):
            time.sleep(0.1)
        parent.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < end:
            os.kill(int(worker.read_text()), 0)
            time.sleep(0.1)
