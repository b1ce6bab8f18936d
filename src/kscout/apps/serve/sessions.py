"""All sessions of a service: their limits, storage and lifetime, and counters for Prometheus."""

import logging
import math
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch

from kscout.acquisition import Advisor, Scan, Session
from kscout.acquisition.scan import NotSavedError, read_session
from kscout.acquisition.session import warm_up
from kscout.config.records import read
from kscout.core import Policy, Reconstructor
from kscout.errors import KScoutError, RunError
from kscout.json_types import JsonObject

MOST_THREADS = 256
"""Largest number of threads for sessions that wait at the same time."""
_SOURCES = ("policy", "fallback")
"""Sources of a decision."""
_TOTALS = {
    "sessions_opened_total": "Sessions that were opened.",
    "columns_total": "Columns of k-space that were taken in.",
    "refused_total": "Requests, messages and streams that were rejected.",
    **{f'decisions_total{{source="{one}"}}': "Decisions, by what made them." for one in _SOURCES},
}
"""Counters, exported from zero: a rate needs a sample before the first increment."""
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@final
class Counts:
    """Thread-safe counters and one histogram."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(_TOTALS, 0)
        self._below: Counter[float] = Counter()
        self._sum_s, self._n = 0.0, 0

    def add(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._totals[name] += n

    def decided(self, source: str, duration_s: float) -> None:
        """Count a decision by its source, and record its duration."""
        with self._lock:
            self._totals[f'decisions_total{{source="{source}"}}'] += 1
            self._n += 1
            self._sum_s += duration_s
            self._below.update(bound for bound in BOUNDS_S if duration_s <= bound)

    def text(self, n_sessions: int) -> str:
        """Return all counters and the histogram in the text format of Prometheus."""
        lines = [*_about("kscout_sessions", "gauge", "Sessions that are open.")]
        lines.append(f"kscout_sessions {n_sessions}")
        with self._lock:
            for total, description in _TOTALS.items():
                about = _about(f"kscout_{total.partition('{')[0]}", "counter", description)
                lines += [line for line in about if line not in lines]
                lines.append(f"kscout_{total} {self._totals[total]}")
            name = "kscout_decision_seconds"
            lines += _about(name, "histogram", "How long decisions took.")
            lines += [f'{name}_bucket{{le="{x:g}"}} {self._below[x]}' for x in BOUNDS_S]
            lines += [f'{name}_bucket{{le="+Inf"}} {self._n}', f"{name}_sum {self._sum_s:.6f}"]
            return "\n".join([*lines, f"{name}_count {self._n}", ""])


def _about(name: str, kind: str, description: str) -> tuple[str, str]:
    return f"# HELP {name} {description}", f"# TYPE {name} {kind}"


def reply(session: Session, counts: Counts) -> JsonObject:
    """Return the advice of a session as JSON, and count the decision if it is a new one."""
    n_before = len(session.record)
    advice = session.advise()
    if len(session.record) > n_before and advice.source in _SOURCES:
        counts.decided(advice.source, advice.duration_s)
    scores = None if advice.scores is None else advice.scores.float().tolist()
    return {
        "next_column": advice.columns[0] if advice.columns else None,
        "next_columns": list(advice.columns),
        "n_measured": session.n_measured,
        "done": session.is_done,
        "late": advice.is_late,
        "source": advice.source,
        "scores": scores and [x if math.isfinite(x) else None for x in scores],
    }


_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[0-9a-f]{32}")

MakeAdvisor = Callable[[Scan], Advisor]
MOST_SPARE = 4
"""Unused advisors that stay loaded, so the next slice of a scan reuses the captured graphs."""


@final
@dataclass(frozen=True)
class Limits:
    """Resource limits of a service."""

    n_sessions: int = 100
    """Open sessions."""
    n_values: int = 2**24
    """Complex values of one session: coils x rows x columns."""
    n_values_in_all: int = 2**27
    """Complex values of all sessions together; each takes 24 bytes."""
    n_bytes: int = 2**25
    """Bytes of one message."""
    idle_s: float = 3600.0
    """Seconds without a request after which a session is closed; its file, if any, stays."""
    receive_s: float = 30.0
    """Seconds within which a request or a message of a stream has to arrive completely."""

    @property
    def n_connections(self) -> int:
        """Largest number of HTTP connections: one per session, and some for pages and probes."""
        return self.n_sessions + 64

    @property
    def n_streams(self) -> int:
        """Largest number of MRD connections, including those that are rejected with a message."""
        return 2 * self.n_sessions


@final
@dataclass(frozen=True)
class Defaults:
    """Settings of sessions that do not specify them."""

    seed: int | None = None
    argmax: bool = False
    deadline_s: float | None = None
    fallback: Callable[[Scan], tuple[int, ...]] = lambda _: ()

    def complete(self, scan: Scan) -> Scan:
        """Fill in the settings that a scan leaves unspecified."""
        return replace(
            scan,
            seed=self.seed if scan.seed is None else scan.seed,
            argmax=scan.argmax or self.argmax,
            deadline_s=self.deadline_s if scan.deadline_s is None else scan.deadline_s,
            fallback=scan.fallback or self.fallback(scan),
        )


class TooManyError(RunError):
    """The service is full."""


class NoSessionError(RunError):
    """There is no session of this name."""


@final
@dataclass(eq=False)
class Handle:
    """One session and its lock."""

    session: Session
    last_used_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)


@final
class Sessions:
    """Opens, finds and closes sessions; thread-safe.

    An advisor is made once per size and budget. A restarted service resumes the sessions whose
    files are in `folder`.
    """

    def __init__(
        self,
        make_advisor: MakeAdvisor,
        *,
        limits: Limits,
        defaults: Defaults | None = None,
        folder: Path | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits, self.defaults, self.folder = limits, defaults or Defaults(), folder
        self.counts = Counts()
        self._make, self._now = make_advisor, now_s
        self._handles: dict[str, Handle] = {}
        self._advisors: dict[tuple[int, ...], Advisor] = {}
        self._lock, self._making = threading.RLock(), threading.Lock()

    def __len__(self) -> int:
        return len(self._handles)

    def open(self, scan: Scan) -> str:
        """Open a session and return its name."""
        name, complete = secrets.token_hex(16), self.defaults.complete(scan)
        file = None if self.folder is None else self.folder / f"{name}.npz"
        while True:
            with self._lock:
                self.close_idle()
                self._check_limits(scan)
                if (advisor := self._cached(scan)) is not None:
                    session = Session(advisor, complete, file=file)
                    self._handles[name] = Handle(session, self._now())
                    break
            self._prepare(scan)
        try:
            if file is not None:
                session.write(file)
        except NotSavedError:
            self.close(name)
            raise
        return name

    def close_idle(self) -> None:
        """Close sessions that exceeded the idle time; this releases their memory."""
        with self._lock:
            begin = self._now() - self.limits.idle_s
            idle = [name for name, handle in self._handles.items() if handle.last_used_s < begin]
            for name in idle:
                del self._handles[name]
            if idle:
                self._close_unused()

    def find(self, name: str) -> Handle:
        """Return the handle of a session, and mark the session as used."""
        with self._lock:
            self.close_idle()
            handle = self._handles.get(name)
            if handle is None:
                raise NoSessionError(
                    "there is no such session; it may have been closed, or was idle"
                )
            handle.last_used_s = self._now()
            return handle

    def close(self, name: str) -> None:
        """Close a session and delete its file."""
        handle = self.find(name)
        with handle.lock:
            file, handle.session.file = handle.session.file, None
            if file is not None:
                file.unlink(missing_ok=True)
        with self._lock:
            self._handles.pop(name, None)
            self._close_unused()

    def restore(self) -> int:
        """Resume the sessions of the folder; return the number of open sessions."""
        files = [] if self.folder is None else sorted(self.folder.glob("*.npz"))
        for file in files:
            if not _NAME.fullmatch(file.stem):
                continue
            try:
                scan = read(Scan, read_session(file).facts.get("scan"))
                self._check_limits(scan)
                self._prepare(scan)
                session = Session.read(file, self._advisors[_key(scan)])
            except (KScoutError, OSError) as error:
                _LOG.warning("skipped session %s: %s", file.stem, error)
                continue
            self._handles[file.stem] = Handle(session, self._now())
        return len(self)

    def shut(self) -> None:
        """Write all sessions and close all advisors; session files stay."""
        with self._lock:
            for handle in self._handles.values():
                session = handle.session
                with handle.lock:
                    try:
                        if session.file is not None:
                            session.write(session.file)
                    except NotSavedError as error:
                        text = "session %s could not be written; its previous state stays: %s"
                        _LOG.warning(text, session.file, error)
            for advisor in self._advisors.values():
                advisor.close()

    def _check_limits(self, scan: Scan) -> None:
        n_values = scan.n_coils * scan.n_rows * scan.n_cols
        if n_values > self.limits.n_values:
            raise TooManyError(
                f"a session of {scan.n_coils} coils, {scan.n_rows} rows and {scan.n_cols} columns "
                f"exceeds the limit of {self.limits.n_values} values per session; "
                "compress coils"
            )
        scans = [handle.session.scan for handle in self._handles.values()]
        in_all = n_values + sum(one.n_coils * one.n_rows * one.n_cols for one in scans)
        if len(scans) >= self.limits.n_sessions or in_all > self.limits.n_values_in_all:
            raise TooManyError(
                f"{len(scans)} sessions are open, the limit of this service; close one"
            )

    def _cached(self, scan: Scan) -> Advisor | None:
        """Return the cached advisor, if any, and move it to the end (least recently used first)."""
        advisor = self._advisors.pop(_key(scan), None)
        if advisor is not None:
            self._advisors[_key(scan)] = advisor
        return advisor

    def _prepare(self, scan: Scan) -> None:
        """Make an advisor if none is cached; open sessions continue meanwhile."""
        with self._making:
            with self._lock:
                if self._cached(scan) is not None:
                    return
            advisor = self._make(scan)
            with self._lock:
                self._advisors[_key(scan)] = advisor
            warm_up(advisor, scan)

    def _close_unused(self) -> None:
        used = {_key(handle.session.scan) for handle in self._handles.values()}
        spare = [key for key in self._advisors if key not in used]
        for key in spare[:-MOST_SPARE]:
            self._advisors.pop(key).close()


def _key(scan: Scan) -> tuple[int, ...]:
    """Return the cache key: the values on which policy and frozen reconstruction depend."""
    return scan.n_rows, scan.n_cols, len(scan.start), scan.budget


def advisor_maker(
    reconstructor: Reconstructor, make_policy: Callable[[Scan], Policy], *, device: torch.device
) -> MakeAdvisor:
    """Return a function that makes advisors with a reconstruction frozen for the size of a scan."""

    def make(scan: Scan) -> Advisor:
        view = reconstructor.frozen(
            precision="auto", n_rows=scan.n_rows, n_cols=scan.n_cols, device=device
        )
        advisor = Advisor(view, make_policy(scan).to(device).eval(), device=device)
        advisor.check(scan)
        return advisor

    return make
