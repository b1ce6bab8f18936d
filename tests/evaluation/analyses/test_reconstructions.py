"""Reconstructions compared under the same masks, and told in a table and pictures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from kscout.acquisition.plan import Plan
from kscout.apps.cli import app
from kscout.apps.report.build import build_report
from kscout.data.generate import make_store
from kscout.data.making import MakeSettings
from kscout.data.slices import SliceSet
from kscout.errors import ConfigError, DataError
from kscout.evaluation.analyses import run_analysis
from kscout.evaluation.analyses.examples import (
    read_examples,
    reconstruction_examples,
    save_examples,
)
from kscout.evaluation.analyses.reconstructions import (
    Reconstructions,
    compare_reconstructions,
    reconstruction_table,
)
from kscout.evaluation.records.acquisitions import load_acquisition
from kscout.evaluation.running.entries import EvaluationEntry
from kscout.evaluation.running.trajectories import choose_slices
from kscout.evaluation.statistics import confidence_interval
from kscout.figures.blocks import Drawing, Prose
from kscout.figures.tables import Measured, Table
from kscout.metrics import ssim
from kscout.names import PROTOCOLS
from kscout.policies.fixed import CenterOut
from kscout.policies.random import Random
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.augmentation import MaskDistribution

N_ROWS, N_COLS = 16, 24


@pytest.fixture
def slices(generator: torch.Generator) -> SliceSet:
    images = torch.rand(5, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a", "a", "b", "b", "c"])


@pytest.mark.parametrize("protocol", ["paper", "blind"])
def test_scores_are_those_of_the_methods_under_one_mask_per_volume(
    slices: SliceSet, protocol: str
) -> None:
    methods = {"tv": "total-variation", "plain": "zero-filled"}
    found = compare_reconstructions(methods, slices, [3.0], center_fraction=0.25, protocol=protocol)
    assert [(row.reconstruction, row.acceleration) for row in found.rows] == [
        ("tv", 3.0),
        ("plain", 3.0),
    ]
    masks = MaskDistribution(N_COLS, [3.0], [0.25]).of_volumes(slices.volumes)
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])
    batch = slices.batch(torch.arange(len(slices)))
    image = batch.unnormalized(ZeroFilled()(batch.kspace, masks), protocol)
    expected = ssim(image, batch.target, data_range=batch.data_range)
    plain, (picture,) = found.rows[1], found.pictures
    assert plain.ssim == pytest.approx(float(expected.mean()))
    assert plain.interval == pytest.approx(
        confidence_interval(expected.double().numpy(), slices.volumes)
    )
    place = int(expected.argsort()[2])
    assert picture.title.startswith(f"{slices.volumes[place]}, slice {slices.slices[place]}")
    assert picture.start_columns == tuple(masks[place].nonzero()[:, 0].tolist())
    assert np.allclose(picture.policies[1].images[0], image[place], atol=1e-5)
    assert picture.policies[1].ssim[0] == pytest.approx(float(expected[place]), abs=1e-5)


def test_reconstructions_are_compared_under_the_protocol_of_their_training(
    slices: SliceSet,
) -> None:
    paper, blind = (UNet(n_channels=2, n_pools=1, protocol=one) for one in PROTOCOLS)
    how: dict[str, Any] = {"accelerations": [4.0], "center_fraction": 0.1}
    rows = compare_reconstructions({"a": paper, "zf": ZeroFilled()}, slices, **how).rows
    assert [(row.protocol, row.trained_for) for row in rows] == [("paper", None)] * 2
    with pytest.raises(ConfigError, match=r"different protocols \(a for paper, b for blind\)"):
        compare_reconstructions({"a": paper, "b": blind}, slices, **how)
    both = compare_reconstructions({"a": paper, "b": blind}, slices, **how, protocol="blind").rows
    trained = [(row.protocol, row.trained_for) for row in both]
    assert trained == [("blind", "paper"), ("blind", None)]
    assert "a was trained for protocol paper." in reconstruction_table(both).note


def test_an_acceleration_below_the_center_is_rejected_and_an_equal_one_is_the_center(
    slices: SliceSet,
) -> None:
    methods = {"plain": "zero-filled"}
    (picture,) = compare_reconstructions(methods, slices, [8.0], center_fraction=0.125).pictures
    assert picture.start_columns == (11, 12, 13)
    with pytest.raises(
        ConfigError, match=r"9x leaves 2\.67 of 24 columns.*fraction 0\.0833 or less"
    ):
        compare_reconstructions(methods, slices, [8.0, 9.0], center_fraction=0.125)
    (picture,) = compare_reconstructions(methods, slices, [9.0], center_fraction=0.0833).pictures
    assert {11, 12} <= set(picture.start_columns)
    with pytest.raises(ConfigError, match="always measured; give an --acceleration of 8 or less"):
        compare_reconstructions(methods, slices, [25.0], center_fraction=0.125)


@pytest.mark.parametrize("n_cols", [92, 100, 372])
def test_an_eighth_fits_8x_however_it_is_rounded(n_cols: int) -> None:
    images = torch.rand(2, 8, n_cols, generator=torch.Generator().manual_seed(0))
    few = SliceSet.from_images(images, ["a", "b"])
    found = compare_reconstructions({"plain": "zero-filled"}, few, [8.0], center_fraction=0.125)
    assert found.rows[0].n_center == round(n_cols / 8)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    settings = MakeSettings(kind="knee", volumes=(0, 0, 2), slices=2, size=64, workers=1)
    make_store(tmp_path / "store", settings)
    return tmp_path / "store"


@pytest.mark.slow
def test_the_command_puts_one_slice_side_by_side_and_the_report_shows_it(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "analyses"
    words = ["analyze", "reconstructions", "zero-filled", "TV=total-variation"]
    words += ["--data", str(store), "--slice", "3", "--acceleration", "4", "--out", str(out)]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    (picture,) = (load_acquisition(path) for path in out.glob("reconstructions-*.npz"))
    assert [one.name for one in picture.policies] == ["zero-filled", "TV"]
    assert (out / "reconstructions-01.png").is_file()
    (section,) = build_report([out]).sections
    prose, table, drawing = section.blocks
    assert section.title == "Reconstructions" and isinstance(prose, Prose)
    assert isinstance(table, Table) and isinstance(drawing, Drawing)
    assert [row.cells[0] for row in table.rows] == ["zero-filled", "TV"]
    # With one volume there is no interval, and the mean over one slice is that slice's score.
    cell = table.rows[1].cells[1]
    assert isinstance(cell, Measured) and cell.interval is None
    assert cell.value == pytest.approx(float(picture.policies[1].ssim[0]), abs=1e-5)
    n_measured = len(picture.start_columns)
    assert f"{n_measured} of 64 columns are measured, the same for all" in drawing.caption


@pytest.mark.slow
def test_a_budget_takes_the_place_of_the_acceleration(store: Path, tmp_path: Path) -> None:
    analysis = Reconstructions(data=store, n_initial=8, steps=8, limit=2)
    rows = run_analysis(analysis, ["zero-filled"], out=tmp_path / "out")
    assert [(row.acceleration, row.n_center) for row in rows] == [(4.0, 8)]
    with pytest.raises(ConfigError, match=r"8 \+ 60 columns do not fit images of 64"):
        run_analysis(
            Reconstructions(data=store, n_initial=8, steps=60), ["zero-filled"], out=tmp_path / "x"
        )
    with pytest.raises(ConfigError, match="two reconstructions are called 'zero-filled'"):
        run_analysis(analysis, ["zero-filled", "zero-filled"], out=tmp_path / "y")


def test_examples_show_what_was_measured_and_scored(test_slices: SliceSet, tmp_path: Path) -> None:
    entries = [
        EvaluationEntry("random", 0, Random(), 0),
        EvaluationEntry("center-out", 0, CenterOut(n_cols=13), 0),
    ]
    chosen = choose_slices(test_slices, ["b:1", "2"])
    plan = Plan(start=3, horizon=4, batch_size=1, protocol="paper")
    examples = reconstruction_examples(entries, chosen, ZeroFilled(), plan)
    assert [(e.volume, e.slice, e.policy) for e in examples] == [
        ("b", 1, "random"),
        ("b", 1, "center-out"),
        ("a", 2, "random"),
        ("a", 2, "center-out"),
    ]
    batch = chosen.batch(torch.tensor([0]))
    for example in examples[:2]:
        assert example.mask.sum() == 7
        mask = torch.from_numpy(example.mask)[None]
        found = ZeroFilled()(batch.kspace, mask)
        image = found.image * batch.target_std[:, None, None] + batch.target_mean[:, None, None]
        np.testing.assert_allclose(example.image, image[0], atol=1e-5)
        score = ssim(image, batch.target, data_range=batch.data_range)
        assert example.ssim == pytest.approx(score.item(), abs=1e-5)
    save_examples(tmp_path / "examples.npz", examples)
    assert read_examples(tmp_path / "examples.npz")[3].title == "center-out\na:2"
    with np.load(tmp_path / "examples.npz") as stored:
        assert stored["image"].shape == (4, 18, 13)
        assert stored["policy"].tolist()[1] == "center-out"


@pytest.mark.parametrize("name", ["7", "-1", "a:9", "z:0", "x"])
def test_unknown_slice_says_how_to_name_one(test_slices: SliceSet, name: str) -> None:
    with pytest.raises(DataError, match=r"position 0\.\.6 or VOLUME:NUMBER, e\.g\. a:0"):
        choose_slices(test_slices, [name])
