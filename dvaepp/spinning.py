"""How long a waiting OpenMP thread keeps its core: set by the `dvaepp` command before torch is loaded.

By default libgomp, the OpenMP of torch's wheels for Linux, lets a thread that waits for another spin for milliseconds.
Beside one other busy process the spinning thread then holds the core that the other thread needs, and two threads run
up to seventy times slower than one. A thousand rounds of spinning last a few microseconds, which bridges the gaps
inside a training step; whoever waits longer sleeps (docs/performance.md has measurements).

libgomp reads the variable once, when it is loaded. `import dvaepp` therefore changes nothing: in a program of one's own
the environment belongs to that program, and torch may be loaded already.
"""

import os
import sys
from collections.abc import Mapping

VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # each of them says how to wait
SPINS = "1000"


def setting(environment: Mapping[str, str]) -> dict[str, str]:
    """What to add to an environment: nothing where the user has said how to wait."""
    return {} if any(name in environment for name in VARIABLES) else {VARIABLES[0]: SPINS}


def bound() -> None:
    """Set it for this process and its children, unless torch is loaded, when it would be too late."""
    if "torch" not in sys.modules:
        os.environ.update(setting(os.environ))
