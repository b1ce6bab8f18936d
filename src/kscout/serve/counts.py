"""What a service answers and counts: the latter as text that Prometheus reads."""

import threading
from collections import Counter
from typing import Any, final

from kscout.acquisition import Session
from kscout.files import finite

MOST_THREADS = 256
"""Of a service, for sessions that wait at the same time."""
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@final
class Counts:
    """Counters and one histogram; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._below: Counter[float] = Counter()
        self._sum_s, self._n = 0.0, 0

    def add(self, name: str, n: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            self._totals[name] += n

    def decided(self, source: str, duration_s: float) -> None:
        """Count a decision, by what made it, and how long it took."""
        with self._lock:
            self._totals[f'decisions_total{{source="{source}"}}'] += 1
            self._n += 1
            self._sum_s += duration_s
            self._below.update(bound for bound in BOUNDS_S if duration_s <= bound)

    def text(self, n_sessions: int) -> str:
        """Return all of it in Prometheus' text format."""
        with self._lock:
            lines = ["# TYPE kscout_sessions gauge", f"kscout_sessions {n_sessions}"]
            for kind in ("sessions_opened", "columns", "refused", "decisions"):
                lines.append(f"# TYPE kscout_{kind}_total counter")
                own = [name for name in sorted(self._totals) if name.startswith(f"{kind}_total")]
                lines += [f"kscout_{name} {self._totals[name]}" for name in own]
            name = "kscout_decision_seconds"
            lines.append(f"# TYPE {name} histogram")
            lines += [f'{name}_bucket{{le="{x:g}"}} {self._below[x]}' for x in BOUNDS_S]
            lines += [f'{name}_bucket{{le="+Inf"}} {self._n}', f"{name}_sum {self._sum_s:.6f}"]
            return "\n".join([*lines, f"{name}_count {self._n}", ""])


def reply(session: Session, counts: Counts) -> dict[str, Any]:
    """Return what a session advises, as JSON, and count a decision that was made for it."""
    n_before = len(session.record)
    advice = session.advise()
    if len(session.record) > n_before and advice.source in ("policy", "fallback"):
        counts.decided(advice.source, advice.duration_s)
    return {
        "next_column": advice.columns[0] if advice.columns else None,
        "next_columns": list(advice.columns),
        "n_measured": session.n_measured,
        "done": session.is_done,
        "late": advice.is_late,
        "source": advice.source,
        "scores": None if advice.scores is None else finite(advice.scores.float().tolist()),
    }
