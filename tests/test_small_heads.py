"""`benchmarks/small_heads.py`: small heads keep shape, place and millimeters."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import nibabel
import numpy as np
import pytest

from coil_data import imported
from kscout.data.makers.heads import load_heads

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def small_heads() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("small_heads")
    sys.path.remove(str(BENCHMARKS))


def ellipsoid(shape: tuple[int, int, int]) -> np.ndarray:
    axes = np.meshgrid(*(np.linspace(-1.2, 1.2, n) for n in shape), indexing="ij")
    return (sum(axis**2 for axis in axes) < 1) * (300.0 + 100 * axes[1]) - 1.0


def test_small_heads_are_as_long_as_the_heads_and_cut_slices_as_imported(
    small_heads: ModuleType, tmp_path: Path
) -> None:
    source, out = tmp_path / "heads", tmp_path / "small"
    source.mkdir()
    shape = (60, 75, 90)
    volume = nibabel.Nifti1Image(ellipsoid(shape).astype(np.float32), np.eye(4))
    nibabel.save(volume, source / "a.nii.gz")
    told = [{"file": "a.nii.gz", "source": "made", "license": "none"}]
    (source / "sources.json").write_text(json.dumps(told))
    words = ["--spacing", "1.5", "--cut-slices", "5", "--size", "48"]
    words += ["--plain", str(source / "a.nii.gz")]
    small_heads.main([str(source), "--out", str(out), *words])
    (before,), (after,) = load_heads([source / "a.nii.gz"]), load_heads([out / "a.nii.gz"])
    assert after.length_mm == pytest.approx(before.length_mm, abs=3)
    assert after.values.shape[2] * 1.5 == pytest.approx(0.8 * before.length_mm, abs=3)
    assert "1.5 mm, 48 gray levels" in after.source and after.source.startswith("made")
    # The front is brighter in both.
    assert after.values[:, -20:].max() > 1.2 * after.values[:, :20].max()
    plain = imported(source / "a.nii.gz", size=48, pad=48, center_volume=True, absolute=True)
    again = imported(out / "cut" / "a.nii.gz", size=48, pad=48)
    expected = plain.split("train").sample(5).magnitudes().numpy()
    found = again.split("train").magnitudes().numpy()
    assert found.shape == expected.shape == (5, 48, 48)
    np.testing.assert_allclose(found / found.max(), expected / expected.max(), atol=0.04)
    for how, settings in small_heads.PLAIN.items():
        copy = tmp_path / how / "a.nii.gz"
        copy.parent.mkdir()
        nibabel.save(volume, copy)
        changes = {"resample": settings.resample} if settings.resample else {}
        plain = imported(copy, size=48, pad=48, absolute=True, **changes)
        (tmp_path / f"kept-{how}").mkdir()
        kept = (out / "plain" / f"{how}-a.nii.gz").rename(tmp_path / f"kept-{how}" / "a.nii.gz")
        again = imported(kept, size=48, pad=48)
        expected = plain.split("train").sample(5).magnitudes().numpy()
        # What is nothing but background is black in few gray levels, and imports leave it out.
        expected = expected[expected.max(axis=(1, 2)) > 0.1 * expected.max()]
        found = again.split("train").magnitudes().numpy()
        assert len(found) >= 4
        np.testing.assert_allclose(found / found.max(), expected / expected.max(), atol=0.02)
