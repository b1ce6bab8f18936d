"""Run kscout on bad inputs, made by a seed, and count how it takes them.

Every case is a tiny valid folder with one thing damaged, or a command with one bad value; it runs
in a process of its own. It may fail with a sentence, or succeed with a result that can be used. It
may not end in a traceback, hang, take more memory than a stated bound, or leave anything
half-written.

    python tests/fuzz/run.py --n 1000 --seed 0
    python tests/fuzz/run.py --only 17 --seed 0        # one case, with all that it prints
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"

from fuzz.cases import ARTIFACTS, KINDS
from fuzz.commands import EASY
from fuzz.forks import prepare
from fuzz.judge import Verdict, judge


def main() -> int:
    """Run cases, print a table, and return 1 where any was taken badly."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1000, help="How many cases.")
    parser.add_argument("--first", type=int, default=0, help="Number of the first case.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=120, help="When a case hangs.")
    parser.add_argument("--only", type=int, action="append", help="Run these cases alone.")
    parser.add_argument("--kind", action="append", help="Run cases of these kinds alone.")
    parser.add_argument("--json", action="store_true", help="Print what was taken badly as JSON.")
    asked = parser.parse_args()
    begin = time.perf_counter()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="kscout-fuzz-") as scratch:
        prepare(Path(shutil.copytree(ARTIFACTS, Path(scratch) / "valid")), EASY)
        for number in asked.only or numbers(asked.first, asked.n, asked.kind):
            verdicts.append(judge(asked.seed, number, Path(scratch) / str(number), asked.limit_s))
            if asked.only:
                print(" ".join(verdicts[-1].words), verdicts[-1].output, sep="\n")
            if verdicts[-1].fault and not asked.json:
                tell(verdicts[-1])
    bad = [verdict for verdict in verdicts if verdict.fault]
    if asked.json:
        print(json.dumps([vars(verdict) for verdict in bad]))
        return 0
    print(table(verdicts))
    print(f"{len(verdicts)} cases of seed {asked.seed} in {time.perf_counter() - begin:.0f} s")
    return int(bool(bad))


def numbers(first: int, n: int, kinds: Sequence[str] | None) -> list[int]:
    """Return the numbers of the first cases of some kinds; of all kinds if none is given."""
    places = [place for place, kind in enumerate(KINDS) if kinds is None or kind in kinds]
    rounds = range(first // len(KINDS), first + n + 1)
    found = (round_ * len(KINDS) + place for round_ in rounds for place in places)
    return list(islice((number for number in found if number >= first), n))


def tell(bad: Verdict) -> None:
    """Print what is wrong with a case."""
    print(f"case {bad.number} ({bad.kind}; {bad.what}): {bad.fault}", flush=True)


def table(verdicts: list[Verdict]) -> str:
    """Return counts by kind as a Markdown table."""
    lines = ["| kind | cases | refused | succeeded | bad | CPU (s) | largest process (MiB) |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|")
    kinds = Counter(verdict.kind for verdict in verdicts)
    for kind in [*kinds, "all"]:
        rows = [verdict for verdict in verdicts if kind in (verdict.kind, "all")]
        n_bad = sum(bool(row.fault) for row in rows)
        good = Counter(row.code == 0 for row in rows if not row.fault)
        peak = max((row.peak_mib for row in rows), default=0)
        cpu_s = sum(row.cpu_s for row in rows)
        counts = f"{len(rows)} | {good[False]} | {good[True]} | {n_bad}"
        lines.append(f"| {kind} | {counts} | {cpu_s:.1f} | {peak:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
