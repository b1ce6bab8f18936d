"""The timed batch is that of a training."""

import pytest
import torch

from kscout.apps.bench.engine import Engine, TrainingBatch, knee_images
from kscout.core import Reconstructor
from kscout.training.loop import TrainingLoop
from kscout.training.training_run import TrainingRun


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.build(32, 3, torch.device("cpu"))


def gradients_of(batch: TrainingBatch) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in batch.policy.parameters()]
    return [gradient.clone() for gradient in found if gradient is not None]


@pytest.mark.slow
def test_the_timed_gradients_are_those_of_a_training_pass(engine: Engine) -> None:
    batch = TrainingBatch(engine, horizon=2, q=4)
    scores = batch.gradients()
    timed = gradients_of(batch)
    with engine.ready_convolutions():
        result = TrainingLoop(batch.estimator, TrainingRun(batch.estimator.learner)).take_steps(1)
    assert result.scores["train_ssim"] == pytest.approx(float(scores), abs=1e-6)
    for a, b in zip(timed, gradients_of(batch), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6 * float(b.abs().max()), rtol=1e-3)


@pytest.mark.slow
def test_the_compared_gradients_are_the_timed_ones(engine: Engine) -> None:
    batch = TrainingBatch(engine, horizon=2, q=5)
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


def test_the_engine_freezes_its_network(engine: Engine) -> None:
    assert isinstance(engine.frozen, Reconstructor)
    assert not any(parameter.requires_grad for parameter in engine.unet.parameters())
    assert engine.frozen.precision == "fp32"
