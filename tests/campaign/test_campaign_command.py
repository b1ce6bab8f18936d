"""`kscout campaign`: before anything has run, one tiny campaign for real, and nothing twice."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from kscout.cli.campaign import app
from kscout.data.store_writer import StoreWriter
from kscout.errors import ConfigError

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[2] / "configs"
TINY = """
[grid]
reconstructions = ["zero-filled"]
horizons = ["short"]
methods = ["ngreedy"]
gammas = [0.9]
[stores.given]
path = "store"
[horizons.short]
n_initial = 4
steps = 2
[training]
n_epochs = 1
batch_size = 3
n_trajectories = 2
keep_epochs = [1]
[evaluation]
policies = ["random"]
trajectories = 2
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "tiny.toml").write_text(TINY)
    random = np.random.default_rng(0)
    with StoreWriter(tmp_path / "store", {"made": "by a test"}) as writer:
        for split in ("train", "val", "test"):
            images = random.random((3, 16, 16), dtype=np.float32).cumsum(axis=1)
            writer.append(split, f"{split}-volume", images)
        writer.finish()
    return tmp_path


def invoke(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_status_works_before_anything_has_run(tmp_path: Path) -> None:
    out = str(tmp_path / "none")
    status = json.loads(invoke("status", str(CONFIGS / "paper-knee.toml"), "--out", out, "--json"))
    assert status["trainings"] == 101
    assert status["counts"]["policy"] == {"waiting": 100, "running": 0, "done": 0, "failed": 0}
    assert status["missing"] == ["stores/fastmri-knee", "stores/fastmri-knee-all"]
    assert not Path(out).exists()
    assert "100" in invoke("status", str(CONFIGS / "paper-knee.toml"), "--out", out)


def test_a_tiny_campaign_runs_for_real_and_not_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "tiny.toml", "--workers", "0", "--device", "cpu", "--no-report", "--json")
    first = json.loads(invoke(*words))
    assert (first["done"], first["failed"], first["blocked"]) == (2, [], [])
    (summary,) = (folder / "campaigns" / "tiny" / "evaluations").glob("*/*/summary.json")
    names = [policy["policy"] for policy in json.loads(summary.read_text())["policies"]]
    assert names == ["random", "ngreedy-0.9"]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started for what is done")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    again = json.loads(invoke(*words))
    assert (again["done"], again["cached"]) == (0, 2)
    assert "2 of 2 done" in invoke("status", "tiny.toml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nowhere.toml"), "cannot read the campaign nowhere.toml"),
        (("run", "tiny.toml", "--slurm", "gpu"), "write --slurm partition=NAME"),
    ],
)
def test_what_is_typed_wrong_is_told(folder: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        invoke(*words)
