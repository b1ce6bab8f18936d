"""Parallel generation of volumes: the same images for any number of worker processes."""

import signal
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import final

import numpy as np

from kscout.children import SAFE_PATH, end_with_parent, environment_of_children
from kscout.data.makers.coils import Receiver
from kscout.data.makers.drawing import Volume
from kscout.data.makers.heads import Head
from kscout.errors import RunError
from kscout.json_types import JsonObject
from kscout.names import SOURCES, import_target

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

_worker_heads: list[Head] = []
"""The heads of a worker process, mapped from disk once instead of sent with every task."""


@final
@dataclass(frozen=True, kw_only=True)
class VolumeTask:
    """One volume to generate."""

    kind: str
    seed: int
    """Seed of the split."""
    volume: int
    n_slices: int
    size: int
    variant: str = "realistic"
    receiver: Receiver | None = None
    """Simulated coils, whose k-space is returned instead of images."""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.volume:05d}"


def _draw(task: VolumeTask, heads: Sequence[Head]) -> Volume:
    entry = SOURCES[task.kind]
    given: JsonObject = {"seed": task.seed, "volume": task.volume}
    given |= {"n_slices": task.n_slices, "size": task.size, "receiver": task.receiver}
    if len(entry.variants) > 1:
        given["variant"] = task.variant
    if entry.needs_sources:
        given["heads"] = heads
    return import_target(entry.target, of="kind of images")(**given)


def _start_worker(heads: list[tuple[Head, str]]) -> None:
    """Ignore Ctrl-C, which the parent handles, and map the heads' values from disk."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker_heads[:] = [replace(head, values=np.load(path, mmap_mode="r")) for head, path in heads]


def _draw_in_worker(task: VolumeTask, folder: str) -> Volume:
    """Generate a volume and save its images on disk; an empty array is sent instead.

    A message of some kilobytes is written atomically; a worker that dies while writing a longer
    one would block the parent.
    """
    volume = _draw(task, _worker_heads)
    np.save(Path(folder) / f"{task.name}.npy", volume.stored)
    return replace(volume, stored=np.empty((0, 0, 0), dtype=np.float32))


@contextmanager
def _single_threaded_children() -> Iterator[None]:
    """Limit processes that start in this context to one thread."""
    if (torch := sys.modules.get("torch")) is not None:
        # Torch fixes its number of threads on first use, which may happen in the meantime.
        torch.get_num_threads()
    with environment_of_children(_ONE_THREAD | SAFE_PATH):
        yield


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block Ctrl-C: processes that start in this context never get it, this process afterwards."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _spread_heads(heads: Sequence[Head], folder: Path) -> list[tuple[Head, str]]:
    """Write the heads' values to files that workers map, and remove them from the heads."""
    spread = []
    empty = np.zeros((1, 1, 1), dtype=np.float32)
    for number, head in enumerate(heads):
        path = folder / f"{number}.npy"
        np.save(path, head.values)
        spread.append((replace(head, values=empty), str(path)))
    return spread


def _draw_in_parallel(
    tasks: Sequence[VolumeTask], heads: Sequence[Head], workers: int
) -> Iterator[tuple[str, Volume]]:
    """Run two tasks per worker at a time, and yield their volumes in order."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kscout-volumes-")))
        stack.enter_context(_single_threaded_children())
        pool = ProcessPoolExecutor(
            workers,
            mp_context=get_context("spawn"),
            initializer=_start_worker,
            initargs=(_spread_heads(heads, folder),),
        )
        # Also on Ctrl-C, or if the caller stops: cancel pending tasks, then exit.
        stack.callback(pool.shutdown, wait=True, cancel_futures=True)
        waiting: deque[tuple[VolumeTask, Future[Volume]]] = deque()
        left = iter(tasks)
        try:
            while True:
                while len(waiting) < 2 * workers and (task := next(left, None)) is not None:
                    with interrupts_held():
                        future = pool.submit(_draw_in_worker, task, str(folder))
                    waiting.append((task, future))
                if not waiting:
                    return
                task, future = waiting.popleft()
                volume, path = future.result(), folder / f"{task.name}.npy"
                stored = np.load(path)
                path.unlink()
                yield task.name, replace(volume, stored=stored)
        except BrokenProcessPool as error:
            raise RunError(
                f"a worker process died while {task.name if task else 'volumes'} was generated, "
                f"perhaps from lack of memory; repeat the command with fewer than {workers} "
                "workers, which resumes; in a script, guard the call by `if __name__ == "
                "'__main__'`"
            ) from error


def make_volumes(
    tasks: Sequence[VolumeTask], heads: Sequence[Head] = (), *, workers: int = 1
) -> Iterator[tuple[str, Volume]]:
    """Generate named volumes in order, each from random numbers seeded by seed, number and kind.

    A volume does not depend on the workers, of which one means this process.
    """
    workers = min(workers, len(tasks))
    if workers > 1:
        return _draw_in_parallel(tasks, heads, workers)
    return ((task.name, _draw(task, heads)) for task in tasks)
