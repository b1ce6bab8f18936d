"""Run a case and say what is wrong with how it ended, if anything is."""

import json
import os
import re
import resource
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import final

from fuzz.cases import Case, case
from fuzz.forks import INVALID, TRACEBACK, Ended, command, in_child, stand_in
from fuzz.service import attacked
from kscout.apps.campaign import task

LIMIT_S = 120.0
"""A case that takes longer hangs; all take less than a few seconds."""
BOUND_BYTES = 2**30
"""What a command on these tiny inputs may ask for beyond an idle process with torch loaded."""
BOUND_MIB = 512
"""What it may hold of that."""
_LARGEST_READ = 2**26
_LONGEST = 8000
"""Letters of a sentence, which may repeat a value of 5,000 that a user typed."""
_LEFT = re.compile(r"\.part$|\.unfinished$|\.tmp$")

_RUN_FAILED = "failed (?:store|reconstructor|policy|evaluation|analysis)"
"""What a campaign says of a run that failed."""

Snapshot = dict[str, tuple[int, bytes | int]]


@final
@dataclass(frozen=True)
class Verdict:
    """What a case did."""

    number: int
    built: Case
    ended: Ended
    fault: str
    """Empty where all is well."""


def judge(seed: int, number: int, folder: Path, limit_s: float = LIMIT_S) -> Verdict:
    """Build a case in a new folder, run its command, judge it and remove the folder."""
    here, temporary = folder / "here", folder / "temporary"
    here.mkdir(parents=True)
    temporary.mkdir()
    built = case(seed, number, here)
    before = snapshot(here)

    def work() -> int:
        os.environ["TMPDIR"] = str(temporary)
        task._run_command = stand_in
        if built.words[0] == "serve":
            attacked()
        code = command(built.words)
        return code if code or is_valid(built) else INVALID

    log = folder / "log"
    ended = in_child(work, here, log, limit_s=limit_s, n_bytes=BOUND_BYTES)
    fault = fault_of(built, ended, before, snapshot(here)) or _litter(temporary)
    for path in here.rglob("*"):
        if not path.is_symlink() and path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)
    return Verdict(number, built, ended, fault)


def fault_of(built: Case, ended: Ended, before: Snapshot, after: Snapshot) -> str:
    """Say what is wrong with how a command ended; nothing where all is well."""
    if ended.is_hung:
        return "hangs"
    if ended.code < 0:
        return f"killed by signal {-ended.code}"
    if ended.code == TRACEBACK or "Traceback (most recent call" in ended.output:
        raised = re.findall(
            r"^\S*(?:Error|Exception|Warning|Interrupt)\b.*", ended.output, re.MULTILINE
        )
        return f"traceback {(raised or [_last_line(ended.output)])[-1][:110]}"
    if ended.code == INVALID:
        return f"success with an unusable result: {_last_line(ended.output)[:110]}"
    if "memory ran out" in ended.output:
        return f"asks for too much memory: {_last_line(ended.output)[:110]}"
    # The memory of this process, which a forked child begins with.
    n_pages = int(Path("/proc/self/statm").read_text().split()[1])
    if ended.peak_mib > n_pages * resource.getpagesize() / 2**20 + BOUND_MIB:
        return f"takes {ended.peak_mib:.0f} MiB"
    if ended.code and built.must_succeed:
        return f"fails, though the rest is good: {_last_line(ended.output)[:110]}"
    if not ended.code and built.must_fail:
        return "succeeds with a bad input"
    return _bad_words(ended) or _half_written(ended, before, after)


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def _bad_words(ended: Ended) -> str:
    """Check that a refusal is a sentence, and that nothing printed commands the terminal."""
    if controls := re.findall(r"[\x00-\x08\x0b-\x1f\x7f]", ended.output):
        return f"prints control characters {sorted(set(controls))}"
    if ended.code in (0, 130):
        return ""
    if ended.code == 2:
        return "" if "Usage:" in ended.output else "usage error without usage"
    told = re.search(rf"^(?:error:|{_RUN_FAILED}) (.*)", ended.output, re.MULTILINE)
    if told is None:
        return f"exit {ended.code} without a sentence: {_last_line(ended.output)[:80]!r}"
    sentence = told.group(1)
    if len(sentence.split()) < 3 or "[Errno" in sentence or " object at 0x" in sentence:
        return f"no sentence: {sentence[:80]!r}"
    if len(sentence) > _LONGEST:
        return f"a sentence of {len(sentence)} letters: {sentence[:60]!r}"
    return ""


def _half_written(ended: Ended, before: Snapshot, after: Snapshot) -> str:
    """Check that a failed command changed nothing, and that any left nothing temporary."""
    new = sorted(set(after) - set(before))
    if left := [name for name in new if _LEFT.search(name)]:
        return f"leaves {left[0]}"
    # A campaign goes on past a run that failed, and keeps what is done.
    if ended.code == 0 or re.search(f"^{_RUN_FAILED} ", ended.output, re.MULTILINE):
        return ""
    # A lock is no content.
    new = [name for name in new if not name.endswith(".lock") and after[name][0] != stat.S_IFDIR]
    if new:
        return f"fails and leaves {', '.join(new)[:80]}"
    # An import that was interrupted before keeps what it has.
    changed = [
        name for name in before if ".unfinished" not in name and after.get(name) != before[name]
    ]
    return f"fails and changes {', '.join(changed)[:80]}" if changed else ""


def _litter(temporary: Path) -> str:
    left = sorted(path.name for path in temporary.iterdir())
    return f"leaves temporary {left[0]}" if left else ""


def snapshot(folder: Path) -> Snapshot:
    """Return kind and content of all that lies in a folder."""
    found: Snapshot = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        kind = stat.S_IFMT(facts.st_mode)
        is_read = kind == stat.S_IFREG and facts.st_size < _LARGEST_READ
        content = path.read_bytes() if is_read else facts.st_size * (kind == stat.S_IFREG)
        found[path.relative_to(folder).as_posix()] = (kind, content)
    return found


def is_valid(built: Case) -> bool:
    """Say whether what a successful command wrote can be used; runs in the child."""
    words = built.words
    outs = [words[i + 1] for i, word in enumerate(words[:-1]) if word in ("--out", "-o")]
    if not outs or not outs[-1]:
        return True
    out = Path(outs[-1])
    if words[:2] in (["data", "import"], ["data", "make"]):
        from kscout.data.store import Store

        store = Store.open(out)
        store.verify()
        # What a scanner left out in part has no truth, and opens as measured alone.
        return all(
            len(store.measured(array.split, size=array.size)) for array in store.manifest.arrays
        )
    if words[0] == "train":
        from kscout.weights import read_weights

        # Several seeds have a folder each.
        files = [*out.glob("weights.safetensors"), *out.glob("seed-*/weights.safetensors")]
        states = [read_weights(file).state for file in files]
        values = [value for state in states for value in state.values()]
        return all(states) and bool(values) and all(bool(x.isfinite().all()) for x in values)
    if words[0] == "evaluate":
        from kscout.evaluation.summaries.summary import read_summary

        return len(read_summary(out).policies) > 0
    if words[0] == "analyze":
        return bool(json.loads(next(out.glob("*.settings.json")).read_text()))
    # A table per file: their names begin with the one that was asked for.
    return words[0] != "report" or any(
        path.stat().st_size for path in out.parent.glob(f"{out.stem}*")
    )
