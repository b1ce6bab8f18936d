"""Slopes: the derivative of a score by the weight of a column, and labels that are made of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from training_stores import COLUMN, blob_store, small_config, train_whole_and_cut, weights

from coil_data import coil_store
from kscout import policies, reconstruction
from kscout.acquisition.completion import Completion
from kscout.acquisition.episode import Simulator
from kscout.config import AcquisitionSetting, PolicyConfig
from kscout.core import Measurement, Reconstructor, SliceBatch
from kscout.data.makers.knee import draw_knee_volume
from kscout.data.slices import SliceSet
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.metrics import ssim
from kscout.physics.fourier import ifft2c
from kscout.physics.sampling import start_mask
from kscout.reconstruction import load
from kscout.reconstruction.fastmri_unet import FastMRIUNet
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.varnet import VarNet
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.training.estimators import dense
from kscout.training.estimators.labels import carried_on
from kscout.training.estimators.mean_gains import MeanGains
from kscout.training.estimators.slopes import Slopes, column_slopes, filled_in
from kscout.training.estimators.visited import joined
from kscout.training.policy import train_policy

N, CPU = 32, torch.device("cpu")


def config_of(**changes: object) -> PolicyConfig:
    training = {
        **{"method": "dense", "n_epochs": 2, "batch_size": 4, "n_best": 2, "n_random": 3},
        **{"n_prior_slices": 4, "n_warm": 2, "n_repeats": 0, "slopes": True, "seed": 3},
    }
    return small_config(COLUMN, {**training, **changes})


@pytest.fixture(scope="module")
def knees() -> SliceSet:
    drawn = [draw_knee_volume(seed=77, volume=number, n_slices=2, size=128) for number in range(4)]
    images = torch.cat([torch.from_numpy(one.stored) for one in drawn])
    return SliceSet.from_images(images, tuple("aabbccdd"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return blob_store(tmp_path_factory.mktemp("store") / "store", n_rows=N, n_cols=N)


def weighed(
    model: Reconstructor, batch: SliceBatch, weights: torch.Tensor, protocol: str
) -> torch.Tensor:
    """Score what is measured with a weight for each column, by plain means."""
    zero_filled = ifft2c(batch.kspace * weights[:, None, None, :])
    found = model.reconstruct(Measurement(zero_filled, weights > 0.5))
    mean, std = batch.units(found, protocol)
    image = found.image * (std + 1e-11)[:, None, None] + mean[:, None, None]
    return ssim(image, batch.target, data_range=batch.data_range)


def doubled(batch: SliceBatch) -> SliceBatch:
    """Return a batch in 64 bit, where differences of scores are exact enough."""
    kinds = {torch.float32: torch.float64, torch.complex64: torch.complex128}
    return SliceBatch(*(x.to(kinds.get(x.dtype, x.dtype)) for x in batch.tensors()))


@pytest.mark.parametrize("protocol", ["paper", "blind"])
@pytest.mark.parametrize("kind", ["zero-filled", "unet", "fastmri-unet"])
def test_a_slope_is_the_difference_that_a_little_of_the_column_makes(
    store: Store, kind: str, protocol: str
) -> None:
    torch.manual_seed(0)
    models = {"unet": UNet, "fastmri-unet": FastMRIUNet}
    model = ZeroFilled() if kind == "zero-filled" else models[kind](n_channels=4, n_pools=2)
    batch = store.split("train").batch(torch.arange(3))
    frozen = model.frozen(precision="fp32", n_rows=N, n_cols=N, device="cpu")
    simulator = Simulator(batch, frozen, protocol=protocol)
    state = simulator.start(4)
    plain = frozen.differentiable()
    assert plain is not None
    found = column_slopes(plain, simulator, state)
    exact, wide, little = doubled(batch), model.double(), 1e-5
    mask = start_mask(4, (3, N), CPU).double()
    for column in (3, 13, 19, 30):
        step = little * torch.nn.functional.one_hot(torch.tensor(column), N)
        up, down = (weighed(wide, exact, mask + sign * step, protocol) for sign in (1, -1))
        wanted = (up - down) / (2 * little)
        torch.testing.assert_close(found[:, column].double(), wanted, rtol=2e-2, atol=2e-4)
    assert found.std() > 1e-3


def test_states_that_fill_up_a_pass_change_nothing(store: Store) -> None:
    torch.manual_seed(0)
    model, batch = UNet(n_channels=4, n_pools=2), store.split("train").batch(torch.arange(5))
    frozen = model.frozen(precision="fp32", n_rows=N, n_cols=N, device="cpu")
    simulator, plain = Simulator(batch, frozen), frozen.differentiable()
    assert plain is not None
    state, sizes = simulator.start(4), []
    network = plain.network  # type: ignore[attr-defined]
    network.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    found = [column_slopes(plain, simulator, state, fills=fills) for fills in (False, True)]
    assert sizes[0] == 5 < sizes[1]
    torch.testing.assert_close(*found)


def test_levels_and_shares_are_those_of_a_line_through_mean_gains(store: Store) -> None:
    slices, config = store.split("train"), config_of(n_prior_slices=11)
    frozen = ZeroFilled().frozen(precision="fp32", n_rows=N, n_cols=N, device="cpu")
    labels = MeanGains(config, slices, frozen, CPU).first().labels
    gains, order = carried_on(labels), [5, 9, 20]
    found = Slopes.fitted(frozen, slices, config, order, gains)
    assert found.level.shape == found.share.shape == (3, 2)
    batch, both = slices.batch(torch.arange(11)), []
    simulator = Simulator(batch, frozen)
    for row in range(3):
        mask = start_mask(2, (11, N), CPU).clone()
        mask[:, order[:row]] = True
        slopes = column_slopes(ZeroFilled(), simulator, simulator.start_from(mask)).mean(dim=0)
        free = [column for column in range(N) if not mask[0, column]]
        told = [column for column in free if mask[0, (N - column) % N]]
        rest = sorted(set(free) - set(told))
        share, level = np.polyfit(slopes[rest].double(), gains[row][rest].double(), 1)
        assert found.share[row, 0] == pytest.approx(share, rel=1e-3)
        assert found.level[row, 0] == pytest.approx(level, abs=1e-5)
        both += [(float(slopes[column]), float(gains[row, column])) for column in told]
    share, level = np.polyfit(*np.array(both).T, 1)
    assert len(both) == 1 + 2 + 3
    assert found.share[:, 1].tolist() == pytest.approx([share] * 3, rel=1e-3)
    assert found.level[:, 1].tolist() == pytest.approx([level] * 3, abs=1e-5)
    again = Slopes.restored(frozen, found.line)
    assert torch.equal(again.level, found.level) and torch.equal(again.share, found.share)


def test_tried_columns_keep_their_gains_and_others_get_their_slopes() -> None:
    rows = {
        "mask": torch.tensor([[True, False, False, False]]),
        "columns": torch.tensor([[2, 0]]),
        "gains": torch.tensor([[7.0, 9.0]]),
        "is_valid": torch.tensor([[True, False]]),
        "slopes": torch.tensor([[1.0, 2.0, 3.0, 4.0]]),
        "is_open": torch.tensor([[False, True, True, True]]),
    }
    found = filled_in(rows)
    assert found["columns"].tolist() == [[0, 1, 2, 3]]
    assert found["is_valid"].tolist() == [[False, True, True, True]]
    assert found["gains"][0, 1:].tolist() == [2.0, 7.0, 4.0]
    assert found.keys() == rows.keys() - {"slopes", "is_open"}
    assert filled_in(found) is found


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"label_every": 3},
        {"label_every": 3, "batch_size": 10},
        {"label_every": 3, "batch_size": 10, "completion": "fixed"},
        {"n_repeats": 1, "n_repeated": 5},
        {"completion": "fixed"},
    ],
    ids=["plain", "some steps", "one slice left", "completed, one left", "repeated", "completed"],
)
def test_every_column_that_can_be_measured_is_a_label(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, object]
) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    add = dense.add_gradients

    def adding(views: object, steps: list[dict[str, torch.Tensor]], *how: float) -> None:
        seen.extend(x for x in joined(steps, 99) if x["columns"].shape[1] == N)
        add(views, steps, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(dense, "add_gradients", adding)
    config = config_of(n_epochs=1, **more)
    run = train_policy(config, store, "zero-filled", tmp_path / "run", device="cpu")
    # Every third step of 11 slices, or all three; and five states again after each of 3 batches.
    n_wanted = 11 if "label_every" in more else 3 * 11
    n_wanted += 3 * 5 if "n_repeats" in more else 0
    assert sum(len(rows["mask"]) for rows in seen) == n_wanted
    for rows in seen:
        assert torch.equal(rows["is_valid"], ~rows["mask"])
        # Two of the best and up to three others are exact; slopes are close to gains.
        open_gains = rows["gains"][rows["is_valid"]]
        assert open_gains.isfinite().all() and open_gains.std() > 0.2
    assert len(policies.load(run.path).gain_units) == (0 if "completion" in more else 3)


def test_at_the_end_columns_are_worth_what_changes_the_completed_mask(store: Store) -> None:
    batch = store.split("train").batch(torch.arange(3))
    simulator, completion = Simulator(batch, ZeroFilled()), Completion.of([14, 18, 12, 20], N, CPU)
    state = simulator.acquire(simulator.start(2), torch.tensor([14, 14, 5]))
    slopes = Slopes(ZeroFilled(), torch.tensor([[0.5, -1.0]]), torch.tensor([[2.0, 3.0]]))
    row, n_left = torch.zeros(3, dtype=torch.long), torch.full((3,), 2)
    found = slopes.of(simulator, state, row, completion, n_left)
    for number, taken in enumerate(([18, 12], [18, 12], [14, 18])):
        mask = state.mask[number : number + 1].clone()
        mask[:, taken] = True
        own = Simulator(batch.rows(torch.tensor([number])), ZeroFilled())
        wanted = column_slopes(ZeroFilled(), own, own.start_from(mask))[0]
        told, is_free = mask[0, (N - torch.arange(N)) % N], ~mask[0]
        assert 0 < (told & is_free).sum() < is_free.sum()
        wanted = torch.where(told, -1 + 3 * wanted, 0.5 + 2 * wanted)
        torch.testing.assert_close(found[number][is_free], wanted[is_free], rtol=1e-3, atol=1e-5)
        assert not found[number, taken].any()


@pytest.mark.slow
def test_interrupted_training_with_slopes_ends_with_the_same_weights(
    store: Store, tmp_path: Path
) -> None:
    train_whole_and_cut(config_of(), store, tmp_path, epoch=2, step=2)


def test_what_has_no_slopes_is_refused(store: Store, tmp_path: Path) -> None:
    coils = coil_store(tmp_path / "store", n_coils=3, noise=0.01)
    small = {"n_cascades": 1, "n_channels": 2, "n_pools": 1}
    varnet = VarNet(**small, sensitivity_channels=2, sensitivity_pools=1)
    reconstruction.save(tmp_path / "varnet.safetensors", varnet)
    config = config_of(protocol="blind", n_prior_slices=1, n_best=1, n_random=1)
    with pytest.raises(ConfigError, match="looks at measured columns alone"):
        train_policy(config, coils, tmp_path / "varnet.safetensors", tmp_path / "a", device="cpu")
    config = config_of(metric=f"{__name__}:counted")
    with pytest.raises(ConfigError, match="no gradients flow through it"):
        train_policy(config, store, "zero-filled", tmp_path / "b", device="cpu")


def counted(image: torch.Tensor, target: torch.Tensor, *, data_range: torch.Tensor) -> torch.Tensor:
    """Return a metric without gradients: the share of pixels within a tenth of the range."""
    near = (image - target).abs() < 0.1 * data_range[:, None, None]
    return near.float().mean(dim=(-2, -1))


def test_slopes_of_a_start_that_has_told_every_column_are_finite(
    store: Store, tmp_path: Path
) -> None:
    # Every column that is left has its opposite among these.
    start = AcquisitionSetting(17, 3, initial="0-16")
    config = replace(config_of(n_epochs=1), acquisition=start)
    path = train_policy(config, store, "zero-filled", tmp_path / "run", device="cpu").path
    assert all(one.isfinite().all() for one in weights(path).values())


@pytest.mark.slow
def test_on_knees_slopes_follow_gains(knees: SliceSet) -> None:
    frozen = load("knee-unet").frozen(precision="fp32", n_rows=128, n_cols=128, device="cpu")
    simulator = Simulator(knees.batch(torch.arange(8)), frozen)
    state, plain = simulator.start(16), frozen.differentiable()
    assert plain is not None
    gains = simulator.score_every_column(state) - state.score[:, None]
    slopes, is_open = column_slopes(plain, simulator, state), ~state.mask[0]
    pairs = zip(gains[:, is_open], slopes[:, is_open], strict=True)
    # Single slices differ much.
    assert np.mean([np.corrcoef(*pair)[0, 1] for pair in pairs]) > 0.6


@pytest.mark.cuda
def test_on_cuda_16_bit_slopes_are_those_of_a_cpu(knees: SliceSet) -> None:
    found = []
    for device in ("cpu", "cuda"):
        unet = load("knee-unet").frozen(precision="auto", n_rows=128, n_cols=128, device=device)
        simulator = Simulator(knees.to(device).batch(torch.arange(2, device=device)), unet)
        plain = unet.differentiable()
        assert plain is not None
        slopes = column_slopes(plain, simulator, simulator.start(16))
        assert slopes.dtype == torch.float32
        found.append(slopes.cpu())
    for one, other in zip(*found, strict=True):
        assert np.corrcoef(one, other)[0, 1] > 0.99


@pytest.mark.cuda
# Torch's own compiler uses what torch says not to use any more, and asks all tensors for gradients.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_slopes_are_those_of_plain_passes(knees: SliceSet) -> None:
    line = torch.tensor([[[0.0, 0.0]], [[1.0, 1.0]]], device="cuda")
    row = torch.zeros(8, dtype=torch.long, device="cuda")
    found = {}
    for precision in ("fp32", "auto"):
        unet = load("knee-unet").frozen(precision=precision, n_rows=128, n_cols=128, device="cuda")
        simulator = Simulator(knees.to("cuda").batch(torch.arange(8, device="cuda")), unet)
        state, plain = simulator.start(16), Slopes.restored(unet, line)
        for name, one in (("plain", plain), ("compiled", plain.compiled())):
            found[precision, name] = one.of(simulator, state, row, None, row).cpu()
    exact = found["fp32", "plain"]
    assert not torch.equal(*[found["auto", name] for name in ("plain", "compiled")])
    errors = {key: (one - exact).norm() / exact.norm() for key, one in found.items()}
    assert errors["fp32", "compiled"] < 1e-2
    # In 16 bit both are off by rounding: one by no more than twice the other.
    assert errors["auto", "compiled"] < 2 * errors["auto", "plain"] < 0.5
