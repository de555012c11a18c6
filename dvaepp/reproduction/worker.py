"""`python -m dvaepp.reproduction.worker` performs the task that it reads from stdin.

If its parent process ends, it saves and ends too. With `--nice` it has the lowest priority.
"""

import os
import signal
import sys
import threading
import time


def main() -> None:
    parent = os.getppid()
    if "--nice" in sys.argv[1:]:
        _be_nice()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    from dvaepp.reproduction.work import perform

    try:
        print(perform(sys.stdin.read()))
    except (ValueError, OSError, RuntimeError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(1)


def _be_nice() -> None:
    """Take the lowest priority.

    Linux divides a processor among sessions first, and compares priorities only within a session. So a worker has a
    session of its own, and the session gets the lowest priority too.
    """
    os.nice(19)
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write("19")
    except OSError:  # another system, or one that does not group by sessions
        pass


if __name__ == "__main__":
    main()
