"""Workers: in this process, on a local cluster, on another scheduler, or as SLURM jobs.

A pool accepts tasks and returns results as they finish. Its workers share this machine's files.
"""

import contextlib
import logging
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from kscout.apps.campaign.task import Result, Task, run_task
from kscout.children import SAFE_PATH, environment_of_children
from kscout.errors import ConfigError, RunError, needs_extra
from kscout.json_types import JsonObject

if TYPE_CHECKING:
    from dask_jobqueue import JobQueueCluster, SLURMCluster
    from distributed import Client, Future

SLURM_OPTIONS = ("partition", "account", "walltime", "memory", "cores", "gpus", "interface")
"""Keys of `--slurm KEY=VALUE`; others are passed to sbatch."""
_PATIENCE_S = 120.0
"""Seconds before idle jobs are cancelled: a job may have waited in the queue for long."""
_ANSWER_WITHIN_S = 10.0
_MOST_JOBS = 16


@final
@dataclass(frozen=True)
class WorkerOptions:
    """Kind and number of workers; None values are determined by the machine."""

    n_workers: int | None = None
    """Parallel runs; 0 is sequential in this process, without dask."""
    device: str = "auto"
    scheduler: str | None = None
    """Address of a dask scheduler, e.g. tcp://10.0.0.1:8786."""
    slurm: Mapping[str, str] | None = None
    """Options of SLURM jobs for the workers."""
    n_cores: int | None = None
    """Cores for runs in this process; None: all."""


@contextmanager
def open_pool(options: WorkerOptions, *, n_tasks: int, logs: Path) -> Iterator["Pool"]:
    """Open the requested workers, and close them at the end."""
    if options.n_workers == 0:
        yield SerialPool(options.n_cores)
        return
    _import_dask()
    if options.slurm is not None:
        n_most = min(options.n_workers or _MOST_JOBS, n_tasks)
        with slurm_jobs(options.slurm, n_most=n_most, logs=logs) as (jobs, n_cores):
            yield DaskPool(jobs.client, n_most, n_most * n_cores, jobs)
    elif options.scheduler is not None:
        with _scheduler_client(options.scheduler) as client:
            yield DaskPool(client, None, None)
    else:
        gpus = list_gpus(options.device)
        n_workers = min(options.n_workers or len(gpus) or count_cores(), max(1, n_tasks))
        with _local_client(n_workers, gpus) as client:
            yield DaskPool(client, n_workers, count_cores())


@final
@dataclass
class SerialPool:
    """Executes one task after the other in this process."""

    n_cores: int | None = None
    _tasks: deque[Task] = field(default_factory=deque)

    n_workers: ClassVar[int] = 1

    def submit(self, task: Task) -> None:
        self._tasks.append(task)

    def wait(self, timeout_s: float) -> list[Result]:
        return [run_task(self._tasks.popleft())] if self._tasks else []


@final
@dataclass
class DaskPool:
    """Submits tasks to a dask scheduler, which retries when a worker fails."""

    client: "Client"
    n_fixed: int | None
    """Number of workers; None if it changes during the campaign."""
    n_cores: int | None
    """Cores that the workers share; None if the cluster determines threads."""
    jobs: "SlurmJobs | None" = None
    _ended: "queue.SimpleQueue[Future]" = field(default_factory=queue.SimpleQueue)
    _futures: dict[str, tuple["Future", Task]] = field(default_factory=dict)

    @property
    def n_workers(self) -> int:
        """Return the number of parallel tasks; more should not be submitted."""
        if self.n_fixed is not None:
            return self.n_fixed
        return max(1, sum(self.client.nthreads().values()))

    def submit(self, task: Task) -> None:
        name = f"{task.node.kind}-{task.node.key}-{task.attempt}-{os.getpid()}"
        future = self.client.submit(run_task, task, key=name, pure=False)
        # The scheduler forgets tasks whose future is deleted.
        self._futures[name] = future, task
        future.add_done_callback(self._ended.put)

    def wait(self, timeout_s: float) -> list[Result]:
        """Return finished results, with a timeout for the first."""
        if self.jobs is not None:
            self.jobs.keep(len(self._futures))
        try:
            ended = [self._ended.get(timeout=timeout_s)]
        except queue.Empty:
            return []
        while not self._ended.empty():
            ended.append(self._ended.get())
        return [self._result(*self._futures.pop(future.key)) for future in ended]

    def _result(self, future: "Future", task: Task) -> Result:
        from distributed.scheduler import KilledWorker

        if future.status in ("cancelled", "lost"):
            raise RunError(
                "the scheduler and its workers have stopped; run the campaign again, which resumes"
            )
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, KilledWorker):
            reason = "its workers failed repeatedly, often because of too little memory"
            return Result(task.node.key, is_done=False, reason=reason, is_final=True)
        return Result(task.node.key, is_done=False, reason=f"{type(error).__name__}: {error}")


Pool = SerialPool | DaskPool


def _import_dask() -> None:
    with needs_extra("running in parallel", "cluster", ", or run sequentially with --workers 0"):
        import distributed  # noqa: F401 - its presence is asked, and its loggers are set up
    # Its log messages would hide those of the runs.
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


def list_gpus(device: str) -> list[str]:
    """Return the GPUs for workers, by their names in CUDA_VISIBLE_DEVICES."""
    if device == "cpu":
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [one for one in visible.split(",") if one not in ("", "-1")]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    n_gpus = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    return [str(number) for number in range(n_gpus)] if listed.returncode == 0 else []


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _local_client(n_workers: int, gpus: Sequence[str]) -> Iterator["Client"]:
    import dask
    from distributed import Client, Nanny, Scheduler, SpecCluster

    with contextlib.ExitStack() as stack:
        # Nannies start workers at any time until the end.
        stack.enter_context(environment_of_children(SAFE_PATH))
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kscout-workers-"))
        # Also for the scheduler, which would leave a folder in that of the system.
        stack.enter_context(dask.config.set({"temporary-directory": scratch}))
        quiet = {"dashboard": False, "silence_logs": "CRITICAL"}
        workers = {}
        for number in range(n_workers):
            own = {"env": {"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]}} if gpus else {}
            settings = {"nthreads": 1, "memory_limit": 0, **quiet, **own}
            workers[number] = {"cls": Nanny, "options": settings}
        # Any free port, because two campaigns may run on one machine.
        ports = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0"}
        scheduler = {"cls": Scheduler, "options": ports}
        try:
            cluster = SpecCluster(workers, scheduler, silence_logs="CRITICAL", name="kscout")
        except RuntimeError as error:  # of its threads and processes
            first: BaseException = error
            while before := first.__cause__ or first.__context__:
                first = before
            raise RunError(
                f"the workers did not start ({first}); lower --workers, or end other programs"
            ) from error
        stack.enter_context(cluster)
        yield stack.enter_context(Client(cluster, set_as_default=False))


@contextmanager
def _scheduler_client(address: str) -> Iterator["Client"]:
    from distributed import Client

    try:
        client = Client(address, set_as_default=False, timeout=_ANSWER_WITHIN_S)
    except (OSError, ValueError) as error:
        raise RunError(
            f"no dask scheduler responds at {address} ({error}); start one with `dask scheduler`, "
            "or leave out --scheduler to run on this machine"
        ) from error
    with client:
        yield client


@final
class SlurmJobs:
    """Jobs of one worker each, on a cluster object of dask-jobqueue."""

    def __init__(
        self, cluster: "JobQueueCluster", client: "Client", n_most: int, faults: Sequence[str] = ()
    ) -> None:
        self.client, self._cluster = client, cluster
        self._n_most, self._faults = n_most, faults
        self._surplus_since: float | None = None

    def keep(self, n_runs: int) -> None:
        """Keep one job per run, up to the limit; jobs that are idle for long are cancelled.

        A job that was killed, or reached its time limit, is replaced.
        """
        if self._faults:
            raise RunError(f"SLURM rejected a job: {self._faults[0]}")
        n_wanted = max(1, min(self._n_most, n_runs))
        known = list(self._cluster.worker_spec)
        if len(known) <= n_wanted:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = time.monotonic()
        elif time.monotonic() - self._surplus_since > _PATIENCE_S:
            idle = self._idle(known)[: len(known) - n_wanted]
            self._cluster.sync(self._cluster.scale_down, idle)
        try:
            self._cluster.scale(jobs=max(len(self._cluster.worker_spec), n_wanted))
        except (OSError, RuntimeError) as error:
            raise RunError(f"SLURM rejected a job: {error}") from error

    def _idle(self, known: list[str]) -> list[str]:
        """Return idle jobs, those in SLURM's queue first."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        names = {address: str(worker["name"]) for address, worker in workers.items()}
        busy = {names.get(address) for address, keys in self.client.processing().items() if keys}
        arrived = set(names.values())
        return sorted((name for name in known if name not in busy), key=arrived.__contains__)


def cluster_class() -> "type[SLURMCluster]":
    """Return the class of clusters on SLURM."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    with needs_extra("--slurm", "cluster"):
        from dask_jobqueue import SLURMCluster
    # Its import alone makes Ctrl-C end the process with exit code 0.
    signal.signal(signal.SIGINT, on_interrupt)
    return SLURMCluster


@contextmanager
def slurm_jobs(
    options: Mapping[str, str], *, n_most: int, logs: Path
) -> Iterator[tuple[SlurmJobs, int]]:
    """Open a cluster of SLURM jobs; yield it with the number of cores per job."""
    kind, settings = cluster_class(), slurm_settings(options)
    # dask would try again without end.
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "--slurm needs sbatch, which is not here; start the campaign on a machine that submits "
            "jobs to SLURM, or leave out --slurm"
        )
    from distributed import Client

    logs.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    job = _job_class(kind.job_cls, faults)
    try:
        cluster = kind(**settings, log_directory=str(logs), python=sys.executable, job_cls=job)
    except (ValueError, OSError, RuntimeError) as error:
        raise RunError(f"cannot set up SLURM jobs: {error}") from error
    with cluster, Client(cluster, set_as_default=False) as client:
        yield SlurmJobs(cluster, client, n_most, faults), settings["job_cpu"]


def _job_class(job: Any, faults: list[str]) -> Any:  # noqa: ANN401 - dask's
    """Return a class of jobs that notes rejections, which dask logs and repeats without end."""
    from distributed.core import Status

    class Job(job):  # type: ignore[misc]
        async def start(self) -> None:
            try:
                await super().start()
            except (OSError, RuntimeError, ValueError) as error:
                faults.append(" ".join(str(error).rpartition("stderr:")[2].split())[:300])
                self.status = Status.running

    return Job


def slurm_settings(options: Mapping[str, str]) -> JsonObject:
    """Return arguments of `dask_jobqueue.SLURMCluster` for `--slurm KEY=VALUE` options."""
    extra = [f"--{key}={value}" for key, value in options.items() if key not in SLURM_OPTIONS]
    if "gpus" in options:
        extra.append(f"--gres=gpu:{options['gpus']}")
    cores = options.get("cores", "1")
    if not cores.isdigit() or int(cores) < 1:
        raise ConfigError(f"--slurm cores={cores} is not a number of cores; write cores=4")
    names = {"partition": "queue", "account": "account", "interface": "interface"}
    return {
        # One worker that executes one run at a time, with all cores of the job.
        "cores": 1,
        "processes": 1,
        "job_cpu": int(cores),
        "memory": options.get("memory", "4GB"),
        "walltime": options.get("walltime", "24:00:00"),
        "job_extra_directives": extra,
        "job_script_prologue": [f"export {name}={value}" for name, value in SAFE_PATH.items()],
        **{name: options[key] for key, name in names.items() if key in options},
    }
