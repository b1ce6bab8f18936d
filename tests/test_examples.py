"""The example scripts run from top to bottom, and show what they say they show."""

import re
import runpy
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from fuzz.forks import in_child, load_modules

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def run(name: str, where: Path) -> str:
    """Run an example in a process that need not import torch; its temporary files go to `where`."""

    def work() -> int:
        warnings.resetwarnings()
        tempfile.tempdir = str(where)
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return 0

    load_modules()
    done = in_child(work, where, where / "log")
    assert done.code == 0, done.output
    return done.output


def scores(printed: str) -> dict[str, float]:
    found = re.findall(r"^ *([\w-]+): SSIM (\d\.\d+)", printed, flags=re.MULTILINE)
    return {name: float(value) for name, value in found}


def test_first_look_compares_policies(tmp_path: Path) -> None:
    ssim = scores(run("01_first_look.py", tmp_path))
    assert ssim["random"] < ssim["center-out"] < ssim["oracle"]
    assert max(ssim, key=lambda name: ssim[name]) == "oracle"
    assert list(tmp_path.glob("*/results/results.csv"))


def test_own_policy_is_checked_and_beats_random(tmp_path: Path) -> None:
    printed = run("02_your_own_policy.py", tmp_path)
    ssim = scores(printed)
    assert "contract: kept" in printed
    assert ssim["random"] < ssim["edges"] < ssim["oracle"]
    assert "edges minus random: +" in printed


def test_reinforcement_learning_example_runs(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    ssim = scores(run("03_gymnasium_ppo.py", tmp_path))
    assert set(ssim) == {"random", "ppo", "center-out"}
    assert ssim["random"] < ssim["center-out"]


def test_mistakes_are_told_in_one_sentence(tmp_path: Path) -> None:
    """By the installed command; one that loads no torch takes a fifth of the time."""
    done = subprocess.run(
        [Path(sys.executable).with_name("kscout"), "campaign", "status", "nowhere.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "nowhere" in done.stderr and len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
