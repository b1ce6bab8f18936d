"""Any metric may be the reward, of every estimator, and of the best epoch."""

from pathlib import Path

import pytest
import sharpness
import torch
from joint_runs import joint_config
from sharpness import edges
from torch import Tensor
from training_stores import Train, short_config

from kscout.acquisition.episode import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.metrics import nmse, psnr, ssim
from kscout.names import ESTIMATORS, Protocol, metric_word
from kscout.physics.sampling import center_mask
from kscout.policies import build
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.joint.train import train_joint


@pytest.fixture
def slices(generator: torch.Generator) -> SliceSet:
    return SliceSet.from_images(torch.rand(5, 12, 14, generator=generator), list("aabbb"))


@pytest.mark.parametrize("protocol", ["paper", "blind"])
@pytest.mark.parametrize("metric", ["psnr", "nmse", "sharpness:edges"])
def test_scores_are_the_metric_of_the_images(
    slices: SliceSet, metric: str, protocol: Protocol
) -> None:
    batch = slices.batch(torch.tensor([0, 2, 3]))
    simulator = Simulator(batch, ZeroFilled(), protocol=protocol, metric=metric)
    state = simulator.start(3)
    columns = torch.tensor([[0, 1], [12, 13], [2, 0]])
    found = simulator.branch(state, columns)
    image, target, data_range = simulator.images(found.state), batch.target, batch.data_range
    own = {"psnr": psnr, "nmse": lambda *a, **b: -nmse(*a, **b), "sharpness:edges": edges}[metric]
    owner = found.state.owner
    expected = own(image, target[owner], data_range=data_range[owner])
    torch.testing.assert_close(found.state.score, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        simulator.ssim(found.state), ssim(image, target[owner], data_range=data_range[owner])
    )


def test_a_trajectory_tells_the_metric_beside_ssim(slices: SliceSet) -> None:
    batch = slices.batch(torch.arange(5))
    policy = build("center-out", n_cols=14, n_initial=2, horizon=3)
    plain = rollout(policy, Simulator(batch, ZeroFilled()), Plan(2, 3))
    found = rollout(policy, Simulator(batch, ZeroFilled(), metric="psnr"), Plan(2, 3))
    assert plain.score is None and found.score is not None
    torch.testing.assert_close(found.score, found.psnr)
    torch.testing.assert_close(found.ssim, plain.ssim)


@pytest.mark.parametrize(
    ("method", "metric"),
    [("greedy", "psnr"), *((method, "sharpness:edges") for method in ESTIMATORS.entries)],
)
def test_every_estimator_learns_by_any_metric(train: Train, method: str, metric: str) -> None:
    run = train(short_config(method, {"n_initial": 2}, n_epochs=2, metric=metric))
    word = metric_word(metric)
    assert run.done is not None
    values = [record[f"val_{word}"] for record in run.metrics]
    assert run.done["best_epoch"] == 1 + values.index(max(values))
    assert (run.done["metric"], run.done[f"best_val_{word}"]) == (metric, max(values))
    assert run.done["best_val_ssim"] == run.metrics[run.done["best_epoch"] - 1]["val_ssim"]
    assert any(f"{kind}_{word}" in run.metrics[0] for kind in ("train", "search"))


@pytest.mark.parametrize("method", ["fixed", "dense", "straight-through"])
def test_samplers_that_learn_with_a_network_learn_by_any_metric(
    store: Store, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def noted(image: Tensor, target: Tensor, *, data_range: Tensor) -> Tensor:
        seen.append(len(image))
        return edges(image, target, data_range=data_range)

    monkeypatch.setattr(sharpness, "edges", noted)
    config = joint_config(
        method, metric="sharpness:edges", n_updates=2, n_checkpoints=1, keep_epochs=()
    )
    train_joint(config, store, tmp_path / "run", device="cpu")
    assert seen


def test_another_metric_orders_columns_otherwise(slices: SliceSet) -> None:
    found = fit_fixed_order(slices, ZeroFilled(), Plan(2, 1, metric="nmse"))
    simulator = Simulator(slices.batch(torch.arange(5)), ZeroFilled())
    start, scores = center_mask(14, 2), []
    for column in range(14):
        mask = start.clone()
        mask[column] = True
        images = simulator.images(simulator.start_from(mask.expand(5, -1)))
        scores.append(float(nmse(images, simulator.batch.target).mean()))
    assert found.order[0] == min((s, c) for c, s in enumerate(scores) if not start[c])[1]


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("sssim", "choose one of: .* ssim"),
        ("sharpness:one_number", "return a tensor of one value each"),
        ("sharpness:NO_FUNCTION", "cannot be called"),
        ("sharpness:without_range", r"as f\(images, targets, data_range=data_range\) \("),
        ("sharpness:blur", "has no 'blur'"),
    ],
)
def test_what_is_no_metric_is_told(slices: SliceSet, metric: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Simulator(slices.batch(torch.arange(2)), ZeroFilled(), metric=metric).start(3)


@pytest.mark.parametrize("method", ["loupe", "straight-through"])
@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("sharpness:plain_number", "a metric gave float for 2 images; return a tensor of one"),
        ("sharpness:one_number", r"a metric gave \[\] for 2 images; return a tensor of one"),
        ("sharpness:detached", "no gradient flows through training.metric, and"),
    ],
)
def test_a_metric_that_nothing_learns_through_is_told_at_once(
    store: Store, tmp_path: Path, method: str, metric: str, words: str
) -> None:
    config, steps = joint_config(method, metric=metric), []
    with pytest.raises(ConfigError, match=words):
        train_joint(config, store, tmp_path / "run", device="cpu", on_step=steps.append)
    assert not steps and not (tmp_path / "run").exists()
