"""A run folder is enough to redo a run, to go on with it, and refuses what is not its own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kscout import provenance
from kscout.config import (
    AcquisitionSetting,
    Component,
    PolicyConfig,
    ReconstructorConfig,
    ReconstructorTraining,
)
from kscout.errors import RunError
from kscout.runs import Run, read_run

CONFIG = ReconstructorConfig(training=ReconstructorTraining(n_epochs=3, seed=7))


def open_run(path: Path, config: ReconstructorConfig = CONFIG, store: str = "abc") -> Run:
    return Run.create_or_resume(
        path, config, inputs={"store": store}, device="cpu", command=["/bin/kscout", "train"]
    )


def test_a_folder_tells_how_to_redo_the_run(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    run.log({"epoch": 1, "loss": 0.5})
    run.note(convolution="native")
    run.finish({"ssim": 0.75})
    found = read_run(tmp_path / "run")
    assert found.kind == "reconstructor"
    assert found.config["training"]["n_epochs"] == 3
    assert found.metrics == [{"epoch": 1, "loss": 0.5}]
    assert found.is_finished and found.done is not None and found.done["ssim"] == 0.75
    assert found.provenance.command == "kscout train"
    assert found.provenance.seed == 7
    assert found.provenance.inputs == {"store": "abc"}
    assert found.provenance.notes["convolution"] == "native"
    assert set(found.provenance.versions) >= {"python", "torch", "numpy", "kscout"}


def test_a_torn_line_and_lines_ahead_of_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    for epoch in (1, 2, 3):
        run.log({"epoch": epoch})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 4, "lo')
    assert [record["epoch"] for record in read_run(run.path).metrics] == [1, 2, 3]
    assert run.rewind(2) == [{"epoch": 1}, {"epoch": 2}]
    run.log({"epoch": 3, "again": True})
    assert read_run(run.path).metrics[-1] == {"epoch": 3, "again": True}
    assert len(read_run(run.path).metrics) == 3


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    # Weights there could be written, but not read again.
    with pytest.raises(RunError, match="is not UTF-8"):
        open_run(tmp_path / "\udc80")
    assert not list(tmp_path.iterdir())


def test_the_same_run_goes_on_and_leaves_no_leftovers(tmp_path: Path) -> None:
    run = open_run(tmp_path / "run")
    date = run.provenance.date
    run.note(convolution="onednn-last")
    (run.path / ".checkpoint.pt.123.abcd.part").write_bytes(b"half")
    run.close()
    again = open_run(tmp_path / "run")
    assert again.provenance.date == date
    assert again.provenance.notes["convolution"] == "onednn-last"
    assert not list(run.path.glob(".*.part"))


def test_going_on_on_another_device_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_run(tmp_path / "run").close()
    open_run(tmp_path / "run").close()
    assert not caplog.text
    with Run.create_or_resume(tmp_path / "run", CONFIG, inputs={"store": "abc"}, device="gpu"):
        assert "started with cpu and resumes with gpu" in caplog.text


def test_the_switch_of_kernels_is_recorded_and_its_change_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_run(tmp_path / "on").provenance.kernels == "on"
    monkeypatch.setattr(provenance, "kernels_are_on", lambda: False)
    with open_run(tmp_path / "run") as run:
        assert run.provenance.kernels == "off"
    assert not caplog.text
    monkeypatch.setattr(provenance, "kernels_are_on", lambda: True)
    open_run(tmp_path / "run").close()
    assert "started with kernels off and resumes with kernels on" in caplog.text


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    other = replace(
        CONFIG,
        reconstructor=Component("unet", {"n_channels": 4}),
        training=replace(CONFIG.training, batch_size=5),
    )
    with pytest.raises(RunError) as caught:
        open_run(tmp_path / "run", other)
    assert "training.batch_size is 16 there and 5 here" in str(caught.value)
    assert "reconstructor.n_channels is 'not set' there and 4 here" in str(caught.value)
    assert "seed" not in str(caught.value)


def test_a_run_of_another_kind_and_many_differences_are_told_in_short(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    policy = PolicyConfig(acquisition=AcquisitionSetting(n_initial=2, horizon=3))
    with pytest.raises(RunError, match="a run of kind 'reconstructor', not 'policy'; name") as told:
        Run.create_or_resume(tmp_path / "run", policy, inputs={}, device="cpu")
    assert len(str(told.value).removeprefix(str(tmp_path))) < 80
    arguments = {f"argument_{number}": number for number in range(8)}
    other = replace(CONFIG, reconstructor=Component("unet", arguments))
    with pytest.raises(RunError, match="argument_4 is 'not set' there and 4 here; 3 more; name"):
        open_run(tmp_path / "run", other)


def test_another_input_is_refused(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    with pytest.raises(RunError, match=r"started with another store \(abc there, def here"):
        open_run(tmp_path / "run", store="def")


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="not empty and not a run folder"):
        open_run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RunError, match=r"no config.toml"):
        read_run(tmp_path)


def test_a_run_killed_before_its_settings_were_written_begins_anew(tmp_path: Path) -> None:
    open_run(tmp_path / "run").close()
    (tmp_path / "run" / "config.toml").unlink()
    later = replace(CONFIG, training=replace(CONFIG.training, seed=8))
    open_run(tmp_path / "run", later, store="def").close()
    found = read_run(tmp_path / "run")
    assert found.config["training"]["seed"] == found.provenance.seed == 8
    assert found.provenance.inputs == {"store": "def"}


def test_a_run_is_discarded_only_before_its_first_checkpoint(tmp_path: Path) -> None:
    with open_run(tmp_path / "run") as run:
        run.rewind(0)
        run.discard()
    assert not (tmp_path / "run").exists()
    with open_run(tmp_path / "run") as run:
        run.checkpoint_path.touch()
        run.discard()
    with open_run(tmp_path / "run") as run:
        run.checkpoint_path.unlink()
        run.discard()
    assert (tmp_path / "run" / "config.toml").exists()


@pytest.mark.parametrize("gone", ["weights.safetensors", "metrics.jsonl"])
def test_a_finished_run_that_lost_a_file_says_so(tmp_path: Path, gone: str) -> None:
    with open_run(tmp_path / "run") as run:
        run.weights_path.touch()
        run.log({"epoch": 1, "val_ssim": 0.5})
        run.finish({"best_epoch": 1, "metric": "ssim", "best_val_ssim": 0.5})
    open_run(tmp_path / "run").close()
    done = (tmp_path / "run" / "done.json").read_text()
    (tmp_path / "run" / "done.json").write_text("{}")
    with pytest.raises(RunError, match=r"done\.json is damaged \(missing: best_epoch"):
        open_run(tmp_path / "run")
    (tmp_path / "run" / "done.json").write_text(done)
    (tmp_path / "run" / gone).unlink()
    with pytest.raises(RunError, match=f"is finished, but its {gone} is missing; restore it, or"):
        open_run(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "noise\n", '{"epoch": 1}\n', '{"epoch": 2, "val_s'])
def test_metrics_that_lost_epochs_are_told(tmp_path: Path, text: str) -> None:
    with open_run(tmp_path / "run") as run:
        for epoch in (1, 2):
            run.log({"epoch": epoch, "val_ssim": 0.5})
        run.weights_path.touch()
        (run.path / "metrics.jsonl").write_text(text)
        with pytest.raises(RunError, match="ends before the checkpoint, which is of epoch 2"):
            run.rewind(2)
        assert (run.path / "metrics.jsonl").read_text() == text
        run.finish({"best_epoch": 1, "metric": "ssim", "best_val_ssim": 0.5})
    with pytest.raises(RunError, match=r"is finished, but its metrics\.jsonl is damaged"):
        open_run(tmp_path / "run")


def test_provenance_names_no_machine(tmp_path: Path) -> None:
    import platform

    run = open_run(tmp_path / "run")
    assert platform.node() not in json.dumps(run.provenance.hardware)
    assert run.provenance.commit is None or len(run.provenance.commit.split()[0]) == 40


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("provenance.json", "{", r"provenance\.json is not valid JSON"),
        ("provenance.json", "[]", r"provenance\.json holds a list"),
        ("provenance.json", '{"inputs": 3}', r"inputs is 3; expected a section \[inputs\]"),
        ("config.toml", "kind = ", r"config\.toml is not valid TOML"),
        ("config.toml", "", r"config\.toml is damaged \(missing: kind, .* and training"),
        ("config.toml", 'kind = "other"', r"damaged \(missing: training"),
        ("config.toml", 'kind = "policy"\n[training]\n', r"\[training\] needs seed"),
        ("config.toml", "kind = 3\n[training]\nseed = 1\n", r"damaged \(kind is 3"),
        ("config.toml", 'kind = "policy"\ntraining = 3', r"training is 3; expected a section"),
        (
            "config.toml",
            'kind = "policy"\n[training]\nseed = 1\n[acquisition]\nn_initial = "x"\nhorizon = 3',
            r"acquisition\.n_initial is 'x'; expected a whole number",
        ),
        ("done.json", "{", r"done\.json is not valid JSON"),
        ("metrics.jsonl", '{"epoch": "x"}\n{"epoch": 2}\n', "line 1 is damaged"),
        ("metrics.jsonl", '{"epoch": 1, "val_ssim": null}\n{"epoch": 2}\n', "line 1 is damaged"),
        ("metrics.jsonl", '{"epoch": 1}\n3\n{"epoch": 3}\n', r"metrics\.jsonl: line 2 is damaged"),
        ("metrics.jsonl", '{"epoch": 1}\nnoise\n{"epoch": 3}\n', "line 2 is damaged"),
    ],
)
def test_a_damaged_folder_is_one_sentence(
    tmp_path: Path, file: str, content: str, words: str
) -> None:
    open_run(tmp_path / "run").close()
    (tmp_path / "run" / file).write_text(content)
    with pytest.raises(RunError, match=words):
        read_run(tmp_path / "run")
