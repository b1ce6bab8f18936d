"""`benchmarks/sizes.py`: slices are made coarser, and lines of a label replace those before."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kscout.data.store import Store
from kscout.data.store_writer import StoreWriter
from kscout.training.augmentation import coarser_slices

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def sizes() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("sizes")
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", {"made by": "tests"}) as writer:
        for split, n_slices in (("train", 3), ("test", 2)):
            for name in "ab":
                images = random.random((n_slices, 36, 24), dtype=np.float32)
                writer.append(split, f"{split}-{name}", images)
        return writer.finish().path


def test_slices_have_fewer_columns_and_their_volumes_range(store: Path) -> None:
    whole = Store.open(store).split("test")
    found = coarser_slices(whole, 16)
    assert found.shape == (1, 24, 16) and found.volumes == whole.volumes
    assert found.data_range.tolist() == whole.data_range.tolist()


def test_each_size_is_a_line_and_a_label_replaces_its_own(
    sizes: ModuleType, store: Path, tmp_path: Path
) -> None:
    path = tmp_path / "sizes.json"
    words = ["--data", str(store), "--reconstructor", "zero-filled", "--device", "cpu"]
    words += ["--record", str(path), "--sizes", "16", "24"]
    sizes.main([*words, "--label", "other"])
    for _ in range(2):
        sizes.main([*words, "--label", "mine", "--policy", "center-out", "--n-train", "4"])
    found = sizes.read_lines(path)
    assert [(one.label, one.n_cols) for one in found] == [
        *(("other", 16), ("other", 24), ("mine", 16), ("mine", 24))
    ]
    assert all(one.ssim == one.zero_filled for one in found)
    assert found[0].fixed is None and found[2].difference is not None
    assert found[0].n_train is None and found[2].n_train == 4
    # What was fitted once is read from where it was kept.
    kept = [*words, "--label", "kept", "--policy", "center-out", "--n-train", "4"]
    for _ in range(2):
        sizes.main([*kept, "--orders", str(tmp_path / "orders")])
        assert len(list((tmp_path / "orders").iterdir())) == 2
    # A line of one size replaces no other.
    sizes.main([*kept, "--sizes", "16", "--n-train", "5"])
    assert [one.n_train for one in sizes.read_lines(path)[4:]] == [5, 4]
    sizes.main([*kept, "--sizes", "16"])
    again = sizes.read_lines(path)[4:]
    assert [one.fixed for one in again] == [one.fixed for one in found[2:]]
    text = sizes.table(sizes.read_lines(path)[:4])
    assert "| `other` | 16 | 4 |" in text and text.count("| `mine` |") == 2
    assert "To zero-filling `other` adds .0000" in text and "`mine` adds" not in text
    lows, highs = zip(*(one.interval for one in found[2:]), strict=True)
    n_above, n_below = sum(low > 0 for low in lows), sum(high < 0 for high in highs)
    assert f"at {n_above} of 2 sizes, and below it at {n_below} (4 slices)" in text
