"""Several trainings of policies: one after the other, or on a GPU each in a process of its own."""

import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import (
    FIRST_EXCEPTION,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from kscout.acquisition.episode import MEMORY_LIMIT
from kscout.children import SAFE_PATH, end_with_parent, environment_of_children
from kscout.config import PolicyConfig
from kscout.data.store import Store
from kscout.device import at_most_a_quarter, free_memory, resolve_device
from kscout.errors import RunError
from kscout.json_types import JsonObject
from kscout.names import use, used
from kscout.runs import Progress, RunRecord, read_run
from kscout.training.algorithms.recording import KEPT_BYTES
from kscout.training.loop import OnStep
from kscout.training.policy import train_policy

_POLL_S = 0.5


def train_policies(
    configs: Sequence[PolicyConfig],
    store: Store,
    reconstructor: str | Path,
    outs: Sequence[str | Path],
    *,
    start: str | Path | None = None,
    device: str = "auto",
    on_step: OnStep = lambda _: None,
    n_at_once: int | None = None,
) -> list[RunRecord]:
    """Train several policies, each into its own run folder, as `train_policy` does.

    Args:
        configs: settings of each.
        store: slices with the splits `train` and `val`.
        reconstructor: as for `train_policy`.
        outs: a run folder for each.
        start: as for `train_policy`.
        device: `auto`, `cpu` or `cuda`.
        on_step: called as by `train_policy`; for processes, once per epoch of the first training
            that is not finished.
        n_at_once: number of processes. Not given: 1 on a CPU, which trains in this process; on
            CUDA the number that fits into the free memory of the device.
    """
    if n_at_once is None:
        n_at_once = _n_at_once(device, len(configs))
    how = {"start": start, "device": device}
    pairs = list(zip(configs, outs, strict=True))
    if n_at_once == 1:
        return [
            train_policy(config, store, reconstructor, out, **how, on_step=on_step)  # type: ignore[arg-type]
            for config, out in pairs
        ]
    with environment_of_children(SAFE_PATH):
        pool = ThreadPoolExecutor(n_at_once)
        try:
            tasks = [
                pool.submit(
                    _in_a_process,
                    partial(_train, config, store.path, reconstructor, out, how, is_first=i == 0),
                )
                for i, (config, out) in enumerate(pairs)
            ]
            _watch(tasks, pairs, on_step)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [task.result() for task in tasks]


def _n_at_once(device: str, n_runs: int) -> int:
    """Return the number of trainings that fit into the free memory of a device; 1 on a CPU."""
    place = resolve_device(device)
    if place.type == "cpu":
        return 1
    n_bytes = sum(at_most_a_quarter(x[place.type], place) for x in (MEMORY_LIMIT, KEPT_BYTES))
    return max(1, min(n_runs, free_memory(place) // n_bytes))


def _in_a_process(training: Callable[[], RunRecord]) -> RunRecord:
    """Run a training in a process of its own, whose end frees all memory of the device."""
    modules = used() - {"__main__"}
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        process.submit(_begin, modules).result()
        return process.submit(training).result()


def _begin(modules: Iterable[str]) -> None:
    """Prepare a worker process; components may come from modules that the command uses."""
    end_with_parent()
    for module in modules:
        use(module)


def _train(
    config: PolicyConfig,
    store: Path,
    reconstructor: str | Path,
    out: str | Path,
    how: JsonObject,
    *,
    is_first: bool,
) -> RunRecord:
    """Train one policy in a worker process."""
    if not is_first:
        # All trainings have equal warnings, which the first one prints.
        logging.disable(logging.WARNING)
    return train_policy(config, Store.open(store), reconstructor, out, **how)


def _watch(
    tasks: Sequence["Future[RunRecord]"],
    runs: Sequence[tuple[PolicyConfig, str | Path]],
    on_step: OnStep,
) -> None:
    """Report epochs of the first unfinished training until all end or one fails."""
    n_reported = [0] * len(tasks)
    while True:
        left = wait(tasks, _POLL_S, FIRST_EXCEPTION).not_done
        first = next((i for i, task in enumerate(tasks) if task in left), len(tasks) - 1)
        config, out = runs[first]
        for record in _metrics(Path(out))[n_reported[first] :]:
            n_reported[first] += 1
            on_step(Progress(record["epoch"], config.training.n_epochs, 1, 1, record))
        if not left or any(task.done() and task.exception() for task in tasks):
            return


def _metrics(out: Path) -> list[JsonObject]:
    try:
        return read_run(out).metrics
    except RunError:
        return []  # not begun
