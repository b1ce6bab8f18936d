"""The example scripts run from top to bottom, and show what they say they show."""

import re
import runpy
import subprocess
import sys
import tempfile
import warnings
from contextlib import chdir
from pathlib import Path

import pytest

import command_line
from fuzz.forks import in_child, load_modules

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, where: Path) -> str:
    """Run an example in a process that need not import torch; its temporary files go to `where`."""

    def work() -> int:
        warnings.resetwarnings()
        tempfile.tempdir = str(where)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
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


# One worker makes what all of these tests look at.

KSCOUT = Path(sys.executable).with_name("kscout")
SMOKE = Path(__file__).parents[1] / "configs" / "smoke.toml"
N_INITIAL, N_STEPS = 6, 3


def kscout(*words: str | Path, where: Path) -> str:
    """Run a command in a folder, without waiting for a new process; return what it printed."""
    with chdir(where):
        return command_line.kscout(*words)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, a reconstructor, a policy and an evaluation, all made by commands."""
    where = tmp_path_factory.mktemp("workplace")
    budget = ("--n-initial", N_INITIAL, "--steps", N_STEPS)
    data = ("--data", "knees", "--reconstructor", "runs/unet")
    commands = (
        "data make knee --out knees --volumes 4,2,3 --slices 2 --size 64 --seed 1",
        f"train reconstructor --config {SMOKE} --data knees --out runs/unet --convolution onednn",
    )
    for command in commands:
        kscout(*command.split(), where=where)
    network = ("--set", "policy.n_channels=2", "--set", "policy.n_hidden=9")
    options = ("--epochs", 2, "--trajectories", 2, "--convolution", "onednn")
    kscout(
        "train",
        "policy",
        *data,
        *map(str, budget + options),
        *network,
        "--out",
        "runs/greedy-seed0",
        where=where,
    )
    names = ("random", "equispaced-one", "center-out", "fixed", "oracle", "runs/greedy-seed0")
    policies = [word for name in names for word in ("--policy", name)]
    size = ("--trajectories", "2", "--fixed-slices", "2")
    kscout("evaluate", *data, *map(str, budget), *size, *policies, "--out", "results", where=where)
    return where


def test_help_waits_for_no_heavy_import(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", KSCOUT, "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "evaluate" in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "kscout.apps.cli" in imported
    assert not imported & {"torch", "scipy", "h5py", "matplotlib", "gymnasium", "distributed"}
    assert "kscout.apps.campaign.execute" not in imported


def test_analyses_and_report_read_the_folders(workplace: Path) -> None:
    kscout(
        "analyze", "policy", "greedy", "--results", "results", "--out", "analyses", where=workplace
    )
    folders = ("results", "analyses", "runs/greedy-seed0")
    kscout("report", *folders, "--out", "report.html", where=workplace)
    page = (workplace / "report.html").read_text()
    assert all(word in page for word in ("equispaced-one", "Average policy", "learning-curves"))


def test_mistakes_are_told_in_one_sentence(tmp_path: Path) -> None:
    """By the installed command; one that loads no torch takes a fifth of the time."""
    done = subprocess.run(
        [KSCOUT, "campaign", "status", "nowhere.toml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "nowhere" in done.stderr and len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr
