"""Where cells are trained: in processes of this machine, or by the workers of a dask cluster."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dvaepp.errors import UsageError
from dvaepp.reproduction import credentials

TRIES = 4  # how many times a task is started if its worker gets killed


@runtime_checkable
class Executor(Protocol):
    """The part of concurrent.futures.Executor that is needed; `shutdown(wait=False)` stops before all is done."""

    def submit(self, function: Callable[[str], str], text: str) -> "Future[str]": ...

    def shutdown(self, wait: bool = True) -> None: ...


class WorkerFailed(RuntimeError):
    """A worker ended with an error; the message is its last line."""


class Processes:
    """Runs every task in a new process of one thread, `workers` of them at a time.

    A process that was killed is started again, and goes on from its last checkpoint.
    """

    def __init__(self, workers: int, log: Path, nice: bool = False) -> None:
        self._pool = ThreadPoolExecutor(workers)
        self._log, self._nice = log, nice
        self._running: set[subprocess.Popen[str]] = set()
        self._stopping = False

    def submit(self, function: Callable[[str], str], text: str) -> "Future[str]":
        return self._pool.submit(self._perform, function, text)

    def _perform(self, function: Callable[[str], str], text: str) -> str:
        assert function.__module__ == "dvaepp.reproduction.work", "what the worker performs"
        command = [sys.executable, "-m", "dvaepp.reproduction.worker", *(["--nice"] if self._nice else [])]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        for _ in range(TRIES):
            if self._stopping:
                raise WorkerFailed("stopped")
            with self._started(command, environment) as worker:
                assert worker.stdin and worker.stdout and worker.stderr
                worker.stdin.write(text)
                worker.stdin.close()
                last = ""
                with open(self._log, "a", buffering=1) as log:
                    for line in worker.stderr:
                        log.write(line)
                        last = line.strip() or last
                answer = worker.stdout.read()
            self._running.discard(worker)
            if worker.returncode == 0:
                return answer.strip().splitlines()[-1]
            if worker.returncode > 0:
                raise WorkerFailed(last or f"exit code {worker.returncode}")
        raise WorkerFailed(f"its worker was killed {TRIES} times")

    def _started(self, command: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
        pipe, own = subprocess.PIPE, self._nice
        worker = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=own
        )
        self._running.add(worker)
        return worker

    def shutdown(self, wait: bool = True) -> None:
        """Begin nothing new, and without `wait` ask the workers to save and end, as they do when this process ends."""
        self._stopping = True
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in [] if wait else list(self._running):
            worker.terminate()

    def kill(self) -> None:
        """End the workers that are left. Python would wait for them, and their runs go on from the last checkpoint."""
        for worker in list(self._running):
            worker.kill()


FORMS = "local, dask-local, dask://HOST:PORT or dask+tls://HOST:PORT"


@contextmanager
def executor(where: str, workers: int, log: Path, nice: bool = False) -> Iterator[Executor]:
    """An executor by name: "local" for processes, "dask-local" for a dask cluster on this machine.

    TLS keeps other users out of the local cluster. "dask://HOST:PORT" and "dask+tls://HOST:PORT" are schedulers
    elsewhere, which must see the same files. The first accepts everybody who can reach it; the second takes the
    certificates of dask's configuration.
    """
    if where == "local":
        log.parent.mkdir(parents=True, exist_ok=True)
        processes = Processes(workers, log, nice)
        try:
            yield processes
        finally:
            processes.shutdown()
            processes.kill()
        return
    if where != "dask-local" and not where.startswith(("dask://", "dask+tls://")):
        raise UsageError(f"--executor is {FORMS}, got {where!r}")
    try:
        import distributed  # noqa: F401
    except ImportError:
        raise UsageError(f"--executor {where} needs the extra: pip install 'dvaepp[sweep]'") from None
    with _dask_client(where, workers) as client:
        # Without `wait` it cancels what has not begun; its workers finish the rest, if their cluster lives on.
        yield client.get_executor(retries=TRIES - 1, pure=False)


@contextmanager
def _dask_client(where: str, workers: int) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    if where == "dask-local":
        security = credentials.temporary()
        options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
        with LocalCluster(**options, security=security) as cluster, Client(cluster, security=security) as client:
            yield client
        return
    scheme, _, address = where.partition("://")
    encrypted = scheme == "dask+tls"
    security = credentials.configured() if encrypted else None
    try:
        client = Client(f"{'tls' if encrypted else 'tcp'}://{address}", timeout="30s", security=security)
    except OSError as error:
        hint = "is it one with TLS that takes our certificates?" if encrypted else "start one with `dask scheduler`"
        raise OSError(f"no dask scheduler answers at {where} ({error}); {hint}") from None
    with client:
        yield client
