"""Policies that learn on from the weights of another training."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from training_stores import CONV, Train, blob_store, small_config, train_whole_and_cut, weights
from typer.testing import CliRunner

from kscout import policies
from kscout.apps.cli.progress import print_runs
from kscout.apps.cli.train import app
from kscout.assemble import make_policy
from kscout.config import Component, PolicyConfig
from kscout.data.store import Store
from kscout.errors import ConfigError, RunError
from kscout.policies.column import ColumnPolicy
from kscout.runs import read_run
from kscout.training.algorithms import dense
from kscout.training.policy import train_policies, train_policy
from kscout.training.starting import network_of
from kscout.weights import fingerprint, read_weights
from kscout.zoo import as_shipped, zoo_file

SIZES: dict[str, Any] = {
    **{"width": 8, "n_heads": 2, "n_layers": 1},
    **{"channels": [8], "image_channels": [8], "n_bins": 2},
}
COLUMN = {"name": "column", **SIZES}
STILL = {"learning_rate": 1e-30, "seed": 5}
"""A training that changes no weight."""


def dense_config(policy: dict[str, Any], **changes: object) -> PolicyConfig:
    training = {"method": "dense", "n_epochs": 1, "batch_size": 4, "n_best": 1, "n_random": 2}
    repeats = {"n_repeats": 1, "n_repeated": 3, "n_baseline_slices": 4, "n_warm": 1}
    return small_config(policy, {**training, **repeats, **changes})


@pytest.fixture(scope="module")
def first(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of dense gains."""
    out = tmp_path_factory.mktemp("first") / "run"
    return train_policy(dense_config(COLUMN), store, "zero-filled", out, device="cpu").path


def test_weights_gains_and_units_are_those_of_the_start(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = blob_store(tmp_path / "other", n_rows=12, n_cols=16, n_train=7)
    monkeypatch.setattr(
        dense, "fit_fixed_order", lambda *_, **__: pytest.fail("units were found anew")
    )
    # No network is named: it is that of the start.
    configs = [dense_config({"name": "column"}, **{**STILL, "seed": seed}) for seed in (5, 6)]
    outs = [tmp_path / "five", tmp_path / "six"]
    runs = train_policies(configs, other, "zero-filled", outs, start=first, device="cpu")
    start, expected = policies.load(first), weights(first)
    for run in runs:
        found = weights(run.path)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
        assert policies.load(run.path).gain_units == start.gain_units != ()
        assert run.provenance.inputs["start"] == fingerprint(start)
        assert run.config["policy"]["width"] == 8


def test_what_a_training_began_from_is_validated_and_told(
    first: Path, train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        train(dense_config(COLUMN, **STILL), out, start=start)
        for out, start in ((tmp_path / "order", None), (tmp_path / "trained", first))
    ]
    for run in runs:
        assert run.provenance.notes["val_ssim_at_start"] == run.metrics[-1]["val_ssim"]
    # The order of mean gains, which the first training began from as well, is not what it learned.
    assert read_run(first).provenance.notes == runs[0].provenance.notes
    print_runs(runs, as_json=False)
    told = [line.split("has not improved it: ")[1] for line in capsys.readouterr().out.splitlines()]
    assert told == ["the fixed order at its start is no worse", "use the start"]
    by_psnr = dense_config(COLUMN, **STILL, metric="psnr")
    run = train(by_psnr, "psnr")
    print_runs([run], as_json=False)
    psnr = run.metrics[-1]["val_psnr"]
    assert f"; it started at {psnr:.4f}, so training has not" in capsys.readouterr().out


def test_a_start_from_initial_weights_changes_nothing(
    store: Store, tmp_path: Path, train: Train
) -> None:
    training = {"method": "greedy", "n_epochs": 1, "batch_size": 4, "n_trajectories": 2, "seed": 3}
    config, file = small_config(CONV, training), tmp_path / "initial.safetensors"
    arguments = {key: value for key, value in CONV.items() if key != "name"}
    sizes = {"n_rows": 12, "n_cols": 16, "n_initial": 2, "horizon": 3}
    policies.save(file, make_policy(Component("conv", arguments), seed=3, **sizes))
    train(config, "plain")
    command = f"policy --data {store.path} --reconstructor zero-filled --out {tmp_path / 'begun'}"
    command += " --n-initial 2 --steps 3 --epochs 1 --batch-size 4 --trajectories 2 --seed 3"
    done = CliRunner().invoke(app, [*command.split(), "--device", "cpu", "--start", str(file)])
    assert done.exit_code == 0, done.output
    plain, begun = weights(tmp_path / "plain"), weights(tmp_path / "begun")
    assert all(torch.equal(plain[key], begun[key]) for key in plain)
    assert "start" in read_run(tmp_path / "begun").provenance.inputs
    assert "it started at" in done.output
    assert "val_ssim_at_start" not in read_run(tmp_path / "plain").provenance.notes


def test_units_are_found_where_the_start_has_none(
    first: Path, train: Train, tmp_path: Path
) -> None:
    file, start = tmp_path / "plain.safetensors", policies.load(first)
    units, start.gain_units = start.gain_units, ()
    policies.save(file, start)
    run = train(dense_config(COLUMN, **STILL), start=file)
    assert policies.load(run.path).gain_units == pytest.approx(units)
    # Mean gains are among the weights that a network has learned with: they stay.
    assert torch.equal(weights(run.path)["prior"], weights(first)["prior"])


@pytest.mark.slow
def test_an_interrupted_training_goes_on_from_its_checkpoint(
    first: Path, store: Store, tmp_path: Path, train: Train
) -> None:
    config = dense_config(COLUMN, n_epochs=2, seed=5, learning_rate=1e-2)
    cut = train_whole_and_cut(config, store, tmp_path, epoch=2, start=first)
    expected = weights(first)
    assert any(not torch.equal(value, expected[key]) for key, value in weights(cut).items())
    policies.save(tmp_path / "other.safetensors", policies.load(cut))
    for other in (tmp_path / "other.safetensors", None):
        with pytest.raises(RunError, match="another start"):
            train(config, cut, start=other)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (CONV, "is a column with width = 8.* and a conv with n_channels = 2"),
        ({**COLUMN, "width": 12}, r"width = 8, and width = 12 was .* leave out policy\.width,"),
    ],
    ids=["network", "argument"],
)
def test_another_network_is_refused(
    first: Path, train: Train, tmp_path: Path, policy: dict[str, Any], message: str
) -> None:
    config = dense_config(policy)
    with pytest.raises(ConfigError, match=message):
        train(config, start=first)
    assert not (tmp_path / "run").exists()


def test_a_column_network_learns_on_for_another_matrix_start_and_budget(
    first: Path, tmp_path: Path
) -> None:
    other = blob_store(tmp_path / "other", n_rows=10, n_cols=20)
    base = dense_config(COLUMN, **STILL)
    config = replace(base, acquisition=replace(base.acquisition, n_initial=4, horizon=5))
    anew, begun = (
        train_policy(config, other, "zero-filled", tmp_path / name, start=start, device="cpu")
        for name, start in (("anew", None), ("begun", first))
    )
    found, expected, known = weights(begun.path), weights(first), weights(anew.path)
    assert all(torch.equal(found[key], expected[key]) for key in expected if key != "prior")
    # Gains of these images, of which the start knows nothing.
    assert found["prior"].shape == (5, 20) and torch.equal(found["prior"], known["prior"])
    policy = policies.load(begun.path)
    assert policy.gain_units == policies.load(anew.path).gain_units != ()
    assert (policy.n_cols, policy.n_initial, policy.horizon) == (20, 4, 5)


def test_mean_gains_go_by_frequency_and_by_the_share_that_is_measured() -> None:
    coarse = ColumnPolicy(n_cols=16, n_initial=2, horizon=4, **SIZES)
    coarse.start_from(torch.rand(4, 16))
    fine = ColumnPolicy(n_cols=32, n_initial=4, horizon=8, **SIZES)
    fine.take_weights(coarse)
    # Every other column of the finer matrix has a frequency of the coarser one.
    assert torch.allclose(fine.prior[::2, ::2], coarse.prior)
    late = ColumnPolicy(n_cols=16, n_initial=4, horizon=6, **SIZES)
    late.take_weights(coarse)
    assert torch.equal(late.prior, coarse.prior[[2, 3, 3, 3, 3, 3]])


METRICS = ("ssim", "psnr")


@pytest.fixture(scope="module")
def labelled(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a run for each metric whose gains columns are labelled by."""
    folder, runs = tmp_path_factory.mktemp("labelled"), {}
    for metric in METRICS:
        config, out = dense_config(COLUMN, metric=metric, **STILL), folder / metric
        runs[metric] = train_policy(config, store, "zero-filled", out, device="cpu").path
    return runs


@pytest.mark.parametrize("metric", METRICS)
def test_mean_gains_are_measured_anew_where_a_start_learned_from_other_labels(
    labelled: dict[str, Path], train: Train, tmp_path: Path, metric: str
) -> None:
    config = dense_config(COLUMN, metric=metric, **STILL)
    own = weights(labelled[metric])["prior"]
    for other, start in labelled.items():
        out = tmp_path / other
        with pytest.MonkeyPatch.context() as patch:
            if other == metric:
                patch.setattr(ColumnPolicy, "start_from", lambda *_: pytest.fail("measured anew"))
            run = train(config, out, start=start)
        torch.testing.assert_close(weights(run.path)["prior"], own)
        assert other == metric or not torch.allclose(weights(start)["prior"], own)


def test_what_another_method_learned_is_learned_on_from_as_it_is(
    train: Train, tmp_path: Path
) -> None:
    training = {"method": "greedy", "n_epochs": 1, "batch_size": 4, "n_trajectories": 2}
    greedy = small_config(COLUMN, training)
    start = train(greedy, "greedy").path
    config, out = dense_config(COLUMN, **STILL), tmp_path / "run"
    run = train(config, out, start=start)
    assert not weights(run.path)["prior"].any()


def test_a_network_of_the_zoo_is_known_by_the_fingerprint_that_others_began_from() -> None:
    known = fingerprint(policies.load("knee-general-16-column"))
    started = read_weights(zoo_file("knee-cotrained-16-column")).extra["start"]
    assert as_shipped(started) == known


def test_a_network_that_knows_no_budget_learns_on_for_another() -> None:
    sizes = {"n_rows": 12, "n_cols": 16, "n_initial": 2, "horizon": 3}
    name, arguments = "conv", {key: value for key, value in CONV.items() if key != "name"}
    start = make_policy(Component(name, arguments), seed=0, **sizes)
    other = {**sizes, "n_initial": 4, "horizon": 2}
    found = network_of(start, "run", dense_config({"name": "column"}), other).policy
    assert (found.name, found.arguments) == (name, arguments)
    with pytest.raises(ConfigError, match="trained with n_cols = 16, and this training has 18"):
        network_of(start, "run", dense_config(CONV), {**sizes, "n_cols": 18})


def test_more_images_are_drawn_by_the_network_of_a_start() -> None:
    start = make_policy(Component("posterior", {"n_channels": 2, "n_draws": 2}), seed=0)
    config = PolicyConfig.of("posterior")
    wanted = {"n_draws": 4, "n_best": 3}
    asked = replace(config, policy=Component("posterior", wanted))
    found = network_of(start, "run", asked, {}).policy.arguments
    kept = network_of(start, "run", config, {}).policy.arguments
    assert found == {**kept, **wanted} and kept["n_draws"] == 2 and found["n_channels"] == 2
    other = replace(config, policy=Component("posterior", {**wanted, "n_channels": 4}))
    with pytest.raises(ConfigError, match=r"leave out policy\.n_channels, or --start"):
        network_of(start, "run", other, {})
