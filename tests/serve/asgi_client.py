"""A client that calls a service without a network, message by message as ASGI defines them."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

Headers = dict[str, str]


@dataclass(frozen=True)
class Reply:
    """What a request was answered."""

    status: int
    headers: Headers
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def scope_of(
    kind: str, path: str, headers: Headers, method: str = "GET", query: bytes = b""
) -> dict[str, Any]:
    """Return what a server tells of a connection; the path is what a server makes of bytes."""
    given = {"host": "127.0.0.1:9", **headers}
    return {
        "type": kind,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "ws" if kind == "websocket" else "http",
        "method": method,
        "path": path,
        "raw_path": path.encode("utf-8", "surrogateescape"),
        "query_string": query,
        "root_path": "",
        "headers": [(k.encode("latin-1"), v.encode("latin-1")) for k, v in given.items()],
        "client": ("127.0.0.1", 5),
        "server": ("127.0.0.1", 9),
        "subprotocols": [],
    }


async def requested(
    app: Any,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Headers | None = None,
    leaves: bool = False,
    is_whole: bool = True,
    **told: Any,
) -> Reply:
    """Send one request and return the answer; or leave before it comes.

    Its body comes in two parts, or the first alone.
    """
    half = len(body) // 2
    parts = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ][: 1 + is_whole]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not parts and not leaves:
            await asyncio.Event().wait()
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    given = {"content-type": "application/json", **(headers or {})}
    await app(scope_of("http", path, given, method, **told), receive, send)
    found = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return Reply(sent[0]["status"], found, b"".join(one.get("body", b"") for one in sent[1:]))


async def streamed(
    app: Any,
    path: str,
    messages: list[str | bytes],
    headers: Headers | None = None,
    stays: bool = False,
    leaves: bool = False,
) -> tuple[list[Any], int | None]:
    """Send messages into a stream, one after each answer; return answers and the closing code.

    A client that stays does not close the stream after its last message; one that leaves has
    closed it before the first answer.
    """
    answers: list[Any] = []
    closed: list[int] = []
    waiting = list(messages)
    begun = [{"type": "websocket.connect"}]

    async def receive() -> dict[str, Any]:
        if begun:
            return begun.pop()
        if not waiting and stays:
            await asyncio.Event().wait()
        if not waiting:
            return {"type": "websocket.disconnect", "code": 1000}
        message = waiting.pop(0)
        kind = "text" if isinstance(message, str) else "bytes"
        return {"type": "websocket.receive", kind: message}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "websocket.send":
            if leaves:
                raise OSError
            answers.append(json.loads(message["text"]))
        elif message["type"] == "websocket.close":
            closed.append(message["code"])

    await app(scope_of("websocket", path, headers or {}), receive, send)
    return answers, closed[0] if closed else None


class Client:
    """Runs a service from its start to its end, and sends requests meanwhile."""

    def __init__(self, app: Any) -> None:
        self.app, self.runner = app, asyncio.Runner()
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self.outbox: asyncio.Queue[Any] = asyncio.Queue()

    def __enter__(self) -> "Client":
        self.runner.__enter__()
        self.runner.run(self._live("startup"))
        return self

    def __exit__(self, *_: object) -> None:
        self.runner.run(self._live("shutdown"))
        self.runner.__exit__(None, None, None)

    async def _live(self, moment: str) -> None:
        if moment == "startup":
            life = self.app({"type": "lifespan"}, self.inbox.get, self.outbox.put)
            self.life = asyncio.ensure_future(life)
        await self.inbox.put({"type": f"lifespan.{moment}"})
        assert (await self.outbox.get())["type"] == f"lifespan.{moment}.complete"
        if moment == "shutdown":
            await self.life

    def request(self, method: str, path: str, json_: Any = None, **headers: str) -> Reply:
        body = b"" if json_ is None else json.dumps(json_).encode()
        return self.runner.run(requested(self.app, method, path, body, headers))

    def get(self, path: str, **headers: str) -> Reply:
        return self.request("GET", path, **headers)

    def post(self, path: str, json_: Any) -> Reply:
        return self.request("POST", path, json_)

    def delete(self, path: str) -> Reply:
        return self.request("DELETE", path)

    def stream(
        self, path: str, messages: list[str | bytes], **headers: str
    ) -> tuple[list[Any], int | None]:
        return self.runner.run(streamed(self.app, path, messages, headers))
