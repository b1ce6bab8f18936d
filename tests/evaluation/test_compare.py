"""Evaluations: golden numbers, draws that batches do not change, orders fitted once, errors."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, RunError
from kscout.evaluation.compare import evaluate
from kscout.evaluation.progress import Step
from kscout.evaluation.records.results import read_scores
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.prepare import prepare
from kscout.reconstruction.total_variation import TotalVariation
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled

SETTING = EvaluationSetting(n_initial=3, steps=4, trajectories=3, batch_size=3)
BASELINES = ("random", "variable-density", "equispaced-one", "equispaced-two", "center-out")
ALL = (*BASELINES, "fixed", "na-oracle", "oracle", "spectral-oracle", "conv")


def _setting(setting: EvaluationSetting = SETTING, **changes: Any) -> EvaluationSetting:
    return replace(setting, fixed_slices=4, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("reconstructor", [ZeroFilled(), TotalVariation(n_iterations=3)])
def test_every_policy_runs_with_classical_reconstructions(
    test_slices: SliceSet, train_slices: SliceSet, reconstructor: Reconstructor, tmp_path: Path
) -> None:
    names = ALL if isinstance(reconstructor, ZeroFilled) else ("random", "fixed", "na-oracle")
    found = evaluate(
        names, test_slices, reconstructor, _setting(), train=train_slices, out=tmp_path
    )
    rows = list(csv.DictReader((tmp_path / "results.csv").open(newline="")))
    drawn = {"random", "variable-density", "untrained"}
    for entry in found.summary["policies"]:
        own = [row for row in rows if row["policy"] == entry["policy"]]
        n_trajectories = 3 if entry["policy"] in drawn else 1
        assert len(own) == 7 * n_trajectories * 5
        assert entry["n_trajectories"] == n_trajectories
        assert all((row["column"] == "") == (row["step"] == "0") for row in own)
    oracles = [entry["policy"] for entry in found.summary["policies"] if entry["is_oracle"]]
    assert oracles == [name for name in names if name.endswith("oracle")]
    assert json.loads((tmp_path / "summary.json").read_text()) == json.loads(
        json.dumps(found.summary)
    )
    assert found.summary["reference"] == "fixed"
    assert found.summary["protocol"] == "blind"


@pytest.mark.slow
def test_oracle_is_best_at_its_first_step_and_scores_match_the_table(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    names = ("oracle", "na-oracle", "fixed", "random")
    found = evaluate(names, test_slices, ZeroFilled(), _setting(), train=train_slices, out=tmp_path)
    first = {entry.policy: entry.metric("ssim")[:, 1] for entry in found.scores}
    assert all((first["oracle"] >= first[name] - 1e-6).all() for name in names)
    assert first["na-oracle"].mean() >= first["fixed"].mean() - 1e-6
    for ours, stored in zip(found.scores, read_scores(tmp_path), strict=True):
        assert (ours.policy, ours.seed) == (stored.policy, stored.seed)
        np.testing.assert_allclose(ours.values, stored.values, rtol=1e-6)


@pytest.mark.slow
def test_batch_size_changes_nothing(test_slices: SliceSet, tmp_path: Path) -> None:
    texts = []
    for batch_size in (1, 3, 7):
        setting = _setting(replace(SETTING, batch_size=batch_size))
        out = tmp_path / str(batch_size)
        evaluate(("random", "conv", "oracle"), test_slices, ZeroFilled(), setting, out=out)
        texts.append(_columns_taken(out))
    assert texts[0] == texts[1] == texts[2]


def _columns_taken(out: Path) -> list[tuple[str, ...]]:
    keys = ("policy", "volume", "slice", "trajectory", "step", "column")
    rows = csv.DictReader((out / "results.csv").open(newline=""))
    return [tuple(row[key] for key in keys) for row in rows]


def test_python_replaces_results_of_other_settings_only_with_overwrite(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    given = (("center-out",), test_slices, ZeroFilled())
    evaluate(*given, _setting(limit=3), out=tmp_path)
    before = (tmp_path / "results.csv").read_bytes()
    with pytest.raises(RunError, match=r"limit is 3 there and 2 .*overwrite=True"):
        evaluate(*given, _setting(limit=2), out=tmp_path)
    assert (tmp_path / "results.csv").read_bytes() == before
    evaluate(*given, _setting(limit=2), out=tmp_path, overwrite=True)
    assert (tmp_path / "results.csv").read_bytes() != before


def test_a_psnr_that_is_clamped_is_reported(test_slices: SliceSet) -> None:
    images = test_slices.magnitudes()
    for scale, notes in ((1, []), (1000, ["PSNR is meaningless here: pixels reach"])):
        slices = SliceSet.from_images(images * scale, test_slices.volumes)
        found = prepare(("random",), slices, ZeroFilled(), _setting()).notes
        assert [note[:38] for note in found] == notes


def test_an_order_that_is_fitted_on_what_is_evaluated_is_reported(store: Path) -> None:
    here = "policy 'fixed' is fitted on the split train"
    for names, split, is_told in (
        (("fixed",), "train", True),
        (("fixed",), "test", False),
        (("na-oracle", "center-out"), "train", False),
    ):
        notes = prepare(names, store, ZeroFilled(), _setting(split=split)).notes
        assert any(note.startswith(here) for note in notes) == is_told, (names, split)


def test_a_subset_takes_the_draws_of_the_whole(test_slices: SliceSet, tmp_path: Path) -> None:
    evaluate(("random",), test_slices, ZeroFilled(), _setting(), out=tmp_path / "all")
    evaluate(("random",), test_slices, ZeroFilled(), _setting(limit=3), out=tmp_path / "some")
    some = _columns_taken(tmp_path / "some")
    assert set(some) < set(_columns_taken(tmp_path / "all"))
    # Slices 0, 2 and 4 of 7: spread over the volumes.
    assert {row[1:3] for row in some} == {("a", "0"), ("a", "2"), ("b", "0")}


def test_seeds_are_rows_of_their_own(test_slices: SliceSet) -> None:
    setting = _setting(seeds=(5, 6))
    found = evaluate(("random", "center-out"), test_slices, ZeroFilled(), setting)
    assert [(entry.policy, entry.seed) for entry in found.scores] == [
        ("random", 5),
        ("random", 6),
        ("center-out", 5),
    ]
    random, center = found.summary["policies"]
    assert random["final"]["ssim"]["std"] > 0
    assert center["final"]["ssim"]["std"] is None


@pytest.mark.slow
def test_fixed_order_is_fitted_once(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    fitted: list[str] = []

    def on_step(step: Step) -> None:
        fitted.extend(re.findall("fitting ([a-z-]+)", step.what))

    names = ("fixed", "na-oracle")
    for slices in (test_slices, test_slices, test_slices.subset(torch.arange(6))):
        evaluate(
            names,
            slices,
            ZeroFilled(),
            _setting(),
            train=train_slices,
            out=tmp_path,
            on_step=on_step,
        )
    # Other evaluated slices change the NA oracle's order, never that of training slices.
    assert fitted == ["fixed"] * 4 + ["na-oracle"] * 8


def test_fixed_without_training_slices_is_rejected_before_anything_runs(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    writer = StoreWriter(tmp_path / "store", {"command": "test"})
    writer.append("test", "a", test_slices.of_volumes("a").magnitudes().numpy())
    store = writer.finish().path
    for data, message in ((store, "has only: test; .*fixed=NAME"), (test_slices, "train=")):
        done: list[Step] = []
        with pytest.raises(ConfigError, match=message):
            evaluate(("random", "fixed"), data, ZeroFilled(), _setting(), on_step=done.append)
        assert not done


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (("random",), {"setting": replace(SETTING, steps=11)}, "lower the number of steps to 10"),
        ((), {}, "no policy"),
        (("nonsense",), {}, "unknown policy 'nonsense'.*center-out"),
        (("x=knee-base-gredy",), {}, r"'knee-base-gredy' \(did you mean 'knee-base-greedy'\?\)"),
        (("greedy",), {}, "a training method .* train policy --method greedy, and give its run"),
        (("best=loupe",), {}, "'loupe' is a training method .* kscout train joint --method loupe"),
        (("random",), {"reference": "fixed"}, "unknown reference"),
        (("random",), {"seeds": (1, 1)}, "one twice"),
        (("random",), {"limit": 0}, "limit is 0"),
        (("random", "random"), {}, "two policies"),
    ],
)
def test_what_cannot_work_is_rejected(
    test_slices: SliceSet, names: tuple[str, ...], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        evaluate(names, test_slices, ZeroFilled(), _setting(**changes))


@pytest.mark.cuda
def test_device_changes_no_choice(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    names = ("random", "conv", "fixed", "na-oracle", "spectral-oracle")
    for device in ("cpu", "cuda"):
        evaluate(
            names,
            test_slices,
            ZeroFilled(),
            _setting(device=device),
            train=train_slices,
            out=tmp_path / device,
        )
    assert _columns_taken(tmp_path / "cpu") == _columns_taken(tmp_path / "cuda")


def _golden_job(golden: Any) -> tuple[SliceSet, UNet]:
    images = golden("inputs", "images128")[:, 32:96, 32:96].contiguous()
    unet = UNet()
    unet.network.load_state_dict(golden.state("unet_trained", "trained_state"))
    return SliceSet.from_images(images, ["one"] * 3 + ["two"] * 3), unet


def _check_golden(golden: Any, names: dict[str, str], n_steps: int, out: Path) -> None:
    slices, unet = _golden_job(golden)
    setting = EvaluationSetting(n_initial=8, steps=n_steps)
    found = evaluate(list(names), slices, unet, _setting(setting), out=out)
    taken = _columns_taken(out)
    for entry, (ours, theirs) in zip(found.scores, names.items(), strict=True):
        expected = golden("baselines_r64", f"r64/{theirs}/ssim_per_slice")[:, : n_steps + 1]
        np.testing.assert_allclose(entry.metric("ssim"), expected, atol=2e-5)
        expected = golden("baselines_r64", f"r64/{theirs}/psnr_mean")[: n_steps + 1]
        np.testing.assert_allclose(entry.metric("psnr").mean(axis=0), expected, atol=2e-3)
        columns = [int(row[-1]) for row in taken if row[0] == ours and row[-1]]
        if theirs == "average_oracle":
            actions = golden("baselines_r64", f"r64/{theirs}/columns").expand(6, -1)
        else:
            actions = golden("baselines_r64", f"r64/{theirs}/actions")
        # Mirrored columns of a symmetric mask give the same image: rounding breaks that tie.
        for column, action in zip(columns, actions[:, :n_steps].flatten().tolist(), strict=True):
            assert column in (action, 64 - action)


@pytest.mark.slow
def test_equispaced_match_the_reference(golden: Any, tmp_path: Path) -> None:
    names = {"equispaced-one": "equispace_onesided", "equispaced-two": "equispace_twosided"}
    _check_golden(golden, names, 8, tmp_path)


@pytest.mark.slow
def test_oracles_match_the_reference(golden: Any, tmp_path: Path) -> None:
    """The first columns: `acquisition/test_golden_baselines.py` has all of the same arithmetic."""
    _check_golden(golden, {"na-oracle": "average_oracle", "oracle": "oracle"}, 2, tmp_path)


@pytest.mark.slow
def test_what_is_cheap_runs_first_and_tables_keep_the_order_that_was_asked_for(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    steps: list[Step] = []
    names = ("oracle", "fixed", "na-oracle", "random")
    evaluate(
        *(names, test_slices, ZeroFilled(), _setting()),
        train=train_slices,
        out=tmp_path,
        on_step=steps.append,
    )
    told = list(dict.fromkeys(step.what for step in steps))
    fits = [f"fitting {name}, column by column" for name in ("fixed", "na-oracle")]
    assert told == [
        *("random, seed 0", fits[0], "fixed, seed 0"),
        *("oracle, seed 0", fits[1], "na-oracle, seed 0"),
    ]
    assert tuple(one.policy for one in read_scores(tmp_path)) == names


def test_the_folder_may_be_a_string(test_slices: SliceSet, tmp_path: Path) -> None:
    evaluate(["center-out"], test_slices, ZeroFilled(), _setting(), out=str(tmp_path / "out"))
    assert (tmp_path / "out" / "summary.json").is_file()
