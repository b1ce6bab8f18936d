"""An evaluation keeps a few slices with images, of what it scored, for every report on it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kscout.apps.report.build import build_report, write_report
from kscout.data.slices import SliceSet
from kscout.evaluation.compare import evaluate
from kscout.evaluation.progress import Step
from kscout.evaluation.records.acquisitions import SliceRecord, load_acquisition
from kscout.evaluation.records.results import read_rows, read_scores
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.recording import slice_at_quantile
from kscout.metrics import ssim
from kscout.policies.random import Random
from kscout.reconstruction.zero_filled import ZeroFilled

SETTING = EvaluationSetting(n_initial=3, steps=4, trajectories=3, batch_size=3)
NAMES = ("random", "center-out", "fixed", "oracle")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    out = tmp_path_factory.mktemp("evaluation")
    test, train = (request.getfixturevalue(f"{name}_slices") for name in ("test", "train"))
    setting = replace(SETTING, seeds=(4, 5), fixed_slices=4)
    evaluate(NAMES, test, ZeroFilled(), setting, train=train, out=out)
    return out


@pytest.fixture(scope="module")
def kept(folder: Path) -> list[SliceRecord]:
    return [load_acquisition(path) for path in sorted(folder.glob("acquisition-*.npz"))]


def assert_as_scored(record: SliceRecord, folder: Path, seed: int = 0) -> None:
    """Compare a record with the first trajectories of its slice in the table of results."""
    volume, number = record.title.split(":")[0].split(", slice ")
    for policy in record.policies:
        place = (policy.name, str(seed), volume, number, "0")
        own = {int(row.step): row for row in read_rows(folder) if row[:5] == place}
        columns = [own[step].column for step in sorted(own) if step]
        assert " ".join(map(str, policy.columns)) == " ".join(columns)
        moments = sorted(own)[-len(record.steps) :]
        scores = [float(own[step].ssim) for step in moments]
        assert policy.ssim == pytest.approx(scores, abs=1e-5)


def test_every_policy_is_kept_as_it_was_scored(folder: Path, kept: list[SliceRecord]) -> None:
    assert [one.steps for one in kept] == [(0, 1, 2, 3, 4), (4,), (4,)]
    for record in kept:
        is_oracle = {policy.name: policy.is_oracle for policy in record.policies}
        assert is_oracle == {name: name == "oracle" for name in NAMES}
        assert_as_scored(record, folder, seed=4)


def test_kept_images_are_those_that_were_scored(
    test_slices: SliceSet, kept: list[SliceRecord]
) -> None:
    for acquisition in kept:
        volume, number = acquisition.title.split(":")[0].split(", slice ")
        names = zip(test_slices.volumes, test_slices.slices, strict=True)
        place = list(names).index((volume, int(number)))
        batch = test_slices.batch(torch.tensor([place]))
        assert acquisition.target == pytest.approx(batch.target[0].numpy())
        for policy in acquisition.policies:
            image = torch.from_numpy(policy.images[-1])[None]
            found = ssim(image, batch.target, data_range=batch.data_range)
            # Images have 256 levels.
            assert float(found) == pytest.approx(float(policy.ssim[-1]), abs=0.01)


def test_the_first_slice_has_the_median_lead(folder: Path, kept: list[SliceRecord]) -> None:
    scores = read_scores(folder)
    final = {
        name: np.mean([one.metric("ssim")[:, -1] for one in scores if one.policy == name], axis=0)
        for name in NAMES
    }
    lead = final["center-out"] - final["fixed"]
    if final["random"].mean() > final["center-out"].mean():
        lead = final["random"] - final["fixed"]
    assert (
        f"minus that of fixed: {np.sort(lead)[3]:+.4f}, the median over all slices" in kept[0].title
    )
    assert slice_at_quantile(lead, 0.1) == np.argmin(lead)
    assert {"fixed", "oracle"} <= set(kept[0].shown) <= set(NAMES)


def test_a_report_shows_them_without_any_analysis(folder: Path, tmp_path: Path) -> None:
    report = build_report([folder])
    titles = [section.title for section in report.sections]
    assert titles[:2] == ["One acquisition, step by step", "Difference to fixed"]
    assert "Example images" in titles
    (page,) = write_report(report, tmp_path / "r.html")
    text = page.read_text()
    assert text.count('class="player"') == 3 and text.count('type="range"') == 1
    for name in NAMES:
        assert text.count(f'type="checkbox">{name}<') + text.count(f"checked>{name}<") == 3


def test_steps_of_several_columns_and_other_starts_are_stored(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    setting = EvaluationSetting(
        steps=5, trajectories=2, columns_per_step=2, initial="0,3,6", examples=1
    )
    evaluate(("random", "oracle"), test_slices, ZeroFilled(), setting, out=tmp_path)
    kept = load_acquisition(tmp_path / "acquisition-1.npz")
    assert kept.start_columns == (0, 3, 6) and kept.steps == (0, 2, 4, 5)
    assert_as_scored(kept, tmp_path)


def test_none_are_kept_where_none_are_wanted(
    folder: Path, test_slices: SliceSet, tmp_path: Path
) -> None:
    for n_examples in (2, 0):
        setting = replace(SETTING, examples=n_examples)
        evaluate(("random",), test_slices, ZeroFilled(), setting, out=tmp_path)
        assert len(list(tmp_path.glob("acquisition*"))) == n_examples


POLICIES = ["random", "center-out", "fixed", "conv"]


def run(
    out: Path,
    slices: SliceSet,
    train: SliceSet,
    *,
    stop_at: str | None = None,
    setting: EvaluationSetting = SETTING,
    policies: Any = POLICIES,
) -> list[str]:
    """Evaluate; return the policies that were run, one name per batch."""
    said: list[str] = []

    def on_step(step: Step) -> None:
        name = step.what.partition(",")[0]
        if not name.startswith("fitting"):
            said.append(name)
            if name == stop_at:
                raise KeyboardInterrupt

    setting = replace(setting, seeds=(5,), fixed_slices=4)
    evaluate(policies, slices, ZeroFilled(), setting, train=train, out=out, on_step=on_step)
    return said


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_a_stopped_evaluation_resumes_and_ends_with_the_same_bytes(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    whole, cut, damaged = (tmp_path / name for name in ("whole", "cut", "damaged"))
    run(whole, test_slices, train_slices)
    with pytest.raises(KeyboardInterrupt):
        run(cut, test_slices, train_slices, stop_at="untrained")
    shutil.copytree(cut, damaged)
    assert not (cut / "results.csv").exists() and not (cut / "summary.json").exists()
    assert set(run(cut, test_slices, train_slices)) == {"fixed", "untrained"}
    assert contents(cut) == contents(whole)
    assert {path.split("/")[0] for path in contents(whole)} == {
        *("results.csv", "summary.json", "orders"),
        *(f"acquisition-{number}.npz" for number in (1, 2, 3)),
    }
    # Damaged parts are made anew.
    for path in (*damaged.rglob("order-*.json"), *damaged.rglob("*.npz")):
        path.write_bytes(path.read_bytes()[:20])
    assert {"random", "fixed"} <= set(run(damaged, test_slices, train_slices))
    assert contents(damaged) == contents(whole)


@pytest.mark.slow
def test_other_settings_take_nothing_from_what_was_stopped(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, test_slices, train_slices, stop_at="fixed")
    other = replace(SETTING, protocol="paper")
    assert {"random", "center-out"} <= set(run(tmp_path, test_slices, train_slices, setting=other))


def test_objects_of_the_callers_are_always_run(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    policies = [("mine", Random()), "center-out"]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, test_slices, train_slices, policies=policies, stop_at="center-out")
    assert "mine" in run(tmp_path, test_slices, train_slices, policies=policies)
