"""Sessions whose start is measured."""

from collections.abc import Iterable
from pathlib import Path

from kscout.acquisition import Advisor, Scan, Session
from kscout.core import SliceBatch
from tiny_sessions import SCAN, data_of


def begun(
    advisor: Advisor,
    batch: SliceBatch,
    scan: Scan = SCAN,
    *,
    more: Iterable[int] = (),
    file: Path | None = None,
) -> Session:
    """Return a session of a slice that waits for advice, after `more` columns than its start."""
    session, columns = Session(advisor, scan, file=file), [*scan.start, *more]
    session.measure(columns, data_of(batch, columns))
    return session
