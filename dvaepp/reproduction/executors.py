"""Where cells run: processes of this machine, or the workers of a dask cluster. All have `submit(function, text)`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dvaepp.errors import UsageError

TRIES = 4  # of a task whose worker was killed


class Executor(Protocol):
    """The part of concurrent.futures.Executor that is needed."""

    def submit(self, function: Callable[[str], str], text: str) -> "Future[str]": ...


class WorkerFailed(RuntimeError):
    """A worker ended with an error; the message is its last line."""


class Processes:
    """A new process for every task, so many at a time, one thread each. A killed one is started again and resumes."""

    def __init__(self, jobs: int, log: Path) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._log = log
        self._stopping = False

    def submit(self, function: Callable[[str], str], text: str) -> "Future[str]":
        return self._pool.submit(self._perform, function, text)

    def _perform(self, function: Callable[[str], str], text: str) -> str:
        assert function.__module__ == "dvaepp.reproduction.work", "what the worker performs"
        command = [sys.executable, "-m", "dvaepp.reproduction.worker"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        for _ in range(TRIES):
            if self._stopping:
                raise WorkerFailed("stopped")
            pipe = subprocess.PIPE
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment) as worker:
                assert worker.stdin and worker.stdout and worker.stderr
                worker.stdin.write(text)
                worker.stdin.close()
                last = ""
                with open(self._log, "a", buffering=1) as log:
                    for line in worker.stderr:
                        log.write(line)
                        last = line.strip() or last
                answer = worker.stdout.read()
            if worker.returncode == 0:
                return answer.strip().splitlines()[-1]
            if worker.returncode > 0:
                raise WorkerFailed(last or f"exit code {worker.returncode}")
        raise WorkerFailed(f"its worker was killed {TRIES} times")

    def close(self) -> None:
        """Begin nothing new; workers end by themselves when this process does."""
        self._stopping = True
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def executor(where: str, jobs: int, log: Path) -> Iterator[Executor]:
    """ "local", "dask-local" (a cluster of `jobs` processes here) or "dask://HOST:PORT" (the files must be shared)."""
    if where == "local":
        log.parent.mkdir(parents=True, exist_ok=True)
        processes = Processes(jobs, log)
        try:
            yield processes
        finally:
            processes.close()
        return
    if where != "dask-local" and not where.startswith("dask://"):
        raise UsageError(f"--executor is local, dask-local or dask://HOST:PORT, got {where!r}")
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise UsageError(f"--executor {where} needs the extra: pip install 'dvaepp[sweep]'") from None
    cluster: Any = None
    if where == "dask-local":
        cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None)
        address = cluster
    else:
        address = f"tcp://{where.removeprefix('dask://')}"
    try:
        with Client(address, timeout="30s") as client:
            yield client.get_executor(retries=TRIES - 1, pure=False)
    except OSError as error:
        raise OSError(f"no dask scheduler answers at {where} ({error}); start one with `dask scheduler`") from None
    finally:
        if cluster is not None:
            cluster.close()
