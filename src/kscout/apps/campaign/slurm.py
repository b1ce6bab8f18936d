"""Workers as SLURM jobs: one per unfinished run, and new ones for those that fail."""

import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from kscout.children import SAFE_PATH
from kscout.errors import ConfigError, RunError
from kscout.json_types import JsonObject

SLURM_OPTIONS = ("partition", "account", "walltime", "memory", "cores", "gpus", "interface")
"""Keys of `--slurm KEY=VALUE`; others are passed to sbatch."""

_PATIENCE_S = 120.0


@final
class SlurmJobs:
    """Jobs of one worker each, on a cluster object of dask-jobqueue."""

    def __init__(
        self,
        cluster: Any,  # noqa: ANN401 - dask's
        client: Any,  # noqa: ANN401 - dask's
        n_most: int,
        faults: Sequence[str] = (),
    ) -> None:
        self.client = client
        self.n_most = n_most
        self._faults = faults
        self._cluster = cluster
        self._surplus_since: float | None = None

    def keep(self, n_runs: int) -> None:
        """Keep one job per run, up to the limit; jobs that are idle for long are cancelled.

        A job that was killed, or reached its time limit, is replaced.
        """
        if self._faults:
            raise RunError(f"SLURM rejected a job: {self._faults[0]}")
        n_wanted = max(1, min(self.n_most, n_runs))
        known = list(self._cluster.worker_spec)
        if len(known) <= n_wanted:
            self._surplus_since = None
        elif self._surplus_since is None:
            self._surplus_since = time.monotonic()
        # A job may have waited in the queue for long, so a short pause does not cancel it.
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
        return sorted(
            (name for name in known if name not in busy), key=lambda name: name in arrived
        )


def cluster_class() -> Any:  # noqa: ANN401 - dask's
    """Return the class of clusters on SLURM."""
    on_interrupt = signal.getsignal(signal.SIGINT)
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError as error:
        raise ConfigError(
            "--slurm needs dask-jobqueue, which is not installed; pip install 'kscout[cluster]'"
        ) from error
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
    settings: JsonObject = {
        # One worker that executes one run at a time, with all cores of the job.
        "cores": 1,
        "processes": 1,
        "job_cpu": int(cores),
        "memory": options.get("memory", "4GB"),
        "walltime": options.get("walltime", "24:00:00"),
        "job_extra_directives": extra,
        "job_script_prologue": [f"export {name}={value}" for name, value in SAFE_PATH.items()],
    }
    names = {"partition": "queue", "account": "account", "interface": "interface"}
    settings |= {name: options[key] for key, name in names.items() if key in options}
    return settings
