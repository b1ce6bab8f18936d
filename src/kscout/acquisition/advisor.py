"""One reconstruction and one policy that many sessions ask, one after the other or together."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from kscout.acquisition.episode import how_many_at_once
from kscout.acquisition.state import shown_to
from kscout.core import Measurement, Policy, Reconstruction, Reconstructor
from kscout.errors import ConfigError, RunError
from kscout.weights import fingerprint


def check_blind(policy: Policy) -> None:
    """Refuse a policy that looks at the truth."""
    if policy.needs_target:
        raise ConfigError(
            f"{type(policy).__name__} is an oracle: it looks at the truth, which no scanner has; "
            "give another policy"
        )


@final
@dataclass(frozen=True, eq=False)
class Question:
    """What was measured of one slice, and how far its acquisition has come."""

    measured: Measurement
    step: int
    n_left: int

    @property
    def kind(self) -> tuple[object, ...]:
        """Questions of one kind can be answered together."""
        return (*self.measured.zero_filled.shape, self.measured.maps is None)


@final
@dataclass(frozen=True, eq=False)
class Answer:
    """The reconstruction of one slice, and the policy's score of every column."""

    found: Reconstruction
    scores: Float[Tensor, "1 col"]


@final
class Advisor:
    """Answers questions in a thread of its own: those that wait, together.

    A question that waits alone is computed alone, with the arithmetic of a simulator that holds
    one slice.

    Args:
        reconstructor: frozen, on the device where all work is done.
        policy: on the same device; an oracle is refused.
        device: that device.
        most_at_once: questions computed together; what the reconstruction's memory allows where
            not given.
    """

    def __init__(
        self,
        reconstructor: Reconstructor,
        policy: Policy,
        *,
        device: torch.device | str = "cpu",
        most_at_once: int | None = None,
    ) -> None:
        check_blind(policy)
        self.reconstructor, self.policy = reconstructor, policy
        self.device, self.most_at_once = torch.device(device), most_at_once
        self._waiting: list[tuple[Question, Future[Answer]]] = []
        self._lock, self._is_closed = threading.Lock(), False
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kscout-advisor")

    def __enter__(self) -> "Advisor":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take no more questions, and drop those that wait; one that is computed is finished."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
        self._worker.shutdown(wait=False, cancel_futures=True)
        for _, future in waiting:
            future.cancel()

    @cached_property
    def fingerprint(self) -> str:
        """Tells reconstruction and policy from others."""
        return f"{fingerprint(self.reconstructor)} {fingerprint(self.policy)}"

    def ask(self, question: Question) -> "Future[Answer]":
        """Hand in a question; whoever no longer wants the answer cancels it."""
        future: Future[Answer] = Future()
        with self._lock:
            if self._is_closed:
                raise RunError("the advisor is closed and answers no more; make another")
            self._waiting.append((question, future))
        self._worker.submit(self._answer_waiting)
        return future

    @torch.no_grad()
    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer questions of one kind together, in the calling thread."""
        several = [question.measured for question in questions]
        zero_filled, mask = (
            _joined([x.zero_filled for x in several]),
            _joined([x.mask for x in several]),
        )
        kept = [x.maps for x in several if x.maps is not None]
        measured = Measurement(zero_filled, mask, maps=_joined(kept) if kept else None)
        found = self.reconstructor.reconstruct(measured)
        step, n_left = (self._counts([getattr(q, name) for q in questions]) for name in _COUNTS)
        seen = shown_to(self.policy, found, zero_filled, mask, step=step, n_left=n_left)
        scores = self.policy(seen)
        return [
            Answer(Reconstruction(*(x[i : i + 1] for x in _parts(found))), scores[i : i + 1])
            for i in range(len(questions))
        ]

    def _counts(self, counts: list[int]) -> int | Int[Tensor, " state"]:
        """Return one number where all are alike, as a simulator does."""
        return counts[0] if len(set(counts)) == 1 else torch.tensor(counts, device=self.device)

    def _answer_waiting(self) -> None:
        taken = self._take()
        if not taken:
            return
        try:
            answers = self.answer([question for question, _ in taken])
        except BaseException as error:
            for _, future in taken:
                future.set_exception(error)
            return
        for (_, future), answer in zip(taken, answers, strict=True):
            future.set_result(answer)

    def _take(self) -> list[tuple[Question, "Future[Answer]"]]:
        """Take the question that waits longest, and others of its kind that wait with it."""
        with self._lock:
            waiting = [(q, future) for q, future in self._waiting if not future.cancelled()]
            if not waiting:
                self._waiting = []
                return []
            first = waiting[0][0]
            n_most = self.most_at_once or how_many_at_once(
                self.reconstructor, first.measured.zero_filled.shape[1:], self.device
            )
            alike = [pair for pair in waiting if pair[0].kind == first.kind][:n_most]
            chosen = {id(pair) for pair in alike}
            self._waiting = [pair for pair in waiting if id(pair) not in chosen]
        return [pair for pair in alike if pair[1].set_running_or_notify_cancel()]


_COUNTS = ("step", "n_left")


def _parts(found: Reconstruction) -> tuple[Tensor, Tensor, Tensor]:
    return found.image, found.mean, found.std


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
