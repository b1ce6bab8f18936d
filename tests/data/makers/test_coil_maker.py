"""Coils on a cylinder hear what the law of Biot and Savart says, with the noise asked for."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kscout.data.makers.coils import CoilArray, MeasuredArray, Receiver
from kscout.data.makers.parallel import VolumeTask, make_volumes
from kscout.data.making import MakeSettings
from kscout.data.transforms import root_sum_of_squares, to_images, to_kspace
from kscout.errors import ConfigError
from kscout.physics.fourier import fft2c, ifft2c

GOLDEN = Path(__file__).parents[2] / "golden"
ONE_RING = CoilArray(
    angles=np.array([0, np.pi / 2, np.pi], dtype=np.float32),
    heights=np.zeros(3, dtype=np.float32),
    width=0.5,
    radius=1.25,
    axis="slices",
)


@pytest.mark.parametrize("shape", [(2, 9, 11), (3, 8, 10)])
def test_transforms_without_torch_are_those_with_it(shape: tuple[int, ...]) -> None:
    images = torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(to_kspace(images.numpy()), fft2c(images), atol=1e-5)
    np.testing.assert_allclose(to_images(images.numpy()), ifft2c(images), atol=1e-5)


def test_on_its_axis_a_loop_has_the_field_of_the_textbook() -> None:
    """B = mu I a^2 / (2 (a^2 + d^2)^1.5), transverse here; the wire's thickness adds to d^2."""
    maps = ONE_RING._field(0, 64, 0.0)
    line = (np.arange(64) + 0.5) / 32 - 1
    squared = (1.25 - line) ** 2 + 0.12**2 + 0.5**2
    expected = 0.5**2 * 24 * squared**-1.5
    # The middle lies between two rows, so neither is quite on the axis.
    np.testing.assert_allclose(maps[31:33].mean(axis=0).real, expected, rtol=0.01)


def test_a_coil_hears_its_own_side_with_its_own_phase() -> None:
    maps = ONE_RING.maps(33, 0.5)
    assert np.linalg.norm(maps[:, 16, 16]) == pytest.approx(1, abs=1e-5)
    assert abs(maps[0, 16, 28]) > 5 * abs(maps[0, 16, 4])
    assert abs(maps[1, 28, 16]) > 5 * abs(maps[1, 4, 16])
    np.testing.assert_allclose(abs(maps[0]), abs(maps[2])[:, ::-1], rtol=1e-4)
    # A quarter turn of the coil turns the transverse field by a quarter.
    quarter = np.angle(maps[1, 16, 16] / maps[0, 16, 16])
    assert abs(quarter) == pytest.approx(math.pi / 2, abs=1e-4)


@pytest.mark.parametrize("n_coils", [2, 5, 8, 13, 32])
def test_any_number_of_coils_covers_the_middle_from_all_sides(n_coils: int) -> None:
    array = CoilArray.draw(np.random.default_rng(n_coils), n_coils, "slices")
    maps = array.maps(24, 0.3)
    assert maps.shape == (n_coils, 24, 24) and np.isfinite(maps).all()
    middle = maps[:, 6:18, 6:18].reshape(n_coils, -1)
    values = np.linalg.svd(middle, compute_uv=False)
    assert values[min(n_coils, 4) - 1] > 0.01 * values[0]


def test_noise_is_white_and_as_strong_as_asked_for() -> None:
    clean = np.zeros((3, 48, 48), dtype=np.float32)
    clean[:, 12:36, 12:36] = 1
    quiet = Receiver(4, snr=1e6).receive(np.random.default_rng(1), clean, 0.0, "slices")
    noisy = Receiver(4, snr=20.0).receive(np.random.default_rng(1), clean, 0.0, "slices")
    scale = np.vdot(quiet, noisy).real / np.vdot(quiet, quiet).real
    noise = (noisy - scale * quiet).transpose(1, 0, 2, 3).reshape(4, -1)
    # Maps are one in the middle, where tissue is bright: this is its signal now.
    signal = root_sum_of_squares(to_images(quiet))[:, 23:25, 23:25].mean() * scale
    assert noise.real.std() == pytest.approx(signal / 20, rel=0.05)
    covariance = np.cov(noise)
    assert abs(covariance - np.diag(np.diag(covariance))).max() < 0.05 * covariance[0, 0].real


def test_a_single_coil_is_hermitian_without_a_phase_and_not_with_one() -> None:
    clean = np.random.default_rng(0).random((1, 33, 33), dtype=np.float32)

    def asymmetry(receiver: Receiver) -> float:
        kspace = receiver.receive(np.random.default_rng(1), clean, 0.0, "rows")[0, 0]
        return float(abs(kspace - kspace[::-1, ::-1].conj()).max() / abs(kspace).max())

    assert asymmetry(Receiver(1)) < 1e-5
    assert asymmetry(Receiver(1, has_phase=True)) > 0.1


@pytest.mark.parametrize("kind", ["knee", "brain"])
def test_kspace_shows_the_subject_of_the_images(kind: str) -> None:
    task = VolumeTask(kind=kind, seed=3, volume=0, n_slices=1, size=64)
    ((name, images),) = make_volumes([task])
    ((same, heard),) = make_volumes([replace(task, receiver=Receiver(8, has_phase=True))])
    assert name == same and heard.acquisition == images.acquisition
    combined = root_sum_of_squares(to_images(heard.stored))
    assert np.percentile(combined, 99.8) == pytest.approx(1, abs=1e-4)
    middle = (0, slice(20, 44), slice(20, 44))
    likeness = np.corrcoef(combined[middle].ravel(), images.stored[middle].ravel())[0, 1]
    assert likeness > 0.9


def test_measured_coils_are_those_of_a_brain() -> None:
    whole = MeasuredArray(13, turn=0.0, zoom=1.0, shift=(0.0, 0.0)).maps(224, 0.5)
    with np.load(GOLDEN / "multicoil.npz") as file:
        parts, rows, is_head = file["maps"].astype(np.float32), file["rows"], file["foreground"]
    expected = parts[..., 0] + 1j * parts[..., 1]
    likeness = abs((whole[:, rows].conj() * expected).sum(axis=0))
    assert likeness[is_head].mean() > 0.98


def test_measured_coils_have_unit_norm_and_lie_differently_in_every_volume() -> None:
    rng = np.random.default_rng(0)
    first, second = (MeasuredArray.draw(rng, 5).maps(31, 0.5) for _ in range(2))
    np.testing.assert_allclose(np.linalg.norm(first, axis=0), 1, atol=1e-4)
    assert abs(first - second).max() > 0.5
    turned = MeasuredArray(5, turn=np.pi / 2, zoom=1.0, shift=(0.0, 0.0)).maps(31, 0.5)
    straight = MeasuredArray(5, turn=0.0, zoom=1.0, shift=(0.0, 0.0)).maps(31, 0.5)
    np.testing.assert_allclose(turned, np.rot90(straight, -1, axes=(1, 2)), atol=1e-3)
    clean = np.ones((2, 31, 31), dtype=np.float32)
    heard = Receiver(5, maps="measured", snr=1e6).receive(rng, clean, 0.0, "slices")
    assert heard.shape == (2, 5, 31, 31)


def test_odd_receivers_are_refused() -> None:
    with pytest.raises(ConfigError, match="--coils is 14, and 13 were measured"):
        MakeSettings(kind="brain", coils=14, maps="measured")
    with pytest.raises(ConfigError, match=r"'wires'.*loops, measured"):
        MakeSettings(kind="brain", coils=2, maps="wires")
    with pytest.raises(ConfigError, match="--maps is of k-space, not of images"):
        MakeSettings(kind="brain", maps="measured")
    with pytest.raises(ConfigError, match="--coils is 0; it must be 1 or more"):
        MakeSettings(kind="knee", coils=0)
    with pytest.raises(ConfigError, match=r"--snr is 0\.0; it must be 0\.1 or more"):
        MakeSettings(kind="knee", coils=2, snr=0)
    with pytest.raises(ConfigError, match=r"snr is nan; expected a number"):
        MakeSettings(kind="knee", coils=2, snr=math.nan)
    with pytest.raises(ConfigError, match=r"'mean'.*rss, weighted"):
        MakeSettings(kind="knee", coils=2, target="mean")
    with pytest.raises(ConfigError, match="--target is of k-space"):
        MakeSettings(kind="knee", target="weighted")
    with pytest.raises(ConfigError, match="--phase is of k-space, not of images; add --coils"):
        MakeSettings(kind="knee", phase=True)
