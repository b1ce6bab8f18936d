"""A campaign on complex k-space of coils: training, evaluation, an analysis and the report."""

import json
from pathlib import Path

import pytest

from coil_data import coil_store
from command_line import kscout
from fuzz.forks import load_modules, run_task
from kscout.campaign import task

COILS = """
[grid]
reconstructions = ["zero-filled-weighted"]
horizons = ["short"]
methods = ["greedy"]
seeds = [0]
[stores.coils]
path = "store"
[horizons.short]
n_initial = 8
steps = 2
[policy]
name = "conv"
n_channels = 2
n_blocks = 2
n_hidden = 9
[training]
n_epochs = 1
batch_size = 3
n_trajectories = 2
[evaluation]
policies = ["random", "oracle"]
trajectories = 1
[analyses]
masks = true
reconstructions = true
"""


@pytest.mark.slow
def test_every_kind_of_run_takes_coils(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undrawn: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(task, "_run_command", run_task)
    load_modules()
    coil_store(tmp_path / "store", noise=0.01)
    Path("coils.toml").write_text(COILS)
    words = ("campaign", "run", "coils.toml", "--workers", "0", "--device", "cpu", "--json")
    outcome = json.loads(kscout(*words))
    assert (outcome["failed"], outcome["blocked"]) == ([], []), outcome
    assert outcome["done"] == 4
    summary = next(Path("campaigns").rglob("summary.json")).read_text()
    assert json.loads(summary)["protocol"] == "blind"
    page = Path(outcome["report"]).read_text()
    assert "sense-tv" in page
