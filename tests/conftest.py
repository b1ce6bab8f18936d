"""Shapes in signatures are checked while fast tests run, each process on one thread."""

import functools
import gc
import importlib
import importlib.util
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jaxtyping
import pytest
import typer

import kscout.zoo
from kscout import compressed
from kscout.errors import KScoutError
from shape_checks import install, next_test
from undrawn import leave_undrawn, paint_once

# The process that only hands out tests need not load torch.
if TYPE_CHECKING:
    import torch

    from golden_numbers import Golden

# Here and in all that tests start: workers that share cores would wait for each other's threads.
os.environ["OMP_NUM_THREADS"] = "1"


ZOO_FOLDER = Path(kscout.zoo.__file__).parent
BROWSER_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def modules_with_shapes() -> list[str]:
    """Return the modules whose signatures name shapes; mypy checks the types of all others.

    A checked call takes several times as long as a small function itself.
    """
    spec = importlib.util.find_spec("kscout")
    assert spec is not None and spec.origin is not None
    root = Path(spec.origin).parent
    paths = [path for path in root.rglob("*.py") if "jaxtyping" in path.read_text("utf-8")]
    parts = [path.relative_to(root.parent).with_suffix("").parts for path in paths]
    return [".".join(one).removesuffix(".__init__") for one in parts]


if importlib.util.find_spec("beartype") is not None:
    install(modules_with_shapes())


# Tests compare messages as commands print them, also where they call functions.
KScoutError.is_in_command = True
# No test switches the machine off, and to wait for its disk takes longer than most of them.
os.fsync = lambda descriptor: None
# Building the commands takes longer than most of them.
typer.main.get_command = functools.cache(typer.main.get_command)
_unpack = functools.cache(compressed.unpacked)
# Most of the time of loading an entry of the zoo, which no test changes.
compressed.unpacked = lambda path, n_bytes=None: (
    _unpack if ZOO_FOLDER in path.parents else _unpack.__wrapped__
)(path, n_bytes)
# What is loaded before the first test stays to the end: looking through it again takes long.
gc.disable()


@pytest.fixture(autouse=True)
def own_signal_handlers() -> Iterator[None]:
    """Start with Python's handlers; commands that a fixture or a test runs here replace them."""
    own = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in own.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


def pytest_collection_finish() -> None:
    paint_once()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that all workers end at about the same time.

    A worker takes whole files (`--dist loadfile`): what a file's tests share is made once.
    """
    slow = {item.path for item in items if any(item.iter_markers("slow"))}
    items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")


@pytest.fixture(scope="session")
def golden() -> "Golden":
    from golden_numbers import Golden

    return Golden()


@pytest.fixture(autouse=True)
def named_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test trust a module that another one named."""
    monkeypatch.setattr("kscout.names.table._used", set())


@pytest.fixture
def generator() -> "torch.Generator":
    import torch

    return torch.Generator().manual_seed(0)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    leave_undrawn(monkeypatch)


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Switch the checks of types off, as they are for users, whose mistakes must be told."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True, scope="module")
def unchecked_if_all_slow(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make what slow tests share without checks, too."""
    jaxtyping.config.update("jaxtyping_disable", _is_slow(request.node))
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def checked_again() -> None:
    next_test()


@pytest.fixture(autouse=True)
def unchecked_if_slow(request: pytest.FixtureRequest) -> None:
    """Spend a fifth less on slow tests: fast ones check the types of the same functions."""
    if _is_slow(request.node):
        request.getfixturevalue("unchecked")


def _is_slow(node: pytest.Item | pytest.Collector) -> bool:
    return node.get_closest_marker("slow") is not None


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    path = next(filter(None, found), None)
    if path is None:
        pytest.skip("no Chromium found on this machine (Debian: apt-get install chromium)")
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=BROWSER_FLAGS)
        yield launched
        launched.close()
