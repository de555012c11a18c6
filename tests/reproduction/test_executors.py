"""dask: a cluster on this machine takes no orders from strangers, and one elsewhere is reached by TLS."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dvaepp.errors import UsageError
from dvaepp.reproduction import credentials
from dvaepp.reproduction.executors import executor

has_dask = importlib.util.find_spec("distributed") is not None
has_openssl = shutil.which("openssl") is not None
needs_dask = pytest.mark.skipif(not has_dask, reason="dask.distributed (extra sweep) is not installed")
needs_openssl = pytest.mark.skipif(not has_openssl, reason="the openssl command, which makes certificates, is missing")

LOCAL = """
import sys
from pathlib import Path
from distributed import Client, Security
from dvaepp.reproduction import credentials
from dvaepp.reproduction.executors import executor

def stranger(address, security):
    try:
        with Client(address, timeout="3s", security=security) as client:
            return client.submit(len, "abc").result(timeout=10)
    except (OSError, RuntimeError, TypeError) as error:
        return type(error).__name__

if __name__ == "__main__":
    with executor("dask-local", 1, Path("log.txt")) as workers:
        address = workers._client.scheduler.address
        print("address", address)
        print("ours", workers.submit(len, "abc").result(timeout=60))
        print("plain", stranger(address.replace("tls://", "tcp://"), None))
        print("other", stranger(address, credentials.temporary()))
        print("invited", stranger(address, workers._client.security))
        workers.shutdown(wait=False)
        print("stopped", "early")
"""


@needs_dask
@needs_openssl
@pytest.mark.slow
def test_a_local_cluster_takes_orders_from_its_own_run_only(tmp_path: Path) -> None:
    """Neither plain connections nor certificates of somebody else get in; with the run's own the same call works."""
    (tmp_path / "script.py").write_text(LOCAL)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said["address"].startswith("tls://127.0.0.1:"), done.stderr[-2000:]
    assert said["ours"] == "3" and said["invited"] == "3"
    assert said["plain"] != "3" and said["other"] != "3"
    assert said["stopped"] == "early"


def test_without_a_way_to_make_credentials_a_local_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="pip install cryptography, or install the openssl command; or use --executor"):
        credentials._self_signed()


def _certificates(folder: Path) -> dict[str, str]:
    """An authority, and a certificate that it signed, by the openssl command; as dask's environment names them."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=node", "-keyout", "key.pem", "-out", "request.pem")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "node.pem")
    openssl("x509", "-req", "-in", "request.pem", *signed)
    prefix = "DASK_DISTRIBUTED__COMM__TLS__"
    files = {f"{prefix}CA_FILE": str(folder / "ca.pem")}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        files |= {f"{prefix}{role}__CERT": str(folder / "node.pem"), f"{prefix}{role}__KEY": str(folder / "key.pem")}
    return files


REMOTE = """
import sys
from pathlib import Path
from dvaepp.errors import UsageError
from dvaepp.reproduction.executors import executor
if __name__ == "__main__":
    try:
        with executor(sys.argv[1], 1, Path("log.txt")) as workers:
            print(workers.submit(len, "abc").result(timeout=60))
    except (UsageError, OSError) as error:
        print(error)
"""


def _remote(folder: Path, where: str, environment: dict[str, str]) -> str:
    (folder / "remote.py").write_text(REMOTE)
    command = [sys.executable, "remote.py", where]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, timeout=200
    )
    return done.stdout.strip() or done.stderr


@needs_dask
@needs_openssl
@pytest.mark.slow
def test_a_scheduler_elsewhere_is_reached_by_tls(tmp_path: Path) -> None:
    """A real scheduler and worker with certificates of our own; without them nothing runs."""
    files = _certificates(tmp_path)
    place = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    common = ["--protocol", "tls", "--scheduler-file", str(place), "--no-dashboard", "--host", "127.0.0.1"]
    quiet = {"env": os.environ | files, "cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = subprocess.Popen([*dask, "scheduler", "--port", "0", *common], **quiet)  # type: ignore[call-overload]
    worker = None
    try:
        deadline = time.monotonic() + 60
        while not (place.exists() and place.read_text().endswith("}")) and time.monotonic() < deadline:
            time.sleep(0.1)
        worker = subprocess.Popen([*dask, "worker", "--nthreads", "1", *common], **quiet)  # type: ignore[call-overload]
        address = json.loads(place.read_text())["address"].removeprefix("tls://")
        assert _remote(tmp_path, f"dask+tls://{address}", files) == "3"
        assert "takes its certificates from dask's configuration" in _remote(tmp_path, f"dask+tls://{address}", {})
        unreadable = files | {"DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(tmp_path / "nothing.pem")}
        assert "cannot be read" in _remote(tmp_path, f"dask+tls://{address}", unreadable)
    finally:
        for process in (worker, scheduler):
            if process is not None:
                process.terminate()
                process.wait()


def test_other_places_are_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"dask-local, dask://HOST:PORT or dask\+tls://HOST:PORT, got 'tls://x'"):
        with executor("tls://x", 1, tmp_path / "log.txt"):
            pass
