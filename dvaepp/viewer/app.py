"""The routes: three files and one address for each thing that a desk can do. Paths of the file system never occur."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dvaepp.viewer import requests
from dvaepp.viewer.desk import Answer, Desk
from dvaepp.viewer.guard import Guard

FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
MOST_WAITING = 32  # questions to the model, one of which is being answered
SECONDS_TO_SEND = 10  # a request
HANG_UP = {"Connection": "close"}  # what is still to come is not read

Endpoint = Callable[[Request], Awaitable[Response]]


def app(desk: Desk, worker: ThreadPoolExecutor, port: int) -> ASGIApp:
    """The application at a port; the model works in `worker`, which must have one thread."""
    line = Line(worker)
    asked: dict[Callable[[Any], Answer], type[requests.Request]] = {
        desk.about: requests.Nothing,
        desk.code: requests.Code,
        desk.effects: requests.Code,
        desk.samples: requests.Draw,
        desk.data: requests.Draw,
        desk.walk: requests.Way,
        desk.inpaint: requests.Paint,
        desk.units: requests.Nothing,
        desk.nearest: requests.Near,
    }
    routes = [Route(path, _file(*file), methods=["GET"]) for path, file in FILES.items()]
    routes.append(Route("/favicon.ico", _no_icon, methods=["GET"]))
    routes += [
        Route(f"/api/{answer.__name__}", _endpoint(answer, form, line), methods=["POST"])
        for answer, form in asked.items()
    ]
    inner = Starlette(routes=routes, exception_handlers={HTTPException: _told})
    inner.router.redirect_slashes = False
    return Guard(inner, port)


class Line:
    """Questions wait for the one thread of the model; where too many wait, another one is refused."""

    def __init__(self, worker: ThreadPoolExecutor) -> None:
        self._worker, self._waiting = worker, 0

    async def ask(self, answer: Callable[[Any], Answer], question: requests.Request) -> Answer:
        if self._waiting >= MOST_WAITING:
            raise HTTPException(503, "the model is busy: ask again in a moment", {"Retry-After": "1"})
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, answer, question)
        finally:
            self._waiting -= 1


def _file(name: str, kind: str) -> Endpoint:
    contents = resources.files("dvaepp.viewer").joinpath(name).read_bytes()

    async def send(request: Request) -> Response:
        return Response(contents, media_type=kind)

    return send


async def _no_icon(request: Request) -> Response:
    return Response(status_code=204)  # browsers ask for one


def _endpoint(answer: Callable[[Any], Answer], form: type[requests.Request], line: Line) -> Endpoint:
    async def respond(request: Request) -> Response:
        body = await _body(request)
        try:
            question = form.model_validate_json(body)
            return JSONResponse(await line.ask(answer, question))
        except ValidationError as error:
            return _error(422, _first(error))
        except (ValueError, OSError) as error:  # ours, with a remedy; or numbers that are not finite
            return _error(422, str(error))
        except HTTPException:
            raise
        except Exception as error:  # a model that fails is told of to the page, and the server goes on
            return _error(500, f"the model failed: {type(error).__name__}: {error}")

    return respond


async def _body(request: Request) -> bytes:
    """All of it, up to the limit and in good time."""
    body = bytearray()
    try:
        async with asyncio.timeout(SECONDS_TO_SEND):
            async for chunk in request.stream():
                body += chunk
                if len(body) > requests.BODY_LIMIT:
                    raise HTTPException(413, f"a request has at most {requests.BODY_LIMIT} bytes", HANG_UP)
    except TimeoutError:
        raise HTTPException(408, f"a request must arrive within {SECONDS_TO_SEND} seconds", HANG_UP) from None
    except ClientDisconnect:
        raise HTTPException(400, "the request ended too early", HANG_UP) from None
    return bytes(body)


def _first(error: ValidationError) -> str:
    """The first of the things that are wrong, without the value, which may be long."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in found["loc"])[:60]
    return f"{place}: {found['msg']}" if place else str(found["msg"])


def _error(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": " ".join(text.split())[:300]}, status, headers)


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail, dict(error.headers or {}))
