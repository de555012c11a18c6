"""One viewer for all tests of a process: a trained model takes seconds to read."""

from collections.abc import Iterator

import pytest

import dvaepp
from dvaepp.models.trained import Trained
from dvaepp.viewer.desk import Desk
from dvaepp.viewer.facts import facts
from tests.viewer.serving import RUN, Client, binary_images, served


@pytest.fixture(scope="session")
def viewer() -> Iterator[tuple[Trained, Client]]:
    trained = dvaepp.load(RUN)
    with served(Desk(trained, facts(RUN, trained), lambda: binary_images(trained))) as client:
        yield trained, client
