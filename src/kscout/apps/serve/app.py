"""The service: its requests and responses, by REST and by WebSocket."""

import asyncio
import base64
import binascii
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Annotated, Any

import numpy as np
from anyio import to_thread
from fastapi import Body, FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from jaxtyping import Complex64, Float32
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from kscout import __version__
from kscout.acquisition import Scan
from kscout.acquisition.scan import NotSavedError
from kscout.apps.serve.guard import NO_HANDLES, log_once_per_minute
from kscout.apps.serve.page.backend import PageBackend
from kscout.apps.serve.page.routes import add_pages
from kscout.apps.serve.sessions import (
    MOST_THREADS,
    Counts,
    Handle,
    NoSessionError,
    Sessions,
    TooManyError,
    reply,
)
from kscout.errors import DataError, KScoutError
from kscout.figures.png import gray_picture
from kscout.json_types import JsonObject

POLICY_VIOLATION = 1008
"""Code that closes a stream after an invalid message."""
_IDLE_CHECK_S = 60.0


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NewSession(_Strict):
    """The scan of a new session; `kscout.acquisition.Scan` describes the other fields."""

    n_rows: int
    n_cols: int
    n_coils: int = 1
    budget: int
    n_initial: int
    seed: int | None = None
    argmax: bool = False
    columns_per_step: int = 1
    deadline_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    fallback: list[int] = Field(default=[], max_length=4096)

    def scan(self) -> Scan:
        """Return the validated scan."""
        settings = self.model_dump(exclude={"n_initial", "fallback"})
        return Scan(**settings, initial=self.n_initial, fallback=tuple(self.fallback))


class MeasuredColumn(_Strict):
    """One column of k-space, in the convention of `fft2c`."""

    column: int
    data: str
    """base64 of complex64, little-endian, coil by row."""


class Fault(BaseModel):
    """The error of a request."""

    error: str


Columns = MeasuredColumn | list[MeasuredColumn]
_COLUMNS: TypeAdapter[Columns] = TypeAdapter(Columns)


def make_app(
    sessions: Sessions,
    backend: PageBackend | None = None,
    *,
    background: AbstractAsyncContextManager[object] | None = None,
    on_ready: Callable[[], None] = lambda: None,
) -> FastAPI:
    """Return the service for the given sessions.

    Without a backend there is no page. `background` is entered when the service starts, and left
    when it stops; `on_ready` is called once the service accepts requests.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(log_once_per_minute())
        # A waiting session occupies a thread; waiting sessions are computed in one batch.
        threads = to_thread.current_default_thread_limiter()
        threads.total_tokens = max(
            threads.total_tokens, min(sessions.limits.n_sessions, MOST_THREADS)
        )
        await run_in_threadpool(sessions.restore)
        closing = asyncio.ensure_future(_close_idle(sessions))
        async with background or nullcontext():
            on_ready()
            yield
            closing.cancel()
            if backend is not None:
                backend.close()
        await run_in_threadpool(sessions.shut)

    counts = sessions.counts
    # FastAPI's own pages load scripts from other hosts; the page of `add_pages` does not.
    app = FastAPI(
        title="kscout",
        version=__version__,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        responses={"4XX": {"model": Fault, "description": "What is wrong, in a sentence"}},
    )
    _handle_errors(app, counts)
    _add_sessions(app, sessions, counts)
    _add_stream(app, sessions, counts)
    add_pages(app, backend)

    @app.get("/health")
    def health() -> JsonObject:
        """Report that the service is running."""
        return {"status": "ok", "version": __version__, "n_sessions": len(sessions)}

    @app.get("/metrics")
    def metrics() -> Response:
        """Return counters and decision times in the text format of Prometheus."""
        return Response(counts.text(len(sessions)), media_type="text/plain; version=0.0.4")

    return app


async def _close_idle(sessions: Sessions) -> None:
    """Close idle sessions periodically, also without requests."""
    while True:
        await asyncio.sleep(min(sessions.limits.idle_s / 4, _IDLE_CHECK_S))
        await run_in_threadpool(sessions.close_idle)


def _add_sessions(app: FastAPI, sessions: Sessions, counts: Counts) -> None:
    @app.post("/sessions", status_code=201)
    def open_session(new: NewSession) -> JsonObject:
        """Open a session; return its id and the columns of the start."""
        scan = new.scan()
        name = sessions.open(scan)
        counts.add("sessions_opened_total")
        return {"id": name, "columns": list(scan.start)}

    @app.get("/sessions/{name}")
    def look(name: str) -> JsonObject:
        """Return the next columns, the order of measured columns and the record of decisions."""
        handle = sessions.find(name)
        with handle.lock:
            session = handle.session
            return {**reply(session, counts), "order": session.order, "record": session.record}

    @app.post("/sessions/{name}/columns")
    def measure(name: str, columns: Annotated[Columns, Body()]) -> JsonObject:
        """Add one column of k-space or a list of them; return the next columns."""
        return _measured(sessions.find(name), columns, counts)

    def shown(name: str) -> Float32[np.ndarray, "row col"]:
        handle = sessions.find(name)
        with handle.lock:
            if handle.session.missing:
                raise NotYetError("the start is not measured yet; there is no image before it is")
            return handle.session.image().cpu().numpy()

    @app.get("/sessions/{name}/image.png", response_class=Response)
    def picture(name: str) -> Response:
        """Return the reconstruction as PNG, scaled to its maximum."""
        image, buffer = shown(name), io.BytesIO()
        gray_picture(image, float(image.max())).save(buffer, format="PNG")
        return Response(buffer.getvalue(), media_type="image/png")

    @app.get("/sessions/{name}/image.npy", response_class=Response)
    def values(name: str) -> Response:
        """Return the reconstruction without scaling, as a .npy file of row by column."""
        buffer = io.BytesIO()
        np.save(buffer, shown(name), allow_pickle=False)
        return Response(buffer.getvalue(), media_type="application/octet-stream")

    @app.delete("/sessions/{name}", status_code=204)
    def close(name: str) -> None:
        """Close a session and delete its file."""
        sessions.close(name)


def _add_stream(app: FastAPI, sessions: Sessions, counts: Counts) -> None:
    @app.websocket("/sessions/{name}/stream")
    async def stream(socket: WebSocket, name: str) -> None:
        await socket.accept()
        try:
            handle = await run_in_threadpool(sessions.find, name)
            while True:
                async with asyncio.timeout(sessions.limits.idle_s):
                    text = await socket.receive_text()
                columns = _parsed(text)
                reply = await run_in_threadpool(_measured, handle, columns, counts)
                await run_in_threadpool(sessions.find, name)
                await socket.send_json(reply)
        except WebSocketDisconnect:
            return
        except (KScoutError, KeyError, TimeoutError) as error:
            counts.add("refused_total")
            is_known = isinstance(error, KScoutError)
            message = str(error) if is_known else _STREAM_ERRORS[type(error)]
            with suppress(WebSocketDisconnect):
                await socket.send_json({"error": message})
                await socket.close(POLICY_VIOLATION)


_STREAM_ERRORS: dict[type[Exception], str] = {
    KeyError: "messages are text, as JSON",
    TimeoutError: "no message came for too long",
}


class NotYetError(KScoutError):
    """A request came before its result exists."""


def _parsed(text: str) -> Columns:
    try:
        return _COLUMNS.validate_json(text)
    except ValidationError as error:
        raise DataError(
            _first_error(error.errors(include_input=False, include_url=False))
        ) from error


def _measured(handle: Handle, columns: Columns, counts: Counts) -> JsonObject:
    batch = columns if isinstance(columns, list) else [columns]
    with handle.lock:
        session = handle.session
        values = [_values(session.scan, one.data) for one in batch]
        data = np.stack(values) if values else np.zeros((0, 1, 1), np.complex64)
        session.measure([one.column for one in batch], data)
        counts.add("columns_total", len(batch))
        return reply(session, counts)


def _values(scan: Scan, text: str) -> Complex64[np.ndarray, "coil row"]:
    n_bytes = 8 * scan.n_coils * scan.n_rows
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"the data are no base64 ({error}); encode them so") from error
    if len(raw) != n_bytes:
        raise DataError(
            f"the data of a column are {len(raw)} bytes; expected {n_bytes}: complex64 of "
            f"{scan.n_coils} coils, {scan.n_rows} rows"
        )
    return np.frombuffer(raw, dtype="<c8").reshape(scan.n_coils, scan.n_rows).copy()


_STATUS: dict[type[KScoutError], int] = {
    **{NoSessionError: 404, NotYetError: 409, TooManyError: 429, NotSavedError: 507}
}


def _handle_errors(app: FastAPI, counts: Counts) -> None:
    @app.exception_handler(KScoutError)
    @app.exception_handler(HTTPException)
    @app.exception_handler(RequestValidationError)
    # Without a thread, of which none may be free.
    async def handle_error(request: Request, error: Exception) -> JSONResponse:
        counts.add("refused_total")
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
        message = str(error)
        if isinstance(error, HTTPException):
            message, status = error.detail, error.status_code
        elif isinstance(error, RequestValidationError):
            message, status = _first_error(list(error.errors())), 422
            is_json = "json" in request.headers.get("content-type", "").lower()
            if message.startswith("body") and not is_json:
                message += "; send JSON with the header Content-Type: application/json"
        return JSONResponse({"error": message}, status)

    @app.exception_handler(OSError)
    async def handle_no_handles(_: Request, error: OSError) -> JSONResponse:
        if error.errno not in NO_HANDLES:
            raise error
        return JSONResponse({"error": "no file handles are free; try again later"}, 503)


def _first_error(errors: list[Any]) -> str:
    """Return the first error without the input, which may be long or not JSON."""
    path = ".".join(str(part) for part in errors[0].get("loc", ()))[:80]
    return json.dumps(f"{path}: {errors[0].get('msg', 'wrong')}"[:300])[1:-1]
