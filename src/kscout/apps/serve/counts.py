"""Advice as JSON, and counters of a service in the text format of Prometheus."""

import math
import threading
from collections import Counter
from typing import final

from kscout.acquisition import Session
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
