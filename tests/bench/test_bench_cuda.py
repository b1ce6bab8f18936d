"""On CUDA the benchmarks time what a training runs: 16-bit networks, one graph per batch."""

from typing import Any

import pytest
import torch

from kscout.apps.bench import run_benchmarks
from kscout.apps.bench.engine import Engine, TrainingBatch
from kscout.apps.bench.yardstick import compare_with_plain, gradient_cosine, plain_policy
from kscout.kernels.graphs import BatchGradients
from kscout.policies.conv_fused import HalfPrecisionConvPolicy
from kscout.reconstruction.unet import HalfPrecisionUNet

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.build(64, 4, torch.device("cuda"))


def test_the_engine_is_that_of_a_training(engine: Engine) -> None:
    batch = TrainingBatch(engine, horizon=3, q=4)
    batch.gradients()
    assert isinstance(engine.frozen, HalfPrecisionUNet) and engine.arithmetic == "fp16 fused"
    assert isinstance(batch.estimator.view, HalfPrecisionConvPolicy)
    (graph,) = batch.estimator.graphs.values()
    assert isinstance(graph, BatchGradients) and graph.graph is not None
    batch.gradients()
    assert list(batch.estimator.graphs.values()) == [graph]


def test_the_graph_has_the_gradients_that_are_compared(engine: Engine) -> None:
    batch = TrainingBatch(engine, horizon=3, q=4)
    batch.gradients()
    batch.gradients()
    copy = plain_policy(batch)
    for own, other in zip(copy.parameters(), batch.policy.parameters(), strict=True):
        assert other.grad is not None
        own.grad = other.grad.clone()
    batch.estimate()
    assert gradient_cosine(copy, batch.policy) > 0.999


def test_the_plain_implementation_has_nearly_the_same_gradients() -> None:
    # The size that the U-Net was trained for: at 64 pixels gains are five times as large, and so
    # is what 16 bit changes in them.
    engine = Engine.build(128, 4, torch.device("cuda"))
    found = compare_with_plain(engine, horizon=3, q=8)
    assert found["columns_equal"] is None
    assert found["arithmetic"] == "fp16 fused"
    assert found["gradient_cosine"] > 0.9
    assert found["largest_reward_difference"] < 1e-3
    assert found["ratio"] == sorted(found["ratios"])[len(found["ratios"]) // 2] > 0


def test_the_paper_s_batch_is_compared_in_16_bit() -> None:
    found: dict[str, Any] = run_benchmarks(device="cuda", sizes=[64])
    assert found["yardstick_ratio"].keys() == {"64"}
    assert found["yardstick"]["64"]["arithmetic"] == "fp16 fused"
