"""All sessions of a service: who may open one, where they are kept, when they end."""

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

import torch

from kscout.acquisition import Advisor, Scan, Session
from kscout.acquisition.session_file import NotSavedError, read_session
from kscout.acquisition.warm_up import warm_up
from kscout.config.records import read
from kscout.core import Policy, Reconstructor
from kscout.errors import KScoutError, RunError
from kscout.serve.counts import Counts

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"[0-9a-f]{32}")

MakeAdvisor = Callable[[Scan], Advisor]
MOST_SPARE = 4
"""Advisors kept though no session asks them: the next slice of a scan finds its graphs captured."""


@final
@dataclass(frozen=True)
class Limits:
    """What a service takes on."""

    n_sessions: int = 100
    """Sessions at once."""
    n_values: int = 2**24
    """Complex values of one session: coils x rows x columns."""
    n_values_in_all: int = 2**27
    """Of all sessions together: each value takes 24 bytes."""
    n_bytes: int = 2**25
    """Of one message."""
    idle_s: float = 3600.0
    """A session that nobody asks for so long is closed; its file stays, where it has one."""
    receive_s: float = 30.0
    """Time in which a request, or a message of a stream, has to arrive completely."""

    @property
    def n_connections(self) -> int:
        """Return the most HTTP connections: one per session, and some for pages and probes."""
        return self.n_sessions + 64

    @property
    def n_streams(self) -> int:
        """Return the most MRD connections, with those that are told that no more are served."""
        return 2 * self.n_sessions


@final
@dataclass(frozen=True)
class Defaults:
    """What holds for sessions that do not say otherwise."""

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
    """No session is called so."""


@final
@dataclass(eq=False)
class Handle:
    """One session, and its lock."""

    session: Session
    last_used_s: float
    lock: threading.Lock = field(default_factory=threading.Lock)


@final
class Sessions:
    """Opens, finds and closes sessions; any thread may ask.

    Args:
        make_advisor: returns reconstruction and policy for a scan; called once per size and budget.
        limits: what is taken on.
        defaults: what holds for sessions that do not say otherwise.
        folder: where sessions are kept, so that a service started again goes on with them.
        now_s: a clock.
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
        self._lock, self._making = threading.Lock(), threading.Lock()

    def __len__(self) -> int:
        return len(self._handles)

    def names(self) -> list[str]:
        """Return what sessions are called."""
        with self._lock:
            return list(self._handles)

    def open(self, scan: Scan) -> str:
        """Open a session and return its name."""
        name, whole = secrets.token_hex(16), self.defaults.complete(scan)
        while True:
            with self._lock:
                self._close_idle()
                self._check_room(scan)
                if (advisor := self._known(scan)) is not None:
                    session = Session(advisor, whole, file=self._file(name))
                    self._handles[name] = Handle(session, self._now())
                    break
            self._prepare(scan)
        try:
            if session.file is not None:
                session.write(session.file)
        except NotSavedError:
            self.close(name)
            raise
        return name

    def close_idle(self) -> None:
        """Close the sessions that were not used for too long; this releases their memory."""
        with self._lock:
            self._close_idle()

    def find(self, name: str) -> Handle:
        """Return a session by name, and count it as used."""
        with self._lock:
            self._close_idle()
            handle = self._handles.get(name)
            if handle is None:
                raise NoSessionError(
                    "there is no such session; it may have been closed, or was idle"
                )
            handle.last_used_s = self._now()
            return handle

    def close(self, name: str) -> None:
        """Close a session, and remove its file."""
        handle = self.find(name)
        with handle.lock:
            file, handle.session.file = handle.session.file, None
            if file is not None:
                file.unlink(missing_ok=True)
        with self._lock:
            self._handles.pop(name, None)
            self._close_unused()

    def restore(self) -> int:
        """Go on with the sessions of the folder; return how many there are."""
        files = [] if self.folder is None else sorted(self.folder.glob("*.npz"))
        for file in files:
            if not _NAME.fullmatch(file.stem):
                continue
            try:
                scan = read(Scan, read_session(file).facts.get("scan"))
                self._check_room(scan)
                self._prepare(scan)
                session = Session.read(file, self._advisors[_key(scan)])
            except (KScoutError, OSError) as error:
                _LOG.warning("left out session %s: %s", file.stem, error)
                continue
            self._handles[file.stem] = Handle(session, self._now())
        return len(self)

    def shut(self) -> None:
        """Take no more questions; files of sessions stay."""
        with self._lock:
            for handle in self._handles.values():
                with handle.lock:
                    _write_last(handle.session)
            for advisor in self._advisors.values():
                advisor.close()

    def _file(self, name: str) -> Path | None:
        return None if self.folder is None else self.folder / f"{name}.npz"

    def _check_room(self, scan: Scan) -> None:
        n_values = scan.n_coils * scan.n_rows * scan.n_cols
        if n_values > self.limits.n_values:
            raise TooManyError(
                f"a session of {scan.n_coils} coils, {scan.n_rows} rows and {scan.n_cols} columns "
                f"is larger than the {self.limits.n_values} values that this service takes; "
                "compress coils"
            )
        scans = [handle.session.scan for handle in self._handles.values()]
        in_all = n_values + sum(one.n_coils * one.n_rows * one.n_cols for one in scans)
        if len(scans) >= self.limits.n_sessions or in_all > self.limits.n_values_in_all:
            raise TooManyError(
                f"{len(scans)} sessions are open, and there is no room for more; close one"
            )

    def _known(self, scan: Scan) -> Advisor | None:
        """Return who is asked, where he is ready; those that were asked for last come last."""
        found = self._advisors.pop(_key(scan), None)
        if found is not None:
            self._advisors[_key(scan)] = found
        return found

    def _prepare(self, scan: Scan) -> None:
        """Make an advisor where none is ready; sessions that are open go on meanwhile."""
        with self._making:
            with self._lock:
                if self._known(scan) is not None:
                    return
            made = self._make(scan)
            with self._lock:
                self._advisors[_key(scan)] = made
            warm_up(made, scan)

    def _close_idle(self) -> None:
        begin = self._now() - self.limits.idle_s
        idle = [name for name, handle in self._handles.items() if handle.last_used_s < begin]
        for name in idle:
            del self._handles[name]
        if idle:
            self._close_unused()

    def _close_unused(self) -> None:
        used = {_key(handle.session.scan) for handle in self._handles.values()}
        spare = [key for key in self._advisors if key not in used]
        for key in spare[:-MOST_SPARE]:
            self._advisors.pop(key).close()


def _write_last(session: Session) -> None:
    """Write a session though it was at its last change; one that cannot be leaves the others."""
    try:
        if session.file is not None:
            session.write(session.file)
    except NotSavedError as error:
        _LOG.warning("session %s stays as it was written before: %s", session.file, error)


def _key(scan: Scan) -> tuple[int, ...]:
    """Tell scans apart that need another policy or another view of the reconstruction."""
    return scan.n_rows, scan.n_cols, len(scan.start), scan.budget


def advisor_maker(
    reconstructor: Reconstructor, make_policy: Callable[[Scan], Policy], *, device: torch.device
) -> MakeAdvisor:
    """Return what makes advisors with the frozen view of a reconstruction that suits each size."""

    def make(scan: Scan) -> Advisor:
        view = reconstructor.frozen(
            precision="auto", n_rows=scan.n_rows, n_cols=scan.n_cols, device=device
        )
        advisor = Advisor(view, make_policy(scan).to(device).eval(), device=device)
        advisor.check(scan)
        return advisor

    return make
