"""The tools that phantoms are drawn with: distances, random fields, soft paint, the scanner."""

import numpy as np
import pytest

from kscout.data.makers.drawing import Canvas, Grid, cone, coverage, ellipsoid, join, meet
from kscout.data.makers.noise_fields import Band, SmoothNoise, band_texture
from kscout.data.makers.scanner import Scanner, crop_resolution, plane_grid, rotation


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


def test_a_sphere_has_its_exact_distance() -> None:
    grid = make_grid()
    expected = np.sqrt((grid.x - 2.0) ** 2 + (grid.y + 4.0) ** 2 + (grid.z - 1.0) ** 2) - 7.0
    np.testing.assert_allclose(
        ellipsoid(grid, (2.0, -4.0, 1.0), (7.0, 7.0, 7.0)), expected, atol=2e-4
    )


def test_a_capsule_has_its_exact_distance() -> None:
    grid = make_grid()
    start, end = np.array([-9.0, -5.0, 1.0]), np.array([8.0, 7.0, 6.0])
    points = np.stack([grid.x, grid.y, grid.z], axis=-1).astype(np.float64)
    along = np.linspace(0.0, 1.0, 4001)
    axis = start + along[:, None] * (end - start)
    sample = points[::10, ::10].reshape(-1, 1, 3)
    expected = np.linalg.norm(sample - axis, axis=-1).min(axis=1) - 2.5
    found = cone(grid, (-9.0, -5.0, 1.0), (8.0, 7.0, 6.0), (2.5, 2.5))[::10, ::10].ravel()
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_join_and_meet_are_union_and_intersection_away_from_corners() -> None:
    grid = make_grid()
    first, second = grid.x - 3.0, grid.y + 2.0
    apart = np.abs(first - second) > 2.0
    np.testing.assert_allclose(
        join(first, second, 1.5)[apart], np.minimum(first, second)[apart], atol=1e-5
    )
    np.testing.assert_allclose(
        meet(first, second, 1.5)[apart], np.maximum(first, second)[apart], atol=1e-5
    )


def test_painting_in_a_box_paints_all_of_the_shape() -> None:
    grid = make_grid(n_points=83)
    signals = {"tissue": 0.7}
    canvas, whole = Canvas(grid, signals), Canvas(grid, signals)
    canvas.paint(lambda g: ellipsoid(g, (5.0, -6.0, 2.0), (6.0, 9.0, 5.0)), "tissue", soft=3.0)
    distance = ellipsoid(grid, (5.0, -6.0, 2.0), (6.0, 9.0, 5.0))
    whole.image += 0.7 * coverage(distance, 2.0 * 3.0 * grid.pixel_mm)
    np.testing.assert_allclose(canvas.image, whole.image, atol=1e-6)
    assert canvas.image.max() == pytest.approx(0.7)


def test_a_shape_outside_the_slice_leaves_the_canvas_alone() -> None:
    canvas = Canvas(make_grid(), {"tissue": 0.7})
    canvas.paint(lambda g: ellipsoid(g, (200.0, 0.0, 0.0), (6.0, 9.0, 5.0)), "tissue")
    assert not canvas.image.any()


def test_rotations_keep_lengths() -> None:
    matrix = rotation((0.3, -0.2, 0.5))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-12)
    assert np.linalg.det(matrix) == pytest.approx(1.0)


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
