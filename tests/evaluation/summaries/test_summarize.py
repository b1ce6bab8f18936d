"""The summary: means, stds, pairs, gaps."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kscout.acquisition.loop import Trajectory
from kscout.errors import DataError
from kscout.evaluation.records.results import COLUMNS, Scores, read_scores, writing_results
from kscout.evaluation.request import Conditions
from kscout.evaluation.summaries.paper_numbers import SETTINGS, gamma_of, method_of, same_setting
from kscout.evaluation.summaries.summarize import choose_reference, gap_closed, summarize
from kscout.evaluation.summaries.summary import Training, read_summary, write_summary

CONDITIONS = Conditions(
    protocol="paper",
    store="s",
    split="test",
    n_rows=9,
    n_cols=9,
    n_initial=2,
    steps=3,
    reconstructor="unet",
)
VOLUMES = ("a", "a", "b", "c", "c", "c")


def _scores(policy: str, level: float, seed: int = 0, n_slices: int = 6) -> Scores:
    generator = np.random.default_rng(7 + seed)
    values = generator.normal(level, 0.01, size=(n_slices, 4, 3))
    return Scores(policy, seed, VOLUMES[:n_slices], tuple(range(n_slices)), values, 8)


def test_means_and_stds_are_over_slices_then_seeds() -> None:
    seeds = [_scores("greedy", 0.7, seed) for seed in (0, 1, 4)]
    (policy,) = summarize(seeds, CONDITIONS).policies
    finals = [entry.values[:, -1, 0].mean() for entry in seeds]
    assert policy.ssim == pytest.approx(np.mean(finals))
    assert policy.final["ssim"].std == pytest.approx(np.std(finals, ddof=1))
    assert policy.seeds == (0, 1, 4)
    starts = [entry.values[:, 0, 1].mean() for entry in seeds]
    assert policy.by_step["psnr"].mean[0] == pytest.approx(np.mean(starts))
    assert len(policy.by_step["nmse"].interval) == 4
    low, high = policy.final["ssim"].interval or (1, 0)
    assert low < policy.ssim < high
    (policy,) = summarize(seeds[:1], CONDITIONS).policies
    assert policy.final["ssim"].std is None


def test_comparisons_are_paired_at_every_step() -> None:
    # The same noise in three: only a paired comparison sees the constant difference.
    scores = [_scores("fixed", 0.6), _scores("same", 0.6), _scores("greedy", 0.61)]
    random = _scores("random", 0.6, seed=3)
    found = summarize([*scores, random], CONDITIONS)
    assert found.reference == "fixed"
    by_name = {entry.policy: entry for entry in found.comparisons}
    assert list(by_name) == ["same", "greedy", "random"]
    assert by_name["same"].difference == 0
    greedy, other = by_name["greedy"], by_name["random"]
    assert greedy.interval == pytest.approx((0.01, 0.01))
    assert greedy.p_value == pytest.approx(2 / 8)
    assert greedy.p_value_corrected == pytest.approx(6 / 8)
    assert "too few volumes" in (greedy.note or "")
    assert greedy.by_step.difference == pytest.approx([0.01] * 4)
    assert [pair for pair in greedy.by_step.interval if pair] == [pytest.approx((0.01, 0.01))] * 4
    means = (random.values - scores[0].values)[:, :, 0].mean(axis=0)
    assert other.by_step.difference == pytest.approx(means.tolist())
    assert other.by_step.difference[-1] == other.difference
    assert other.by_step.interval[-1] == pytest.approx(other.interval)


def test_headroom_and_gap_closed() -> None:
    levels = {"fixed": 0.70, "na-oracle": 0.71, "oracle": 0.73, "greedy": 0.715}
    found = summarize([_scores(name, level) for name, level in levels.items()], CONDITIONS)
    upper, lower = found.headroom.oracle_minus_na_oracle, found.headroom.na_oracle_minus_fixed
    assert upper is not None and upper.difference == pytest.approx(0.02)
    assert lower is not None and lower.difference == pytest.approx(0.01)
    closed = {entry.policy: entry.gap_closed for entry in found.policies}
    assert closed["greedy"] == pytest.approx(0.25)
    assert closed["oracle"] == pytest.approx(1)
    marked = [entry.policy for entry in found.policies if entry.is_oracle]
    assert marked == ["na-oracle", "oracle"]


def test_gap_is_null_where_it_is_too_small_or_unknown() -> None:
    assert gap_closed(0.7, 0.7, 0.7019) is None
    assert gap_closed(0.7, None, 0.8) is None
    assert gap_closed(0.75, 0.7, 0.8) == pytest.approx(0.5)
    found = summarize([_scores("oracle", 0.7)], CONDITIONS)
    assert found.headroom.oracle_minus_na_oracle is None


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["oracle", "greedy", "random", "fixed"], "fixed"),
        (["oracle", "greedy", "random"], "random"),
        (["oracle", "greedy", "ngreedy"], "greedy"),
        (["oracle"], "oracle"),
    ],
)
def test_default_reference(names: list[str], expected: str) -> None:
    assert choose_reference(names, {"oracle"}, None) == expected


def test_scores_of_different_slices_are_not_compared() -> None:
    with pytest.raises(DataError, match="different slices"):
        summarize([_scores("a", 0.5), _scores("b", 0.5, n_slices=5)], CONDITIONS)


def test_a_summary_reads_back_as_it_was_written(tmp_path: Path) -> None:
    levels = {"fixed": 0.70, "na-oracle": 0.71, "oracle": 0.73, "greedy": 0.715}
    trainings = {"greedy": Training("greedy", 1.0)}
    scores = [_scores(name, level) for name, level in levels.items()]
    found = summarize(scores, CONDITIONS, trainings=trainings)
    write_summary(tmp_path, found)
    assert read_summary(tmp_path) == read_summary(tmp_path / "summary.json") == found


@pytest.mark.parametrize("text", ['{"policies": [{}]}', "{", "[]"])
def test_summary_that_is_none_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(DataError, match="not the summary"):
        read_summary(tmp_path)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("policies", 0, "by_step", "ssim", "mean"), [0.5], "and has 1 values"),
        (("comparisons", 0, "by_step", "interval"), [], "and has 0 values"),
        (("policies", 0, "final"), {}, "has no ssim of"),
        (("steps",), 10**12, "describes 1000000000000 columns"),
        (("columns_per_step",), 0, "0 a step"),
        (("policies",), [], "holds no policy"),
    ],
)
def test_a_summary_that_contradicts_itself_is_rejected(
    tmp_path: Path, place: tuple[str | int, ...], value: object, words: str
) -> None:
    write_summary(tmp_path, summarize([_scores("fixed", 0.7), _scores("greedy", 0.71)], CONDITIONS))
    content = json.loads((tmp_path / "summary.json").read_text())
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    (tmp_path / "summary.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=words):
        read_summary(tmp_path)


@pytest.mark.parametrize(
    ("name", "method", "gamma"),
    [
        ("greedy", "greedy", None),
        ("knee-base-greedy", "greedy", None),
        ("ngreedy", "ngreedy", 1.0),
        ("ngreedy-1.0", "ngreedy", 1.0),
        ("ngreedy-gamma0.9", "ngreedy-0.9", 0.9),
        ("ngreedy(0.9)", "ngreedy-0.9", 0.9),
        ("ngreedy-0.95", None, 0.95),
        ("greedy-all-candidates", None, None),
        ("fixed", None, None),
    ],
)
def test_only_the_papers_methods_get_its_numbers(
    name: str, method: str | None, gamma: float | None
) -> None:
    assert (method_of(name), gamma_of(name)) == (method, gamma)


@pytest.mark.parametrize(
    ("sizes", "name"),
    [
        ((128, 16, 16), "knee-base"),
        ((256, 8, 28), "brain-long"),
        ((128, 4, 28), "knee-long"),
        *(((64, 8, 8), None), ((128, 16, 28), None), ((None, None, 16), None)),
    ],
)
def test_settings_are_recognized_by_size_start_and_steps(sizes: Any, name: str | None) -> None:
    assert same_setting(*sizes) == SETTINGS.get(name)


def _trajectory(generator: torch.Generator) -> Trajectory:
    """Three slices, two trajectories, four steps."""
    scores = torch.rand(3, 3, 2, 5, generator=generator)
    columns = torch.arange(24).view(3, 2, 4)
    return Trajectory(columns=columns, ssim=scores[0], psnr=30 * scores[1], nmse=scores[2])


def _arrays(done: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    metrics = torch.stack([done.ssim, done.psnr, done.nmse], dim=-1)
    return done.columns.numpy(), metrics.numpy()


@pytest.fixture
def written(tmp_path: Path, generator: torch.Generator) -> Trajectory:
    """The trajectory in the table of results."""
    trajectory = _trajectory(generator)
    with writing_results(tmp_path / "results.csv") as writer:
        writer.write("greedy", 3, *_arrays(trajectory), ["a", "a", "b"], [7, 8, 2])
    return trajectory


@pytest.mark.parametrize(
    "change", [{"budgets": [3, 4]}, {"stop_below": 0.1}, {"initial": ["0", "1-2"]}]
)
def test_uneven_acquisitions_of_version_0_3_are_rejected(
    tmp_path: Path, change: dict[str, object]
) -> None:
    file = Path(__file__).parents[2] / "written_by_0_2/evaluation/summary.json"
    table = json.loads(file.read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**table, **change}))
    with pytest.raises(DataError, match="slices differ in their start or number of columns"):
        read_summary(tmp_path)


def test_rows_are_those_of_the_specification(tmp_path: Path, written: Trajectory) -> None:
    header, *rows = list(csv.reader((tmp_path / "results.csv").open(newline="")))
    assert ",".join(header) == "policy,seed,volume,slice,trajectory,step,column,ssim,psnr,nmse"
    assert len(rows) == 3 * 2 * 5
    assert rows[0][:7] == ["greedy", "3", "a", "7", "0", "0", ""]
    # Slice 1, trajectory 1, after its third column: rows come slice by slice.
    row = rows[1 * 10 + 1 * 5 + 3]
    assert row[:7] == ["greedy", "3", "a", "8", "1", "3", "14"]
    for text, metric in zip(row[7:], ("ssim", "psnr", "nmse"), strict=True):
        assert float(text) == pytest.approx(getattr(written, metric)[1, 1, 3].item(), rel=1e-7)


def test_scores_read_back_are_means_over_trajectories(tmp_path: Path, written: Trajectory) -> None:
    (found,) = read_scores(tmp_path)
    assert (found.policy, found.seed, found.n_trajectories) == ("greedy", 3, 2)
    assert (found.volumes, found.slices) == (("a", "a", "b"), (7, 8, 2))
    np.testing.assert_allclose(found.metric("psnr"), written.psnr.mean(dim=1), rtol=1e-6)
    np.testing.assert_allclose(found.metric("nmse"), written.nmse.mean(dim=1), rtol=1e-6)


def test_failed_writing_leaves_the_old_table(tmp_path: Path, generator: torch.Generator) -> None:
    path = tmp_path / "results.csv"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), writing_results(path) as writer:
        writer.write("x", 0, *_arrays(_trajectory(generator)), "abc", [0, 0, 0])
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("written")
def test_cut_table_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
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
