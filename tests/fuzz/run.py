"""Run kscout on bad inputs, made by a seed, and count how it takes them.

Every case is a tiny valid folder with one thing damaged, or a command with one bad value; it runs
in a process of its own. It may fail with a sentence, or succeed with a result that can be used. It
may not end in a traceback, hang, take more memory than a stated bound, or leave anything
half-written.

    python tests/fuzz/run.py --n 1000 --seed 0
    python tests/fuzz/run.py --only 17 --seed 0        # one case, with all that it prints
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count, islice
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
    parser.add_argument(
        "--kind", action="append", choices=KINDS, help="Run cases of these kinds alone."
    )
    asked = parser.parse_args()
    begin = time.perf_counter()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="kscout-fuzz-") as scratch:
        prepare(Path(shutil.copytree(ARTIFACTS, Path(scratch) / "valid")), EASY)
        for number in asked.only or numbers(asked.first, asked.n, asked.kind):
            verdict = judge(asked.seed, number, Path(scratch) / str(number), asked.limit_s)
            verdicts.append(verdict)
            if asked.only:
                print(" ".join(verdict.built.words), verdict.ended.output, sep="\n")
            if verdict.fault:
                told = f"{verdict.built.kind}; {verdict.built.what}"
                print(f"case {number} ({told}): {verdict.fault}", flush=True)
    print(table(verdicts))
    print(f"{len(verdicts)} cases of seed {asked.seed} in {time.perf_counter() - begin:.0f} s")
    return int(any(verdict.fault for verdict in verdicts))


def numbers(first: int, n: int, kinds: Sequence[str] | None) -> list[int]:
    """Return the numbers of the first cases of some kinds; of all kinds if none is given."""
    names = list(KINDS)
    found = (x for x in count(first) if kinds is None or names[x % len(names)] in kinds)
    return list(islice(found, n))


def table(verdicts: list[Verdict]) -> str:
    """Return counts by kind as a Markdown table."""
    lines = ["| kind | cases | refused | succeeded | bad | largest process (MiB) |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for kind in [*dict.fromkeys(verdict.built.kind for verdict in verdicts), "all"]:
        rows = [verdict for verdict in verdicts if kind in (verdict.built.kind, "all")]
        good = [row.ended.code == 0 for row in rows if not row.fault]
        peak = max((row.ended.peak_mib for row in rows), default=0)
        counts = [len(rows), good.count(False), good.count(True), len(rows) - len(good)]
        lines.append(f"| {kind} | {' | '.join(map(str, counts))} | {peak:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
