"""`kscout campaign`: before anything has run, one tiny campaign for real, and nothing twice."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from command_line import kscout
from fuzz.forks import load_modules, run_task
from kscout.apps.campaign import task
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError
from kscout.names import ANALYSES
from undrawn import leave_undrawn

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs"
SETTINGS = """
[policy]
name = "conv"
n_channels = 2
n_blocks = 2
n_hidden = 9
[training]
n_epochs = 2
batch_size = 3
n_trajectories = 2
keep_epochs = [1, 2]
[evaluation]
policies = ["random", "oracle"]
trajectories = 2
[analyses]
"""
TINY = """
[grid]
reconstructions = ["zero-filled"]
horizons = ["short"]
methods = ["greedy", "ngreedy"]
gammas = [0.9, 1]
seeds = [0, 1]
[stores.given]
path = "store"
[horizons.short]
n_initial = 4
steps = 2
"""
OPTIONS = {
    "entropy": "{ trajectories = 2 }",
    "snr": "{ passes = 2, trajectories = 2, batch_size = 2 }",
    "examples": '{ policies = ["oracle"], slice = [1] }',
}
TINY += SETTINGS + "".join(f"{name} = {OPTIONS.get(name, 'true')}\n" for name in ANALYSES.entries)
N_RUNS = 6 + 1 + len(ANALYSES.entries)
"""Policies, an evaluation, and every analysis that there is."""
COMMAND = ("run", "tiny.toml", "--workers", "0", "--device", "cpu", "--json")


def write_campaign(folder: Path) -> Path:
    (folder / "tiny.toml").write_text(TINY)
    random = np.random.default_rng(0)
    with StoreWriter(folder / "store", {"made": "by a test"}) as writer:
        for split in ("train", "val", "test"):
            images = random.random((3, 16, 16), dtype=np.float32).cumsum(axis=1)
            writer.append(split, f"{split}-volume", images)
        writer.finish()
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a campaign that ran once: every analysis, and the report."""
    folder = write_campaign(tmp_path_factory.mktemp("whole"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(task, "_run_command", run_task)
        leave_undrawn(patch)
        load_modules()
        for name in ANALYSES.entries:
            ANALYSES.resolve(name)
        patch.setenv("OMP_NUM_THREADS", "1")
        outcome = json.loads(kscout("campaign", *COMMAND))
        assert (outcome["done"], outcome["failed"], outcome["blocked"]) == (N_RUNS, [], [])
        assert outcome["report"] == "campaigns/tiny/report.html"
    return folder


def test_status_works_before_anything_has_run(tmp_path: Path) -> None:
    out = str(tmp_path / "none")
    status = json.loads(
        kscout("campaign", "status", str(CONFIGS / "paper-knee.toml"), "--out", out, "--json")
    )
    assert status["trainings"] == 107
    assert status["counts"]["policy"] == {"waiting": 106, "running": 0, "done": 0, "failed": 0}
    assert status["missing"] == ["stores/fastmri-knee", "stores/fastmri-knee-all"]
    assert not Path(out).exists()
    assert "106" in kscout("campaign", "status", str(CONFIGS / "paper-knee.toml"), "--out", out)


def test_what_is_done_is_not_done_twice(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started for what is done")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    again = json.loads(kscout("campaign", *COMMAND))
    assert (again["done"], again["cached"]) == (0, N_RUNS)
    assert f"{N_RUNS} of {N_RUNS} done" in kscout("campaign", "status", "tiny.toml")


def test_the_report_shows_every_method_and_analysis(whole: Path) -> None:
    page = (whole / "campaigns" / "tiny" / "report.html").read_text()
    for name in ("random", "oracle", "greedy", "ngreedy-0.9", "ngreedy-1"):
        assert name in page
    titles = {ANALYSES.resolve(name).title for name in ANALYSES.entries} - {""}
    assert {title for title in titles if f">{title}</h2>" not in page} == set()


def test_what_is_typed_wrong_is_told(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole)
    for words, message in (
        (("run", "nowhere.toml"), "cannot read the campaign nowhere.toml"),
        (("run", "tiny.toml", "--slurm", "gpu"), "write --slurm partition=NAME"),
    ):
        with pytest.raises(ConfigError, match=message):
            kscout("campaign", *words)
