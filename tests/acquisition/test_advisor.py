"""Whoever answers sessions: together, by CUDA graphs, in time or by a fallback."""

import gc
import math
import threading
import weakref
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, final

import pytest
import torch
from begun_sessions import begun
from jaxtyping import Float
from torch import Tensor

from coil_slices import coil_batch
from kscout import policies, reconstruction
from kscout.acquisition import Advisor, Scan, Session
from kscout.acquisition.session import warm_up
from kscout.core import Measurement, Observation, Policy, Reconstruction, SliceBatch
from kscout.errors import ConfigError, RunError
from kscout.kernels import graphs
from kscout.policies.oracle import Oracle
from kscout.policies.random import Random
from kscout.reconstruction.sense import Sense
from kscout.reconstruction.zero_filled import ZeroFilled
from tiny_sessions import (
    N_COLS,
    N_ROWS,
    SCAN,
    check_same,
    data_of,
    make_policy,
    scanned,
    simulated,
    unet,
)


def test_sessions_that_wait_together_get_the_scores_of_one_alone(batch: SliceBatch) -> None:
    policy = make_policy("column")
    with Advisor(unet(), policy) as advisor:
        sessions = [begun(advisor, batch, more=range(at)) for at in range(3)]
        requests = [session.request() for session in sessions]
        together = advisor.respond(requests)
        for request, answer in zip(requests, together, strict=True):
            (alone,) = advisor.respond([request])
            torch.testing.assert_close(answer.scores, alone.scores, atol=1e-5, rtol=0)
            torch.testing.assert_close(
                answer.reconstruction.image, alone.reconstruction.image, atol=1e-5, rtol=0
            )


class FakeGraph:
    """Computes in memory that stays in place, as a CUDA graph does, without a device."""

    captured: ClassVar[list[int]] = []

    def __init__(self, function: Any, given: tuple[Tensor, ...], pool: object) -> None:
        if len(given[0]) > 4:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        self.captured.append(len(given[0]))
        self.function, self.given = function, [x.clone() for x in given]

    def __call__(self, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        for own, value in zip(self.given, given, strict=True):
            own.copy_(value)
        return self.function(*self.given)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of requests for which graphs are captured."""
    monkeypatch.setattr(graphs, "Capture", FakeGraph)
    monkeypatch.setattr(graphs, "GraphPool", lambda device: device)
    monkeypatch.setattr(FakeGraph, "captured", [])
    return FakeGraph.captured


@pytest.mark.parametrize("coils", [1, 3])
def test_graphs_of_few_sizes_answer_any_number_of_questions(
    captured: list[int], caplog: pytest.LogCaptureFixture, coils: int
) -> None:
    batch = coil_batch().rows(torch.tensor([1]))
    _, n_coils, n_rows, n_cols = batch.kspace.shape
    scan = Scan(n_rows=n_rows, n_cols=n_cols, n_coils=n_coils, budget=20, initial=11)
    reconstructor = ZeroFilled() if coils == 1 else Sense(n_iterations=3)
    with Advisor(reconstructor, make_policy("column")) as advisor:
        sessions = [begun(advisor, batch, scan, more=range(at)) for at in range(6)]
        requests = [session.request() for session in sessions]
        alone = [advisor.respond([request])[0] for request in requests]
        advisor._graphs = graphs.Graphs(advisor._computed)
        for n in (1, 2, 3, 4, 3, 6):
            for answer, wanted in zip(advisor.respond(requests[:n]), alone[:n], strict=True):
                torch.testing.assert_close(answer.scores, wanted.scores, atol=1e-5, rtol=0)
                found, expected = answer.reconstruction.image, wanted.reconstruction.image
                torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert captured == [1, 2, 4], "six are more than the fake takes"
    assert "no CUDA graph (operation not permitted when stream is capturing)" in caplog.text


def test_graphs_are_captured_before_the_first_advice_and_the_oldest_makes_room(
    captured: list[int], batch: SliceBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "MOST_GRAPHS", 2)
    policy, reconstructor = make_policy("conv"), unet()
    with Advisor(reconstructor, policy) as advisor:
        advisor._graphs = graphs.Graphs(advisor._computed)
        warm_up(advisor, SCAN)
        session = Session(advisor, SCAN)
        scanned(session, batch)
        check_same(session, simulated(batch, reconstructor, policy))
        assert captured == [1]
        requests = [session.request()] * 4
        for n in (2, 4, 1, 4):
            advisor.respond(requests[:n])
        assert captured == [1, 2, 4, 1]


@final
class Held(Policy):
    """Scores columns when it is let."""

    is_stochastic = False

    def __init__(self) -> None:
        super().__init__()
        self.started, self.released = threading.Event(), threading.Event()
        self.n_seen: list[int] = []

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        self.started.set()
        assert self.released.wait(60)
        self.n_seen.append(len(seen.mask))
        return -torch.arange(seen.mask.shape[1]).float().expand(seen.mask.shape)


def test_a_late_policy_is_answered_for_by_the_fallback_and_the_record_says_so(
    batch: SliceBatch,
) -> None:
    policy = Held()
    with Advisor(ZeroFilled(), policy) as advisor:
        session = begun(advisor, batch, replace(SCAN, deadline_s=0.01, fallback=(9, 5, 12)))
        late = [session.advise()]
        session.measure(5, data_of(batch, [5])[0])
        late.append(session.advise())
        assert [advice.columns for advice in late] == [(5,), (12,)]
        assert all(advice.is_late and advice.scores is None for advice in late)
        policy.released.set()
        session.image()
        assert session.advise() is late[-1], "what was answered stays"
        assert [entry["source"] for entry in session.record] == ["fallback", "fallback"]
        assert session.record[-1] == {"n_measured": 4, "columns": [12], "source": "fallback"}


def test_questions_that_wait_are_answered_together_and_dropped_when_outdated(
    batch: SliceBatch,
) -> None:
    policy = Held()
    with Advisor(ZeroFilled(), policy) as advisor:
        sessions = [begun(advisor, batch) for _ in range(4)]
        futures = [advisor.submit(session.request()) for session in sessions[:1]]
        assert policy.started.wait(60)
        futures += [advisor.submit(session.request()) for session in sessions[1:]]
        assert futures[2].cancel()
        policy.released.set()
        for future in (futures[0], futures[1], futures[3]):
            future.result(60)
        assert policy.n_seen == [1, 2]


def test_a_session_of_another_matrix_or_acquisition_than_in_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    network, policy = reconstruction.load("knee-unet"), policies.load("knee-base-fixed")
    with Advisor(network, policy) as advisor:
        with pytest.raises(ConfigError, match=r"made for 128 columns, the scan has 64; .*its size"):
            Session(advisor, Scan(n_rows=64, n_cols=64, budget=32, initial=16))
        for budget in (32, 24, 24):
            Session(advisor, Scan(n_rows=128, n_cols=128, budget=budget, initial=16))
    (note,) = [x for x in caplog.messages if "FixedOrder" in x]
    assert "was trained for 16 + 16 columns and runs here with 16 + 8; " in note


@final
class Failing(Policy):
    """Raises as often as it is told, then prefers the highest column."""

    is_stochastic = False

    def __init__(self, n_faults: float, fault: type[Exception] = RuntimeError) -> None:
        super().__init__()
        self.n_faults, self.fault, self.n_asked = n_faults, fault, 0

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        self.n_asked += 1
        if self.n_asked <= self.n_faults:
            raise self.fault("CUDA out of memory.\nTry again")
        return torch.arange(seen.mask.shape[1]).float().expand(seen.mask.shape)


@pytest.mark.parametrize("fault", [RuntimeError, TimeoutError, ConfigError])
def test_what_failed_is_raised_once_and_asked_again(
    batch: SliceBatch, fault: type[Exception]
) -> None:
    with Advisor(ZeroFilled(), Failing(1, fault)) as advisor:
        session = begun(advisor, batch)
        with pytest.raises(fault, match="out of memory"):
            session.advise()
        assert session.record == []
        assert session.advise().columns == (15,) and session.record[0]["source"] == "policy"


def test_an_image_needs_no_decision_of_a_policy_that_fails(batch: SliceBatch) -> None:
    images = []
    for policy in (Failing(math.inf), Random()):
        with Advisor(unet(), policy) as advisor:
            session = Session(advisor, SCAN)
            with pytest.raises(ConfigError, match="no image before they are"):
                session.image()
            session.measure(SCAN.start, data_of(batch, SCAN.start))
            images += [session.image(), session.image()]
            assert session.record == []
    assert all(torch.equal(image, images[-1]) for image in images)


def test_an_image_that_failed_is_asked_for_again(
    batch: SliceBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(measured: Measurement) -> Reconstruction:
        raise RuntimeError("out of memory")

    reconstructor = ZeroFilled()
    with Advisor(reconstructor, Failing(0)) as advisor:
        session = begun(advisor, batch)
        with monkeypatch.context() as broken:
            broken.setattr(reconstructor, "reconstruct", fail)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="out of memory"):
                    session.image()
        assert session.image().shape == (N_ROWS, N_COLS)
        assert session.advise().columns == (15,)
    session.measure(15, data_of(batch, [15])[0])
    with pytest.raises(RunError, match="closed"):
        session.image()


FALLBACKS: list[dict[str, Any]] = [
    {"deadline_s": 60.0, "fallback": (9, 5, 12)},
    {"fallback": (5, 12)},
    {"deadline_s": 60.0},
]


@pytest.mark.parametrize("given", FALLBACKS, ids=lambda given: "+".join(given))
def test_the_fallback_answers_for_a_policy_that_fails_once(
    batch: SliceBatch, given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    scan = replace(SCAN, **given)
    with Advisor(ZeroFilled(), Failing(1)) as advisor:
        session = begun(advisor, batch, scan)
        advice = session.advise()
        assert advice.columns == ((5,) if scan.fallback else (6,)) and advice.source == "fallback"
        assert session.advise() is advice, "what was answered stays"
        session.image()
        session.measure(advice.columns, data_of(batch, advice.columns))
        assert session.advise().columns == (15,)
        assert [entry["source"] for entry in session.record] == ["fallback", "policy"]
    (warning,) = caplog.messages
    assert warning == (
        "the fallback answers after 3 columns, as the policy failed: CUDA out of memory. Try again"
    )


def test_a_policy_that_always_fails_leaves_a_scan_to_the_fallback(
    batch: SliceBatch, caplog: pytest.LogCaptureFixture
) -> None:
    scan = replace(SCAN, budget=6, fallback=(4, 11, 2, 0))
    policy = Failing(math.inf)
    with Advisor(ZeroFilled(), policy) as advisor:
        session = Session(advisor, scan)
        scanned(session, batch)
        assert session.order == [*scan.start, 4, 11, 2] and session.is_done
        assert policy.n_asked == len(caplog.messages) == 3
        assert session.image().shape == (N_ROWS, N_COLS)


def test_the_fallback_answers_for_scores_that_allow_no_choice(batch: SliceBatch) -> None:
    policy = make_policy("center-out")
    assert isinstance(policy.scores, Tensor)
    policy.scores.fill_(torch.nan)
    with Advisor(ZeroFilled(), policy) as advisor:
        for change, sources in (({}, []), ({"fallback": (5,)}, ["fallback"])):
            session = begun(advisor, batch, replace(SCAN, **change))
            with nullcontext() if sources else pytest.raises(ConfigError, match="NaN"):
                session.advise()
            assert [entry["source"] for entry in session.record] == sources


def test_an_advisor_that_is_closed_is_not_answered_for_by_the_fallback(batch: SliceBatch) -> None:
    with Advisor(ZeroFilled(), Random()) as advisor:
        session = begun(advisor, batch, replace(SCAN, fallback=(5,)))
    with pytest.raises(RunError, match="closed"):
        session.advise()


def asked_together(advisor: Advisor, sessions: list[Session]) -> list[Future[Any]]:
    """Submit requests so that none is computed before all wait."""
    together = threading.Event()
    advisor._worker.submit(together.wait)
    futures = [advisor.submit(session.request()) for session in sessions]
    together.set()
    return futures


@final
class Choosy(Policy):
    """Fails where any slice has the first column."""

    is_stochastic = False

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        if seen.mask[:, 0].any():
            raise RuntimeError("column 0")
        return torch.arange(seen.mask.shape[1]).float().expand(seen.mask.shape)


def test_a_question_that_fails_leaves_those_that_were_computed_with_it(batch: SliceBatch) -> None:
    with Advisor(ZeroFilled(), Choosy()) as advisor:
        sessions = [begun(advisor, batch, more=[column]) for column in (1, 2, 0)]
        futures = asked_together(advisor, sessions)
        faults = [future.exception(60) for future in futures]
        assert [str(fault) for fault in faults] == ["None", "None", "column 0"]
        for session, future in zip(sessions[:2], futures, strict=False):
            (alone,) = advisor.respond([session.request()])
            assert torch.equal(future.result().reconstruction.image, alone.reconstruction.image)


@final
class Filling(Policy):
    """Fails with two slices, and tells whether what it made of them is still there later."""

    is_stochastic = False

    def __init__(self) -> None:
        super().__init__()
        self.made: weakref.ref[Tensor] | None = None
        self.is_kept: list[bool] = []

    def forward(self, seen: Observation) -> Float[Tensor, "batch col"]:
        scores = torch.zeros(seen.mask.shape)
        if len(scores) > 1:
            self.made = weakref.ref(scores)
            raise RuntimeError("out of memory")
        self.is_kept.append(self.made is not None and self.made() is not None)
        return scores


def test_whoever_asks_is_told_that_memory_cannot_be_counted(batch: SliceBatch) -> None:
    class Uncounted(ZeroFilled):
        def n_bytes(self, n_coils: int, n_rows: int, n_cols: int) -> int:
            raise ValueError("no idea")

    with Advisor(Uncounted(), Random()) as advisor:
        session = begun(advisor, batch)
        with pytest.raises(ValueError, match="no idea"):
            advisor.submit(session.request()).result(timeout=20)


def test_what_failed_together_keeps_no_memory_from_those_computed_again(batch: SliceBatch) -> None:
    policy = Filling()
    with Advisor(ZeroFilled(), policy) as advisor:
        session = begun(advisor, batch)
        futures = asked_together(advisor, [session] * 2)
        assert [future.exception(60) for future in futures] == [None, None]
    assert policy.made is not None and policy.is_kept == [False, False]


def test_an_advisor_that_nobody_holds_is_gone_at_once() -> None:
    """Graphs keep memory of a device, which may not wait for a collection of garbage."""
    advisor = Advisor(ZeroFilled(), Random(), device="cuda")
    assert advisor._graphs is not None
    held = weakref.ref(advisor)
    gc.disable()
    try:
        advisor.close()
        del advisor
        assert held() is None
    finally:
        gc.enable()


def test_an_oracle_is_refused() -> None:
    with pytest.raises(ConfigError, match="truth, which no scanner has"):
        Advisor(ZeroFilled(), Oracle())
