"""A service that other machines can reach answers only to its token."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from asgi_client import Client, requested
from mrd_client import answered
from test_app import ASKED, client_of, column_of, sessions_of
from test_mrd_stream import CONFIG, HEAD, lines_of

from kscout.apps.serve.guard import token_for
from kscout.apps.serve.mrd_messages import Id, text_message
from kscout.apps.serve.run import serve
from kscout.apps.serve.service import ServeSettings
from kscout.apps.serve.sessions import Counts
from kscout.errors import ConfigError

TOKEN = "0123456789abcdef-._~+/=A"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def client() -> Iterator[Client]:
    with client_of(sessions_of(), TOKEN) as client:
        yield client


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer 0123456789abcdef"},
        {"authorization": "Bearer "},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer \xff"},
        {"cookie": "kscout_token="},
        {"cookie": f"another_token={TOKEN}"},
    ],
)
def test_requests_without_the_token_are_rejected(client: Client, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/health"), ("GET", "/"), ("POST", "/sessions")):
        found = client.request(method, path, ASKED, **headers)
        assert found.status == 401 and "Authorization: Bearer TOKEN" in found.json()["error"]
        assert found.headers["www-authenticate"] == "Bearer"
    name = client.request("POST", "/sessions", ASKED, **BEARER).json()["id"]
    sent: list[str | bytes] = [json.dumps(column_of(7))]
    assert client.stream(f"/sessions/{name}/stream", sent, **headers) == ([], 1008)
    found = client.get(f"/sessions/{name}", **BEARER)
    assert found.json()["n_measured"] == 0


def test_requests_with_the_token_are_served(client: Client) -> None:
    name = client.request("POST", "/sessions", ASKED, **BEARER).json()["id"]
    sent: list[str | bytes] = [json.dumps(column_of(7))]
    answers, _ = client.stream(f"/sessions/{name}/stream", sent, **BEARER)
    assert answers[0]["next_column"] == 8
    assert client.get("/health", **BEARER).status == 200


def test_a_browser_gets_a_cookie_for_the_address_with_the_token(client: Client) -> None:
    def page(query: str, path: str = "/") -> Any:
        return client.runner.run(requested(client.app, "GET", path, query=query.encode()))

    found = page("token=0123456789abcdef-._~%2B/%3DA")
    assert found.status == 303 and found.headers["location"] == "./"
    cookie, *kind = found.headers["set-cookie"].split("; ")
    assert kind == ["HttpOnly", "SameSite=Strict"]
    assert client.get("/health", cookie=f"a=b; {cookie}").status == 200
    assert {page("token=other").status, page("").status} == {401}
    assert page(f"token={TOKEN}", "/health").status == 401


@pytest.mark.parametrize("token", [None, "0123456789abcdef", TOKEN])
def test_a_stream_needs_the_token_in_its_config(token: str | None) -> None:
    sessions = sessions_of()
    told = CONFIG if token is None else {**CONFIG, "token": token}
    begin = text_message(Id.CONFIG_TEXT, json.dumps(told))
    sent = begin + HEAD + lines_of(7, 8, 9)
    raw = asyncio.run(answered(sessions, sent, token=TOKEN))
    assert (b"the config has no token or another one" in raw) == (token != TOKEN)
    assert (b"next_column" in raw) == (token == TOKEN) and not len(sessions)


def test_a_stream_with_the_name_of_a_config_has_no_token() -> None:
    begin = Id.CONFIG_FILE.to_bytes(2, "little") + b"default.xml".ljust(1024, b"\0")
    raw = asyncio.run(answered(sessions_of(), begin + HEAD, token=TOKEN))
    assert b"the config has no token" in raw and b"columns" not in raw


@pytest.mark.parametrize(
    ("host", "behind_proxy", "is_needed"),
    [
        *((host, False, False) for host in ("127.0.0.1", "127.3.2.1", "localhost", "::1")),
        *((host, False, True) for host in ("0.0.0.0", "::", "192.168.1.2", "scanner.example")),
        ("127.0.0.1", True, True),
    ],
)
def test_a_token_is_generated_beyond_loopback(
    host: str, behind_proxy: bool, is_needed: bool
) -> None:
    found = [token_for(host, None, behind_proxy=behind_proxy) for _ in range(2)]
    assert (found[0] != found[1] and None not in found) if is_needed else found == [None, None]
    assert token_for(host, TOKEN, behind_proxy=behind_proxy) == TOKEN


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_rejected(host: str) -> None:
    with pytest.raises(ConfigError, match="--host is empty, which stands for all addresses"):
        settings = ServeSettings(reconstructor=("zero-filled",), policy=("center-out",), host=host)
        serve(settings, on_ready=lambda _: pytest.fail("it listens"))


@pytest.mark.parametrize("token", ["", "short", "0123456789 abcdef", "0123456789abcdef\r\nx: y"])
def test_a_token_that_no_header_can_hold_is_rejected(token: str) -> None:
    with pytest.raises(ConfigError, match=r"16 to 256 letters") as refused:
        token_for("127.0.0.1", token, behind_proxy=False)
    assert not token or token not in str(refused.value)


TIMES_S = (0.0005, 0.005, 0.03, 7.0)
BOUNDS = ("0.001", "0.002", "0.005", "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1", "2", "5")
BUCKETS = "".join(
    f'kscout_decision_seconds_bucket{{le="{bound}"}} {sum(x <= float(bound) for x in TIMES_S)}\n'
    for bound in (*BOUNDS, "+Inf")
)
METRICS = f"""\
# HELP kscout_sessions Sessions that are open.
# TYPE kscout_sessions gauge
kscout_sessions 2
# HELP kscout_sessions_opened_total Sessions that were opened.
# TYPE kscout_sessions_opened_total counter
kscout_sessions_opened_total 0
# HELP kscout_columns_total Columns of k-space that were taken in.
# TYPE kscout_columns_total counter
kscout_columns_total 3
# HELP kscout_refused_total Requests, messages and streams that were rejected.
# TYPE kscout_refused_total counter
kscout_refused_total 0
# HELP kscout_decisions_total Decisions, by what made them.
# TYPE kscout_decisions_total counter
kscout_decisions_total{{source="policy"}} 3
kscout_decisions_total{{source="fallback"}} 1
# HELP kscout_decision_seconds How long decisions took.
# TYPE kscout_decision_seconds histogram
{BUCKETS}kscout_decision_seconds_sum 7.035500
kscout_decision_seconds_count 4
"""
"""The text format of Prometheus: each metric is described once, before its samples."""


def test_metrics_are_prometheus_text() -> None:
    counts = Counts()
    for time_s in TIMES_S:
        counts.decided("fallback" if time_s > 1 else "policy", time_s)
    counts.add("columns_total", 3)
    assert counts.text(2) == METRICS
