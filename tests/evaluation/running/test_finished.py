"""An evaluation that was stopped goes on after its last finished policy."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kscout.core import Observation, Policy
from kscout.data.slices import SliceSet
from kscout.evaluation.compare import evaluate
from kscout.evaluation.progress import Step
from kscout.evaluation.request import EvaluationSetting
from kscout.reconstruction.zero_filled import ZeroFilled

SETTING = EvaluationSetting(n_initial=3, steps=4, trajectories=2, batch_size=3)
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
    other = EvaluationSetting(n_initial=3, steps=4, trajectories=2, batch_size=3, protocol="paper")
    assert {"random", "center-out"} <= set(run(tmp_path, test_slices, train_slices, setting=other))


class Counting(Policy):
    """Changes as it is used, and by more than its name tells."""

    def __init__(self) -> None:
        super().__init__()
        self.n_calls = 0

    def forward(self, seen: Observation) -> torch.Tensor:
        self.n_calls += 1
        return torch.zeros(seen.mask.shape)


def test_objects_of_the_callers_are_always_run(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    policies = [("mine", Counting()), "center-out"]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, test_slices, train_slices, policies=policies, stop_at="center-out")
    assert "mine" in run(tmp_path, test_slices, train_slices, policies=policies)
