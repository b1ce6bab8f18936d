"""The long table: exact columns, written whole, read back."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from kscout.acquisition.loop import Trajectory
from kscout.errors import DataError
from kscout.evaluation.records.results import COLUMNS, read_scores, writing_results


def _trajectory(generator: torch.Generator) -> Trajectory:
    """Three slices, two trajectories, four steps."""
    scores = torch.rand(3, 3, 2, 5, generator=generator)
    columns = torch.arange(24).view(3, 2, 4)
    return Trajectory(columns=columns, ssim=scores[0], psnr=30 * scores[1], nmse=scores[2])


def _arrays(done: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    metrics = torch.stack([done.ssim, done.psnr, done.nmse], dim=-1)
    return done.columns.numpy(), metrics.numpy()


def _write(path: Path, trajectory: Trajectory) -> None:
    with writing_results(path) as writer:
        writer.write("greedy", 3, *_arrays(trajectory), ["a", "a", "b"], [7, 8, 2])


def test_rows_are_those_of_the_specification(tmp_path: Path, generator: torch.Generator) -> None:
    trajectory = _trajectory(generator)
    _write(tmp_path / "results.csv", trajectory)
    header, *rows = list(csv.reader((tmp_path / "results.csv").open(newline="")))
    assert ",".join(header) == "policy,seed,volume,slice,trajectory,step,column,ssim,psnr,nmse"
    assert len(rows) == 3 * 2 * 5
    assert rows[0][:7] == ["greedy", "3", "a", "7", "0", "0", ""]
    # Slice 1, trajectory 1, after its third column: rows come slice by slice.
    row = rows[1 * 10 + 1 * 5 + 3]
    assert row[:7] == ["greedy", "3", "a", "8", "1", "3", "14"]
    for text, metric in zip(row[7:], ("ssim", "psnr", "nmse"), strict=True):
        assert float(text) == pytest.approx(getattr(trajectory, metric)[1, 1, 3].item(), rel=1e-7)


def test_scores_read_back_are_means_over_trajectories(
    tmp_path: Path, generator: torch.Generator
) -> None:
    trajectory = _trajectory(generator)
    _write(tmp_path / "results.csv", trajectory)
    (found,) = read_scores(tmp_path)
    assert (found.policy, found.seed, found.n_trajectories) == ("greedy", 3, 2)
    assert (found.volumes, found.slices) == (("a", "a", "b"), (7, 8, 2))
    np.testing.assert_allclose(found.metric("psnr"), trajectory.psnr.mean(dim=1), rtol=1e-6)
    np.testing.assert_allclose(found.metric("nmse"), trajectory.nmse.mean(dim=1), rtol=1e-6)


def test_failed_writing_leaves_the_old_table(tmp_path: Path, generator: torch.Generator) -> None:
    path = tmp_path / "results.csv"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), writing_results(path) as writer:
        writer.write("x", 0, *_arrays(_trajectory(generator)), "abc", [0, 0, 0])
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_cut_table_is_rejected(tmp_path: Path, generator: torch.Generator) -> None:
    path = tmp_path / "results.csv"
    _write(path, _trajectory(generator))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(DataError, match="slice 2 of b lacks"):
        read_scores(path)


def test_other_columns_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("policy,ssim\nrandom,0.5\n")
    with pytest.raises(DataError, match=", ".join(COLUMNS)):
        read_scores(path)
    with pytest.raises(DataError, match="does not exist"):
        read_scores(tmp_path / "none.csv")
