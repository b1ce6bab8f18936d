"""Processes that kscout starts: they import nothing from the working folder and end with it."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection, parent_process

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment with which Python does not put the working folder on its module path."""


@contextmanager
def environment_of_children(settings: Mapping[str, str]) -> Iterator[None]:
    """Add settings to the environment of processes that start in this context; restore it after."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def end_with_parent() -> None:
    """Let this worker process end when the process that started it ends, in whatever way."""
    parent = parent_process()
    if parent is None:
        return
    sentinel = parent.sentinel

    def wait() -> None:
        connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
