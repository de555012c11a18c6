"""Requests that no page of ours sends: refused or served, in one line of JSON, and the server goes on."""

import asyncio
import json
import logging.handlers
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from starlette.responses import Response
from starlette.types import Message

from dvaepp.cli import main
from dvaepp.models.trained import Trained
from dvaepp.viewer import requests
from dvaepp.viewer.app import FILES, MOST_WAITING
from dvaepp.viewer.desk import Desk
from dvaepp.viewer.guard import Guard
from dvaepp.viewer.server import listen
from tests.viewer.serving import RUN, Client, binary_images, served

CODE = "01" * 100
QUESTION = json.dumps({"bits": CODE}).encode()


@pytest.fixture
def client(viewer: tuple[Trained, Client]) -> Client:
    return viewer[1]


@pytest.fixture(autouse=True)
def _still_answers(client: Client) -> Iterator[None]:
    """After each test the server answers, and has logged no failure of its own."""
    logged = logging.handlers.BufferingHandler(1000)
    logging.getLogger("uvicorn.error").addHandler(logged)
    yield
    logging.getLogger("uvicorn.error").removeHandler(logged)
    assert [record.getMessage() for record in logged.buffer] == []
    assert len(client.ask("code", bits=CODE)["image"]) == 1048  # 784 bytes in base64


def _refused(status: int, body: bytes) -> int:
    answer = json.loads(body)
    assert list(answer) == ["error"] and answer["error"] and "\n" not in answer["error"], answer
    return status


def _raw(client: Client, *parts: bytes, close: bool = False) -> bytes:
    """Bytes as they are; whatever comes back before the connection ends."""
    found = b""
    with socket.create_connection(("127.0.0.1", client.port), timeout=30) as connection:
        try:
            for part in parts:
                connection.sendall(part)
            if close:
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                found += chunk
        except OSError:  # it was ended while we were still sending
            pass
    return found


def test_the_files_are_ours_alone_and_name_nobody_else(client: Client) -> None:
    for path in FILES:
        status, body, headers = client.send("GET", path)
        assert status == 200 and len(body) > 1000
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert (
            headers["x-content-type-options"] == "nosniff" and headers["cross-origin-resource-policy"] == "same-origin"
        )
        text = body.decode()
        assert "http:" not in text and "https:" not in text and "@import" not in text and "style=" not in text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "127.0.0.1:{port}.x"]
)
def test_a_foreign_host_is_refused(client: Client, host: str) -> None:
    for method, path, body in (("GET", "/", None), ("POST", "/api/code", QUESTION)):
        status, answer, _ = client.send(method, path, body, {"Host": host.format(port=client.port)})
        assert _refused(status, answer) == 403


def test_our_own_names_are_welcome_and_two_or_none_are_not(client: Client) -> None:
    for name in ("127.0.0.1", "localhost", "[::1]"):
        assert client.send("GET", "/", None, {"Host": f"{name}:{client.port}"})[0] == 200
    ours = f"Host: 127.0.0.1:{client.port}\r\n".encode()
    for hosts in (b"", ours + b"Host: evil.example\r\n", ours + ours):
        assert b" 200 " not in _raw(client, b"GET / HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
    assert b" 403 " in _raw(client, b"GET / HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize(("port", "host", "status"), [(80, b"127.0.0.1", 204), (81, b"127.0.0.1", 403)])
def test_browsers_leave_out_port_80_and_no_other(port: int, host: bytes, status: int) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", host)]}
    asyncio.run(Guard(Response(status_code=204), port)(scope, AsyncMock(), send))
    assert sent[0]["status"] == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_another_sites_page_is_refused(client: Client, headers: dict[str, str]) -> None:
    status, body, _ = client.send("POST", "/api/code", QUESTION, {"Content-Type": "application/json"} | headers)
    assert _refused(status, body) == 403


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_what_a_foreign_form_can_send_is_refused(client: Client, kind: str) -> None:
    status, body, _ = client.send("POST", "/api/code", QUESTION, {"Content-Type": kind})
    assert _refused(status, body) == 415


def test_our_own_page_is_welcome(client: Client) -> None:
    ours = {"Origin": f"http://localhost:{client.port}", "Sec-Fetch-Site": "same-origin"}
    status, _, _ = client.send("POST", "/api/code", QUESTION, {"Content-Type": "application/json"} | ours)
    assert status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/../recipe.json",
        "/..%2frecipe.json",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%5c..%5crecipe.json",
        "/page.html",
        "/recipe.json",
        "/api/../recipe.json",
        "/api/_bits",
        "/api/load_data",
        "//evil.example/",
        "/%00",
        "/" + "a" * 5000,
    ],
)
def test_no_path_leaves_the_page(client: Client, path: str) -> None:
    for method in ("GET", "POST"):
        status, body, _ = client.send(method, path, b"{}", {"Content-Type": "application/json"})
        assert _refused(status, body) == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
def test_other_methods_are_refused(client: Client, method: str) -> None:
    status, body, _ = client.send(method, "/api/code")
    assert _refused(status, body) == 405


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("code", b""),
        ("code", b"null"),
        ("code", b"[]"),
        ("code", b"{"),
        ("code", b"\xff\xfe"),
        ("code", b"[" * 100_000),
        ("code", b'{"bits": 1}'),
        ("code", b'{"bits": null}'),
        ("code", b'{"bits": "012"}'),
        ("code", b'{"bits": "01\\n"}'),
        ("code", b'{"bits": "' + b"0" * 70_000 + b'"}'),
        ("code", b'{"bits": "01", "seed": NaN}'),
        ("code", b'{"bits": "01", "seed": 1.5}'),
        ("code", b'{"bits": "01", "seed": -1}'),
        ("code", b'{"bits": "01", "seed": 1e400}'),
        ("code", b'{"bits": "01", "seed": ' + b"9" * 10_000 + b"}"),
        ("code", b'{"bits": "01", "seed": true}'),
        ("code", b'{"bits": "01", "more": 1}'),
        ("samples", b'{"count": 0}'),
        ("samples", b'{"count": 1000000}'),
        ("samples", b'{"count": NaN}'),
        ("samples", b'{"count": "3"}'),
        ("inpaint", b'{"pixels": "?", "rounds": 1000000}'),
        ("inpaint", b'{"pixels": "x"}'),
        ("inpaint", b'{"pixels": "?", "of": -1}'),
        ("nearest", b'{"bits": "", "count": 1}'),
    ],
    ids=lambda value: value[:40].decode("latin-1") if isinstance(value, bytes) else value,
)
def test_wrong_questions_are_refused(client: Client, what: str, body: bytes) -> None:
    status, answer, _ = client.send("POST", f"/api/{what}", body, {"Content-Type": "application/json"})
    assert _refused(status, answer) == 422 and len(answer) < 400


def _head(client: Client, *headers: str) -> bytes:
    lines = ["POST /api/code HTTP/1.1", f"Host: 127.0.0.1:{client.port}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_huge_body_is_refused_before_it_is_read(client: Client) -> None:
    assert b" 413 " in _raw(client, _head(client, f"Content-Length: {2**40}"))
    assert b" 413 " in _raw(client, _head(client, f"Content-Length: {requests.BODY_LIMIT + 1}"))
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    assert b" 200 " not in _raw(client, _head(client, "Transfer-Encoding: chunked"), *[chunk] * 40)


def test_garbage_and_unfinished_requests_are_dropped(client: Client) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00\x01" * 50, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 1000):
        assert b" 200 " not in _raw(client, garbage, close=True)
    assert b" 200 " not in _raw(client, _head(client, "Content-Length: -1"), close=True)
    assert b" 200 " not in _raw(client, b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, close=True)
    assert b" 200 " not in _raw(client, _head(client, "Content-Length: 100") + b'{"bits', close=True)


def test_two_hundred_clients_at_once_are_served_or_told_to_wait(client: Client) -> None:
    def one(n: int) -> int:
        try:
            status, body, _ = client.send("POST", "/api/code", QUESTION, {"Content-Type": "application/json"})
        except OSError:  # the queue of the socket was full
            return 0
        assert status == 503 or len(json.loads(body)["image"]) == 1048
        return status

    with ThreadPoolExecutor(200) as clients:
        found = Counter(clients.map(one, range(400)))
    assert set(found) <= {200, 503, 0} and found[200] >= 1, found


def _answering(trained: Trained, answer: Callable[[requests.Code], dict[str, object]]) -> Desk:
    """A desk that answers otherwise to `code`."""
    desk = Desk(trained, {}, lambda: binary_images(trained))
    answer.__name__ = "code"
    desk.code = answer  # type: ignore[method-assign]
    return desk


def test_a_long_line_before_the_model_is_refused(viewer: tuple[Trained, Client]) -> None:
    """While the model is at work, `MOST_WAITING` questions are held, and each further one is told to come again."""
    go_on = threading.Event()

    def slow(asked: requests.Code) -> dict[str, object]:
        go_on.wait(60)
        return {"image": ""}

    with served(_answering(viewer[0], slow)) as client, ThreadPoolExecutor(MOST_WAITING + 8) as clients:
        asked = [clients.submit(client.post, "code", QUESTION) for _ in range(MOST_WAITING + 8)]
        refused = [each.result()[0] for each in islice(as_completed(asked), 8)]
        go_on.set()
        found = Counter(each.result()[0] for each in asked)
    assert refused == [503] * 8 and found == {200: MOST_WAITING, 503: 8}


def test_a_model_that_fails_is_told_in_one_line(viewer: tuple[Trained, Client]) -> None:
    def broken(asked: requests.Code) -> dict[str, object]:
        raise RuntimeError("two\nlines")

    def endless(asked: requests.Code) -> dict[str, object]:
        return {"energy": float("nan")}

    for failing, status in ((broken, 500), (endless, 422)):
        with served(_answering(viewer[0], failing)) as client:
            assert (
                _refused(*client.send("POST", "/api/code", QUESTION, {"Content-Type": "application/json"})[:2])
                == status
            )


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with listen(0) as taken, pytest.raises(SystemExit) as ended:
        main(["view", RUN, "--no-open", "--port", str(taken.getsockname()[1])])
    assert ended.value.code == 2 and "leave it out to take a free one" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["view", RUN, "--port", "70000"])
    assert ended.value.code == 2


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_the_remedy_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith(("dvaepp.viewer.", f"{missing}."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit) as ended:
        main(["view", RUN])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1 and 'pip install "dvaepp[view]"' in error


def test_the_command_prints_its_address_and_ctrl_c_ends_it_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dvaepp", "view", RUN, "--no-open", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("http://127.0.0.1:") and "Ctrl-C" in line
        client = Client(int(line.split("/")[2].split(":")[1]))
        assert client.ask("about")["run"] == RUN
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "") and process.returncode == 0
