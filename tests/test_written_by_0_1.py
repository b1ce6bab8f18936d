"""What kscout 0.1 wrote still opens: a store, run folders, weights, results and a campaign."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kscout import policies, reconstruction
from kscout.cli import app
from kscout.data.store import Store
from kscout.runs import read_run
from kscout.weights import read_weights

WRITTEN = Path(__file__).parent / "written_by_0_1"
FINGERPRINT = "5b4344478f82528b93b78d195308d2779e73afda0c04b1cc0d3568f5882c7909"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a copy, because commands may add to what they open."""
    path = shutil.copytree(WRITTEN, tmp_path_factory.mktemp("old") / "files")
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


def run(*words: str) -> str:
    """Run a command as a user does; return what it prints."""
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_store_opens_with_the_same_fingerprint(copy: Path) -> None:
    store = Store.open("store")
    store.verify()
    assert store.fingerprint == FINGERPRINT
    assert [len(store.split(name)) for name in ("train", "val", "test")] == [8, 2, 2]


@pytest.mark.parametrize("run_folder", ["unet", "greedy", "ngreedy", "interrupted"])
def test_a_run_folder_reads(copy: Path, run_folder: str) -> None:
    record = read_run(copy / run_folder)
    assert record.is_finished == (run_folder != "interrupted")
    assert len(record.metrics) >= 1


def test_weights_load(copy: Path) -> None:
    assert reconstruction.load(Path("unet")).protocol == "paper"
    for name in ("greedy", "ngreedy"):
        assert sum(p.numel() for p in policies.load(copy / name).parameters()) > 0


def test_an_interrupted_training_goes_on(copy: Path) -> None:
    run(
        *("train", "policy", "--data", "store", "--reconstructor", "./unet"),
        *("--out", "interrupted", "--epochs", "3", "--n-initial", "2", "--steps", "3"),
        *("--set", "policy.n_hidden=4", "--set", "policy.n_channels=2"),
        *("--set", "policy.n_blocks=2", "--batch-size", "4", "--trajectories", "3"),
        *("--set", "training.convolution=onednn", "--device", "cpu"),
    )
    found = read_weights(copy / "interrupted" / "weights.safetensors").state
    wanted = read_weights(copy / "interrupted_then_finished.safetensors").state
    assert found.keys() == wanted.keys()
    # Another CPU may round otherwise than the one that wrote the files.
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=2e-4, rtol=0)


def test_a_finished_training_is_recognized(copy: Path) -> None:
    before = (copy / "greedy" / "weights.safetensors").read_bytes()
    run(
        *("train", "policy", "--data", "store", "--reconstructor", "./unet"),
        *("--out", "greedy", "--epochs", "3", "--n-initial", "2", "--steps", "3"),
        *("--set", "policy.n_hidden=4", "--set", "policy.n_channels=2"),
        *("--set", "policy.n_blocks=2", "--batch-size", "4", "--trajectories", "3"),
        *("--device", "cpu"),
    )
    assert (copy / "greedy" / "weights.safetensors").read_bytes() == before


@pytest.mark.slow
def test_results_and_analyses_are_reported(copy: Path) -> None:
    run("report", "results", "analyses", "greedy", "ngreedy", "-o", "old.html")
    page = (copy / "old.html").read_text(encoding="utf-8")
    for word in ("ngreedy", "Adaptivity", "Training", "oracle"):
        assert word in page


def test_a_campaign_finds_all_its_runs_finished(copy: Path) -> None:
    status = json.loads(run("campaign", "status", "tiny.toml", "--json"))
    assert status["total"] == {"waiting": 0, "running": 0, "done": 6, "failed": 0, "runs": 6}
