"""`kscout train reconstructor` resolves its settings, tells how it goes and answers in JSON."""

import json
import operator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_stores import blob_store
from typer.testing import CliRunner

from command_line import kscout
from kscout.apps.cli.train import app, resolve_reconstructor
from kscout.errors import ConfigError, RunError
from kscout.runs import read_run

_EVENTS = ("tensorboard", "tensorboard/updates")
BATCH = 4
TINY = "--channels 2 --batch-size 4 --set reconstructor.n_pools=2 --convolution native".split()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(blob_store(tmp_path_factory.mktemp("stores") / "blobs").path)


def test_flags_win_over_assignments_over_file_over_preset(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text("[training]\nn_epochs = 7\nbatch_size = 7\nseed = 7\n")
    settings = ["training.batch_size=8", "training.seed=8"]
    found = resolve_reconstructor("unet", file, settings, {"training.seed": 9, "x.y": None})
    training = found.training
    assert (training.n_epochs, training.batch_size, training.seed) == (7, 8, 9)
    assert (training.protocol, training.flips) == ("blind", True)
    with pytest.raises(ConfigError, match="unknown preset 'best'; choose one of: paper-unet, unet"):
        resolve_reconstructor("best", None, [], {})


def test_the_answer_is_one_json_object_and_epochs_are_told(store: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["reconstructor", "--data", store, "--out", str(out), "--epochs", "2", *TINY]
    words += ["--json", "--device", "cpu", "--protocol", "blind", "--tensorboard"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    answer = json.loads(result.stdout)
    assert answer["epoch"] == 2 and answer["protocol"] == "blind"
    assert answer["best_val_ssim"] >= answer["val_ssim"] > 0
    assert 1 > answer["val_ssim_zero_filled"] > answer["val_ssim"]
    lines = [line for line in result.stderr.splitlines() if line.startswith("epoch ")]
    assert [line.split()[1] for line in lines] == ["1/2", "2/2"]
    assert "loss" in lines[0] and "validation SSIM" in lines[0] and "min left" in lines[0]
    run = read_run(out)
    assert run.config["reconstructor"] == {"name": "unet", "n_channels": 2, "n_pools": 2}
    events, updates = (EventAccumulator(str(out / x)).Reload() for x in _EVENTS)
    assert [one.step for one in events.Scalars("val_ssim")] == [1, 2]
    losses = [one.value for one in updates.Scalars("loss")]
    n_steps = len(losses) // 2
    first, n_slices = run.metrics[0], run.metrics[0]["n_slices"]
    sizes = [min(BATCH, n_slices - BATCH * step) for step in range(n_steps)]
    mean = sum(map(operator.mul, losses[:n_steps], sizes)) / n_slices
    assert n_steps == -(-n_slices // BATCH) and mean == pytest.approx(first["train_loss"])
    pictures = events.Images("target, reconstruction, error and columns")
    assert [one.step for one in pictures] == [1, 2] and pictures[0].width == 3 * 24
    (settings,) = events.Tensors("run/text_summary")
    assert b"n_epochs = 2" in settings.tensor_proto.string_val[0]
    assert "finished before" not in result.stderr
    told = CliRunner().invoke(app, [word for word in words if word != "--json"])
    assert (
        f"zero-filled images have SSIM {answer['val_ssim_zero_filled']:.4f}, which" in told.stdout
    )
    report = tmp_path / "report.html"
    kscout("report", out, "-o", report)
    assert "which is better than this network" in report.read_text()
    same = CliRunner().invoke(app, words, catch_exceptions=False)
    assert same.stdout == result.stdout and "finished before" in same.stderr

    again = CliRunner().invoke(app, [*words[:-1], "--seed", "1"])
    assert isinstance(again.exception, RunError)
    assert "training.seed is 0 there and 1 here" in str(again.exception)
