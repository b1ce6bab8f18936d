"""Start the service, and end it so that no session is lost."""

import gc
import json
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from kscout.acquisition import Scan
from kscout.acquisition.advisor import check_blind
from kscout.core import Policy
from kscout.device import resolve_device
from kscout.errors import ConfigError
from kscout.export.order import ranking_of
from kscout.files import locked
from kscout.names import POLICIES
from kscout.policies import build
from kscout.policies import load as load_policy
from kscout.serve.guard import LOOPBACK, Guard, token_for
from kscout.serve.sessions import Defaults, Limits, Sessions, advisor_maker

GRACE_S = 5
"""Requests that are being answered when the service ends get so long."""


def policy_maker(given: str) -> Callable[[Scan], Policy]:
    """Return what gives the policy of a scan: a loaded one for all, or one built for its sizes.

    What no session can use, such as an oracle, is refused at once.
    """
    if given in POLICIES and not Path(given).exists():
        check_blind(build(given, **_SOME_SIZES))
        return lambda scan: build(given, **_sizes(scan))
    policy = load_policy(given)
    check_blind(policy)
    return lambda _: policy


def fallback_maker(given: str) -> Callable[[Scan], tuple[int, ...]]:
    """Return what gives the order that answers for a late policy.

    Args:
        given: a policy that has an order, as `kscout export order` takes it.
    """
    ranking_of(given, **_SOME_SIZES)

    def made(scan: Scan) -> tuple[int, ...]:
        scores = ranking_of(given, **_sizes(scan)).scores
        if len(scores) != scan.n_cols:
            raise ConfigError(
                f"the fallback {given} orders {len(scores)} columns, the scan has {scan.n_cols}; "
                "name an order of its own"
            )
        return tuple(scores.argsort(descending=True, stable=True).tolist())

    return made


_SOME_SIZES = {"n_cols": 128, "n_initial": 16, "horizon": 16}
"""By which a name is tried before anyone asks."""


def _sizes(scan: Scan) -> dict[str, int]:
    n_initial = len(scan.start)
    return {"n_cols": scan.n_cols, "n_initial": n_initial, "horizon": scan.budget - n_initial}


def _unlabeled(given: str) -> str:
    label, equals, path = given.partition("=")
    return path if label and equals and not Path(given).exists() else given


def serve(
    reconstructor: str | Sequence[str],
    policy: str | Sequence[str],
    *,
    data: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    mrd_port: int = 0,
    device: str = "auto",
    keep: Path | None = None,
    limits: Limits | None = None,
    defaults: Defaults | None = None,
    allowed_hosts: Collection[str] = (),
    token: str | None = None,
    behind_proxy: bool = False,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serve sessions until the process is told to end.

    Args:
        reconstructor: as `kscout.reconstruction.load` takes it; the page offers all, sessions take
            the first.
        policy: a name, a run folder, a weights file, a name of the zoo, or one of these as
            `LABEL=PATH`; likewise.
        data: a store whose slices the page offers.
        host: address to listen at.
        port: 0 takes a free one.
        mrd_port: where MRD streams come in; likewise.
        device: auto, cpu or cuda.
        keep: folder of sessions; those that are there are continued.
        limits: what is taken on.
        defaults: what holds for sessions that do not say otherwise.
        allowed_hosts: names by which clients may call the service besides the address and the
            loopback's.
        token: that clients send; by default one is generated and printed if the service can be
            reached from other machines.
        behind_proxy: whether the X-Forwarded headers of a proxy on this machine count.
        on_ready: told one line of JSON when requests can be answered.
    """
    try:
        import uvicorn

        from kscout.serve.app import make_app
        from kscout.serve.connections import BoundedProtocol, GracefulServer, reserve_handles
        from kscout.serve.mrd import MrdServer
        from kscout.serve.page.backend import PageBackend, Shown
    except ImportError as error:
        raise ConfigError(
            f"the service needs packages that are not installed ({error}); install kscout[serve]"
        ) from error
    required = token_for(host, token, behind_proxy=behind_proxy)
    limits, on = limits or Limits(), resolve_device(device)
    reserve_handles(limits)
    reconstructors = (reconstructor,) if isinstance(reconstructor, str) else tuple(reconstructor)
    policies = (policy,) if isinstance(policy, str) else tuple(policy)
    argmax = defaults is not None and defaults.argmax
    backend = PageBackend(Shown(reconstructors, policies, data, argmax), device=on)
    backend.session_note()
    network = backend.models.network(backend.models.reconstructions[0])
    make = advisor_maker(network, policy_maker(_unlabeled(policies[0])), device=on)
    sessions = Sessions(make, limits=limits, defaults=defaults, folder=keep)
    with (
        nullcontext() if keep is None else _held(keep),
        _listening(host, port, "--port") as listening,
        _listening(host, mrd_port, "--mrd-port") as streams,
    ):
        generated = {} if required == token else {"token": required}
        ports = listening.getsockname()[1], streams.getsockname()[1]
        line = json.dumps({**_addresses(host, *ports), **generated})

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
        hosts = {*LOOPBACK, host, *allowed_hosts}
        guard = Guard(app, hosts=hosts, n_bytes=limits.n_bytes, token=required)
        config = uvicorn.Config(
            guard,
            http=partial(BoundedProtocol, limits=limits),  # type: ignore[arg-type]
            log_level="warning",
            lifespan="on",
            # Variables of the environment would count otherwise.
            workers=1,
            forwarded_allow_ips=[*LOOPBACK],
            ws_max_size=limits.n_bytes,
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
            proxy_headers=behind_proxy,
        )
        server = GracefulServer(config)
        server.run(sockets=[listening])
        if failed:
            raise failed[0]


@contextmanager
def _held(keep: Path) -> Iterator[None]:
    """Let no other service go on with the same sessions."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(keep, option="--keep"))
        except OSError as error:
            raise ConfigError(
                f"sessions cannot be kept in {keep} ({error.strerror}); name another --keep"
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
    """Let garbage collection pass over what is loaded: a full one would halt all decisions."""
    gc.collect()
    gc.freeze()


def _addresses(host: str, port: int, mrd_port: int) -> dict[str, object]:
    place = f"[{host}]" if ":" in host else host
    found = {"http": f"http://{place}:{port}", "host": host, "port": port}
    return {**found, "mrd": f"{place}:{mrd_port}", "mrd_port": mrd_port}
