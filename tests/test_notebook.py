"""The interface for notebooks: acquire, evaluate, tables, figures, and objects that print well."""

from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import kscout
from kscout.acquisition import Simulator
from kscout.core import Measurement, Observation, Policy
from kscout.data import ImportSettings, MakeSettings, SliceSet
from kscout.errors import ConfigError, KScoutError
from kscout.evaluation import EvaluationSetting, compare_policies
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction import wrap
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training import GreedyTraining, PolicyConfig

N_ROWS, N_COLS = 9, 16


@pytest.fixture
def slices() -> SliceSet:
    images = np.random.default_rng(0).random((7, N_ROWS, N_COLS)).cumsum(axis=1)
    return SliceSet.from_images(images, [*"aabbccc"], split="test")


def test_acquire_measures_the_columns_of_a_policy(slices: SliceSet) -> None:
    order = FixedOrder(n_cols=N_COLS, order=[3, 12, 5])
    found = kscout.acquire(order, slices, "zero-filled", start=2, budget=5, images=True)
    assert found.trajectory.columns.tolist() == [[[3, 12, 5]]] * 7
    assert found.trajectory.images is not None
    assert found.trajectory.images.shape == (4, 7, 1, N_ROWS, N_COLS)
    final = float(found.trajectory.ssim[..., -1].mean())
    assert repr(found).startswith("Acquisitions(FixedOrder: 7 slices, 2 + 3 columns, SSIM ")
    assert f"to {final:.4f})" in repr(found)
    table = found.to_pandas()
    assert len(table) == 7 * 4
    last = table[table.step == 3]
    assert last.column.tolist() == [5] * 7 and last.ssim.mean() == pytest.approx(final)
    assert last.volume.tolist() == [*"aabbccc"] and last.slice.tolist() == [0, 1, 0, 1, 0, 1, 2]
    (line,) = found.plot().axes[0].lines
    assert line.get_ydata()[-1] == pytest.approx(final)


def test_acquire_is_an_evaluation_of_one_policy(slices: SliceSet) -> None:
    listed = kscout.acquire("random", slices, "zero-filled", start=[7, 8, 3], budget=6, seeds=(4,))
    setting = EvaluationSetting(initial="7,8,3", steps=3, trajectories=1, seeds=(4,))
    (scores,) = kscout.evaluate(["random"], slices, "zero-filled", setting).scores
    ssim = listed.trajectory.ssim[:, 0].double().numpy()
    np.testing.assert_allclose(ssim, scores.metric("ssim"), atol=1e-6)
    with pytest.raises(ConfigError, match="acquire has no steps; give start and budget"):
        kscout.acquire("random", slices, "zero-filled", steps=3)


def test_an_evaluation_is_a_table_a_figure_and_a_comparison(
    slices: SliceSet, tmp_path: Path
) -> None:
    names = ["random", "center-out"]
    result = kscout.evaluate(
        names, slices, "zero-filled", n_initial=2, steps=3, trajectories=2, out=tmp_path / "out"
    )
    table = result.to_pandas()
    assert [*table.columns] == ["policy", "seed", "volume", "slice", "step", "ssim", "psnr", "nmse"]
    means = table[table.step == 3].groupby("policy").ssim.mean()
    assert len(result.plot().axes[0].lines) == 2
    for source in (result, tmp_path / "out"):
        found = compare_policies(source, "center-out", "random")
        assert found.difference == pytest.approx(means["center-out"] - means["random"], abs=1e-6)
    assert result.compare("random", "center-out").difference == pytest.approx(-found.difference)
    assert found.interval is not None and found.interval[0] < found.difference < found.interval[1]
    with pytest.raises(ConfigError, match="give setting, or steps, not both"):
        kscout.evaluate(names, slices, "zero-filled", EvaluationSetting(), steps=3)


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"n_initail": 2}, r"unknown keyword 'n_initail' \(did you mean 'n_initial'\?\)"),
        ({"overwite": True}, r"unknown keyword 'overwite' \(did you mean 'overwrite'\?\)"),
        ({"initial": "3"}, r"takes either n_initial or initial; give one of them"),
        ({"trajectories": 10**15}, "lower trajectories or batch_size"),
    ],
)
def test_errors_in_python_name_keyword_arguments(
    keywords: dict[str, Any], words: str, slices: SliceSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KScoutError, "is_in_command", False)
    given = {"n_initial": 2, "steps": 3, **keywords}
    with pytest.raises(ConfigError, match=words):
        kscout.evaluate(["random"], slices, "zero-filled", **given)
    with pytest.raises(ConfigError, match=r"'trajectoris' \(did you mean 'trajectories'\?\)"):
        kscout.acquire("random", slices, "zero-filled", start=2, budget=4, trajectoris=2)


def test_objects_in_place_of_paths_are_one_sentence(slices: SliceSet, tmp_path: Path) -> None:
    images = np.ones((3, N_ROWS, N_COLS))
    for run in (kscout.evaluate, kscout.acquire):
        words = "ndarray is no path of a dataset; .*, or build slices with SliceSet.from_images"
        with pytest.raises(ConfigError, match=words):
            run(["random"] if run is kscout.evaluate else "random", images, "zero-filled")
    config = PolicyConfig(training=GreedyTraining(n_epochs=1))
    with pytest.raises(ConfigError, match="SliceSet is no path of a dataset; give its name or"):
        kscout.train_policy(config, slices, "zero-filled", tmp_path / "run")
    with pytest.raises(ConfigError, match="ZeroFilled is no path of a reconstruction"):
        kscout.train_policy(config, tmp_path, ZeroFilled(), tmp_path / "run")
    with pytest.raises(ConfigError, match="volumes is 3; expected a list of three whole numbers"):
        MakeSettings(kind="knee", volumes=3)
    with pytest.raises(ConfigError, match="axes is 'row,col'; expected a list of strings"):
        ImportSettings(axes="row,col")


def test_only_options_outside_of_commands_become_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a--b and /c/--d: give --n-initial 3 (--device), as by `data make --size`, or "
    text += "kscout train policy --method dense; see --out"
    assert str(ConfigError(text)) == text
    monkeypatch.setattr(KScoutError, "is_in_command", False)
    found = text.replace("--n-initial", "n_initial").replace("--device", "device")
    assert str(ConfigError(text)) == found.replace("--out", "out")


def test_slices_are_a_dataset_of_torch(slices: SliceSet) -> None:
    batches = [*DataLoader(slices, batch_size=4)]
    assert [len(one["volume"]) for one in batches] == [4, 3]
    expected = slices.batch(torch.arange(7))
    assert torch.equal(torch.cat([one["kspace"] for one in batches]), expected.kspace)
    assert torch.equal(torch.cat([one["target"] for one in batches]), expected.target)
    assert len([*slices]) == 7 and slices[-1]["slice"] == 2


def test_networks_of_other_packages_are_wrapped(
    slices: SliceSet, caplog: pytest.LogCaptureFixture
) -> None:
    batch = slices.batch(torch.arange(3))
    mask = torch.arange(N_COLS).expand(3, -1) % 2 == 0
    measured = Measurement.of(batch.kspace, mask)
    expected = ZeroFilled().reconstruct(measured)
    identity = wrap(nn.Identity())
    torch.testing.assert_close(identity.reconstruct(measured).image, expected.image)
    of_kspace = wrap(
        lambda kspace, mask: torch.fft.fftshift(
            torch.fft.ifft2(torch.fft.ifftshift(kspace, dim=(-2, -1)), norm="ortho"), dim=(-2, -1)
        )[:, 0],
        reads="kspace",
    )
    torch.testing.assert_close(of_kspace.reconstruct(measured).mean, expected.mean)
    scores = [
        kscout.acquire("center-out", slices, network, start=2, budget=5).trajectory.ssim
        for network in (identity, ZeroFilled())
    ]
    torch.testing.assert_close(*scores)
    note = "the reconstruction is worse than zero-filled images"
    assert not caplog.messages
    negative = wrap(lambda image: -image)
    kscout.acquire("center-out", slices, negative, start=2, budget=5)
    (found,) = caplog.messages
    assert found.startswith(note) and found.endswith("check its input, and the units of its output")
    with pytest.raises(ConfigError, match=r"returned shape \[3, 2\]; return a tensor of shape \["):
        wrap(lambda image: image[:, 0, 0, :2]).reconstruct(measured)
    with pytest.raises(ConfigError, match="wrap received int"):
        wrap(3)


def test_a_plain_module_gets_an_error_that_names_wrap(slices: SliceSet) -> None:
    with pytest.raises(ConfigError, match=r"Identity is no reconstruction; .*reconstruction\.wrap"):
        kscout.evaluate(["random"], slices, nn.Identity(), n_initial=2, steps=3)


def test_values_print_in_one_line_with_shapes(slices: SliceSet) -> None:
    batch = slices.batch(torch.arange(2))
    simulator = Simulator(batch, ZeroFilled())
    state = simulator.start(2)
    seen = simulator.observe(FixedOrder(n_cols=N_COLS, order=[3]), state, n_left=1)
    for value in (batch, state, seen):
        assert "\n" not in repr(value) and len(repr(value)) < 400
    assert "kspace=complex64[2, 1, 9, 16]" in repr(batch)
    assert repr(Observation(image=seen.image, mask=seen.mask)) == (
        "Observation(image=float32[2, 9, 16], mask=bool[2, 16], step=0)"
    )


@final
class Central(Policy):
    """Prefers central columns, as a class of a user that sets nothing else."""

    def forward(self, seen: Observation) -> torch.Tensor:
        distance = (torch.arange(seen.mask.shape[1]) - seen.mask.shape[1] // 2).abs()
        return -distance.float().expand(seen.mask.shape)


def test_argmax_takes_the_best_column_of_a_class_of_ones_own(slices: SliceSet) -> None:
    how = {"start": 2, "budget": 5}
    expected = kscout.acquire("center-out", slices, "zero-filled", **how).trajectory.columns
    best = kscout.acquire(Central(), slices, "zero-filled", **how, argmax=True)
    assert torch.equal(best.trajectory.columns, expected)
    sampled = kscout.acquire(Central(), slices, "zero-filled", **how)
    assert not torch.equal(sampled.trajectory.columns, expected)
    names = [("mine", Central()), "random"]
    result = kscout.evaluate(names, slices, "zero-filled", n_initial=2, steps=3, argmax=True)
    assert [one.columns for one in result.found.policies] == ["best", None]
