"""`benchmarks/adapts.py`: shared columns counted by hand, and a record that becomes tables."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from kscout.data.store_writer import StoreWriter

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def adapts() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("adapts")
    sys.path.remove(str(BENCHMARKS))


def test_shared_columns_by_hand(adapts: ModuleType) -> None:
    # Slices 0 and 1 are of one volume, 2 of another of that kind, 3 of another kind. Opposite
    # columns about 4 count as one: frequencies 434, 343, 442 and 223; the fixed order has 443.
    columns = np.array([[0, 1, 8], [1, 0, 7], [0, 8, 2], [2, 6, 1]])
    own = adapts.Taken(columns, np.array([0.5, 0.6, 0.7, 0.8]), n_cols=9)
    fixed = adapts.Taken(np.tile([0, 8, 1], (4, 1)), np.full(4, 0.5), n_cols=9)
    found = adapts.record_of("some", own, fixed, list("aabc"), list("xxxy"), 1)
    assert (found.n_slices, found.n_volumes) == (4, 3)
    assert found.difference == pytest.approx(0.15)
    assert found.as_fixed == pytest.approx((3 + 2 + 2 + 1) / 4)
    assert found.of_volume == 2
    assert found.of_kind == pytest.approx((2 + 1) / 2)
    assert found.of_others == pytest.approx((1 + 1 + 1) / 3)
    # Pairs of two volumes: 02, 03, 12, 13, 23.
    assert found.same == pytest.approx((1 / 5, 1 / 5, 1 / 5))
    assert found.mirrored == pytest.approx((1 + 1 + 1 + 1) / 12)
    assert found.mutual_information[0] == pytest.approx(1.5 * np.log(2), abs=1e-6)
    assert found.sampled == pytest.approx((0, 0, 3 / 4, 4 / 4, 5 / 4))


def test_a_record_becomes_tables_and_a_picture(
    adapts: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", {"made by": "tests"}) as writer:
        for number, kind in enumerate(("coronal", "coronal", "sagittal")):
            images = random.random((2, 18, 16), dtype=np.float32)
            writer.append("test", f"v{number}", images, acquisition=kind)
        writer.finish()
    words = ["--data", str(tmp_path / "store"), "--reconstructor", "zero-filled"]
    words += ["--learned", "random", "--fixed", "center-out", "--n-initial", "2", "--steps", "4"]
    path = tmp_path / "record.json"
    adapts.main([*words, "--try-all", "3", "--device", "cpu", "--record", str(path)])
    assert "random: 6 slices" in capsys.readouterr().out
    records = importlib.import_module("adapts_records")
    record = records.read_record(path)
    assert [(one.policy, one.n_slices) for one in record.policies] == [
        ("random", 6),
        ("center-out", 6),
        ("oracle", 3),
    ]
    fixed, oracle = record.policies[1:]
    assert (fixed.difference, fixed.as_fixed, fixed.of_others) == (0, 4, 4)
    assert fixed.same == (1, 1, 1, 1) and max(fixed.mutual_information) < 1e-6
    assert oracle.difference > 0 and oracle.of_volume is None
    assert [(one.kind, one.n_slices, one.n_volumes) for one in record.kinds] == [
        ("coronal", 4, 2),
        ("sagittal", 2, 1),
    ]
    assert record.overlooked[0].n_states == 12
    assert "| `center-out` | 6 |" in records.table(path)
    assert "| step 1 | step 2 | step 3 | step 4 |" in records.table(path)
    assert "| coronal | 4 of 2 |" in records.kinds(path)
    assert "| `random` | 12 |" in records.overlooked(path)
    assert len(records.draw(record).axes) == 2
