"""Look at a run in the browser: `view`."""

import os
import sys
from typing import Annotated

import tyro

from dvaepp.cli.arguments import DataDir, Debug, Device, RunDir, argument


def view(
    run: tyro.conf.Positional[RunDir],
    port: Annotated[int, argument("Where to listen on 127.0.0.1; 0 takes a free port.", "N")] = 0,
    open_: Annotated[bool, argument("Open a browser, although there seems to be no screen.", name="open")] = False,
    no_open: Annotated[bool, argument("Only print the address.")] = False,
    data_dir: DataDir = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Play with a run's model in the browser.

    Switch bits and see the image change, sample the prior, walk from one code to another, paint and let the model fill
    in the rest, see which units matter, find images with similar codes. The page answers on this machine only and needs
    no network; Ctrl-C ends it. It needs the extra: pip install "dvaepp[view]".

    Examples:
        dvaepp view mnist-rbm
        dvaepp view runs/demo --port 8000 --no-open
    """
    from dvaepp import viewer

    opens = open_ or (not no_open and _screen())

    def ready(address: str) -> None:
        print(f"{address}  (Ctrl-C ends it)", flush=True)
        if opens:
            import webbrowser

            webbrowser.open(address)

    viewer.view(run, port=port, ready=ready, data_dir=data_dir, device=device)


def _screen() -> bool:
    """Whether a browser could show itself: a person at a terminal of a machine with a screen."""
    shown = sys.platform in ("darwin", "win32") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return shown and sys.stdout.isatty()
