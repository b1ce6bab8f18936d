"""The reconstruction and policy of sessions: requests are computed one by one or in batches."""

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

from kscout.acquisition.episode import SimulatedContext, how_many_at_once
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
from kscout.kernels.graphs import MOST_BYTES, Graphs
from kscout.weights import fingerprint

_NOTED: WeakSet[Reconstructor] = WeakSet()
"""Reconstructions for which a warning was logged."""


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
class AdviceRequest:
    """The measurement of one slice, and the progress of its acquisition."""

    measured: Measurement
    step: int
    n_left: int

    @property
    def kind(self) -> tuple[object, ...]:
        """Requests of one kind can be computed in one batch."""
        measured = self.measured
        return (*measured.zero_filled.shape, measured.maps is None, measured.summary is None)


@final
@dataclass(frozen=True, eq=False)
class AdviceResponse:
    """The reconstruction of one slice, and the policy's score of every column."""

    reconstruction: Reconstruction
    scores: Float[Tensor, "1 col"]


@final
class Advisor:
    """Computes requests in a thread of its own; waiting requests form a batch.

    A single request has the same arithmetic as a simulator of one slice. On CUDA it is a graph, if
    the reconstruction allows it.

    Args:
        reconstructor: frozen, on the device.
        policy: on the same device; an oracle is an error.
        device: device of the computation.
    """

    def __init__(
        self, reconstructor: Reconstructor, policy: Policy, *, device: torch.device | str = "cpu"
    ) -> None:
        check_blind(policy)
        self.reconstructor, self.policy = reconstructor, policy
        self.device = torch.device(device)
        self._waiting: list[tuple[AdviceRequest, Future[AdviceResponse]]] = []
        self._lock, self._is_closed = threading.Lock(), False
        self._noted: set[Use] = set()
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kscout-advisor")
        # A policy that tries columns keeps the device busy without a graph.
        is_plain = reconstructor.waits_for_device or policy.needs_gain_estimator
        has_graphs = self.device.type == "cuda" and not is_plain
        bound = policy.bind(SimulatedContext(reconstructor, reconstructor.protocol_for()))
        self._computed = partial(_computed, reconstructor, bound)
        self._graphs = Graphs(self._computed) if has_graphs else None
        self._computing = threading.Lock()

    def __enter__(self) -> "Advisor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Reject further requests and cancel waiting ones; a running one is completed."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
        self._worker.shutdown(wait=False, cancel_futures=True)
        for _, future in waiting:
            future.cancel()

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the reconstruction and the policy."""
        return f"{fingerprint(self.reconstructor)} {fingerprint(self.policy)}"

    def check(self, scan: Scan) -> None:
        """Raise an error if the policy cannot score such a scan; warn if it is for other scans."""
        network, n_coils, n_initial = self.reconstructor, scan.n_coils, len(scan.start)
        use = Use((n_coils, scan.n_rows, scan.n_cols), n_initial, scan.budget - n_initial)
        check_real(self.policy, f"{n_coils} coils are measured" if n_coils > 1 else None)
        words = {"images": "scan has", "size": "acquire its size, or use another policy"}
        check_matrix(self.policy, use.shape, **words)
        if use not in self._noted:
            self._noted.add(use)
            start = None if isinstance(scan.initial, int) else columns_text(scan.initial)
            use = replace(use, start=start, columns_per_step=scan.columns_per_step)
            named = [(type(self.policy).__name__, self.policy)]
            session_note(network, use)
            warn([*network_notes(network, use), *policy_notes(named, network, use)])

    def submit(self, request: AdviceRequest) -> "Future[AdviceResponse]":
        """Submit a request; the caller may cancel the future."""
        future: Future[AdviceResponse] = Future()
        with self._lock:
            self._check_open()
            self._waiting.append((request, future))
        self._worker.submit(self._compute_waiting)
        return future

    def reconstruct(self, request: AdviceRequest) -> "Future[Reconstruction]":
        """Submit a request for the reconstruction only."""
        work = torch.no_grad()(self.reconstructor.reconstruct)
        with self._lock:
            self._check_open()
            return self._worker.submit(work, request.measured)

    def warm_up(self, work: Callable[[], None]) -> None:
        """Capture graphs before requests need them; nothing is done without graphs.

        A failure is not reported here: it occurs again in the response to a request.
        """
        if self._graphs is not None:
            self._worker.submit(work)

    @torch.no_grad()
    def respond(self, requests: Sequence[AdviceRequest]) -> list[AdviceResponse]:
        """Compute requests of one kind in one batch, in the calling thread."""
        shape = requests[0].measured.zero_filled.shape[1:]
        n_bytes = len(requests) * self.reconstructor.n_bytes(*shape)
        if self._graphs is None or n_bytes > MOST_BYTES:
            counts = [[q.step for q in requests], [q.n_left for q in requests]]
            # One number if all are equal, as a simulator does.
            step, n_left = (
                own[0] if len(set(own)) == 1 else torch.tensor(own, device=self.device)
                for own in counts
            )
            found = self._computed(step, n_left, *_joined(requests))
        else:
            # A graph supports several batch sizes: the last request pads the batch.
            n_more = 2 ** (len(requests) - 1).bit_length() - len(requests)
            padded = [*requests, *requests[-1:] * n_more]
            counts = [[q.step for q in padded], [q.n_left for q in padded]]
            with self._computing:
                found = self._graphs(*torch.tensor(counts, device=self.device), *_joined(padded))
        image, mean, std, scores = ([x[i : i + 1] for i in range(len(requests))] for x in found)
        images = map(Reconstruction, image, mean, std)
        return [AdviceResponse(*pair) for pair in zip(images, scores, strict=True)]

    def _check_open(self) -> None:
        if self._is_closed:
            raise RunError("the advisor is closed and accepts no requests; make another")

    def _compute_waiting(self) -> None:
        if taken := self._take():
            self._compute(taken)

    def _compute(self, taken: list[tuple[AdviceRequest, "Future[AdviceResponse]"]]) -> None:
        responses: list[AdviceResponse] = []
        try:
            responses += self.respond([request for request, _ in taken])
            if self.device.type == "cuda":
                # Otherwise the caller would wait for the device, past its deadline.
                torch.cuda.current_stream(self.device).synchronize()
        except BaseException as error:
            responses.clear()
            if len(taken) == 1:
                taken[0][1].set_exception(error)
                return
        if responses:
            for (_, future), response in zip(taken, responses, strict=True):
                future.set_result(response)
            return
        # One request may have failed the batch. Not in `except`, where the error would hold all
        # tensors, and memory may be short.
        for one in taken:
            self._compute([one])

    def _n_most(self, request: AdviceRequest) -> int:
        """Return the number of such requests that fit into memory; 1 if it is unknown."""
        shape = request.measured.zero_filled.shape[1:]
        try:
            return how_many_at_once(self.reconstructor, shape, self.device)
        except Exception:
            # The failure occurs again in the response.
            return 1

    def _take(self) -> list[tuple[AdviceRequest, "Future[AdviceResponse]"]]:
        """Return the oldest waiting request, and others of its kind."""
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
    """Return images, their means and standard deviations, and scores.

    This is no method: graphs with a reference to their advisor would hold memory until garbage is
    collected.
    """
    # Three tensors are a summary; a single one, or one before them, are sensitivities.
    maps = more[0] if len(more) % 3 else None
    summary = (more[-3], more[-2], more[-1]) if len(more) >= 3 else None
    measured = Measurement(zero_filled, mask, summary=summary, maps=maps)
    found = reconstructor.reconstruct(measured)
    seen = shown_to(policy, found, zero_filled, mask, step=step, n_left=n_left)
    return found.image, found.mean, found.std, policy(seen)


def _joined(requests: Sequence[AdviceRequest]) -> list[Tensor]:
    """Return the tensors of requests in one batch: measurements, sensitivities, summaries."""
    several = [request.measured for request in requests]
    given = [
        (x.zero_filled, x.mask, *(() if x.maps is None else (x.maps,)), *(x.summary or ()))
        for x in several
    ]
    return [own[0] if len(own) == 1 else torch.cat(own) for own in zip(*given, strict=True)]
