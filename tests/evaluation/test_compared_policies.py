"""What takes part in an evaluation: names, labels, runs, weights files, a user's own policies."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kscout.apps.cli.evaluate import summary_table
from kscout.core import Observation, Policy, Protocol
from kscout.data.slices import SliceSet
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError, RunError
from kscout.evaluation.compare import evaluate
from kscout.evaluation.progress import Step
from kscout.evaluation.records.run_names import run_label
from kscout.evaluation.request import EvaluationSetting
from kscout.evaluation.running.prepare import prepare
from kscout.evaluation.summaries.summary import policy_table
from kscout.policies import save
from kscout.policies.conv import ConvPolicy
from kscout.policies.fixed import CenterOut, FixedOrder
from kscout.policies.random import Random
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.weights import fingerprint, save_component
from policy_runs import small_policy, write_run

SETTING = EvaluationSetting(n_initial=3, steps=4, trajectories=3, batch_size=3, fixed_slices=4)


def _save(path: Path, policy: Policy, extra: dict[str, Any] | None = None) -> Path:
    save_component(path, policy, kind="policy", extra=extra)
    return path


def test_an_order_from_a_file_is_the_reference_where_none_is_fitted(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    order = FixedOrder(n_cols=test_slices.n_cols, order=[1])
    save(tmp_path / "mine.safetensors", order)
    given = ["random", str(tmp_path / "mine.safetensors"), "center-out"]
    assert prepare(given, test_slices, ZeroFilled(), SETTING).reference == "mine"
    # A reference may be named as it was asked for, or as it is called in tables.
    for asked, name in {"random": "random", given[1]: "mine", "conv": "untrained"}.items():
        named = replace(SETTING, reference=asked)
        assert prepare([*given, "conv"], test_slices, ZeroFilled(), named).reference == name


def test_runs_of_one_method_are_grouped_by_seed(test_slices: SliceSet, tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"greedy-seed{seed}", "weights", seed=seed) for seed in (3, 1)]
    found = evaluate([str(path) for path in paths], test_slices, ZeroFilled(), SETTING)
    (entry,) = found.summary["policies"]
    assert (entry["policy"], entry["seeds"]) == ("greedy", [3, 1])


def test_runs_with_other_settings_are_not_averaged(test_slices: SliceSet, tmp_path: Path) -> None:
    one = write_run(tmp_path / "greedy-seed0", "weights", n_epochs=5)
    two = write_run(tmp_path / "greedy-seed1", "weights", seed=1, n_epochs=6)
    with pytest.raises(ConfigError, match="LABEL=PATH"):
        evaluate((one, two), test_slices, ZeroFilled(), SETTING)
    found = evaluate((one, f"long={two}"), test_slices, ZeroFilled(), SETTING)
    assert [entry["policy"] for entry in found.summary["policies"]] == ["greedy", "long"]


def test_labels_of_runs(tmp_path: Path) -> None:
    for name, label in (
        ("greedy", "greedy"),
        ("ngreedy-0.9-seed12", "ngreedy-0.9"),
        ("greedy_seed=3", "greedy"),
        ("greedy.seed3", "greedy"),
        ("greedy_s3", "greedy"),
        ("s1", "s1"),
        ("s2", "s2"),
        ("runs1", "runs1"),
        ("ngreedy/seed-4", "ngreedy"),
    ):
        folder = write_run(tmp_path / name, "weights")
        assert run_label(folder) == label
        assert run_label(folder / "weights.safetensors") == label
    assert run_label(_save(folder / "best.safetensors", small_policy())) == "ngreedy/best"
    assert run_label(_save(tmp_path / "mine-seed2.safetensors", small_policy())) == "mine"


def test_a_weights_file_contains_its_training(test_slices: SliceSet, tmp_path: Path) -> None:
    extra = {"method": "ngreedy", "gamma": 0.5, "seed": 7, "n_initial": 3, "horizon": 4}
    path = _save(tmp_path / "mine.safetensors", small_policy(), extra)
    found = evaluate((path, "random"), test_slices, ZeroFilled(), SETTING)
    entry = found.summary["policies"][0]
    assert (entry["policy"], entry["seeds"]) == ("mine", [7])
    assert entry["training"] == {"method": "ngreedy", "gamma": 0.5, "epochs": []}


@pytest.mark.parametrize("change", [{"seed": [1]}, {"n_initial": "x"}, {"method": 3}])
def test_weights_with_wrong_training_are_rejected(
    test_slices: SliceSet, tmp_path: Path, change: dict[str, Any]
) -> None:
    extra = {"method": "greedy", "seed": 1, "n_initial": 3, "horizon": 4, **change}
    file = _save(tmp_path / "a.safetensors", small_policy(), extra)
    with pytest.raises(RunError, match=rf"a\.safetensors is damaged \(.*{next(iter(change))} is "):
        evaluate([str(file)], test_slices, ZeroFilled(), SETTING)


@pytest.mark.parametrize(
    ("is_argmax", "columns", "words"),
    [
        (False, "sampled", "sampled columns (3 trajectories per slice)"),
        (True, "best", "highest-scoring columns"),
    ],
)
def test_tables_and_summaries_state_how_trained_policies_chose_columns(
    test_slices: SliceSet, tmp_path: Path, is_argmax: bool, columns: str, words: str
) -> None:
    path = write_run(tmp_path / "greedy", "weights")
    setting = replace(SETTING, argmax=is_argmax)
    found = evaluate((path, "random"), test_slices, ZeroFilled(), setting)
    assert [one["columns"] for one in found.summary["policies"]] == [columns, None]
    assert [one.n_trajectories for one in found.scores] == [1 if is_argmax else 3, 3]
    assert policy_table(found.found).title == f"Scores after 4 acquired columns; {words}"
    assert str(summary_table(found.found).title).endswith(f"\n{words}")
    both = replace(found.found.policies[0], policy="dense", columns="best")
    mixed = replace(found.found, policies=(*found.found.policies, both)).choice
    assert is_argmax or mixed == f"{words} for greedy; highest-scoring columns for dense"


def test_an_evaluation_names_the_epochs_and_takes_the_best_one_of_a_run(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    for seed in (0, 1):
        path = write_run(tmp_path / f"greedy-s{seed}", seed=seed)
        for name, epoch in (("weights", 9), ("best", 3 + seed)):
            _save(path / f"{name}.safetensors", small_policy(), {"epoch": epoch})
    runs = [str(tmp_path / f"greedy-s{seed}") for seed in (0, 1)]
    best = [f"{run}@best" for run in runs]
    labeled = f"mine={best[0]}"
    found = evaluate([*runs, *best, labeled], test_slices, ZeroFilled(), SETTING).found
    epochs = {x.policy: x.training.epochs for x in found.policies if x.training}
    assert epochs == {"greedy": (9, 9), "greedy/best": (3, 4), "mine": (3,)}
    caption = str(summary_table(found).caption)
    assert "epochs: " in caption and "greedy/best 3, 4" in caption
    with pytest.raises(ConfigError, match="unknown policy"):
        evaluate(["nothing@best"], test_slices, ZeroFilled(), SETTING)


def test_random_columns_are_random_from_a_file_and_as_an_object(
    test_slices: SliceSet, tmp_path: Path
) -> None:
    file = _save(tmp_path / "drawn.safetensors", Random())
    setting = replace(SETTING, argmax=True)
    found = evaluate(["random", file, ("mine", Random())], test_slices, ZeroFilled(), setting)
    assert [entry.n_trajectories for entry in found.scores] == [3, 3, 3]
    named, *others = found.scores
    assert all(np.array_equal(named.values, one.values) for one in others)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((18, 16), "16 columns, the slices have 13"), ((16, 13), "16 rows, the slices have 18")],
)
def test_policy_for_other_images_is_rejected_before_any_order_is_fitted(
    test_slices: SliceSet, train_slices: SliceSet, sizes: tuple[int, int], message: str
) -> None:
    policy = ConvPolicy(n_rows=sizes[0], n_cols=sizes[1], n_channels=2, n_hidden=5)
    steps: list[Step] = []
    with pytest.raises(ConfigError, match=f"made for {message}"):
        evaluate(
            ["fixed", ("net", policy)],
            test_slices,
            ZeroFilled(),
            SETTING,
            train=train_slices,
            on_step=steps.append,
        )
    assert not steps


@pytest.mark.parametrize("protocol", ["paper", "blind"])
def test_scores_follow_the_protocol_of_the_reconstruction(
    test_slices: SliceSet, tmp_path: Path, protocol: Protocol
) -> None:
    unet = UNet(n_channels=2, n_pools=1, protocol=protocol)
    found = evaluate(("random",), test_slices, unet, SETTING, out=tmp_path)
    asked = replace(SETTING, protocol=protocol)
    again = evaluate(("random",), test_slices, unet, asked, out=tmp_path)
    assert again.summary == found.summary
    note = "the reconstruction is worse than zero-filled images: SSIM"
    assert found.summary["protocol"] == protocol
    assert found.summary["note"].startswith(note) and ";" not in found.summary["note"][:-70]


def test_a_label_changes_no_fitted_order(test_slices: SliceSet, train_slices: SliceSet) -> None:
    wanted = ["fixed", "mine=fixed", "center-out", "bound=na-oracle"]
    found = evaluate(wanted, test_slices, ZeroFilled(), SETTING, train=train_slices)
    names = ["fixed", "mine", "center-out", "bound"]
    ssim = {one.policy: one.final["ssim"].mean for one in found.found.policies}
    assert list(ssim) == names and ssim["mine"] == ssim["fixed"] != ssim["center-out"]
    assert [one.is_oracle for one in found.found.policies] == [False, False, False, True]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("fixed=center-out", "CenterOut"),
        ("na-oracle=center-out", "CenterOut"),
        ("random=center-out", "CenterOut"),
        ("fixed=kscout.policies.random:Random", "Random"),
        ("fixed=na-oracle", "NaOracle"),
        (("random", CenterOut(n_cols=13)), "CenterOut"),
    ],
)
def test_the_name_of_a_policy_labels_no_other_policy(
    test_slices: SliceSet, wanted: str | tuple[str, Policy], name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"cannot label another one \({name}\); choose another"):
        evaluate([wanted], test_slices, ZeroFilled(), SETTING, train=test_slices)


@pytest.mark.parametrize("wanted", ["=random", " =random", "=runs/greedy"])
def test_an_empty_label_is_rejected(test_slices: SliceSet, wanted: str) -> None:
    with pytest.raises(ConfigError, match="has no label; write LABEL="):
        evaluate([wanted], test_slices, ZeroFilled(), SETTING)


@pytest.mark.slow
def test_a_policy_that_meets_another_reconstruction_or_store_than_in_training_is_warned_of(
    test_slices: SliceSet, train_slices: SliceSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with StoreWriter(tmp_path / "store", {}) as writer:
        writer.append("test", "a", test_slices.magnitudes().numpy())
        store = writer.finish()
    same = {"store": store.fingerprint, "reconstructor": fingerprint(ZeroFilled())}
    for name, extra in {
        "as-trained": same,
        "other-images": {**same, "store": "x"},
        "other-network": {**same, "reconstructor": "x"},
        "odd": {"store": 3},
    }.items():
        _save(tmp_path / f"{name}.safetensors", small_policy(), extra)
    wanted = [f"{path.stem}={path}" for path in sorted(tmp_path.glob("*.safetensors"))]
    found = evaluate([*wanted, "random"], store, "zero-filled", SETTING)
    notes = [record.message for record in caplog.records]
    assert notes == [
        "policies trained with the reconstruction x run here with another reconstruction: "
        "other-network; train one by kscout train policy with this one",
        "trained on another dataset than this one, so scores show how well they generalize: "
        "other-images",
    ]
    assert found.found.note == "; ".join(notes)


class Guess(Policy):
    """A network of a user's own, not trained yet."""

    def __init__(self, *, n_cols: int) -> None:
        super().__init__()
        self.scores = torch.nn.Parameter(3 * torch.randn(n_cols))

    def forward(self, seen: Observation) -> torch.Tensor:
        return self.scores.expand(len(seen.image), -1)


@pytest.mark.slow
def test_networks_by_name_are_untrained_and_repeat_themselves(test_slices: SliceSet) -> None:
    guess = f"{__name__}:Guess"
    first, again = (
        evaluate([guess, "random"], test_slices, ZeroFilled(), replace(SETTING, seeds=(0, 4)))
        for _ in range(2)
    )
    assert first.summary["policies"][0]["policy"] == f"untrained {guess}"
    assert f"policies with random weights: untrained {guess}; a" in first.summary["note"]
    renamed = prepare(["mine=conv", "random"], test_slices, ZeroFilled(), SETTING)
    assert "policies with random weights: mine; a trained" in " ".join(renamed.notes)
    scores = {(one.policy, one.seed): one.values for one in first.scores}
    for one in again.scores:
        assert np.array_equal(one.values, scores[one.policy, one.seed])
    assert not np.array_equal(scores[f"untrained {guess}", 0], scores[f"untrained {guess}", 4])
