"""Who may ask: a browser on this machine that shows our own page, and programs of this machine.

Any website can make a browser send requests to the loopback address. Two checks keep strangers out. The Host must be
ours, which stops a foreign name that was made to point here (DNS rebinding); and whatever computes something is a POST
of JSON without a foreign Origin, which another site's page cannot send. Every answer carries a policy under which the
page may load nothing but its own two files and ask nobody but this server.
"""

import json

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dvaepp.viewer.requests import BODY_LIMIT

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Wraps an application that listens at `port` of the loopback address."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        names = ("127.0.0.1", "localhost", "[::1]")
        self._hosts = [f"{name}:{port}" for name in names]
        if port == 80:  # which browsers leave out, because it is HTTP's own
            self._hosts += names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # neither web sockets nor a lifespan: nothing is accepted
        refusal = self._refusal(scope["method"], Headers(scope=scope))
        if refusal is None:
            await self._app(scope, receive, _with_headers(send))
        else:
            await _refuse(_with_headers(send), *refusal)

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """A status and a sentence, or None for a welcome request."""
        if headers.getlist("host") not in [[host] for host in self._hosts]:
            return 403, f"this page answers only at http://{self._hosts[0]}/"
        if method in ("GET", "HEAD"):
            return None
        if method != "POST":
            return 405, f"GET and POST are answered here, not {method}"
        ours = [f"http://{host}" for host in self._hosts]
        same_site = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if not same_site or any(origin not in ours for origin in headers.getlist("origin")):
            return 403, "another site's page may not ask here"
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 415, "a request is JSON: Content-Type must be application/json"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > BODY_LIMIT:
            return 413, f"a request has at most {BODY_LIMIT} bytes"
        return None


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return sending


async def _refuse(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
    await send({"type": "http.response.start", "status": status, "headers": Headers(headers).raw})
    await send({"type": "http.response.body", "body": body})
