"""The nouns keep their words: units by protocol, losses, memory and what a policy is shown."""

import numpy as np
import pytest
import torch

from kscout.acquisition import Simulator
from kscout.acquisition.loop import rollout
from kscout.acquisition.plan import Plan
from kscout.contracts import check_policy
from kscout.core import Observation, Policy, Reconstruction, SliceBatch
from kscout.data import SliceSet
from kscout.device import describe_device, peak_memory, resolve_device
from kscout.errors import ConfigError
from kscout.physics import fft2c, ifft2c
from kscout.randomness import keyed_generator
from kscout.reconstruction import RECONSTRUCTORS
from kscout.reconstruction.total_variation import TotalVariation
from kscout.reconstruction.unet import UNet
from kscout.reconstruction.zero_filled import ZeroFilled

N_SLICES, N_ROWS, N_COLS = 3, 10, 13


@pytest.fixture
def batch(generator: torch.Generator) -> SliceBatch:
    images = torch.rand(N_SLICES, N_ROWS, N_COLS, generator=generator).cumsum(dim=-1)
    return SliceSet.from_images(images, ["a", "a", "b"]).batch(torch.arange(N_SLICES))


def test_units_are_the_targets_or_those_found(batch: SliceBatch) -> None:
    found = Reconstruction.of(3 * batch.target + 2)
    assert batch.units(found, "paper") == (batch.target_mean, batch.target_std)
    assert batch.units(found, "blind") == (found.mean, found.std)
    torch.testing.assert_close(batch.unnormalized(found, "blind"), 3 * batch.target + 2)
    torch.testing.assert_close(batch.unnormalized(found, "paper"), batch.target)


def test_the_loss_without_a_protocol_is_in_the_targets_deviations(batch: SliceBatch) -> None:
    off = batch.target + 0.5 * batch.target_std[:, None, None]
    loss = ZeroFilled().loss(Reconstruction.of(off), batch)
    torch.testing.assert_close(loss, torch.tensor(0.5))
    # A reconstruction cannot lower it by its own statistics, as it could in its own units.
    doubled = ZeroFilled().loss(Reconstruction.of(2 * batch.target), batch)
    expected = (batch.target.abs() / batch.target_std[:, None, None]).mean()
    torch.testing.assert_close(doubled, expected)


def test_memory_grows_with_coils_pixels_and_features() -> None:
    for reconstructor in (ZeroFilled(), UNet(n_channels=16), RECONSTRUCTORS["fastmri-unet"]()):
        one = reconstructor.n_bytes(1, 64, 48)
        assert reconstructor.n_bytes(1, 64, 96) == 2 * one
        assert reconstructor.n_bytes(8, 64, 48) > one
    assert UNet(n_channels=64).n_bytes(1, 64, 48) == 4 * UNet(n_channels=16).n_bytes(1, 64, 48)


def test_a_frozen_reconstructor_has_no_gradients_and_no_unknown_precision() -> None:
    size = {"n_rows": 16, "n_cols": 16, "device": "cpu"}
    for reconstructor in (RECONSTRUCTORS["fastmri-unet"](n_channels=2, n_pools=2), ZeroFilled()):
        frozen = reconstructor.train().frozen(precision="auto", **size)
        assert not frozen.training and frozen.precision == "fp32"
        assert not any(parameter.requires_grad for parameter in frozen.parameters())
    for reconstructor in (UNet(n_channels=2, n_pools=2), TotalVariation()):
        name = type(reconstructor).__name__
        with pytest.raises(ConfigError, match=f"no 16-bit kernels for a {name} on 16x16 images"):
            reconstructor.frozen(precision="fp16", **size)
        with pytest.raises(ConfigError, match="unknown precision 'fp8'"):
            reconstructor.frozen(precision="fp8", **size)


def test_scores_follow_the_training_of_a_reconstructor() -> None:
    unet = UNet(n_channels=2, n_pools=2, protocol="paper")
    assert (unet.protocol_for(), unet.protocol_for("blind")) == ("paper", "blind")
    assert (ZeroFilled().protocol_for(), ZeroFilled().protocol_for("paper")) == ("blind", "paper")


class Measuring(Policy):
    """Prefers columns whose neighbors hold much energy, in the scanner's units."""

    needs_measurement = True

    def forward(self, seen: Observation) -> torch.Tensor:
        assert seen.zero_filled is not None and seen.mean is not None and seen.std is not None
        energy = fft2c(seen.zero_filled).abs().square().sum(dim=(1, 2)) + seen.mean[:, None]
        return (energy.roll(1, dims=-1) + energy.roll(-1, dims=-1)) / seen.std[:, None]


class Plain(Policy):
    """Is shown no measurement, as it did not ask for one."""

    def forward(self, seen: Observation) -> torch.Tensor:
        assert seen.zero_filled is None and seen.mean is None and seen.std is None
        return seen.image.sum(dim=1)


def test_the_measurement_is_shown_to_those_that_ask(batch: SliceBatch) -> None:
    simulator = Simulator(batch, ZeroFilled())
    state = simulator.acquire(simulator.start(3), torch.tensor([0, 4, 12]))
    seen = simulator.observe(Measuring(), state, n_left=None)
    assert seen.zero_filled is not None and seen.truth is None
    expected = ifft2c(batch.kspace * state.mask[:, None, None])
    torch.testing.assert_close(seen.zero_filled, expected, atol=1e-5, rtol=0)
    assert Measuring()(seen).shape == (N_SLICES, N_COLS)
    assert Plain()(simulator.observe(Plain(), state, n_left=None)).shape == (N_SLICES, N_COLS)


@pytest.mark.parametrize("kind", [Measuring, Plain])
def test_contracts_show_what_a_policy_asks_for(kind: type[Policy]) -> None:
    check_policy(kind(), n_rows=N_ROWS, n_cols=N_COLS)


class Returning(Policy):
    """Returns what it was given, whatever the images are."""

    def __init__(self, scores: torch.Tensor | None) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, seen: Observation) -> torch.Tensor:
        return self.scores  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("scores", "found"),
    [
        (torch.zeros(3), r"shape \(3,\)"),
        (torch.zeros(N_SLICES, N_COLS, 1), rf"shape \({N_SLICES}, {N_COLS}, 1\)"),
        (torch.zeros(1, N_COLS), rf"shape \(1, {N_COLS}\)"),
        (None, "type NoneType"),
    ],
)
def test_scores_of_another_shape_are_one_sentence(
    batch: SliceBatch, scores: torch.Tensor | None, found: str
) -> None:
    expected = rf"Returning returned scores of {found}; .*\({N_SLICES}, {N_COLS}\).*check_policy"
    with pytest.raises(ConfigError, match=expected):
        rollout(Returning(scores), Simulator(batch, ZeroFilled()), Plan(3, 2))


def test_images_taken_for_the_truth_are_what_a_set_of_them_hands_out() -> None:
    images = torch.rand(3, 8, 6, generator=torch.Generator().manual_seed(0))
    found = SliceBatch.of_images(images, 5.0)
    wanted = SliceSet.from_images(images, ["a", "b", "c"]).batch(torch.arange(3))
    for name in ("kspace", "target", "target_mean", "target_std", "selectable", "index"):
        torch.testing.assert_close(getattr(found, name), getattr(wanted, name))
    torch.testing.assert_close(found.data_range, 5 * images.std(dim=(1, 2)))
    dark = SliceBatch.of_images(torch.zeros(1, 8, 6), 5.0)
    assert (dark.data_range > 0).all() and dark.kspace.abs().max() == 0


@pytest.mark.parametrize("word", ["tpu!", "meta", "cpu:x"])
def test_unknown_devices_are_told(word: str) -> None:
    with pytest.raises(
        ConfigError, match=f"unknown device '{word}'; choose one of: auto, cpu, cuda"
    ):
        resolve_device(word)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_auto_is_the_cpu_where_there_is_no_cuda_device() -> None:
    assert resolve_device("auto") == torch.device("cpu")
    with pytest.raises(ConfigError, match="no CUDA device; use --device cpu"):
        resolve_device("cuda")


def test_provenance_names_the_device_and_the_processes() -> None:
    assert describe_device(torch.device("cpu"), 2) == "cpu x 2"


def test_peak_memory_never_falls() -> None:
    before = peak_memory(torch.device("cpu"))
    held = torch.ones(2**22)
    assert peak_memory(torch.device("cpu")) >= before > held.numel()


def test_a_number_of_numpy_is_the_same_key() -> None:
    expected = keyed_generator(3, "x").initial_seed()
    assert keyed_generator(np.int64(3), np.str_("x")).initial_seed() == expected
    assert keyed_generator(np.int64(4), "x").initial_seed() != expected
    assert keyed_generator("3", "x").initial_seed() != expected


@pytest.mark.usefixtures("unchecked")
def test_a_seed_that_is_no_whole_number_is_told() -> None:
    with pytest.raises(ConfigError, match=r"0\.5 cannot seed random numbers"):
        keyed_generator(0.5)  # type: ignore[arg-type]
