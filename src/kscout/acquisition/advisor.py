"""One reconstruction and one policy that many sessions ask, one after the other or together."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import final
from weakref import WeakSet

import torch
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from kscout.acquisition.episode import Trial, how_many_at_once
from kscout.acquisition.graphs import MOST_BYTES, Graphs
from kscout.acquisition.scan import Scan
from kscout.acquisition.state import shown_to
from kscout.columns import columns_text
from kscout.compatibility import (
    Use,
    check_matrix,
    check_real,
    network_notes,
    policy_notes,
    protocol_note,
    warn,
)
from kscout.core import Measurement, Policy, Reconstruction, Reconstructor
from kscout.errors import ConfigError, RunError
from kscout.weights import fingerprint

_NOTED: WeakSet[Reconstructor] = WeakSet()
"""Reconstructions of which a user was warned."""


def session_note(network: Reconstructor, use: Use) -> str | None:
    """Return a sentence if a reconstruction was not trained for sessions, and log it once."""
    note = protocol_note(network, replace(use, protocol="blind"), in_session=True)
    if note is not None and network.original not in _NOTED:
        _NOTED.add(network.original)
        warn([note])
    return note


def check_blind(policy: Policy) -> None:
    """Raise an error for a policy that uses the ground truth."""
    if policy.needs_target:
        raise ConfigError(
            f"{type(policy).__name__} is an oracle: it uses the ground truth, which no scanner "
            "has; give another policy"
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
        told = self.measured
        return (*told.zero_filled.shape, told.maps is None, told.summary is None)


_COUNTS = ("step", "n_left")
"""Of a question."""


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
    one slice. On CUDA that is a graph, where the reconstruction allows it.

    Args:
        reconstructor: frozen, on the device where all work is done.
        policy: on the same device; an oracle is refused.
        device: that device.
    """

    def __init__(
        self, reconstructor: Reconstructor, policy: Policy, *, device: torch.device | str = "cpu"
    ) -> None:
        check_blind(policy)
        self.reconstructor, self.policy = reconstructor, policy
        self.device = torch.device(device)
        self._waiting: list[tuple[Question, Future[Answer]]] = []
        self._lock, self._is_closed = threading.Lock(), False
        self._noted: set[Use] = set()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kscout-advisor")
        # What tries columns keeps the device busy without a graph.
        is_plain = reconstructor.waits_for_device or policy.needs_judge
        has_graphs = self.device.type == "cuda" and not is_plain
        self._computed = partial(_computed, reconstructor, policy)
        self._graphs = Graphs(self._computed) if has_graphs else None
        self._computing = threading.Lock()

    def __enter__(self) -> "Advisor":
        return self

    def __exit__(self, *_: object) -> None:
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

    def check(self, scan: Scan) -> None:
        """Raise an error if the policy cannot score such a scan; warn if it is for other scans."""
        network, n_coils, n_initial = self.reconstructor, scan.n_coils, len(scan.start)
        use = Use((n_coils, scan.n_rows, scan.n_cols), n_initial, scan.budget - n_initial)
        check_real(self.policy, f"{n_coils} coils are measured" if n_coils > 1 else None)
        words = {"images": "scan has", "size": "acquire its size, or use another policy"}
        check_matrix(self.policy, use.shape, network=network, **words)
        if use not in self._noted:
            self._noted.add(use)
            start = None if isinstance(scan.initial, int) else columns_text(scan.initial)
            use = replace(use, start=start, columns_per_step=scan.columns_per_step)
            named = [(type(self.policy).__name__, self.policy)]
            session_note(network, use)
            warn([*network_notes(network, use), *policy_notes(named, network, use)])

    def ask(self, question: Question) -> "Future[Answer]":
        """Hand in a question; whoever no longer wants the answer cancels it."""
        future: Future[Answer] = Future()
        with self._lock:
            self._check_open()
            self._waiting.append((question, future))
        self._worker.submit(self._answer_waiting)
        return future

    def reconstruct(self, question: Question) -> "Future[Reconstruction]":
        """Hand in a question that the policy is not asked."""
        work = torch.no_grad()(self.reconstructor.reconstruct)
        with self._lock:
            self._check_open()
            return self._worker.submit(work, question.measured)

    def rehearse(self, work: Callable[[], None]) -> None:
        """Do work that captures graphs before questions that come later need them.

        Without graphs it is not done; what fails in it fails again for whoever asks, who is told.
        """
        if self._graphs is not None:
            self._worker.submit(work)

    @torch.no_grad()
    def answer(self, questions: Sequence[Question]) -> list[Answer]:
        """Answer questions of one kind together, in the calling thread."""
        shape = questions[0].measured.zero_filled.shape[1:]
        n_bytes = len(questions) * self.reconstructor.n_bytes(*shape)
        if self._graphs is None or n_bytes > MOST_BYTES:
            step, n_left = (self._count([getattr(q, name) for q in questions]) for name in _COUNTS)
            found = self._computed(step, n_left, *_joined(questions))
        else:
            # A graph serves several numbers of questions: where some lack, the last stands in.
            n_more = 2 ** (len(questions) - 1).bit_length() - len(questions)
            padded = [*questions, *questions[-1:] * n_more]
            told = [[getattr(one, name) for one in padded] for name in _COUNTS]
            with self._computing:
                found = self._graphs(*torch.tensor(told, device=self.device), *_joined(padded))
        image, mean, std, scores = ([x[i : i + 1] for i in range(len(questions))] for x in found)
        several = map(Reconstruction, image, mean, std)
        return [Answer(*pair) for pair in zip(several, scores, strict=True)]

    def _check_open(self) -> None:
        if self._is_closed:
            raise RunError("the advisor is closed and answers no more; make another")

    def _count(self, counts: list[int]) -> int | Int[Tensor, " state"]:
        """Return one number where all are alike, as a simulator does."""
        return counts[0] if len(set(counts)) == 1 else torch.tensor(counts, device=self.device)

    def _answer_waiting(self) -> None:
        if taken := self._take():
            self._answer_taken(taken)

    def _answer_taken(self, taken: list[tuple[Question, "Future[Answer]"]]) -> None:
        answers: list[Answer] = []
        try:
            answers += self.answer([question for question, _ in taken])
            if self.device.type == "cuda":
                # An answer that is not computed yet would keep whoever asked past the deadline.
                torch.cuda.current_stream(self.device).synchronize()
        except BaseException as error:
            answers.clear()
            if len(taken) == 1:
                taken[0][1].set_exception(error)
                return
        if answers:
            for (_, future), answer in zip(taken, answers, strict=True):
                future.set_result(answer)
            return
        # One of them may have failed for all. Not in `except`, where the error would keep the
        # tensors of all, while memory may be what they lack.
        for one in taken:
            self._answer_taken([one])

    def _n_most(self, question: Question) -> int:
        """Return how many such questions fit into memory; one, where that cannot be told."""
        shape = question.measured.zero_filled.shape[1:]
        try:
            return how_many_at_once(self.reconstructor, shape, self.device)
        except Exception:
            # What fails here fails again in its answer, whose asker is told.
            return 1

    def _take(self) -> list[tuple[Question, "Future[Answer]"]]:
        """Take the question that waits longest, and others of its kind that wait with it."""
        with self._lock:
            waiting = [(q, future) for q, future in self._waiting if not future.cancelled()]
            if not waiting:
                self._waiting = []
                return []
            first = waiting[0][0]
            n_most = self._n_most(first)
            alike = [pair for pair in waiting if pair[0].kind == first.kind][:n_most]
            chosen = {id(pair) for pair in alike}
            self._waiting = [pair for pair in waiting if id(pair) not in chosen]
        return [pair for pair in alike if pair[1].set_running_or_notify_cancel()]


def _computed(
    reconstructor: Reconstructor,
    policy: Policy,
    step: int | Int[Tensor, " state"],
    n_left: int | Int[Tensor, " state"],
    zero_filled: Complex[Tensor, "state coil row col"],
    mask: Bool[Tensor, "state col"],
    *more: Tensor,
) -> tuple[Tensor, ...]:
    """Return images, their means and deviations, and scores.

    No method: graphs that held their advisor would keep memory until garbage is collected.
    """
    # Three are a summary, one alone or before them are sensitivities.
    maps = more[0] if len(more) % 3 else None
    summary = (more[-3], more[-2], more[-1]) if len(more) >= 3 else None
    measured = Measurement(zero_filled, mask, summary=summary, maps=maps)
    found = reconstructor.reconstruct(measured)
    judge = Trial(reconstructor, reconstructor.protocol or "blind")
    seen = shown_to(policy, found, zero_filled, mask, step=step, n_left=n_left, judge=judge)
    return found.image, found.mean, found.std, policy(seen)


def _joined(questions: Sequence[Question]) -> list[Tensor]:
    """Return what was measured, and sensitivities and a summary where there are such."""
    several = [question.measured for question in questions]
    given = [(x.zero_filled, x.mask, *_some(x.maps), *(x.summary or ())) for x in several]
    return [own[0] if len(own) == 1 else torch.cat(own) for own in zip(*given, strict=True)]


def _some(x: Tensor | None) -> tuple[Tensor, ...]:
    return () if x is None else (x,)
