"""`kscout train policy`: flags win over --set, --set over the file, the file over the presets."""

import json
import operator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from training_stores import blob_store
from typer.testing import CliRunner

from command_line import kscout
from kscout.apps.cli.train import app, resolve_policy, resolve_reconstructor
from kscout.config import NonGreedyTraining, PolicyConfig, to_table, training_of
from kscout.errors import ConfigError, KScoutError, RunError
from kscout.names import ESTIMATORS
from kscout.runs import read_run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def resolve(
    file: Path | None = None,
    *settings: str,
    preset: str = "knee-base",
    n_cols: int = 128,
    **flags: Any,
) -> PolicyConfig:
    own = {f"training.{key}": value for key, value in flags.items()}
    return resolve_policy(preset, file, list(settings), own, n_cols)


def test_a_seed_of_file_or_assignment_is_kept_unless_a_flag_names_another(file: Path) -> None:
    file.write_text("[training]\nseed = 7\n")
    assert resolve().training.seed == 0
    assert resolve(file).training.seed == 7
    assert resolve(file, "training.seed=3").training.seed == 3
    assert resolve(file, "training.seed=3", seed=5).training.seed == 5


def test_the_method_that_is_meant_brings_its_own_step_sizes(file: Path) -> None:
    file.write_text('[training]\nmethod = "ngreedy"\n')
    assert resolve().training.decay_epochs == (40,)
    assert resolve(file).training.decay_epochs == (10, 20, 30, 40)
    assert resolve(file, gamma=0.9).training.varied == {"gamma": 0.9}
    assert resolve(file, method="greedy").training.method == "greedy"
    file.write_text('[training]\nmethod = "greedy"\n')
    found = resolve(file, method="ngreedy", gamma=0.9).training
    assert found == NonGreedyTraining(gamma=0.9) and found.decay_factor == 0.5
    for given in ({"gamma": 0.9}, {"method": "greedy", "gamma": 1.0}):
        with pytest.raises(ConfigError, match=r"greedy has no gamma; .* use --method ngreedy"):
            resolve(file, **given)
    with pytest.raises(ConfigError, match="greedy has no gamma"):
        resolve(None, "training.gamma=0.5")
    file.write_text('[training]\nmethod = "ngreedy"\ngamma = 0.9\n')
    with pytest.raises(ConfigError, match="greedy has no gamma"):
        resolve(file, method="greedy")
    with pytest.raises(ConfigError, match=r"training\.gama.*did you mean 'gamma'"):
        resolve(file, "training.gama=0.5")
    with pytest.raises(KScoutError, match="Greedy"):
        resolve(method="Greedy")


def test_numbers_of_columns_free_the_setting_from_the_presets_size(file: Path) -> None:
    assert resolve(preset="brain-base", n_cols=256).acquisition.size == 256
    file.write_text("[acquisition]\nn_initial = 100\nhorizon = 60\n")
    found = resolve(file).acquisition
    assert (found.n_initial, found.horizon, found.size) == (100, 60, None)
    assert resolve(None, "acquisition.n_initial=16").acquisition.size is None
    assert resolve(file, "acquisition.size=320").acquisition.size == 320


def test_images_of_another_width_than_the_presets_need_a_start_and_a_budget() -> None:
    width = {"n_cols": 64}
    for named, asked in (
        ([], r"--n-initial 8 and --steps 8"),
        (["acquisition.n_initial=5"], r"--steps 8"),
        (["acquisition.horizon=5"], r"--n-initial 8"),
    ):
        words = rf"64 columns, and preset knee-base \(16 \+ 16\) is for 128; give {asked}, the same"
        with pytest.raises(ConfigError, match=words):
            resolve(None, *named, **width)
    with pytest.raises(ConfigError, match=r"preset brain-long .* is for 256; give --n-initial 2"):
        resolve(preset="brain-long", **width)
    both = resolve(None, "acquisition.n_initial=5", "acquisition.horizon=7", **width).acquisition
    assert (both.n_initial, both.horizon, both.size) == (5, 7, None)


def test_arguments_of_the_policy_that_a_flag_names_are_kept() -> None:
    found = resolve_policy("knee-base", None, ["policy.n_layers=3"], {"policy.name": "column"}, 128)
    assert (found.policy.name, found.policy.arguments) == ("column", {"n_layers": 3})


@pytest.mark.parametrize("method", ESTIMATORS.entries)
def test_settings_of_other_methods_are_refused(method: str) -> None:
    """Whatever one estimator has and another has not, by flag, by --set and in a file."""
    own = set(to_table(training_of(method), nulls=True))
    others = {name: to_table(training_of(name)) for name in ESTIMATORS.entries}
    foreign = {key: value for table in others.values() for key, value in table.items()}
    for key in sorted(set(foreign) - own):
        with pytest.raises(ConfigError, match=rf"^{method} has no {key}; it is a setting of "):
            resolve(None, f"training.method={method}", **{key: foreign[key]})


@pytest.mark.parametrize("value", [1e300, 1e4])
def test_step_sizes_that_no_training_survives_are_refused(value: float) -> None:
    for name in ("learning_rate", "decay_factor"):
        with pytest.raises(ConfigError, match=rf"training.{name} is .*; it must be between"):
            resolve(**{name: value})


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
