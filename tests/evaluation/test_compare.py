"""Evaluations: golden numbers, draws that batches do not change, orders fitted once, errors."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kscout import policies, reconstruction
from kscout.compatibility import Use, network_notes
from kscout.core import Reconstructor
from kscout.data.slices import SliceSet
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.evaluation.analyses import run_analysis
from kscout.evaluation.compare import evaluate
from kscout.evaluation.progress import Step
from kscout.evaluation.records.results import read_scores
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.prepare import prepare
from kscout.names import ANALYSES
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.total_variation import TotalVariation
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import WEIGHTS_NAME, fingerprint, joint_policy_path

SETTING = EvaluationSetting(n_initial=3, steps=4, trajectories=3, batch_size=3, fixed_slices=4)
BASELINES = ("random", "variable-density", "equispaced-one", "equispaced-two", "center-out")
ALL = (*BASELINES, "fixed", "na-oracle", "oracle", "spectral-oracle", "conv")


@pytest.mark.slow
@pytest.mark.parametrize("reconstructor", [ZeroFilled(), TotalVariation(n_iterations=3)])
def test_every_policy_runs_with_classical_reconstructions(
    test_slices: SliceSet, train_slices: SliceSet, reconstructor: Reconstructor, tmp_path: Path
) -> None:
    names = ALL if isinstance(reconstructor, ZeroFilled) else ("random", "fixed", "na-oracle")
    found = evaluate(names, test_slices, reconstructor, SETTING, train=train_slices, out=tmp_path)
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
    found = evaluate(names, test_slices, ZeroFilled(), SETTING, train=train_slices, out=tmp_path)
    first = {entry.policy: entry.metric("ssim")[:, 1] for entry in found.scores}
    assert all((first["oracle"] >= first[name] - 1e-6).all() for name in names)
    assert first["na-oracle"].mean() >= first["fixed"].mean() - 1e-6
    for ours, stored in zip(found.scores, read_scores(tmp_path), strict=True):
        assert (ours.policy, ours.seed) == (stored.policy, stored.seed)
        np.testing.assert_allclose(ours.values, stored.values, rtol=1e-6)


def _columns_taken(out: Path) -> list[tuple[str, ...]]:
    keys = ("policy", "volume", "slice", "trajectory", "step", "column")
    rows = csv.DictReader((out / "results.csv").open(newline=""))
    return [tuple(row[key] for key in keys) for row in rows]


def test_a_psnr_that_is_clamped_is_reported(test_slices: SliceSet) -> None:
    images = test_slices.magnitudes()
    for scale, notes in ((1, []), (1000, ["PSNR is meaningless here: pixels reach"])):
        slices = SliceSet.from_images(images * scale, test_slices.volumes)
        found = prepare(("random",), slices, ZeroFilled(), SETTING).notes
        assert [note[:38] for note in found] == notes


def test_an_order_that_is_fitted_on_what_is_evaluated_is_reported(store: Path) -> None:
    here = "policy 'fixed' is fitted on the split train"
    for names, split, is_told in (
        (("fixed",), "train", True),
        (("fixed",), "test", False),
        (("na-oracle", "center-out"), "train", False),
    ):
        notes = prepare(names, store, ZeroFilled(), replace(SETTING, split=split)).notes
        assert any(note.startswith(here) for note in notes) == is_told, (names, split)


def test_a_subset_takes_the_draws_of_the_whole(test_slices: SliceSet, tmp_path: Path) -> None:
    evaluate(("random",), test_slices, ZeroFilled(), SETTING, out=str(tmp_path / "all"))
    evaluate(
        ("random",), test_slices, ZeroFilled(), replace(SETTING, limit=3), out=tmp_path / "some"
    )
    some = _columns_taken(tmp_path / "some")
    assert set(some) < set(_columns_taken(tmp_path / "all"))
    # Slices 0, 2 and 4 of 7: spread over the volumes.
    assert {row[1:3] for row in some} == {("a", "0"), ("a", "2"), ("b", "0")}


def test_seeds_are_rows_of_their_own(test_slices: SliceSet) -> None:
    setting = replace(SETTING, seeds=(5, 6))
    found = evaluate(("random", "center-out"), test_slices, ZeroFilled(), setting)
    assert [(entry.policy, entry.seed) for entry in found.scores] == [
        ("random", 5),
        ("random", 6),
        ("center-out", 5),
    ]
    random, center = found.summary["policies"]
    assert random["final"]["ssim"]["std"] > 0
    assert center["final"]["ssim"]["std"] is None


def test_fixed_without_training_slices_is_rejected_before_anything_runs(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    writer = StoreWriter(tmp_path / "store", {"command": "test"})
    writer.append("test", "a", test_slices.of_volumes("a").magnitudes().numpy())
    store = writer.finish().path
    for data, message in ((store, "has only: test; .*fixed=NAME"), (test_slices, "train=")):
        done: list[Step] = []
        with pytest.raises(ConfigError, match=message):
            evaluate(("random", "fixed"), data, ZeroFilled(), SETTING, on_step=done.append)
        assert not done


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        (("random",), {"steps": 11}, "lower the number of steps to 10"),
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
        evaluate(names, test_slices, ZeroFilled(), replace(SETTING, **changes))


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
            replace(SETTING, device=device),
            train=train_slices,
            out=tmp_path / device,
        )
    assert _columns_taken(tmp_path / "cpu") == _columns_taken(tmp_path / "cuda")


@pytest.mark.slow
def test_what_is_cheap_runs_first_and_tables_keep_the_order_that_was_asked_for(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path
) -> None:
    steps: list[Step] = []
    names = ("oracle", "fixed", "na-oracle", "random")
    evaluate(
        *(names, test_slices, ZeroFilled(), SETTING),
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


TOLD = {"method": "dense", "seed": 0, "protocol": "blind", "n_initial": 3, "horizon": 2}
SMALL: dict[str, dict[str, Any]] = {
    "entropy": {"trajectories": 1},
    "unexplored": {},
    "policy": {},
    "examples": {},
}
"""Analyses that run policies, with options that take a fraction of a second."""


def save_pair(folder: Path, **told: Any) -> Path:
    """Write what a joint training leaves: a network, and beside it a policy that learned on it."""
    torch.manual_seed(0)
    model = UNet(n_channels=2, n_pools=1, protocol="blind")
    policy, extra = FixedOrder(n_cols=13, order=[1, 11, 3]), {**TOLD, **told}
    folder.mkdir()
    reconstruction.save(folder / WEIGHTS_NAME, model, extra={**extra, "joint": True})
    extra["reconstructor"] = fingerprint(model)
    policies.save(joint_policy_path(folder / WEIGHTS_NAME), policy, extra=extra)
    return folder


def _analyze(name: str, pair: Path, out: Path, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the rows of an analysis of a pair, and the settings that it noted."""
    how = {"reconstructor": str(pair), "device": "cpu", **SMALL[name], **options}
    analysis = ANALYSES.resolve(name)(**how)
    rows = run_analysis(analysis, [str(pair)], out=out)
    return rows, json.loads((out / f"{analysis.file}.settings.json").read_text())


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("name", SMALL)
def test_analyses_score_by_the_protocol_of_the_network_and_note_another_that_is_asked_for(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    pair = save_pair(tmp_path / "pair")
    _, settings = _analyze(name, pair, tmp_path / "default", data=store)
    (note,) = caplog.messages
    assert settings["protocol"] == "blind" and note.startswith("the reconstruction is worse than")
    caplog.clear()
    _, settings = _analyze(name, pair, tmp_path / "paper", data=store, protocol="paper")
    assert settings["protocol"] == "paper"
    _, of_network, of_policy = caplog.messages
    assert "was trained for protocol blind" in of_network
    assert "policy 'pair' was trained for 3 + 2 columns under protocol blind" in of_policy


def test_a_network_that_learned_from_another_start_is_noted(tmp_path: Path) -> None:
    pair = reconstruction.load(save_pair(tmp_path / "pair", initial="7,4-5"))
    central, own = (Use((1, 18, 13), 3, 2, start=start) for start in (None, "4-5,7"))
    assert network_notes(pair, own) == []
    (note,) = network_notes(pair, central)
    assert "for 3 (4-5,7) + 2 columns and is used here with 3 + 2" in note
    (note,) = network_notes(reconstruction.load(save_pair(tmp_path / "central")), own)
    assert "3 + 2 columns and is used here with 3 (4-5,7) + 2" in note
