"""`python -m dvaepp.reproduction.worker`: perform the task on stdin. It ends, saved, when its parent does."""

import os
import signal
import sys
import threading
import time


def main() -> None:
    parent = os.getppid()

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


if __name__ == "__main__":
    main()
