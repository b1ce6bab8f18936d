"""A request that fails fails alone, whichever were computed together with it."""

import threading
import weakref
from typing import final

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kscout.acquisition import Advisor, Session
from kscout.core import Observation, Policy, SliceBatch
from kscout.policies.random import Random
from kscout.reconstruction.zero_filled import ZeroFilled
from tiny_sessions import SCAN, data_of


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
        sessions = [Session(advisor, SCAN) for _ in range(3)]
        for first, session in enumerate(sessions):
            columns = [*SCAN.start, (first + 1) % 3]
            session.measure(columns, data_of(batch, columns))
        together = threading.Event()
        advisor._worker.submit(together.wait)
        futures = [advisor.submit(session.request()) for session in sessions]
        together.set()
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
        session = Session(advisor, SCAN)
        session.measure(SCAN.start, data_of(batch, SCAN.start))
        with pytest.raises(ValueError, match="no idea"):
            advisor.submit(session.request()).result(timeout=20)


def test_what_failed_together_keeps_no_memory_from_those_computed_again(batch: SliceBatch) -> None:
    policy = Filling()
    with Advisor(ZeroFilled(), policy) as advisor:
        session = Session(advisor, SCAN)
        session.measure(SCAN.start, data_of(batch, SCAN.start))
        together = threading.Event()
        advisor._worker.submit(together.wait)
        futures = [advisor.submit(session.request()) for _ in range(2)]
        together.set()
        assert [future.exception(60) for future in futures] == [None, None]
    assert policy.made is not None and policy.is_kept == [False, False]
