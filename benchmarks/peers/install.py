"""Create `.venv-peers` in the project's root and install the peer libraries into it, torch first.

Versions come from `requirements.txt`, passed to pip as constraints, so that no peer can replace torch by a CUDA
build. Each peer has a pip call of its own; one that will not install or import does not stop the others.
`.venv-peers/status.json` keeps {peer: "ok" or the error}: a later run skips what is "ok" and retries the rest.
Delete `.venv-peers` to start afresh, for example after changing a version.
"""

import json
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().with_name("requirements.txt")
VENV = Path(__file__).resolve().parents[2] / ".venv-peers"
PYTHON = VENV / "bin" / "python"
STATUS = VENV / "status.json"

# Peer -> what pip installs and the module that must then import.
PEERS = {
    "rbms": (["rbms"], "rbms.bernoulli_bernoulli.classes"),
    "dwave-pytorch-plugin": (["dwave-pytorch-plugin", "einops"], "dwave.plugins.torch.samplers"),
    "thrml": (["thrml"], "thrml.models"),
    "pythae": (["pythae"], "pythae.models"),
    "storchastic": (["storchastic"], "storch"),
    "faiss-cpu": (["faiss-cpu"], "faiss"),
    "vector-quantize-pytorch": (["vector-quantize-pytorch"], "vector_quantize_pytorch"),
}


def run(*command: str) -> str:
    """Run a command in silence; "ok", or the lines about errors that it wrote, otherwise its last line."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return "ok"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [f"exit status {done.returncode}"]
    return " ".join(line for line in lines if "error" in line.lower()) or lines[-1]


def install(packages: list[str], module: str) -> str:
    """pip install the packages and import the module in a fresh process; "ok" or the first error."""
    installed = run(str(PYTHON), "-m", "pip", "install", "--quiet", "-c", str(REQUIREMENTS), *packages)
    return installed if installed != "ok" else run(str(PYTHON), "-c", f"import {module}")


def main() -> None:
    status: dict[str, str] = json.loads(STATUS.read_text()) if STATUS.exists() else {}
    missing = [peer for peer in PEERS if status.get(peer) != "ok"]
    if missing:
        made = "ok" if PYTHON.exists() else run(sys.executable, "-m", "venv", str(VENV))
        torch = install(["torch"], "torch") if made == "ok" else f"venv: {made}"
        for peer in missing:
            status[peer] = install(*PEERS[peer]) if torch == "ok" else f"torch: {torch}"
        VENV.mkdir(exist_ok=True)
        STATUS.write_text(json.dumps(status, indent=2) + "\n")
    print(json.dumps(status))


if __name__ == "__main__":
    main()
