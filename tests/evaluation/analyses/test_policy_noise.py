"""Gradient noise of runs: the trained estimator's own gradient, the last layer only."""

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kscout.core import Policy
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, RunError
from kscout.evaluation.analyses.snr import (
    EstimatorGradients,
    Snr,
    check_noise,
    kept_epochs,
    last_layer,
    measure_run,
    signal_to_noise,
    snr_rows,
)
from kscout.names import use
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.runs import epoch_path, read_run
from kscout.weights import save_component
from policy_runs import small_policy, write_run

SETTING = Snr(trajectories=3, batch_size=3, passes=2)
EPOCHS = ("epoch-0001", "epoch-0010")
COLUMNS = {"n_initial": 3, "steps": 2}


def _gradients(policy: Policy, slices: SliceSet, **training: object) -> EstimatorGradients:
    acquisition = {"n_initial": 3, "horizon": 2}
    config = {"acquisition": acquisition, "training": {"method": "greedy", **training}}
    return EstimatorGradients(policy, slices, ZeroFilled(), config, SETTING)


@pytest.mark.slow
@pytest.mark.parametrize("training", [{}, {"method": "ngreedy", "gamma": 0.9}])
def test_every_kept_epoch_is_measured_over_all_batches(
    test_slices: SliceSet, tmp_path: Path, training: dict[str, Any]
) -> None:
    run = write_run(tmp_path / "run", *EPOCHS, horizon=2, **training)
    assert kept_epochs(run) == [1, 10]
    rows, again = (
        snr_rows("run", 0, measure_run(run, test_slices, ZeroFilled(), SETTING), **COLUMNS)
        for _ in range(2)
    )
    assert again == rows
    assert [(row.epoch, row.n_passes, row.n_batches) for row in rows] == [(1, 2, 3), (10, 2, 3)]
    assert all(row.snr_paper > 0 and row.std_paper > 0 for row in rows)


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"method": "antigravity:Estimator"}, "name it: kscout --use antigravity"),
        ({"metric": "antigravity:geohash"}, "metric antigravity:geohash.*--use antigravity"),
    ],
)
def test_a_run_of_an_outside_class_imports_no_module_unasked(
    test_slices: SliceSet, tmp_path: Path, training: dict[str, str], words: str
) -> None:
    run = write_run(tmp_path / "run", *EPOCHS, **training)
    with pytest.raises(ConfigError, match=words):
        measure_run(run, test_slices, ZeroFilled(), SETTING)
    assert "antigravity" not in sys.modules


def test_a_metric_whose_module_the_user_named_is_measured(test_slices: SliceSet) -> None:
    use("sharpness")
    gradients = [
        next(_gradients(small_policy(), test_slices, metric=metric).of_pass(0))
        for metric in ("ssim", "sharpness:edges")
    ]
    assert not torch.allclose(*gradients)


@pytest.mark.slow
def test_measured_ratio_is_that_of_the_gradients(test_slices: SliceSet, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", *EPOCHS, horizon=2)
    source = _gradients(small_policy(), test_slices)
    gradients = torch.stack([torch.stack([*source.of_pass(index)]) for index in (0, 1)])
    passes = measure_run(run, test_slices, ZeroFilled(), replace(SETTING, epoch=(10,)))
    (row,) = snr_rows("run", 0, passes, **COLUMNS)
    assert (row.snr_paper, row.std_paper) == pytest.approx(signal_to_noise(gradients))


def test_only_the_last_layer_is_differentiated(test_slices: SliceSet) -> None:
    policy = small_policy()
    next(_gradients(policy, test_slices).of_pass(0))
    with_gradient = [name for name, p in policy.named_parameters() if p.grad is not None]
    assert with_gradient == ["fc_out.4.weight", "fc_out.4.bias"]
    assert [tuple(p.shape) for p in last_layer(policy)] == [(13, 5), (13,)]


def test_runs_for_other_images_or_reconstructions_are_reported_before_the_first_is_measured(
    test_slices: SliceSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = read_run(write_run(tmp_path / "run"))
    for epoch, recorded in ((1, {"reconstructor": "0" * 16}), (10, {})):
        save_component(epoch_path(run.path, epoch), small_policy(), kind="policy", extra=recorded)
    check_noise({"greedy": run}, test_slices, ZeroFilled(), replace(SETTING, protocol="paper"))
    words = "policies trained with the reconstruction 0000000000000000 run here with another"
    (note,) = caplog.messages
    assert note.startswith(words) and ": greedy; train one" in note
    images = torch.rand(2, 16, 13)
    small = SliceSet.from_images(images, ["a", "a"])
    with pytest.raises(ConfigError, match="'greedy' was made for 18 rows, the slices have 16"):
        check_noise({"greedy": run}, small, ZeroFilled(), replace(SETTING, protocol="paper"))


@pytest.mark.parametrize("kind", ["reconstructor", "joint"])
def test_runs_of_other_kinds_are_rejected_before_anything_is_opened(
    tmp_path: Path, kind: str
) -> None:
    run = write_run(tmp_path / "run")
    (run / "config.toml").write_text(f'kind = "{kind}"\n[training]\nseed = 0\n')
    analysis = Snr(data=tmp_path / "no store", reconstructor="zero-filled")
    with pytest.raises(RunError, match=f"run of kind '{kind}'.*name runs of kscout train policy"):
        analysis.compute([str(run)], out=tmp_path)


def test_run_without_kept_epochs_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="keep_epochs"):
        kept_epochs(tmp_path)


@pytest.mark.parametrize("n_passes", [2, 3])
def test_reference_formula_matches_the_reference(golden: Any, n_passes: int) -> None:
    gradients = golden("snr", "grads").view(n_passes, -1, 8, 5)
    expected = golden("snr", f"snr_runs{n_passes}").tolist()
    assert signal_to_noise(gradients, "reference") == pytest.approx(expected, rel=1e-5)


def test_paper_formula_is_its_definition(generator: torch.Generator) -> None:
    gradients = torch.randn(3, 5, 7, 2, generator=generator) + 0.3
    ratios = []
    for one_pass in gradients.double():
        mean = one_pass.mean(dim=0)
        variance = (one_pass - mean).square().sum(dim=0) / (5 * 4)
        ratios.append(mean.norm() / variance.sqrt().norm())
    expected = (torch.stack(ratios).mean().item(), torch.stack(ratios).std().item())
    assert signal_to_noise(gradients) == pytest.approx(expected, rel=1e-9)
    reference = signal_to_noise(gradients, "reference")[0]
    assert reference == pytest.approx(expected[0] * math.sqrt(5 / 4), rel=1e-9)


def test_one_pass_has_no_spread_and_one_batch_no_ratio() -> None:
    mean, std = signal_to_noise(torch.tensor([[[1.0], [2.0]]]))
    assert mean == pytest.approx(3.0)
    assert math.isnan(std)
    with pytest.raises(ConfigError, match="1 batch of"):
        signal_to_noise(torch.ones(2, 1, 3))
