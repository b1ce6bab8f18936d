"""Procedural knees and brains: repeatable, any size, and like MR images in what is measured."""

from collections.abc import Callable

import numpy as np
import pytest

from kscout.data.makers.brain import draw_brain_volume
from kscout.data.makers.drawing import Grid, Volume
from kscout.data.makers.knee import STRIPES, draw_knee_volume
from kscout.data.makers.noise_fields import Band, SmoothNoise, band_texture
from kscout.data.makers.scanner import (
    SEQUENCES,
    TISSUES,
    Scanner,
    crop_resolution,
    draw_signals,
    plane_grid,
    signal,
)
from kscout.errors import ConfigError

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
@pytest.mark.parametrize(("size", "n_slices"), [(64, 3), (97, 3), (162, 3), (322, 1)])
def test_images_are_scaled_magnitudes_of_any_size(kind: str, size: int, n_slices: int) -> None:
    images = DRAW[kind](seed=1, volume=2, n_slices=n_slices, size=size).stored
    assert images.shape == (n_slices, size, size)
    assert images.dtype == np.float32
    assert np.isfinite(images).all()
    assert images.min() >= 0.0
    assert np.percentile(images, 99.8) == pytest.approx(1.0, abs=1e-4)
    assert images.max() < 3.0


@each_phantom
@pytest.mark.parametrize("volume", range(3))
def test_air_is_dark_and_tissue_is_not(kind: str, volume: int) -> None:
    images = DRAW[kind](seed=5, volume=volume, n_slices=5, size=64).stored[1:-1]
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
    "knee": [
        0.024076,
        0.622427,
        0.813535,
        0.014611,
        0.286353,
        0.260865,
        0.031926,
        0.496532,
        0.495292,
        0.115651,
        0.712730,
        0.683137,
        0.020873,
        0.366242,
        0.615023,
        0.028991,
        0.543312,
        0.439405,
    ],
    "brain": [
        0.021862,
        0.078014,
        0.006426,
        0.105814,
        0.817154,
        0.143908,
        0.006970,
        0.033985,
        0.019157,
        0.006174,
        0.230656,
        0.004471,
        0.220460,
        0.364046,
        0.252126,
        0.010251,
        0.744013,
        0.019562,
    ],
}


@each_phantom
def test_pixels_are_those_of_the_machine_that_set_the_numbers(kind: str) -> None:
    images = DRAW[kind](seed=11, volume=5, n_slices=2, size=64).stored
    np.testing.assert_allclose(
        images[:, 9::23, 12::19].ravel(), GOLDEN_PIXELS[kind], rtol=0, atol=1e-5
    )


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


def test_subjects_differ_from_the_tissue_table_by_the_spread() -> None:
    rng = np.random.default_rng(0)
    drawn = np.array([draw_signals(rng, "pd", spread=0.05)["muscle"] for _ in range(400)])
    usual = signal(TISSUES["muscle"], SEQUENCES["pd"])
    assert np.median(drawn) == pytest.approx(usual, rel=0.03)
    assert 0.05 < drawn.std() / usual < 0.12


def test_smooth_noise_is_one_function_read_on_any_grid() -> None:
    noise = SmoothNoise.draw(np.random.default_rng(0), cells=5, depth_cells=3)
    coarse, fine = noise.plane(30, 0.37), noise.plane(90, 0.37)
    np.testing.assert_allclose(coarse, fine[1::3, 1::3], atol=2e-5)


def test_smooth_noise_has_unit_variance_and_changes_gradually_with_depth() -> None:
    rng = np.random.default_rng(1)
    fields = [SmoothNoise.draw(rng, cells=9, depth_cells=4) for _ in range(12)]
    planes = np.stack([field.plane(45, 0.5) for field in fields])
    near = np.stack([field.plane(45, 0.52) for field in fields])
    far = np.stack([field.plane(45, 1.0) for field in fields])
    assert planes.std() == pytest.approx(1.0, abs=0.1)
    assert np.corrcoef(planes.ravel(), near.ravel())[0, 1] > 0.97
    assert abs(np.corrcoef(planes.ravel(), far.ravel())[0, 1]) < 0.3


def test_band_texture_keeps_to_its_band_on_any_grid() -> None:
    band = Band(center=11.0, width=2.0)
    coarse, fine = (band_texture(np.random.default_rng(3), n, band) for n in (54, 108))
    np.testing.assert_allclose(coarse, fine[::2, ::2], atol=1e-5)
    assert coarse.std() == pytest.approx(1.0, abs=0.15)
    power = np.abs(np.fft.fft2(fine)) ** 2
    frequency = np.fft.fftfreq(108) * 108
    radius = np.hypot(frequency[:, None], frequency[None, :])
    assert power[np.abs(radius - 11.0) < 6.5].sum() > 0.98 * power.sum()


def test_a_directed_texture_varies_along_its_direction() -> None:
    waves = band_texture(np.random.default_rng(4), 80, Band(10.0, 2.0, angle=0.0, sharpness=8.0))
    across, down = np.diff(waves, axis=1).std(), np.diff(waves, axis=0).std()
    assert across > 2.0 * down


def make_grid(n_points: int = 61, side_mm: float = 40.0, depth_mm: float = 3.0) -> Grid:
    return plane_grid(n_points, side_mm, np.eye(3), np.array([0.0, 0.0, depth_mm]))


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
    noisy = Scanner(shading=(0.0,) * 5, noise=0.02).acquire(np.random.default_rng(0), clean)
    scale = noisy[:, 10:20].mean()
    assert noisy[:, 22:].mean() / scale == pytest.approx(0.02 * np.sqrt(np.pi / 2), rel=0.05)
    assert noisy[:, 10:20].std() / scale == pytest.approx(0.02, rel=0.1)
