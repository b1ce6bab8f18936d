"""Start the service, and stop it without loss of sessions."""

import gc
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import uvicorn

from kscout.acquisition import Scan
from kscout.acquisition.advisor import check_blind
from kscout.apps.export.order import ranking_of
from kscout.apps.serve.app import make_app
from kscout.apps.serve.guard import (
    LOOPBACK,
    BoundedProtocol,
    GracefulServer,
    Guard,
    reserve_handles,
    token_for,
)
from kscout.apps.serve.mrd import MrdServer
from kscout.apps.serve.page.backend import PageBackend
from kscout.apps.serve.service import ServeSettings
from kscout.apps.serve.sessions import Defaults, Limits, Sessions, advisor_maker
from kscout.core import Policy
from kscout.device import resolve_device
from kscout.errors import ConfigError
from kscout.files import locked
from kscout.names import POLICIES
from kscout.policies import build
from kscout.policies import load as load_policy

GRACE_S = 5
"""Seconds that open requests have to finish when the service stops."""


def policy_maker(name: str) -> Callable[[Scan], Policy]:
    """Return a function from a scan to its policy: one loaded policy, or one built for its sizes.

    A policy that no session can use, such as an oracle, raises an error immediately.
    """
    label, _, path = name.partition("=")
    if label and path and not Path(name).exists():
        name = path
    if name in POLICIES and not Path(name).exists():
        check_blind(build(name, **_EXAMPLE_SIZES))
        return lambda scan: build(name, **_sizes(scan))
    policy = load_policy(name)
    check_blind(policy)
    return lambda _: policy


def fallback_maker(policy: str) -> Callable[[Scan], tuple[int, ...]]:
    """Return a function from a scan to the column order that replaces a late policy."""
    ranking_of(policy, **_EXAMPLE_SIZES)

    def make(scan: Scan) -> tuple[int, ...]:
        scores = ranking_of(policy, **_sizes(scan)).scores
        if len(scores) != scan.n_cols:
            raise ConfigError(
                f"the fallback {policy} orders {len(scores)} columns, the scan has {scan.n_cols}; "
                "name an order of its own"
            )
        return tuple(scores.argsort(descending=True, stable=True).tolist())

    return make


_EXAMPLE_SIZES = {"n_cols": 128, "n_initial": 16, "horizon": 16}
"""Sizes for which a policy is built at the start, to report errors early."""


def _sizes(scan: Scan) -> dict[str, int]:
    n_initial = len(scan.start)
    return {"n_cols": scan.n_cols, "n_initial": n_initial, "horizon": scan.budget - n_initial}


def serve(
    settings: ServeSettings,
    *,
    limits: Limits | None = None,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serve sessions until the process receives a signal to stop.

    `limits` replace those of the settings. `on_ready` is called with one line of JSON once the
    service accepts requests.
    """
    host, keep = settings.host, settings.keep
    required = token_for(host, settings.token, behind_proxy=settings.behind_proxy)
    limits = limits or Limits(n_sessions=settings.most_sessions, idle_s=settings.idle_s)
    defaults = Defaults(
        *(settings.sample, settings.argmax, settings.deadline_s), fallback_maker(settings.fallback)
    )
    on = resolve_device(settings.device)
    reserve_handles(limits)
    backend = PageBackend(settings, device=on)
    backend.session_note()
    make = advisor_maker(backend.models.first, policy_maker(settings.policy[0]), device=on)
    sessions = Sessions(make, limits=limits, defaults=defaults, folder=keep)
    with (
        nullcontext() if keep is None else _locked(keep),
        _listening(host, settings.port, "--port") as listening,
        _listening(host, settings.mrd_port, "--mrd-port") as streams,
    ):
        generated = {} if required == settings.token else {"token": required}
        port, mrd_port = listening.getsockname()[1], streams.getsockname()[1]
        address = f"[{host}]" if ":" in host else host
        http = {"http": f"http://{address}:{port}", "host": host, "port": port}
        mrd = {"mrd": f"{address}:{mrd_port}", "mrd_port": mrd_port}
        line = json.dumps({**http, **mrd, **generated})

        failed: list[OSError] = []

        def ready() -> None:
            settle()
            try:
                on_ready(line)
            except OSError as error:  # uvicorn would print its traceback.
                failed.append(error)
                server.should_exit = True

        app = make_app(
            sessions, backend, background=MrdServer(sessions, streams, required), on_ready=ready
        )
        hosts = {*LOOPBACK, host, *settings.allow_host}
        guard = Guard(app, hosts=hosts, n_bytes=limits.n_bytes, token=required)
        config = uvicorn.Config(
            guard,
            http=partial(BoundedProtocol, limits=limits),  # type: ignore[arg-type]
            log_level="warning",
            lifespan="on",
            # Otherwise environment variables would set these.
            workers=1,
            forwarded_allow_ips=[*LOOPBACK],
            ws_max_size=limits.n_bytes,
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
            proxy_headers=settings.behind_proxy,
        )
        server = GracefulServer(config)
        server.run(sockets=[listening])
        if failed:
            raise failed[0]


@contextmanager
def _locked(keep: Path) -> Iterator[None]:
    """Lock the folder, so no other service resumes the same sessions."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(keep, option="--keep"))
        except OSError as error:
            raise ConfigError(
                f"sessions cannot be stored in {keep} ({error.strerror}); name another --keep"
            ) from error
        yield


def _listening(host: str, port: int, option: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise ConfigError(
            f"cannot listen at {host}, port {port} ({reason}); name another --host or {option}"
        ) from error


def settle() -> None:
    """Exclude loaded objects from garbage collection: a full collection would delay decisions."""
    gc.collect()
    gc.freeze()
