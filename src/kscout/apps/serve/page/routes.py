"""Routes of the page: `/` with its requests, and `/docs` from OpenAPI."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from threading import Event
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from kscout import __version__
from kscout.apps.player import acquisition_player, templates
from kscout.apps.serve.page.backend import YOU, PageBackend, PageState
from kscout.config.records import read
from kscout.json_types import JsonObject

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_CHECK_S = 0.2
"""Interval of the checks whether the client is still connected."""
_FILES = {"page.css": "text/css", "page.js": "text/javascript"}

_T = TypeVar("_T")


def add_pages(app: FastAPI, backend: PageBackend | None) -> None:
    """Add `/docs`, and, if there is a backend, the page at `/` and its requests."""

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def interface() -> Response:
        return HTMLResponse(_interface_page(app.openapi()), headers=_HEADERS)

    texts = templates("kscout.apps.serve.page")

    @app.get("/page/{name}", include_in_schema=False)
    def file(name: str) -> Response:
        if name not in _FILES:
            return Response(status_code=404)
        text = texts.get_template(name).render()
        return Response(text, media_type=_FILES[name], headers=_HEADERS)

    if backend is None:
        return

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page() -> Response:
        text = texts.get_template("page.html.j2").render(version=__version__)
        return HTMLResponse(text, headers=_HEADERS)

    _add_requests(app, backend)


def _add_requests(app: FastAPI, backend: PageBackend) -> None:
    @app.get("/page/data/choices")
    def choices() -> JsonObject:
        """Return the slices, reconstructions and policies that the page offers."""
        return backend.choices()

    @app.post("/page/data/acquisitions")
    async def acquire(request: Request, wanted: JsonObject) -> JsonObject:
        """Acquire a slice with known ground truth; return the HTML of the player."""
        state = read(PageState, wanted)

        def work(disconnected: Event) -> JsonObject:
            acquisition = backend.acquire(state, disconnected)
            colors = {one: n for n, one in enumerate(state.policies, start=1)} | {YOU: 3}
            html = acquisition_player(acquisition, colors=colors, n_bytes=None, is_steered=True)
            return {"html": html, "title": acquisition.title}

        return await _while_awaited(request, work)

    @app.post("/page/data/verdicts")
    async def compare(request: Request, wanted: JsonObject) -> JsonObject:
        """Compare the last column of the user with those of policies and the best one."""
        work = partial(backend.compare, read(PageState, wanted))
        return asdict(await _while_awaited(request, work))


async def _while_awaited(request: Request, work: Callable[[Event], _T]) -> _T:
    """Compute a response in a thread; set its event when the client disconnects."""
    disconnected = Event()
    computing = asyncio.ensure_future(run_in_threadpool(work, disconnected))
    while not computing.done():
        await asyncio.wait([computing], timeout=_CHECK_S)
        if not computing.done() and await request.is_disconnected():
            disconnected.set()
    return computing.result()


def _interface_page(openapi: JsonObject) -> str:
    page = templates("kscout.apps.serve.page").get_template("interface.html.j2")
    schemas = openapi.get("components", {}).get("schemas", {})
    return page.render(
        title=openapi["info"]["title"],
        version=openapi["info"]["version"],
        requests=list(_requests(openapi)),
        schemas={name: json.dumps(schema, indent=2) for name, schema in schemas.items()},
    )


def _requests(openapi: JsonObject) -> Iterator[JsonObject]:
    for path, methods in openapi["paths"].items():
        for method, about in methods.items():
            body = json.dumps(about.get("requestBody", {}))
            yield {
                "method": method.upper(),
                "path": path,
                "summary": about.get("description") or about.get("summary", ""),
                "given": ", ".join(one["name"] for one in about.get("parameters", [])),
                "bodies": list(dict.fromkeys(re.findall(r"#/components/schemas/(\w+)", body))),
                "answers": ", ".join(about.get("responses", {})),
            }
