"""Joint training: equal updates, one folder for both, the same bytes after an interruption."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from joint_runs import LEARNABLE, METHODS, REPEATS, UNET, check_sees_what_was_measured, joint_config
from training_stores import check_continued, stopping_at
from typer.testing import CliRunner

from kscout import policies, reconstruction
from kscout.acquisition.plan import Plan
from kscout.apps.cli import app
from kscout.config import JointConfig, LearnedSampling
from kscout.core import Policy, SliceBatch
from kscout.data.store import Store
from kscout.errors import ConfigError, RunError
from kscout.evaluation import EvaluationSetting, evaluate
from kscout.evaluation.analyses.snr import Snr, measure_run
from kscout.layers import UNetNetwork
from kscout.names import POLICIES, RECONSTRUCTORS, SAMPLERS
from kscout.policies.fixed import FixedOrder
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.unet_fused import FusedUNet
from kscout.runs import Progress, read_run
from kscout.training import convolution
from kscout.training.fixed_order import fit_fixed_order
from kscout.training.joint.algorithm import Current
from kscout.training.joint.sampler import acquire
from kscout.training.joint.train import train_joint
from kscout.training.reconstructor import training_loss
from kscout.weights import fingerprint, read_weights


@pytest.fixture(scope="module")
def runs(store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run of every sampler."""
    root = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        train_joint(joint_config(method), store, root / method, device="cpu")
    return {method: root / method for method in METHODS}


def test_every_sampler_gives_the_reconstruction_as_many_updates_and_learns_when_it_is_due(
    runs: dict[str, Path],
) -> None:
    for method, path in runs.items():
        metrics = read_run(path).metrics
        assert [record["n_updates"] for record in metrics] == [2, 4, 6]
        assert [record["n_slices"] for record in metrics] == [8, 8, 8]
        # Each parameter of the network knows how often the optimizer changed it.
        state = torch.load(path / "checkpoint.pt", weights_only=True)["optimizer"]["state"]
        n_weights = len(list(reconstruction.load(path).parameters()))
        assert [float(state[number]["step"]) for number in range(n_weights)] == [6.0] * n_weights
        training = joint_config(method).training
        is_learned = isinstance(training, LearnedSampling)
        # The fourth and the sixth, as the first two have columns at random.
        assert metrics[-1]["n_sampler_updates"] == (2 if is_learned else 0)
        assert not is_learned or training.n_sampler_updates == 2


def test_labels_of_the_newest_batch_are_repeated_and_no_step_is_taken_besides(
    runs: dict[str, Path],
) -> None:
    path, n_due = runs["dense"], read_run(runs["dense"]).metrics[-1]["n_sampler_updates"]
    checkpoint = torch.load(path / "checkpoint.pt", weights_only=True)
    n_weights = len(list(reconstruction.load(path).parameters()))
    steps = {
        float(x["step"]) for n, x in checkpoint["optimizer"]["state"].items() if n >= n_weights
    }
    assert steps == {n_due * (1 + REPEATS["n_repeats"])}
    # All batches of three slices with three columns each.
    buffer = checkpoint["facts"]["carried"]["sampler"]["buffer"]
    assert len(buffer["index"]) == 9 * n_due


@pytest.mark.parametrize("method", METHODS)
def test_one_folder_holds_both_and_evaluates(
    method: str, runs: dict[str, Path], store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path = runs[method]
    assert isinstance(reconstruction.load(path), UNet)
    assert POLICIES.name_of(type(policies.load(path))) == SAMPLERS[method].policy
    setting = EvaluationSetting(n_initial=2, steps=3, batch_size=5, split="val", device="cpu")
    found = evaluate([str(path)], store, path, setting).found
    # A policy that met another network than its own would be told.
    assert not [one for one in caplog.messages if "worse than zero-filled" not in one]
    assert found.policies[0].training is not None
    assert found.policies[0].training.method == method
    best = fingerprint(policies.load(path / "best-policy.safetensors"))
    assert fingerprint(policies.load(f"{path}@best")) == best
    wanted = fingerprint(reconstruction.load(path / "best.safetensors"))
    assert fingerprint(reconstruction.load(f"{path}@best")) == wanted


def test_gradient_noise_is_not_that_of_a_pair(runs: dict[str, Path], store: Store) -> None:
    path = runs["dense"]
    with pytest.raises(RunError, match="is a run of kind 'joint', and gradients are measured of"):
        measure_run(path, store.split("train"), reconstruction.load(path), Snr())


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_an_interrupted_training_ends_with_the_same_bytes(
    method: str, runs: dict[str, Path], store: Store, tmp_path: Path
) -> None:
    config, out = joint_config(method), tmp_path / "cut"
    # Before the sampler was asked for the first time, and after it.
    for epoch, step in ((1, 1), (2, 1), (3, 1)):
        with pytest.raises(KeyboardInterrupt):
            train_joint(config, store, out, device="cpu", on_step=stopping_at(epoch, step))
    taken: list[Progress] = []
    train_joint(config, store, out, device="cpu", on_step=taken.append)
    check_continued(taken[0], 3, 1)
    for file in ("weights", "weights-policy", "best-policy", "epoch-0002-policy"):
        name = f"{file}.safetensors"
        assert (out / name).read_bytes() == (runs[method] / name).read_bytes(), name
    losses = [[x["train_loss"] for x in read_run(run).metrics] for run in (out, runs[method])]
    assert losses[0] == losses[1]


def test_the_fixed_order_is_fitted_for_the_network_as_it_is(
    runs: dict[str, Path], store: Store
) -> None:
    slices, n_slices = store.split("train"), 4
    network = reconstruction.load(runs["fixed"] / "epoch-0002.safetensors")
    view = network.frozen(precision="auto", n_rows=12, n_cols=16, device="cpu")
    with convolution.convolution("native"):
        wanted = fit_fixed_order(slices, view, Plan(2, 3, seed=3), n_slices_per_step=n_slices)
    policy = policies.load(runs["fixed"])
    assert isinstance(policy, FixedOrder)
    assert list(policy.order) == wanted.order


def test_mirrored_slices_are_learned_with_the_masks_of_their_own_acquisition(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquired: list[tuple[bytes, bytes]] = []
    learned: list[tuple[bytes, bytes]] = []

    def acquiring(policy: Policy, batch: SliceBatch, *rest: Any) -> torch.Tensor:
        masks = acquire(policy, batch, *rest)
        for target, own in zip(batch.target, masks, strict=True):
            acquired.extend((_bytes(target), _bytes(mask)) for mask in own)
        return masks

    def learning(model: Any, batch: SliceBatch, masks: torch.Tensor, *rest: Any) -> torch.Tensor:
        pairs = zip(batch.target, masks, strict=True)
        learned.extend((_bytes(target), _bytes(mask)) for target, mask in pairs)
        return training_loss(model, batch, masks, *rest)

    monkeypatch.setattr("kscout.training.joint.algorithm.acquire", acquiring)
    monkeypatch.setattr("kscout.training.joint.algorithm.training_loss", learning)
    train_joint(joint_config("random", flips=True), store, tmp_path / "run", device="cpu")
    assert set(learned) <= set(acquired)
    slices = store.split("train")
    plain = {_bytes(target) for target in slices.batch(torch.arange(len(slices))).target}
    n_plain = sum(target in plain for target, _ in learned)
    # About half are not mirrored.
    assert 0 < n_plain < len(learned)


def _bytes(values: torch.Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_was_not_measured_changes_a_choice(
    method: str, runs: dict[str, Path], store: Store
) -> None:
    batch = store.split("train").batch(torch.arange(7))
    check_sees_what_was_measured(runs[method], joint_config(method, horizon=5), batch)


def test_views_follow_a_network_that_learns(store: Store) -> None:
    model = UNet(n_channels=2, n_pools=2)
    current = Current(model, store.split("train"))
    batch = store.split("train").batch(torch.arange(3))
    mask = torch.arange(16).expand(3, -1) % 2 == 0
    before = current.view(batch.kspace, mask).image
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert torch.equal(current.view(batch.kspace, mask).image, before)
    current.refresh()
    expected = model.eval()(batch.kspace, mask).image
    for view in (current.view, current.snapshot):
        torch.testing.assert_close(view(batch.kspace, mask).image, expected.detach())


def test_fused_weights_follow_a_network_that_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kscout.kernels.convolution", "kscout.reconstruction.unet_fused"):
        monkeypatch.setattr(f"{module}.compile_kernel", lambda *_, **__: None)
    networks = [UNetNetwork(n_channels=16, n_pools=2, dropout=0.0) for _ in range(2)]
    old, new = (FusedUNet(network, 16, 32) for network in networks)
    places = [step.weight.data_ptr() for pair in old.down for step in pair]
    old.set_weights(networks[1])
    for one, other in zip(_weights(old), _weights(new), strict=True):
        assert torch.equal(one, other)
    assert places == [step.weight.data_ptr() for pair in old.down for step in pair]


def _weights(fused: FusedUNet) -> list[torch.Tensor]:
    pairs = [*fused.down, fused.middle, *fused.up]
    return [fused.final, *(step.weight for pair in pairs for step in pair)]


def test_training_starts_from_a_trained_network_of_any_kind(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "outside")
    own = {"name": "unrolled:Unrolled", "n_steps": 1}
    first = joint_config("loupe", model=own, protocol="blind", n_updates=4)
    train_joint(first, store, tmp_path / "first", device="cpu")
    # Where nothing is said the network is that of the start.
    plain = JointConfig.of("random").reconstructor
    second = joint_config("random", protocol="blind", n_updates=3, learning_rate=1e-9)
    second = replace(second, reconstructor=plain)
    start = tmp_path / "first"
    run = train_joint(second, store, tmp_path / "second", start=start, device="cpu")
    assert run.config["reconstructor"] == own
    states = [read_weights(run / "weights.safetensors").state for run in (start, run.path)]
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, atol=1e-7, rtol=0)
    with pytest.raises(ConfigError, match=r"is a unrolled:Unrolled with .* and a unet"):
        train_joint(joint_config("random"), store, tmp_path / "third", start=start, device="cpu")
    assert not (tmp_path / "third").exists()


@pytest.mark.parametrize(
    ("name", "protocol"),
    [
        ("unet", "paper"),
        *((name, "blind") for name, one in RECONSTRUCTORS.entries.items() if one.is_learnable),
    ],
)
def test_every_learnable_reconstruction_learns_from_nothing_and_goes_on_from_there(
    name: str, protocol: str, store: Store, tmp_path: Path
) -> None:
    model = {**LEARNABLE[name], "name": name}
    short = {"protocol": protocol, "n_updates": 2, "n_checkpoints": 1, "keep_epochs": ()}
    config = joint_config("random", model=model, **short)
    first = train_joint(config, store, tmp_path / "first", device="cpu").path
    second = train_joint(config, store, tmp_path / "second", start=first, device="cpu").path
    learned = [read_weights(run / "weights.safetensors").state for run in (first, second)]
    assert any(not torch.equal(one, learned[1][key]) for key, one in learned[0].items())
    for run in (first, second):
        assert RECONSTRUCTORS.name_of(type(reconstruction.load(run))) == name


def test_the_command_trains_seeds_each_into_its_folder(store: Store, tmp_path: Path) -> None:
    words = [
        *("train", "joint", "--data", str(store.path), "--out", str(tmp_path / "run")),
        *("--method", "random", "--model", "unet", "--channels", "2", "--n-initial", "2"),
        *("--steps", "3", "--updates", "2", "--checkpoints", "1", "--batch-size", "3"),
        *("--seeds", "2"),
        *("--set", f"reconstructor.n_pools={UNET['n_pools']}", "--device", "cpu", "--json"),
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["n_updates"] for one in told] == [2, 2]
    for one, seed in zip(told, (0, 1), strict=True):
        assert read_run(one["run"]).config["training"]["seed"] == seed
        assert isinstance(reconstruction.load(one["run"]), UNet)
        assert policies.load(one["run"]).is_stochastic
