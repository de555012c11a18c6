"""Peer libraries, each measured by its own script in `.venv-peers`; what will not install or run is reported."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PYTHON = FOLDER.parents[1] / ".venv-peers" / "bin" / "python"


@cache
def status() -> dict[str, str]:
    """Install the peers once; {peer: "ok" or why not}."""
    print("peers: checking their environment ...", file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, str(FOLDER / "install.py")], capture_output=True, text=True)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"": done.stderr.strip()[-300:]}


def measure(script: str, peer: str, *arguments: object, timeout: float = 600) -> dict[str, Any]:
    """Run a peer's script and read its JSON; {"error": ...} where that fails."""
    state = status().get(peer, "not listed in install.py")
    if state != "ok":
        return {"peer": peer, "error": f"not installed: {state}"}
    command = [str(PYTHON), str(FOLDER / script), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
        return dict(json.loads(done.stdout))
    except (subprocess.SubprocessError, json.JSONDecodeError) as error:
        return {"peer": peer, "error": str(error)[:300]}
