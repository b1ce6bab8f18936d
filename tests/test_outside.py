"""A policy, a reconstruction, an estimator and an analysis from a folder outside of the package.

Every command takes them by `module:Class`; `docs/how-to/extend.md` shows the same four files.
"""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import kscout
from fuzz.forks import load_modules, run_task
from kscout.apps.campaign import task

OUTSIDE = Path(__file__).parent / "outside"
DOCS = Path(__file__).parents[1] / "docs" / "how-to"
MODULES = ("spectrum", "unrolled", "reinforce", "reach")
CAMPAIGN = """
name = "own"
use = ["spectrum", "unrolled", "reinforce", "reach"]
[grid]
horizons = ["short"]
methods = ["reinforce:Reinforce"]
[stores.own]
path = "store"
[horizons.short]
n_initial = 2
steps = 3
[reconstructions.own]
reconstructor = { name = "unrolled:Unrolled" }
training = { n_epochs = 1, accelerations = [4], center_fractions = [0.25], protocol = "blind" }
[policy]
name = "spectrum:Spectrum"
[training]
n_epochs = 1
batch_size = 4
n_trajectories = 3
[evaluation]
policies = ["random", "fixed"]
trajectories = 2
[analyses]
entropy = { trajectories = 2 }
"reach:Reach" = true
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the four modules and a store of small blobs."""
    path = tmp_path_factory.mktemp("own")
    for name in MODULES:
        shutil.copy(OUTSIDE / f"{name}.py", path)
    random, place = np.random.default_rng(0), np.linspace(-1, 1, 16)
    (path / "volumes").mkdir()
    for number in range(6):
        centers = random.uniform(-0.4, 0.4, (2, 3, 2))
        squares = (place - centers[..., :1]) ** 2, (place - centers[..., 1:]) ** 2
        blobs = np.exp(-8 * (squares[0][..., None] + squares[1][..., None, :])).sum(axis=1)
        np.save(path / "volumes" / f"{number}.npy", blobs.astype(np.float32))
    return path


@pytest.fixture(autouse=True)
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("KSCOUT_USE", ",".join(MODULES))


@pytest.mark.parametrize("name", [*MODULES, "outwards"])
def test_the_docs_show_each(name: str) -> None:
    text = (OUTSIDE / f"{name}.py").read_text(encoding="utf-8")
    page = (DOCS / ("train-jointly.md" if name == "outwards" else "extend.md")).read_text(
        encoding="utf-8"
    )
    assert text in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)


@pytest.mark.slow
def test_every_command_takes_them(folder: Path) -> None:
    kscout("data", "import", "volumes", "--out", "store", "--size", "16")
    kscout(
        *("train", "reconstructor", "--model", "unrolled:Unrolled", "--data", "store"),
        *("--out", "runs/own", "--epochs", "1", "--protocol", "blind", "--device", "cpu"),
    )
    kscout(
        *("train", "policy", "--policy", "spectrum:Spectrum", "--method", "reinforce:Reinforce"),
        *("--data", "store", "--reconstructor", "runs/own", "--out", "runs/policy"),
        *("--n-initial", "2", "--steps", "3", "--epochs", "2", "--batch-size", "4"),
        *("--protocol", "blind", "--device", "cpu"),
    )
    kscout(
        *("evaluate", "--data", "store", "--reconstructor", "runs/own", "--n-initial", "2"),
        *("--steps", "3", "--policy", "random", "--policy", "runs/policy", "--trajectories", "2"),
        *("--protocol", "blind", "--device", "cpu", "--out", "results"),
    )
    kscout("analyze", "reach:Reach", "results", "--out", "analyses")
    rows = json.loads((folder / "analyses" / "reach.json").read_text(encoding="utf-8"))
    assert {(row["policy"], row["step"]) for row in rows} == {
        (policy, step) for policy in ("random", "policy") for step in (1, 2, 3)
    }
    kscout("report", "results", "analyses", "runs/policy", "-o", "own.html")
    assert "Distance from the center" in (folder / "own.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_campaign_takes_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    load_modules()
    monkeypatch.setattr(task, "_run_command", run_task)
    if not (folder / "store").exists():
        kscout("data", "import", "volumes", "--out", "store", "--size", "16")
    (folder / "own.toml").write_text(CAMPAIGN, encoding="utf-8")
    kscout("campaign", "run", "own.toml", "--device", "cpu", "--workers", "0")
    status = json.loads(kscout("campaign", "status", "own.toml", "--json"))
    assert status["total"]["done"] == status["total"]["runs"] == 5
    page = (folder / "campaigns" / "own" / "report.html").read_text(encoding="utf-8")
    assert "Distance from the center" in page
