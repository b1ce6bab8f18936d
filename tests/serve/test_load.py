"""The load test times and counts decisions, and notices one that is lost."""

import asyncio
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kscout.acquisition import Advisor, Scan
from kscout.apps.serve.sessions import Sessions
from kscout.policies.fixed import CenterOut
from kscout.reconstruction.zero_filled import ZeroFilled


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    module = importlib.import_module("load")
    monkeypatch.setattr(module, "BUDGET", module.N_INITIAL + 4)
    yield module
    sys.modules.pop("load")


def advisor(scan: Scan) -> Advisor:
    return Advisor(ZeroFilled(), CenterOut(n_cols=scan.n_cols))


@pytest.mark.parametrize("over", ["core", "mrd"])
def test_every_decision_of_every_session_is_timed_once(load: ModuleType, over: str) -> None:
    sessions, tally = Sessions(advisor, limits=load.LIMITS), load.Tally(most=15)
    if over == "core":
        asyncio.run(load.measured(load.in_process(sessions), {}, 3, tally))
    else:
        from mrd_client import listening

        with listening(sessions) as (_, port):
            asyncio.run(load.measured(load.over_mrd, {"mrd_port": port}, 3, tally))
    sessions.shut()
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
