"""A socket on the loopback address and the loop that serves it until Ctrl-C."""

import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import uvicorn

from dvaepp.errors import UsageError
from dvaepp.viewer.app import app
from dvaepp.viewer.desk import Desk

CONNECTIONS = 128  # more at a time are told that the server is busy
SECONDS_TO_END = 2  # for answers that are under way when Ctrl-C is pressed


def listen(port: int) -> socket.socket:
    """A socket on 127.0.0.1, at a free port where `port` is 0: nobody outside this machine can reach it."""
    if not 0 <= port < 2**16:
        raise UsageError(f"--port must be from 0 (any that is free) to {2**16 - 1}, got {port}")
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(("127.0.0.1", port))
        made.listen(CONNECTIONS)
    except OSError as error:
        made.close()
        raise UsageError(f"--port {port} cannot be used ({error.strerror}): leave it out to take a free one") from None
    return made


def serve(desk: Desk, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Answer until SIGINT or SIGTERM; the first is the usual end, the second ends the process as always."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="model")
    port = listening.getsockname()[1]
    try:
        read_data(desk, worker)
        ready(f"http://127.0.0.1:{port}/")
        uvicorn.Server(config(desk, worker, port)).run([listening])
    except KeyboardInterrupt:
        pass
    finally:
        worker.shutdown(cancel_futures=True)


def config(desk: Desk, worker: ThreadPoolExecutor, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        app(desk, worker, port),
        http="h11",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=SECONDS_TO_END,
    )


def read_data(desk: Desk, worker: ThreadPoolExecutor) -> None:
    """Read the data set and encode its images in pieces, between which the model answers questions."""

    def grow() -> None:
        if desk.grow():
            try:
                worker.submit(grow)
            except RuntimeError:  # the server has ended meanwhile
                pass

    worker.submit(desk.load_data)
    worker.submit(grow)
