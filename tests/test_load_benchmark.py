"""`benchmarks/load.py`: decisions are timed and counted, and one that is lost is seen."""

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kscout.acquisition import Advisor, Scan
from kscout.policies.center_out import CenterOut
from kscout.reconstruction.zero_filled import ZeroFilled
from kscout.serve.desk import Desk

TESTS = Path(__file__).parent


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for folder in (TESTS.parent / "benchmarks", TESTS / "serve"):
        monkeypatch.syspath_prepend(str(folder))
    module = importlib.import_module("load")
    monkeypatch.setattr(module, "BUDGET", module.N_INITIAL + 4)
    yield module
    sys.modules.pop("load")


def advisor(scan: Scan) -> Advisor:
    return Advisor(ZeroFilled(), CenterOut(n_cols=scan.n_cols))


@pytest.mark.parametrize("over", ["core", "mrd"])
def test_every_decision_of_every_session_is_timed_once(load: ModuleType, over: str) -> None:
    desk, tally = Desk(advisor, limits=load.LIMITS), load.Tally(most=15)
    if over == "core":
        asyncio.run(load.measured(load.in_process(desk), {}, 3, tally))
    else:
        from mrd_client import listening

        with listening(desk) as (_, port):
            asyncio.run(load.measured(load.over_mrd, {"mrd_port": port}, 3, tally))
    desk.shut()
    row, n_per_slice = tally.figures(), 3
    # Others may have asked when the last one was counted.
    assert 5 * n_per_slice <= row["n_decisions"] < 5 * n_per_slice + 3 and row["lost"] == 0
    assert 0 < row["p50_ms"] <= row["p99_ms"]


@pytest.mark.parametrize("fault", ["count", "column"])
def test_a_lost_decision_is_seen(load: ModuleType, fault: str) -> None:
    n_sent = 0

    async def ask(columns: list[int]) -> dict[str, Any]:
        nonlocal n_sent
        n_sent += len(columns)
        is_wrong = n_sent == load.N_INITIAL + 2
        return {
            "next_column": 64 if fault == "column" and is_wrong else n_sent,
            "n_measured": n_sent - (fault == "count" and is_wrong),
            "done": n_sent >= load.BUDGET,
        }

    tally = load.Tally()
    asyncio.run(load.acquire(ask, list(range(56, 56 + load.N_INITIAL)), tally))
    assert tally.n_lost == 1


def test_records_of_all_machines_make_one_table(load: ModuleType, tmp_path: Path) -> None:
    assert load.table(tmp_path) == "Not recorded yet.\n"
    row = {"over": "mrd", "reconstruction": "zero-filled", "policy": "column", "n_sessions": 100}
    row |= load.Tally(times_s=[0.001, 0.002], begin=load.time.perf_counter() - 4).figures()
    for name in ("load_a.json", "load_b.json"):
        (tmp_path / name).write_text(json.dumps({"machine": name, "rows": [row]}))
    table = load.table(tmp_path)
    assert (
        "| load_a.json | `mrd` | `zero-filled` | `column` | 100 | 1.5 | 2.0 | 0 | 2 | 0 |" in table
    )
    assert "load_a.json: 2 decisions in all, 0 lost." in table
    assert "| load_b.json |" in table


def test_a_way_whose_packages_are_missing_is_left_out(
    load: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load.can_ask("core") and load.can_ask("mrd")
    monkeypatch.setitem(load.NEEDED, "mrd", ("h5py", "a_package_of_nobody"))
    assert not load.can_ask("mrd")
    assert capsys.readouterr().out == "mrd is left out: a_package_of_nobody not installed\n"
