"""`/metrics` is what Prometheus reads, by a reader of its text format written for this test."""

import math
import re
from itertools import pairwise

import pytest

from kscout.apps.serve.sessions import BOUNDS_S, Counts

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.*)\}})? (\S+)")
_ABOUT = re.compile(rf"# (HELP|TYPE) ({_NAME}) (.+)")

Sample = tuple[str, dict[str, str], float]


def parsed(text: str) -> dict[str, tuple[str, list[Sample]]]:
    """Return kind and samples of every metric; each is described once, before its samples."""
    assert text.endswith("\n") and "\r" not in text
    helped: set[str] = set()
    found: dict[str, tuple[str, list[Sample]]] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("#"):
            about = _ABOUT.fullmatch(line)
            assert about is not None, line
            word, family, words = about.groups()
            if word == "HELP":
                assert family not in helped, "one HELP each"
                helped.add(family)
            else:
                assert family not in found, "one TYPE each, before samples"
                assert words in ("counter", "gauge", "histogram", "summary", "untyped")
                found[family] = (words, [])
            continue
        sample = _SAMPLE.fullmatch(line)
        assert sample is not None, line
        name, labels, value = sample.groups()
        own = dict(_LABEL.findall(labels or ""))
        assert ",".join(f'{key}="{x}"' for key, x in own.items()) == (labels or ""), line
        kind, samples = found[family]
        ends = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        assert name in [family + end for end in ends], "samples of one metric lie together"
        samples.append((name, own, float(value)))
    assert helped == set(found)
    return found


@pytest.mark.parametrize("times_s", [(), (0.0005, 0.005, 0.03, 7.0)])
def test_metrics_are_prometheus_text(times_s: tuple[float, ...]) -> None:
    counts = Counts()
    for time_s in times_s:
        counts.decided("fallback" if time_s > 1 else "policy", time_s)
    counts.add("columns_total", 3)
    found = parsed(counts.text(2))
    kinds = {name: kind for name, (kind, _) in found.items()}
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in kinds.items())
    samples = {
        (name, *labels.values()): value for _, own in found.values() for name, labels, value in own
    }
    assert len(samples) == sum(len(own) for _, own in found.values()), "no sample twice"
    assert samples["kscout_sessions",] == 2 and samples["kscout_columns_total",] == 3
    assert samples["kscout_refused_total",] == 0, "counters are there before they grow"
    n_late = sum(time_s > 1 for time_s in times_s)
    assert samples["kscout_decisions_total", "fallback"] == n_late
    assert samples["kscout_decisions_total", "policy"] == len(times_s) - n_late
    kind, own = found["kscout_decision_seconds"]
    buckets = [(float(labels["le"]), n) for name, labels, n in own if name.endswith("_bucket")]
    assert kind == "histogram" and [bound for bound, _ in buckets] == [*BOUNDS_S, math.inf]
    assert all(n <= more for (_, n), (_, more) in pairwise(buckets))
    assert [n for _, n in buckets] == [sum(x <= bound for x in times_s) for bound, _ in buckets]
    assert samples["kscout_decision_seconds_count",] == len(times_s)
    assert samples["kscout_decision_seconds_sum",] == pytest.approx(sum(times_s))
