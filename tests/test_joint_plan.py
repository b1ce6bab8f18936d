"""What is still to be run of the joint trainings is told as commands that make just that."""

import importlib
import shlex
from pathlib import Path

import pytest

from kscout.cli.train_joint import resolve_joint

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_every_command_that_is_left_makes_the_record_that_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    script, records = (importlib.import_module(name) for name in ("joint", "joint_records"))
    found = records.read_records()
    made = []
    for command in records.commands_left(found):
        wanted = script.parsed(shlex.split(command)[2:])
        resolve_joint("knee-base", None, wanted.set, {"training.method": wanted.arm})
        made.append((wanted.horizon, wanted.arm, script.label_of(wanted), wanted.seed))
    done = {(one.horizon, one.arm, one.label, one.seed) for one in found}
    planned = [(*which, seed) for which in records.PLAN for seed in records.SEEDS]
    assert made == [one for one in planned if one not in done]
