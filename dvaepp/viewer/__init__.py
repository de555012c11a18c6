"""`dvaepp view RUN`: a page on the loopback address, where one plays with the code of a trained model.

requests.py   what the page may ask, as pydantic models: everything else is refused
desk.py       the answers, from the protocol of a model (`models/base.py`) and nothing else
library.py    images of the run's data set and their codes
units.py      which units matter; walk.py: a way from one code to another
guard.py      who may ask at all: Host, Origin, headers; app.py: the routes; server.py: the socket and its loop
page.*        the page: one HTML, one CSS and one JavaScript file, served from memory
"""

from collections.abc import Callable
from pathlib import Path

from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.models.base import Model

Told = Callable[[str], None]


def view(
    run: Path | str,
    *,
    model: Model | None = None,
    data: Dataset | None = None,
    port: int = 0,
    ready: Told = print,
    data_dir: Path | None = None,
    device: str = "cpu",
) -> None:
    """Serve the page of a run until Ctrl-C. `ready` is told its address; port 0 takes a free one.

    A run of one's own architecture needs `model`, as `dvaepp.load` does, and `data` where it was given in Python.
    """
    try:
        from dvaepp.viewer.server import listen, serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("dvaepp"):
            raise
        raise UsageError(f'the viewer needs {error.name}, which is not installed: pip install "dvaepp[view]"') from None
    from dvaepp import runs
    from dvaepp.reporting.pictures import dataset_here
    from dvaepp.viewer.desk import Desk
    from dvaepp.viewer.facts import facts

    with listen(port) as socket:  # a port that is taken is told before a model is read
        trained = runs.load(run, model=model, device=device)
        found = (lambda: dataset_here(trained.recipe, data_dir)) if data is None else (lambda: data)
        serve(Desk(trained, facts(run, trained), found), socket, ready)
