"""What kscout 0.2 wrote still opens, with the same hashes and scores."""

import csv
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import kscout
from kscout import policies, reconstruction
from kscout.acquisition import Advisor, Session
from kscout.config import (
    Config,
    JointConfig,
    PolicyConfig,
    ReconstructorConfig,
    of_0_2,
    of_today,
    read,
    to_table,
)
from kscout.data.store import Store
from kscout.errors import ConfigError
from kscout.names import POLICIES, RECONSTRUCTORS
from kscout.names.renamed import CLASSES, current
from kscout.runs import read_run
from kscout.weights import fingerprint, read_weights, save_weights
from kscout.zoo import ZOO

WRITTEN = Path(__file__).parent / "written_by_0_2"
TOLD = json.loads((WRITTEN / "told.json").read_text())
PRESETS = json.loads((WRITTEN / "presets.json").read_text())
KINDS: dict[str, type[Config]] = {
    "reconstructor": ReconstructorConfig,
    "policy": PolicyConfig,
    "joint": JointConfig,
}
ONLY_RECONSTRUCT = ("unet", "varnet")


@pytest.fixture(scope="module", autouse=True)
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Work in a copy, because commands may add to what they open."""
    path = shutil.copytree(WRITTEN, tmp_path_factory.mktemp("old") / "files")
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


@pytest.mark.parametrize("name", TOLD["stores"])
def test_a_store_opens_with_the_same_fingerprint(name: str) -> None:
    store = Store.open(name)
    store.verify()
    assert store.fingerprint == TOLD["stores"][name]
    assert [len(store.split(one)) for one in ("train", "val", "test")][1:] in ([1, 1], [2, 2])


@pytest.mark.parametrize("name", sorted({*TOLD["policies"], *TOLD["reconstructions"]}))
def test_a_run_folder_reads(name: str) -> None:
    record = read_run(Path("runs") / name)
    assert record.is_finished and len(record.metrics) == 1
    kind = "joint" if name.startswith("joint") else "policy"
    assert record.kind == ("reconstructor" if name in ONLY_RECONSTRUCT else kind)


def test_weights_with_an_argument_that_had_an_effect_are_rejected(tmp_path: Path) -> None:
    weights = read_weights(Path("runs/imagine/weights.safetensors"))
    file = tmp_path / "completed.safetensors"
    save_weights(file, replace(weights, arguments={**weights.arguments, "order": [3, 4]}))
    with pytest.raises(ConfigError, match=r"completed\.safetensors: posterior\.order is \[3, 4\]"):
        policies.load(file)


FINGERPRINTS = {
    **{f"runs/{name}": (policies, found) for name, found in TOLD["policies"].items()},
    **{f"runs/{name}": (reconstruction, found) for name, found in TOLD["reconstructions"].items()},
    **{
        name: (policies if ZOO[name] == "policy" else reconstruction, found)
        for name, found in TOLD["zoo"].items()
        if name in ZOO
    },
}


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_weights_have_the_same_fingerprint(name: str) -> None:
    module, expected = FINGERPRINTS[name]
    assert fingerprint(module.load(name)) == expected


@pytest.mark.parametrize("name", TOLD["classes"])
def test_fingerprints_count_the_name_that_a_class_had(name: str) -> None:
    today = current("policy", name)
    table = POLICIES if today in POLICIES else RECONSTRUCTORS
    found = table.resolve(today).__qualname__
    assert CLASSES.get(found, found) == TOLD["classes"][name]


@pytest.mark.parametrize("table", PRESETS, ids=lambda table: table["training"].get("method"))
def test_settings_are_read_and_name_the_same_runs_of_campaigns(table: dict[str, Any]) -> None:
    config = read(KINDS[table["kind"]], of_today(table))
    if table["kind"] != "joint":
        assert of_0_2(to_table(config)) == table


@pytest.mark.parametrize("name", ["dense", "imagine", "weigh"])
def test_a_finished_training_is_recognized(name: str, copy: Path) -> None:
    file = copy / "runs" / name / "weights.safetensors"
    before = file.stat().st_mtime_ns
    config = file.with_name("config.toml")
    train(name, config)
    assert file.stat().st_mtime_ns == before


def test_an_interrupted_training_goes_on(copy: Path) -> None:
    folder = copy / "runs" / "interrupted"
    assert not read_run(folder).is_finished
    train("interrupted", folder / "config.toml")
    found = read_weights(folder / "weights.safetensors").state
    wanted = read_weights(copy / "runs" / "interrupted_then_finished.safetensors").state
    assert found.keys() == wanted.keys()
    # Another CPU may round differently from the one that wrote the files.
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, atol=2e-4, rtol=0)


def train(name: str, config: Path) -> None:
    """Repeat the command of a training, with the settings that its run folder holds."""
    settings = config.with_suffix(".copy.toml")
    shutil.copy(config, settings)
    kscout(
        *("train", "policy", "--data", "images", "--reconstructor", "runs/unet"),
        *("--config", str(settings), "--out", f"runs/{name}", "--device", "cpu"),
    )


def test_an_evaluation_gives_the_same_scores(copy: Path) -> None:
    rows = scores(copy / "evaluation")
    names = list(dict.fromkeys(row["policy"] for row in rows))
    given = [name if name == "fixed" else f"runs/{name}" for name in names]
    kscout(
        *("evaluate", "--data", "images", "--reconstructor", "runs/unet", "--argmax"),
        *("--n-initial", "4", "--steps", "4", "--trajectories", "1", "--device", "cpu"),
        *("--out", "again", *(word for one in given for word in ("--policy", one))),
    )
    again = scores(copy / "again")
    orders = [
        [file.name for file in (copy / x / "orders").iterdir()] for x in ("evaluation", "again")
    ]
    assert orders[0] == orders[1]
    assert [row["column"] for row in again] == [row["column"] for row in rows]
    for metric in ("ssim", "psnr", "nmse"):
        found, wanted = ([float(row[metric]) for row in table] for table in (again, rows))
        assert found == pytest.approx(wanted, abs=1e-5)


def scores(folder: Path) -> list[dict[str, str]]:
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_results_are_reported(copy: Path) -> None:
    kscout("report", "evaluation", "runs/greedy", "runs/dense", "-o", "old.html")
    page = (copy / "old.html").read_text(encoding="utf-8")
    for word in ("ngreedy", "dense", "Scores", "fixed"):
        assert word in page


def test_a_session_resumes(copy: Path) -> None:
    network, policy = reconstruction.load("runs/unet"), policies.load("runs/dense")
    with Advisor(network, policy) as advisor:
        session = Session.read(copy / "session.npz", advisor)
        assert session.order == TOLD["session"]["order"]
        assert list(session.advise().columns) == TOLD["session"]["advised"]
        assert float(session.image().sum()) == pytest.approx(TOLD["session"]["image"], rel=1e-4)


@pytest.mark.parametrize("label", ["imagine-seed0", "label-of-0.2"])
def test_a_campaign_finds_all_its_runs_finished(copy: Path, label: str) -> None:
    (run_of_imagine,) = (copy / "campaigns").glob("*/policies/*/imagine-seed0")
    run_of_imagine.rename(run_of_imagine.with_name(label))
    status = json.loads(kscout("campaign", "status", "tiny.toml", "--json"))
    assert status["total"] == {"waiting": 0, "running": 0, "done": 4, "failed": 0, "runs": 4}
