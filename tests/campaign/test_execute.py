"""What is done is not done again, what fails stops only what needs it, and nothing is corrupted."""

import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_campaign import FAKE, PlanOf, fake_processes, serially, wait_for

from kscout.apps.campaign.execute import Event, RunOptions, run_campaign
from kscout.apps.campaign.nodes import Node
from kscout.apps.campaign.state import node_state, read_status
from kscout.apps.campaign.task import Task, run_task
from kscout.apps.campaign.workers import WorkerOptions
from kscout.apps.cli.campaign_display import print_outcome
from kscout.errors import RunError
from kscout.files import is_locked, locked

pytestmark = pytest.mark.slow

ONE_HORIZON = {"horizons": ["short"], "methods": ["greedy"], "seeds": [0, 3]}


def mtimes(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("done.json")}


def test_all_runs_are_done_once(plan_of: PlanOf) -> None:
    plan = plan_of(grid=ONE_HORIZON)
    events: list[Event] = []
    outcome = run_campaign(plan, serially(), on_event=events.append)
    assert (outcome.n_done, outcome.n_cached, outcome.failed) == (len(plan.nodes), 0, [])
    assert [event.what for event in events] == ["done"] * len(plan.nodes)
    assert read_status(plan).total("done") == len(plan.nodes)
    before = mtimes(plan.root)
    again = run_campaign(plan_of(grid=ONE_HORIZON), serially())
    assert (again.n_done, again.n_cached) == (0, len(plan.nodes))
    assert mtimes(plan.root) == before


def test_damaged_records_of_runs_are_passed_over(plan_of: PlanOf) -> None:
    plan = plan_of(grid=ONE_HORIZON)
    run_campaign(plan, serially())
    for file, content in (
        ("done.json", '{"seconds": "x"}'),
        ("node.json", '{"started_s": []}'),
        ("failed.json", '{"reason": 3}'),
    ):
        for node in plan.nodes.values():
            (node.folder / file).write_text(content)
    (plan.root / "campaign.json").write_text('{"sources": [1]}')
    assert read_status(plan_of(grid=ONE_HORIZON)).total("done") == len(plan.nodes)
    next(iter(plan.nodes.values())).folder.joinpath("done.json").unlink()
    assert read_status(plan).failed[0].reason == "unknown"
    assert run_campaign(plan, serially()).n_done == 1


def test_a_wider_grid_runs_only_what_is_new(plan_of: PlanOf) -> None:
    first = plan_of(grid=ONE_HORIZON)
    run_campaign(first, serially())
    wider = plan_of(grid={**ONE_HORIZON, "seeds": [0, 3, 5]})
    outcome = run_campaign(wider, serially())
    assert outcome.n_cached == len(set(first.nodes) & set(wider.nodes)) > 0
    assert outcome.n_done == len(set(wider.nodes) - set(first.nodes))


def test_a_failed_run_stops_only_what_needs_it(
    plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(grid={**ONE_HORIZON, "methods": ["greedy", "ngreedy"], "gammas": [0.9]})
    monkeypatch.setenv("FAKE_FAIL", "ngreedy-0.9-seed3")
    outcome = run_campaign(plan, serially(n_retries=1))
    (bad,) = [node for node in plan.of_kind("policy") if node.label == "ngreedy-0.9-seed3"]
    assert outcome.failed == [(bad, "error: the moon is in the way; wait")]
    assert bad.log.read_text().count("the moon is in the way") == 2
    assert {node.kind for node in outcome.blocked} == {"evaluation", "analysis"}
    status = read_status(plan).to_json()
    assert status["counts"]["policy"] == {"waiting": 0, "running": 0, "done": 3, "failed": 1}
    assert status["failed"][0]["log"] == str(bad.log)
    print_outcome(plan, outcome, None, as_json=False)
    assert f"report of finished runs: kscout report {plan.root}" in capsys.readouterr().out
    monkeypatch.delenv("FAKE_FAIL")
    assert run_campaign(plan, serially()).n_done == 1 + len(outcome.blocked)
    assert read_status(plan).total("done") == len(plan.nodes)


def test_a_run_that_fails_once_is_tried_again(
    plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL_ONCE", "unet")
    events: list[Event] = []
    plan = plan_of(grid={**ONE_HORIZON, "seeds": [0]}, analyses={})
    outcome = run_campaign(plan, serially(n_retries=1), on_event=events.append)
    assert not outcome.failed
    retried = [event for event in events if event.what == "retry"]
    assert "reconstructor" in {event.node.kind for event in retried}
    assert {event.reason for event in retried} == {"exit code 3"}


def test_two_campaigns_on_one_folder_are_refused(plan_of: PlanOf) -> None:
    plan = plan_of(grid=ONE_HORIZON)
    with locked(plan.root), pytest.raises(RunError, match="in use by another process"):
        run_campaign(plan, serially())
    assert run_campaign(plan, serially()).n_done == len(plan.nodes)


def test_a_store_deleted_half_way_is_told_and_made_again(plan_of: PlanOf) -> None:
    plan = plan_of(grid=ONE_HORIZON)
    (store,) = plan.of_kind("store")

    def delete_store(event: Event) -> None:
        if event.node.kind == "reconstructor":
            shutil.rmtree(store.output)

    outcome = run_campaign(plan, serially(), on_event=delete_store)
    assert {node.kind for node, _ in outcome.failed} == {"policy"}
    assert all("manifest.json was deleted during the campaign" in why for _, why in outcome.failed)
    whole = run_campaign(plan, serially())
    assert not whole.failed
    assert read_status(plan).total("done") == len(plan.nodes)


def test_a_full_disk_is_told_and_leaves_nothing_half_done(
    plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(grid=ONE_HORIZON)
    # The index and records fit; what the runs write does not.
    code = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "open(sys.argv[sys.argv.index('--out') + 1] + '.part', 'wb').write(bytes(100_000))"
    )
    options = serially(n_retries=0)
    full = type(options)(options.workers, 0, (sys.executable, "-c", code))
    outcome = run_campaign(plan, full)
    assert [reason for _, reason in outcome.failed] == ["OSError: [Errno 27] File too large"]
    assert read_status(plan).total("done") == 0
    assert len(outcome.blocked) == len(plan.nodes) - 1
    assert run_campaign(plan, serially()).n_done == len(plan.nodes)


def test_an_index_that_cannot_be_written_is_told_and_the_old_one_stays(plan_of: PlanOf) -> None:
    plan = plan_of(grid=ONE_HORIZON)
    run_campaign(plan, serially())
    index = (plan.root / "campaign.json").read_text()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(RunError, match="File too large; free some space"):
            run_campaign(plan, serially())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert (plan.root / "campaign.json").read_text() == index
    assert not list(plan.root.glob(".campaign.json*"))


def test_the_index_names_every_run_for_reports(plan_of: PlanOf) -> None:
    plan = plan_of(grid=ONE_HORIZON)
    run_campaign(plan, serially(), file="small.toml")
    index = json.loads((plan.root / "campaign.json").read_text())
    assert index["campaign"] == "small"
    assert {record["key"] for record in index["nodes"]} == set(plan.nodes)
    for record in index["nodes"]:
        assert record["state"] == "done"
        assert (plan.root / record["output"]).is_dir()
        assert json.loads((plan.root / record["folder"] / "node.json").read_text())["settings"]


def start_worker(node: Node) -> subprocess.Popen[bytes]:
    """Start a process that does one run, as a worker would."""
    code = (
        "import pickle, sys; from kscout.apps.campaign.task import run_task;"
        "sys.exit(0 if run_task(pickle.load(sys.stdin.buffer)).is_done else 1)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.write(pickle.dumps(Task(node, program=FAKE)))
    worker.stdin.close()
    return worker


def test_a_run_dies_with_its_worker_and_goes_on_with_the_next(
    plan_of: PlanOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_EPOCHS", "4")
    whole = plan_of("whole").of_kind("store")[0]
    run_task(Task(whole, program=FAKE))
    node = plan_of("killed").of_kind("store")[0]
    hold, metrics = tmp_path / node.output.name, node.output / "metrics.jsonl"
    hold.touch()
    monkeypatch.setenv("FAKE_HOLD", str(hold))
    worker = start_worker(node)
    wait_for(lambda: metrics.exists() and metrics.read_text())
    assert node_state(node) == "running"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    wait_for(lambda: not is_locked(node.folder))
    assert not fake_processes(hold.name)
    hold.unlink()
    assert metrics.read_text().count("\n") == 1
    assert node_state(node) == "waiting"
    assert run_task(Task(node, program=FAKE)).is_done
    assert (node.output / node.product).read_text() == (whole.output / whole.product).read_text()


@pytest.mark.parametrize("mark", ["manifest.json", "config.toml", "results.csv"])
def test_a_folder_of_another_product_takes_no_campaign(plan_of: PlanOf, mark: str) -> None:
    plan = plan_of("taken")
    plan.root.mkdir(parents=True)
    (plan.root / mark).touch()
    with pytest.raises(RunError, match=rf"is the folder of another product, .* \({mark}\)"):
        run_campaign(plan, serially())
    assert [path.name for path in plan.root.iterdir()] == [mark]


@pytest.fixture
def imported(tmp_path: Path) -> Path:
    """Write modules into the working folder that leave this file when they are imported."""
    path = tmp_path / "imported"
    for name in ("typer", "numpy", "multiprocessing", "pip", "ssl"):
        source = f"open({str(path)!r}, 'a').write({name!r})\nraise SystemExit\n"
        (tmp_path / f"{name}.py").write_text(source)
    return path


def test_workers_and_runs_of_a_campaign_import_nothing_from_the_working_folder(
    plan_of: PlanOf, imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = imported.with_name("temporary")
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    plan = plan_of(stores={"knee": {"make": "knee", "volumes": [1, 1, 1], "slices": 1, "size": 64}})
    plan.nodes = {key: node for key, node in plan.nodes.items() if node.kind == "store"}
    outcome = run_campaign(plan, RunOptions(WorkerOptions(n_workers=1)))
    assert outcome.n_done == 1 and not imported.exists() and not any(temporary.iterdir())


def test_workers_that_generate_data_import_nothing_from_there(
    imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(imported.parent)
    script = Path("scripts", "generate.py")
    script.parent.mkdir()
    script.write_text(
        "import kscout\nfrom kscout.data import MakeSettings\n"
        "settings = MakeSettings(kind='knee', volumes=(2, 1, 1), slices=1, size=64, workers=2)\n"
        "if __name__ == '__main__':\n    kscout.make_store('store', settings)\n"
    )
    subprocess.run([sys.executable, script], check=True, capture_output=True)
    assert Path("store").is_dir() and not imported.exists()
