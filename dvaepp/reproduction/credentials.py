"""TLS credentials for dask. Anybody who can connect to a dask scheduler can run code as its user.

For a cluster on this machine a new key and certificate are made for each run and kept in memory. Scheduler, workers and
client accept only each other then. For a cluster elsewhere the credentials come from dask's own configuration.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from dvaepp.errors import UsageError

VARIABLES = "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, ..__CLIENT__CERT and ..__CLIENT__KEY"


def temporary() -> Any:
    """A `distributed.Security` for one run; made by the package cryptography or, without it, the command openssl."""
    from distributed import Security

    try:
        return Security.temporary()
    except ImportError:
        pass
    key, certificate = _self_signed()
    roles = ("client", "scheduler", "worker")
    keys = {f"tls_{role}_key": key for role in roles} | {f"tls_{role}_cert": certificate for role in roles}
    return Security(require_encryption=True, tls_ca_file=certificate, **keys)


def _self_signed() -> tuple[str, str]:
    """A private key and its certificate, as PEM."""
    if shutil.which("openssl") is None:
        raise UsageError(
            "--executor dask-local needs credentials against other users of this machine: "
            "pip install cryptography, or install the openssl command; or use --executor local"
        )
    with tempfile.TemporaryDirectory() as folder:  # only its owner can look into it
        key, certificate = Path(folder) / "key.pem", Path(folder) / "certificate.pem"
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "365", "-subj", "/CN=dvaepp"]
        done = subprocess.run([*command, "-keyout", str(key), "-out", str(certificate)], capture_output=True, text=True)
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
            raise OSError(f"openssl makes no credentials: {reason[0]}; pip install cryptography does without it")
        return key.read_text(), certificate.read_text()


def configured() -> Any:
    """A `distributed.Security` from dask's configuration files and environment, with certificates that can be read."""
    from distributed import Security

    security = Security(require_encryption=True)
    try:
        complete = security.get_connection_args("client")["ssl_context"] is not None
    except (OSError, ValueError) as error:
        raise UsageError(f"the TLS files of dask's configuration cannot be read: {error}; see {VARIABLES}") from None
    if not complete:
        raise UsageError(
            f"dask+tls:// takes its certificates from dask's configuration, and it names none: {VARIABLES}"
        )
    return security
