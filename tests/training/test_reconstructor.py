"""A reconstructor learns the paper's loss, repeatably, and goes on where it stopped."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor
from training_stores import blob_store, check_continued, stopping_at, store_without_val

from golden_numbers import Golden
from kscout.config import Component, PolicyConfig, ReconstructorConfig, ReconstructorTraining
from kscout.core import Measurement, Protocol, Reconstruction, Reconstructor, SliceBatch
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError, DataError, RunError
from kscout.physics.sampling import center_mask
from kscout.reconstruction import RECONSTRUCTORS, load
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.runs import Progress, read_run
from kscout.training import loop, reconstructor
from kscout.training.augmentation import MaskDistribution
from kscout.training.convolution import BACKENDS, choose_convolution
from kscout.training.policy import train_policy
from kscout.training.reconstructor import train_reconstructor, training_loss
from kscout.training.validation import validation_ssim, zero_filled_note

TRAINING = ReconstructorTraining(
    n_epochs=3,
    batch_size=4,
    convolution="native",
    decay_epochs=(2,),
    keep_epochs=(2,),
    protocol="paper",
)
CONFIG = ReconstructorConfig(Component("unet", {"n_channels": 2, "n_pools": 2}), TRAINING)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return blob_store(tmp_path_factory.mktemp("stores") / "blobs")


def golden_slices(golden: Golden) -> SliceSet:
    return SliceSet.from_images(golden("inputs", "images128"), ["v"] * 3 + ["w"] * 3)


def test_loss_gradient_and_step_are_the_references(golden: Golden) -> None:
    model, slices = RECONSTRUCTORS["unet"](n_channels=4), golden_slices(golden)
    model.network.load_state_dict(golden.state("unet", "small_state"))
    batch = slices.batch(torch.arange(2))
    mask = center_mask(128, 16).expand(2, -1)
    optimizer = torch.optim.Adam(model.network.parameters(), lr=1e-3)
    loss = training_loss(model, batch, mask, TRAINING)
    assert loss.item() == pytest.approx(golden("unet", "small_l1").item(), rel=1e-4)
    loss.backward()
    # Rounding in the transform (1e-6) flips a ReLU: the first layer's gradient feels it most.
    first, last = model.network.down_sample_layers[0].layers[0], model.network.conv2[0]
    for layer, key, tolerance in (
        (first, "small_grad_first", 5e-3),
        (last, "small_grad_conv2_0", 1e-3),
    ):
        expected = golden("unet", key)
        assert (layer.weight.grad - expected).abs().max() < tolerance * expected.abs().max()
    optimizer.step()
    after = training_loss(model, batch, mask, TRAINING).item()
    assert after == pytest.approx(golden("unet", "small_l1_after_adam").item(), rel=1e-4)


def test_validation_scores_are_the_references(golden: Golden) -> None:
    model = RECONSTRUCTORS["unet"]()
    model.network.load_state_dict(golden.state("unet_trained", "trained_state"))
    slices = golden_slices(golden)
    masks = center_mask(128, 16).expand(6, -1)
    expected = golden("metrics", "ssim_recon").mean().item()
    assert validation_ssim(model, slices, masks, TRAINING) == pytest.approx(expected, abs=2e-5)


@final
class Learnable(Reconstructor):
    """Zero-filled images plus a learnable offset."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.offset = torch.nn.Parameter(torch.tensor(offset))

    def reconstruct(self, measured: Measurement) -> Reconstruction:
        ramp = self.offset * torch.arange(measured.normalized.shape[-1])
        return Reconstruction(measured.normalized + ramp, measured.mean, measured.std)


@pytest.mark.parametrize("protocol", ["paper", "blind"])
def test_only_a_network_below_zero_filled_images_is_warned_of(
    store: Store, protocol: Protocol
) -> None:
    slices = store.split("val")
    for network in (ZeroFilled(), Learnable(0.0)):
        assert zero_filled_note(network, slices, 4, 5, protocol) is None
    for start in (4, (10, 11, 12, 13)):
        note = zero_filled_note(Learnable(0.5), slices, start, 5, protocol)
        assert note is not None
        words = r"worse than zero-filled images: SSIM (\S+) instead of (\S+) on 5 of .* 9 columns"
        found = re.search(words, note)
        assert found and float(found[1]) < float(found[2])


def test_blind_targets_are_in_the_zero_filled_images_units(generator: torch.Generator) -> None:
    slices = SliceSet.from_images(torch.rand(3, 9, 11, generator=generator), ["v"] * 3)
    everything = torch.ones(3, 11, dtype=torch.bool)
    part = center_mask(11, 5).expand(3, -1)
    batch = slices.batch(torch.arange(3))
    blind, paper = ZeroFilled(), ZeroFilled()
    blind.protocol, paper.protocol = "blind", "paper"
    # Fully sampled, both protocols are the same; undersampled, the blurred image has less spread.
    for model in (paper, blind):
        assert training_loss(model, batch, everything, TRAINING).item() < 1e-5
    image = torch.fft.ifftshift(batch.kspace[:, 0] * part[:, None], dim=(-2, -1))
    image = torch.fft.fftshift(torch.fft.ifft2(image, norm="ortho"), dim=(-2, -1)).abs()
    std = image.flatten(1).std(dim=1)[:, None, None]
    expected = ((image - slices.magnitudes()) / std).abs().mean().item()
    assert training_loss(blind, batch, part, TRAINING).item() == pytest.approx(expected, rel=1e-4)
    assert training_loss(paper, batch, part, TRAINING).item() < 0.9 * expected


def state(path: Path) -> dict[str, Tensor]:
    return load(path).state_dict()


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_leaves_all_that_is_promised_and_learns(store: Store, tmp_path: Path) -> None:
    config = replace(CONFIG, training=replace(TRAINING, n_epochs=6, decay_epochs=(4,)))
    seen: list[Progress] = []
    run = train_reconstructor(config, store, tmp_path / "run", device="cpu", on_step=seen.append)
    losses = [record["train_loss"] for record in run.metrics]
    assert [record["epoch"] for record in run.metrics] == [1, 2, 3, 4, 5, 6]
    assert losses[-1] < 0.9 * losses[0]
    assert [record["learning_rate"] for record in run.metrics][3:5] == pytest.approx([1e-3, 1e-4])
    assert run.done is not None
    best = max(run.metrics, key=lambda record: record["val_ssim"])
    assert run.done["best_epoch"] == best["epoch"]
    val, model = store.split("val"), load(run.path / "best.safetensors")
    masks = MaskDistribution(val.n_cols, TRAINING.accelerations, TRAINING.center_fractions)
    score = validation_ssim(model, val, masks.of_volumes(val.volumes), TRAINING)
    assert score == pytest.approx(best["val_ssim"], abs=1e-6)
    assert run.provenance.notes["convolution"] == "native"
    assert {"weights.safetensors", "best.safetensors", "epoch-0002.safetensors"} <= {
        file.name for file in run.path.iterdir()
    }
    # Eleven slices by four: three steps and a record per epoch.
    steps = [(1, 1, False), (1, 2, False), (1, 3, False), (1, 3, True), (2, 1, False)]
    assert [(p.epoch, p.step, bool(p.record)) for p in seen[:5]] == steps
    assert not equal(state(run.path), state(run.path / "epoch-0002.safetensors"))


def test_the_step_size_rises_and_falls_to_zero_where_a_rise_is_given(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []
    step = torch.optim.Adam.step

    def recorded(self: torch.optim.Adam, *arguments: object) -> object:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *arguments)

    monkeypatch.setattr(torch.optim.Adam, "step", recorded)
    training = replace(TRAINING, n_epochs=10, decay_epochs=(), n_warm=2)
    config = replace(CONFIG, training=training)
    run = train_reconstructor(config, store, tmp_path / "run", device="cpu")
    expected = [1e-3 * min(1, (n + 1) / 3) * (1 - n / 30) for n in range(30)]
    assert rates == pytest.approx(expected)
    ends = [record["learning_rate"] for record in run.metrics]
    assert ends == pytest.approx(expected[2::3])


def test_half_of_the_slices_are_mirrored_before_the_mask_is_applied(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = store.split("train")
    targets = slices.batch(torch.arange(len(slices))).target
    reversed_targets = torch.roll(targets.flip(-1), 1 - targets.shape[-1] % 2, dims=-1)
    seen: list[Tensor] = []

    def recorded(model: Reconstructor, batch: SliceBatch, mask: Tensor, training: object) -> Tensor:
        seen.append(batch.target)
        return training_loss(model, batch, mask, TRAINING)

    monkeypatch.setattr(reconstructor, "training_loss", recorded)
    config = replace(CONFIG, training=replace(TRAINING, n_epochs=8, flips=True))
    train_reconstructor(config, store, tmp_path / "run", device="cpu")
    found = torch.cat(seen)[:, None]
    same, mirrored = (
        ((found - x).abs().amax(dim=(-2, -1)) < 1e-4 * targets.max()).any(dim=1)
        for x in (targets, reversed_targets)
    )
    assert (same ^ mirrored).all()
    # Four standard deviations of a fair coin.
    assert abs(int(mirrored.sum()) - len(found) / 2) < 4 * (len(found) / 4) ** 0.5


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_an_interrupted_run_ends_bit_equal_and_is_then_left_alone(
    store: Store, tmp_path: Path, dropout: float
) -> None:
    arguments = {**CONFIG.reconstructor.arguments, "dropout": dropout}
    config = replace(CONFIG, reconstructor=Component("unet", arguments))
    whole = train_reconstructor(config, store, tmp_path / "whole", device="cpu")

    out = tmp_path / "cut"
    for epoch, step in ((1, 2), (3, 1)):
        with pytest.raises(KeyboardInterrupt):
            train_reconstructor(config, store, out, device="cpu", on_step=stopping_at(epoch, step))
    torch.rand(5)
    taken: list[Progress] = []
    cut = train_reconstructor(config, store, out, device="cpu", on_step=taken.append)
    check_continued(taken[0], 3, 1)
    assert equal(state(whole.path), state(cut.path))
    for key in ("epoch", "train_loss", "val_ssim"):
        assert [one[key] for one in whole.metrics] == [one[key] for one in cut.metrics]
    written = (cut.path / "weights.safetensors").stat().st_mtime_ns
    taken.clear()
    train_reconstructor(config, store, out, device="cpu", on_step=taken.append)
    assert not taken
    assert (cut.path / "weights.safetensors").stat().st_mtime_ns == written


def test_the_chosen_convolution_is_recorded_and_kept(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, training=replace(TRAINING, convolution="auto"))
    where: dict[str, Any] = {"store": store, "out": tmp_path / "run", "device": "cpu"}
    with pytest.raises(KeyboardInterrupt):
        train_reconstructor(config, **where, on_step=stopping_at(2, 1))
    chosen = read_run(tmp_path / "run").provenance.notes["convolution"]
    assert chosen == choose_convolution("auto", torch.device("cpu"), trains=True)
    other = next(name for name in BACKENDS if name != chosen)
    monkeypatch.setattr(loop, "choose_convolution", lambda *_, **__: other)
    used = []
    original = reconstructor.convolution
    monkeypatch.setattr(reconstructor, "convolution", lambda x: used.append(x) or original(x))
    run = train_reconstructor(config, **where)
    assert used == [chosen] and run.provenance.notes["convolution"] == chosen


@pytest.mark.parametrize("backend", ["native", "auto"])
def test_the_seed_decides_the_weights(backend: str, store: Store, tmp_path: Path) -> None:
    short = replace(TRAINING, n_epochs=1, convolution=backend, keep_epochs=())
    runs = [
        train_reconstructor(
            replace(CONFIG, training=replace(short, seed=seed)), store, tmp_path / name
        ).path
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    a, b, c = (state(path) for path in runs)
    assert equal(a, b) and not equal(a, c)


def test_what_cannot_be_trained_is_told(store: Store, tmp_path: Path) -> None:
    def attempt(component: Component, training: ReconstructorTraining = TRAINING) -> None:
        config = ReconstructorConfig(component, training)
        train_reconstructor(config, store, tmp_path / component.name, device="cpu")

    with pytest.raises(ConfigError, match=r"ZeroFilled has nothing to train.*; kscout has unet, "):
        attempt(Component("zero-filled"))
    with pytest.raises(ConfigError, match="'unet' has no 'depth'; it accepts: n_channels"):
        attempt(Component("unet", {"depth": 3}))
    with pytest.raises(ConfigError, match=r"one of: fastmri-unet, module:Class, unet, varnet$"):
        attempt(Component("vnet"))
    with pytest.raises(ConfigError, match="train it with protocol blind"):
        attempt(Component("fastmri-unet", {"n_channels": 2, "n_pools": 2}))
    with pytest.raises(ConfigError, match=r"reconstructor\.protocol is 'blind' but this run"):
        attempt(Component("unet", {"protocol": "blind"}))
    assert not list(tmp_path.iterdir())


def test_a_store_without_a_needed_split_claims_no_run_folder(tmp_path: Path) -> None:
    lacking = store_without_val(tmp_path / "store")
    words = r"no split 'val'; it has: train; .* at least 3 volumes"
    with pytest.raises(DataError, match=words):
        train_reconstructor(CONFIG, lacking, tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match=words):
        train_policy(PolicyConfig.of("greedy"), lacking, "zero-filled", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_diverging_run_is_told(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UNet, "loss", lambda _, found, batch: found.image.abs().sum() * torch.inf)
    with pytest.raises(RunError, match=r"train_loss of epoch 1 is (nan|inf); lower"):
        train_reconstructor(CONFIG, store, tmp_path / "run", device="cpu")
