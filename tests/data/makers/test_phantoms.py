"""Procedural knees and brains: repeatable, any size, and like MR images in what is measured."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from kscout.data.makers.brain import draw_brain_volume
from kscout.data.makers.coils import CoilArray, Receiver
from kscout.data.makers.drawing import Volume
from kscout.data.makers.knee import STRIPES, draw_knee_volume
from kscout.data.makers.parallel import VolumeTask, make_volumes
from kscout.data.makers.scanner import SEQUENCES, TISSUES, add_noise, crop_resolution, signal
from kscout.data.transforms import root_sum_of_squares, to_images, to_kspace
from kscout.errors import ConfigError
from kscout.physics.fourier import fft2c, ifft2c

DRAW: dict[str, Callable[..., Volume]] = {"knee": draw_knee_volume, "brain": draw_brain_volume}

each_phantom = pytest.mark.parametrize("kind", DRAW)


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


def shrink(images: np.ndarray, factor: int) -> np.ndarray:
    *lead, rows, cols = images.shape
    blocks = images.reshape(*lead, rows // factor, factor, cols // factor, factor)
    return blocks.mean(axis=(-3, -1))


@each_phantom
def test_the_same_key_gives_the_same_bits(kind: str) -> None:
    first, second = (DRAW[kind](seed=4, volume=7, n_slices=2, size=66) for _ in range(2))
    np.testing.assert_array_equal(first.stored, second.stored)
    assert (first.acquisition, first.source) == (second.acquisition, second.source)


@each_phantom
def test_another_volume_or_seed_is_another_subject(kind: str) -> None:
    drawn = [
        DRAW[kind](seed=seed, volume=volume, n_slices=1, size=64).stored
        for seed, volume in ((0, 0), (0, 1), (1, 0))
    ]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(drawn[first] - drawn[second]).mean() > 0.02


@each_phantom
@pytest.mark.parametrize(("size", "n_slices"), [(97, 3), (322, 1)])
def test_images_are_scaled_magnitudes_of_any_size(kind: str, size: int, n_slices: int) -> None:
    images = DRAW[kind](seed=1, volume=2, n_slices=n_slices, size=size).stored
    assert images.shape == (n_slices, size, size)
    assert images.dtype == np.float32
    assert np.isfinite(images).all()
    assert images.min() >= 0.0
    assert np.percentile(images, 99.8) == pytest.approx(1.0, abs=1e-4)
    assert images.max() < 3.0


@each_phantom
def test_air_is_dark_and_tissue_is_not(kind: str) -> None:
    images = DRAW[kind](seed=5, volume=1, n_slices=5, size=64).stored[1:-1]
    blocks = shrink(images, 8)
    assert blocks.min() < 0.08
    assert (blocks > 0.12).mean() > 0.25


@each_phantom
def test_a_finer_matrix_shows_the_same_subject(kind: str) -> None:
    coarse, fine = (DRAW[kind](seed=2, volume=3, n_slices=3, size=size) for size in (72, 144))
    assert coarse.acquisition == fine.acquisition
    assert correlation(coarse.stored, shrink(fine.stored, 2)) > 0.96


@each_phantom
def test_neighboring_slices_share_an_anatomy(kind: str) -> None:
    volumes = [DRAW[kind](seed=3, volume=v, n_slices=10, size=64).stored for v in range(2)]
    within = [correlation(v[i], v[i + 1]) for v in volumes for i in range(2, 8)]
    across = [correlation(volumes[0][i], volumes[1][i]) for i in range(2, 8)]
    assert np.mean(within) > np.mean(across) + 0.15


def spectral_peak(images: np.ndarray, cycles: int) -> float:
    """Return the power at a column frequency over that of the frequencies around it."""
    power = (np.abs(np.fft.rfft(images, axis=-1)) ** 2).mean(axis=(0, 1))
    around = np.r_[power[cycles - 5 : cycles - 2], power[cycles + 3 : cycles + 6]]
    return float(power[cycles - 1 : cycles + 2].mean() / around.mean())


@pytest.mark.slow
def test_structured_knees_carry_stripes_whose_frequency_tells_the_view() -> None:
    peaks: dict[str, list[float]] = {"coronal": [], "sagittal": []}
    for volume in range(5):
        keys = {"seed": 6, "volume": volume, "n_slices": 3, "size": 64}
        plain = draw_knee_volume(**keys)
        striped = draw_knee_volume(**keys, variant="structured")
        assert striped.acquisition == plain.acquisition
        assert "engineered" in striped.source
        assert "engineered" not in plain.source
        assert correlation(shrink(plain.stored, 8), shrink(striped.stored, 8)) > 0.9
        view = plain.acquisition.split("-")[0]
        cycles = int(STRIPES[view])
        assert spectral_peak(plain.stored, cycles) < 1.4
        peaks[view].append(spectral_peak(striped.stored, cycles))
    assert all(len(found) >= 2 for found in peaks.values())
    assert all(np.median(found) > 1.8 for found in peaks.values())


GOLDEN_PIXELS = {
    "knee": "0.024076 0.622427 0.813535 0.014611 0.286353 0.260865 0.031926 0.496532 0.495292 "
    "0.115651 0.712730 0.683137 0.020873 0.366242 0.615023 0.028991 0.543312 0.439405",
    "brain": "0.021862 0.078014 0.006426 0.105814 0.817154 0.143908 0.006970 0.033985 0.019157 "
    "0.006174 0.230656 0.004471 0.220460 0.364046 0.252126 0.010251 0.744013 0.019562",
}


@each_phantom
def test_pixels_are_those_of_the_machine_that_set_the_numbers(kind: str) -> None:
    images = DRAW[kind](seed=11, volume=5, n_slices=2, size=64).stored
    expected = np.array(GOLDEN_PIXELS[kind].split(), dtype=np.float64)
    np.testing.assert_allclose(images[:, 9::23, 12::19].ravel(), expected, rtol=0, atol=1e-5)


@each_phantom
def test_unusable_sizes_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="expected 64 to 512"):
        DRAW[kind](seed=0, volume=0, n_slices=1, size=63)
    with pytest.raises(ConfigError, match="found 0 slices"):
        DRAW[kind](seed=0, volume=0, n_slices=0, size=64)


def test_contrasts_rank_tissues_as_scanners_do() -> None:
    def ratio(sequence: str, first: str, second: str) -> float:
        timing = SEQUENCES[sequence]
        return signal(TISSUES[first], timing) / signal(TISSUES[second], timing)

    assert ratio("t1", "white-matter", "gray-matter") > 1.1
    assert ratio("t1", "csf", "white-matter") < 0.6
    assert ratio("t2", "csf", "white-matter") > 2.0
    assert ratio("t2", "gray-matter", "white-matter") > 1.2
    assert ratio("flair", "csf", "gray-matter") < 0.35
    assert ratio("pd-fs", "fat", "muscle") < 0.5 < 1.0 < ratio("pd", "fat", "muscle")


@pytest.mark.parametrize("size", [24, 25])
def test_the_resolution_limit_keeps_low_waves_and_removes_high_ones(size: int) -> None:
    n_points = 60
    phase = 2.0 * np.pi * np.arange(n_points) / n_points
    low = np.cos(5 * phase)[:, None] * np.sin(3 * phase)[None, :]
    high = np.cos(20 * phase)[:, None] * np.cos(2 * phase)[None, :]
    kept = crop_resolution((1.0 + low + high).astype(np.float32), size)
    coarse = 2.0 * np.pi * np.arange(size) / size
    expected = 1.0 + np.cos(5 * coarse)[:, None] * np.sin(3 * coarse)[None, :]
    np.testing.assert_allclose(kept, expected, atol=1e-5)


def test_noise_in_air_follows_the_magnitude_of_complex_noise() -> None:
    clean = np.zeros((3, 40, 40), dtype=np.float32)
    clean[:, 10:20] = 1.0
    noisy = add_noise(np.random.default_rng(0), clean, 0.02)
    scale = noisy[:, 10:20].mean()
    assert noisy[:, 22:].mean() / scale == pytest.approx(0.02 * np.sqrt(np.pi / 2), rel=0.05)
    assert noisy[:, 10:20].std() / scale == pytest.approx(0.02, rel=0.1)


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
