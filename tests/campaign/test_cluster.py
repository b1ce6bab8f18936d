"""A campaign on dask: killed workers lose nothing, and another's scheduler serves as well."""

import logging
import os
import re
import signal
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from small_campaign import FAKE, PlanOf, fake_processes, products, serially, wait_for

from kscout.apps.campaign import workers
from kscout.apps.campaign.execute import RunOptions, run_campaign
from kscout.apps.campaign.plan import CampaignPlan
from kscout.apps.campaign.state import read_status
from kscout.apps.campaign.workers import (
    SlurmJobs,
    WorkerOptions,
    cluster_class,
    open_pool,
    slurm_settings,
)
from kscout.errors import ConfigError, RunError

pytestmark = [
    pytest.mark.slow,
    # Not imported here: every worker that collects tests would wait for it.
    pytest.mark.skipif(find_spec("distributed") is None, reason="dask is not installed"),
]

GRID = {"horizons": ["short"], "methods": ["greedy", "ngreedy"], "gammas": [1], "seeds": [0, 3]}


def parents(pid: int) -> list[int]:
    """Return a process's ancestors, nearest first."""
    found = []
    while pid > 1:
        pid = int(re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0])
        found.append(pid)
    return found


def kill_worker_of(plan: CampaignPlan, hold: Path, killed: list[int]) -> None:
    """Kill the worker process of the held run, and let the run go on once it died with it."""
    (node,) = (node for node in plan.of_kind("policy") if node.output.name == hold.name)
    metrics = node.output / "metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.read_text())
        (pid,) = fake_processes(hold.name)
        # The stand-in's parent is the supervisor, and its parent the worker.
        worker = parents(pid)[1]
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: pid not in fake_processes(hold.name))
        killed.append(worker)
    finally:
        hold.unlink()


def test_a_killed_worker_loses_nothing(
    plan_of: PlanOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_EPOCHS", "3")
    whole = plan_of("whole", grid=GRID)
    run_campaign(whole, serially())
    hold = tmp_path / "greedy-seed3"
    hold.touch()
    monkeypatch.setenv("FAKE_HOLD", str(hold))
    plan = plan_of("killed", grid=GRID)
    killed: list[int] = []
    killer = threading.Thread(target=kill_worker_of, args=(plan, hold, killed))
    killer.start()
    outcome = run_campaign(
        plan, RunOptions(WorkerOptions(n_workers=2, device="cpu"), n_retries=0, program=FAKE)
    )
    killer.join()
    assert killed, "no worker was caught in the middle"
    assert not outcome.failed
    assert outcome.n_done == len(plan.nodes)
    assert products(plan) == products(whole)
    logs = [node.log.read_text() for node in plan.of_kind("policy")]
    assert sorted(log.count("== ") for log in logs) == [1, 1, 1, 2]


def test_another_scheduler_serves_with_no_change_to_the_file(
    plan_of: PlanOf, tmp_path: Path
) -> None:
    from distributed import LocalCluster

    plan = plan_of("elsewhere", grid=GRID)
    folder = str(tmp_path / "dask")
    how = {"n_workers": 1, "threads_per_worker": 1, "protocol": "tcp", "local_directory": folder}
    with LocalCluster(**how, processes=False, dashboard_address=None) as cluster:
        options = RunOptions(WorkerOptions(scheduler=cluster.scheduler_address), program=FAKE)
        outcome = run_campaign(plan, options)
    assert outcome.n_done == len(plan.nodes)


def test_a_scheduler_that_does_not_answer_is_told(
    plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_ANSWER_WITHIN_S", 0.5)
    plan = plan_of(grid=GRID)
    with pytest.raises(RunError, match=r"no dask scheduler responds at tcp://127\.0\.0\.1:9"):
        run_campaign(plan, RunOptions(WorkerOptions(scheduler="tcp://127.0.0.1:9"), program=FAKE))
    assert read_status(plan).total("waiting") == len(plan.nodes)


def test_without_dask_one_sentence_says_what_to_do(
    plan_of: PlanOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    plan = plan_of(grid=GRID)
    with pytest.raises(ConfigError, match=r"pip install 'kscout\[cluster\]'.*--workers 0"):
        run_campaign(plan, RunOptions(WorkerOptions(), program=FAKE))
    assert run_campaign(plan, serially()).n_done == len(plan.nodes)


def test_workers_that_cannot_start_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        error = RuntimeError("Nanny failed to start.")
        error.__context__ = RuntimeError("can't start new thread")
        raise error

    monkeypatch.setattr("distributed.SpecCluster", fail)
    workers = open_pool(WorkerOptions(n_workers=1), n_tasks=1, logs=tmp_path)
    with pytest.raises(RunError, match=r"not start \(can't start new thread\); lower"), workers:
        pass


def test_workers_print_no_errors_of_their_scheduler(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        logging.getLogger("distributed.worker").error("no heartbeat")

    with open_pool(WorkerOptions(n_workers=1, device="cpu"), n_tasks=1, logs=tmp_path) as pool:
        assert isinstance(pool, workers.DaskPool)
        pool.client.submit(fail).result()
    assert "no heartbeat" not in capfd.readouterr().err


def test_each_worker_sees_its_own_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    with open_pool(WorkerOptions(device="cuda"), n_tasks=9, logs=tmp_path) as pool:
        assert pool.n_workers == 2
        seen = pool.client.run(lambda: os.environ["CUDA_VISIBLE_DEVICES"])  # type: ignore[attr-defined]
    assert sorted(seen.values()) == ["2", "5"]


def test_slurm_options_become_directives(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"partition": "gpu", "cores": "6", "gpus": "1", "qos": "long", "memory": "8GB"}
    settings = slurm_settings(options)
    assert (settings["queue"], settings["job_cpu"], settings["cores"]) == ("gpu", 6, 1)
    assert settings["job_extra_directives"] == ["--qos=long", "--gres=gpu:1"]
    for name in [name for name in sys.modules if name.startswith("dask_jobqueue")]:
        monkeypatch.delitem(sys.modules, name)
    on_interrupt = signal.getsignal(signal.SIGINT)
    job = cluster_class().job_cls
    assert signal.getsignal(signal.SIGINT) is on_interrupt
    script = job(scheduler="tcp://127.0.0.1:1", name="one", **settings).job_script()
    for line in ("-p gpu", "--cpus-per-task=6", "--mem=8G", "--gres=gpu:1", "--qos=long"):
        assert f"#SBATCH {line}" in script
    assert "--nthreads 1" in script


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "--slurm needs sbatch, which is not here"),
        ("echo 'sbatch: error: no account' >&2; exit 1", "rejected a job: sbatch: error: no acc"),
        ("echo welcome", "rejected a job: Could not parse job id"),
    ],
)
def test_a_campaign_ends_where_no_job_can_be_submitted(
    plan_of: PlanOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, words: str
) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    if script is not None:
        sbatch.write_text(f"#!/bin/sh\n{script}\n")
        sbatch.chmod(0o700)
    monkeypatch.setenv("PATH", str(sbatch.parent))
    options = WorkerOptions(slurm={"partition": "any"}, device="cpu")
    plan = plan_of(grid=GRID)
    with pytest.raises((ConfigError, RunError), match=words):
        run_campaign(plan, RunOptions(options, program=FAKE))
    assert (plan.root / "campaign.json").exists() == (script is not None)


class StubCluster:
    """What `SlurmJobs` asks of a cluster and its client, without SLURM."""

    def __init__(self) -> None:
        self.worker_spec: dict[str, None] = {}
        self.busy: set[str] = set()

    def scale(self, *, jobs: int) -> None:
        for number in range(jobs - len(self.worker_spec)):
            self.worker_spec[f"job-{len(self.worker_spec)}-{number}"] = None

    def scale_down(self, names: list[str]) -> None:
        for name in names:
            del self.worker_spec[name]

    def sync(self, function: Any, *arguments: Any) -> None:
        function(*arguments)

    def scheduler_info(self, *, n_workers: int) -> dict[str, Any]:
        return {"workers": {f"tcp://{name}": {"name": name} for name in self.worker_spec}}

    def processing(self) -> dict[str, list[str]]:
        return {f"tcp://{name}": ["run"] if name in self.busy else [] for name in self.worker_spec}


def test_slurm_jobs_follow_the_runs_and_no_busy_one_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = StubCluster()
    jobs = SlurmJobs(cluster, cluster, n_most=3)
    for n_runs, n_jobs in ((1, 1), (7, 3), (3, 3), (1, 3)):
        jobs.keep(n_runs)
        assert len(cluster.worker_spec) == n_jobs
    monkeypatch.setattr(workers, "_PATIENCE_S", -1.0)
    cluster.busy = {list(cluster.worker_spec)[1]}
    jobs.keep(1)
    assert set(cluster.worker_spec) == cluster.busy
