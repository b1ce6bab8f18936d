"""Kill commands at random moments, run them again to the end, and compare with a run left alone.

Half of the kills come at a random time of the command's duration, half at a random change that it
makes to the disk: a file opened for writing, a rename, a folder made or a file removed. At a random
time it gets SIGKILL, SIGTERM or SIGINT, without the processes that it started: these have to end
within seconds, and those left over are counted. After one kill or two the same command runs to the
end. All that it wrote must then equal, byte by byte, what an undisturbed run wrote, and nothing may
lie beside it.

    python tests/fuzz/kill.py --n 200 --seed 0
    python tests/fuzz/kill.py --n 20 --only evaluate
"""

import argparse
import ctypes
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, final

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from fuzz.cases import ARTIFACTS
from fuzz.commands import EASY, ENTROPY, EVALUATE, IMPORT, JOINT, MAKE, POLICY, TRAIN, UNET
from fuzz.forks import command, in_child, prepare, start
from fuzz.judge import Snapshot, snapshot
from fuzz.volumes import stack

_CAMPAIGN = ["campaign", "run", "tiny.toml", "--device", "cpu", "--workers"]
COMMANDS: dict[str, list[str]] = {
    "data make": [*MAKE, "--volumes", "2,1,1", "--slices", "2"],
    "data make, 2 processes": [*MAKE, "--volumes", "3,2,2", "--slices", "2", "--workers", "2"],
    "data import": IMPORT,
    "train reconstructor": [*UNET, "--epochs", "3"],
    "train policy": [*TRAIN, "--epochs", "3", "--seeds", "2"],
    "train posterior": [
        *(*POLICY[: POLICY.index("--set")], "--batch-size", "4", "--device", "cpu"),
        *("--out", "trained", "--method", "posterior", "--epochs", "3"),
        *("--set", "policy.n_channels=4", "--set", "policy.n_pools=1", "--set", "policy.n_draws=2"),
        *("--set", "policy.n_first=1", "--set", "training.n_warm=2", "--convolution", "onednn"),
        *("--set", "training.n_validated=2", "--set", "training.n_baseline_slices=4"),
    ],
    "train joint": [*JOINT, "--updates", "6", "--checkpoints", "3"],
    "evaluate": [*EVALUATE, "--policy", "random", "--policy", "fixed", "--policy", "greedy"],
    "analyze": ENTROPY,
    "report": ["report", "results", "-o", "page.html", "--figures", "drawn"],
    "campaign run": [*_CAMPAIGN, "0"],
    "campaign run, 2 workers": [*_CAMPAIGN, "2"],
}
RARE = {"campaign run": 4, "campaign run, 2 workers": 4, "data make, 2 processes": 2}
"""Of that many turns a command takes one, killed by time alone: its work is done by processes that
it starts, whose changes it cannot count."""

TIMED = {
    *("date", "time_s", "seconds", "started", "started_s", "peak_memory_bytes"),
    *("n_lockstep", "n_reconstructions", "commit"),
}
"""Keys of JSON files that tell when and how something was done: times, memory, whether seeds that a
kill separated went on together, and the commit, as someone may make one meanwhile."""
LEFT_S = 10.0
"""Processes that a killed command started may live so long."""
_PR_SET_CHILD_SUBREAPER = 36
LEFT_OUT = re.compile(r"(^|/)(\.lock|checkpoint\.pt|log\.txt|report\.html)$")
"""Locks, checkpoints of runs that are done (they hold the times of epochs), logs, and the page of a
campaign, which shows times; nothing else differs between two undisturbed runs."""


@final
@dataclass
class Tally:
    """What became of one command's kills."""

    duration_s: float = 0.0
    n_changes: int = 0
    wanted: Snapshot = field(default_factory=dict)
    n_kills: int = 0
    faults: list[str] = field(default_factory=list)


def main() -> int:
    """Kill, compare, print a table; return 1 where anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=200, help="How many kills.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=COMMANDS, help="These commands alone.")
    asked = parser.parse_args()
    names = asked.only or list(COMMANDS)
    begin = time.perf_counter()
    # Processes whose parent was killed become children of this one.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="kscout-kill-") as scratch:
        folder = Path(scratch)
        prepare(Path(shutil.copytree(ARTIFACTS, folder / "valid")), EASY)
        tallies: dict[str, Tally] = {}
        draw = random.Random(asked.seed)
        turns = (
            name
            for turn in count()
            for name in names
            if len(names) == 1 or turn % RARE.get(name, 1) == 0
        )
        while sum(tally.n_kills for tally in tallies.values()) < asked.n:
            name = next(turns)
            if name not in tallies:
                tallies[name] = alone(name, folder)
            disturb(name, tallies[name], draw, folder)
    print(table(tallies))
    print(f"seed {asked.seed}, {time.perf_counter() - begin:.0f} s")
    return int(any(tally.faults for tally in tallies.values()))


def set_up(folder: Path) -> Path:
    """Make the inputs of all commands; always at the same place, because files name it."""
    here = folder / "here"
    shutil.copytree(ARTIFACTS, here)
    shutil.rmtree(here / "campaigns")
    # One policy, no analysis: a campaign's runs are processes, which take long to load.
    campaign = (here / "tiny.toml").read_text().partition("[analyses]")[0]
    (here / "tiny.toml").write_text(campaign.replace('["greedy", "ngreedy"]', '["greedy"]'))
    (here / "volumes").mkdir()
    for number in range(6):
        np.save(here / "volumes" / f"{number}.npy", np.tile(stack(number), (8, 1, 1)))
    return here


def alone(name: str, folder: Path) -> Tally:
    """Run a command undisturbed."""
    here, tally = set_up(folder), Tally()
    begin = time.perf_counter()
    ended = in_child(lambda: _as_typed(name), here, folder / "log")
    tally.duration_s = time.perf_counter() - begin
    if ended.code:
        raise RuntimeError(f"{name} ended with {ended.code}:\n{ended.output}")
    tally.wanted = written(here)
    shutil.rmtree(here)
    if name in RARE:
        return tally
    # Once more, counting what it changes on the disk.
    here, counted = set_up(folder), folder / "counted"
    in_child(lambda: _watched(name, counted), here, folder / "log")
    tally.n_changes = int(counted.read_text())
    difference = differing(tally.wanted, written(here))
    if difference:
        tally.faults.append(f"two undisturbed runs differ in {difference}")
    shutil.rmtree(here)
    return tally


def _watched(name: str, counted: Path, last: int = 0) -> int:
    """Run a command and count its changes to the disk; end it by SIGKILL before the last one."""
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    changes = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
    n_changes = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal n_changes
        if event == "open":
            path, _, flags = arguments
            is_change = isinstance(flags, int) and bool(flags & writing) and path != os.devnull
        else:
            is_change = event in changes
        n_changes += is_change
        if is_change and n_changes == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    code = _as_typed(name)
    counted.write_text(str(n_changes))
    return code


def disturb(name: str, tally: Tally, draw: random.Random, folder: Path) -> None:
    """Kill a command once or twice, run it to the end, and compare."""
    here = set_up(folder)
    moments = []
    for _ in range(draw.choice((1, 1, 2))):
        by_change = draw.random() < 0.5 and tally.n_changes > 0
        moment = draw.randrange(1, tally.n_changes + 1) if by_change else draw.random()
        sent = signal.SIGKILL if by_change else draw.choice(_SIGNALS)
        if kill(name, moment, sent, tally.duration_s, here, folder / "log"):
            tally.n_kills += 1
            told = f"before change {moment}" if by_change else f"after {moment:.0%} of the time"
            moments.append(f"by {sent.name} {told}")
        if n_left := left_over():
            tally.faults.append(f"{n_left} processes outlived {sent.name}")
    ended = in_child(lambda: _as_typed(name), here, folder / "log")
    found = ended.output[-300:] if ended.code else differing(tally.wanted, written(here))
    if found and moments:
        tally.faults.append(f"killed {' and '.join(moments)}: {found}")
    shutil.rmtree(here)


def kill(
    name: str, moment: float, sent: signal.Signals, duration_s: float, here: Path, log: Path
) -> bool:
    """Run a command and end it by a signal; return whether it was still running."""
    if isinstance(moment, int):
        child = start(lambda: _watched(name, log.with_name("counted"), moment), here, log)
    else:
        child = start(lambda: _as_typed(name), here, log)
        time.sleep(moment * duration_s)
        os.kill(child, sent)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (-sent, 128 + sent)


_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def _as_typed(name: str) -> int:
    # A shell that starts this script in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Processes that the command starts would import this script.
    vars(sys.modules["__main__"]).pop("__file__", None)
    return command(COMMANDS[name])


def left_over() -> int:
    """Wait for processes whose parent has ended; kill and count those that go on."""
    end = time.monotonic() + LEFT_S
    while orphans := _children():
        if time.monotonic() > end:
            for orphan in orphans:
                os.kill(orphan, signal.SIGKILL)
            return len(orphans) + left_over()
        time.sleep(0.05)
    return 0


def _children() -> list[int]:
    """Return the running child processes of this one."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            return []
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(number) for number in listed.split()]


def written(here: Path) -> Snapshot:
    """Return what lies in a folder, without what holds times."""
    found: Snapshot = {}
    for name, (kind, content) in snapshot(here).items():
        if isinstance(content, bytes) and name.endswith((".json", ".jsonl")):
            lines = content.splitlines() if name.endswith(".jsonl") else [content]
            content = b"\n".join(json.dumps(_timeless(json.loads(line))).encode() for line in lines)
        if not LEFT_OUT.search(name):
            found[name] = (kind, content)
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in TIMED}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def differing(wanted: Snapshot, found: Snapshot) -> str:
    """Name what one folder has and the other has not, or has otherwise."""
    names = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    return ", ".join(sorted(names)[:4])


def table(tallies: dict[str, Tally]) -> str:
    """Return counts by command as a Markdown table, and the faults below it."""
    lines = ["| command | takes (s) | changes to the disk | kills | faults |"]
    lines.append("|---|---:|---:|---:|---:|")
    for name, tally in tallies.items():
        counts = f"{tally.n_changes} | {tally.n_kills} | {len(tally.faults)}"
        lines.append(f"| {name} | {tally.duration_s:.1f} | {counts} |")
    lines += [f"{name}: {fault}" for name, tally in tallies.items() for fault in tally.faults]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
