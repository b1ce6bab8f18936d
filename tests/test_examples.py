"""The example scripts run from top to bottom, and show what they say they show."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, where: Path) -> str:
    """Run an example as a user does; its temporary files go to `where`."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=where,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(where)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


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


def test_examples_are_numbered_scripts_with_cells() -> None:
    scripts = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert [name[:3] for name in scripts] == [f"{i:02d}_" for i in range(1, len(scripts) + 1)]
    for name in scripts:
        assert (EXAMPLES / name).read_text(encoding="utf-8").count("\n# %% ") >= 3, name
