"""A viewer that listens, with a trained model of the repository, and a client that can also be rude."""

import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
import uvicorn
from torch import Tensor

from dvaepp.data import Dataset, as_dataset
from dvaepp.models.trained import Trained
from dvaepp.viewer.desk import Desk
from dvaepp.viewer.server import config, listen, read_data

RUN = "mnist-rbm"


def binary_images(trained: Trained) -> Dataset:
    """Images of the model itself, so that no data set is needed; a tenth of them is the test set."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randint(2, (300, trained.model.num_units), generator=generator)
    return as_dataset((trained.decode(z) > 0.5).float())


@contextmanager
def served(desk: Desk) -> Iterator["Client"]:
    with listen(0) as socket, ThreadPoolExecutor(1) as worker:
        port = socket.getsockname()[1]
        read_data(desk, worker)
        server = uvicorn.Server(config(desk, worker, port))
        thread = threading.Thread(target=server.run, args=([socket],))
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield Client(port)
        finally:
            server.should_exit = True
            thread.join()


class Client:
    """Asks as the page does, unless told otherwise."""

    def __init__(self, port: int) -> None:
        self.port, self.address = port, f"http://127.0.0.1:{port}/"

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            reply = connection.getresponse()
            return reply.status, reply.read(), {name.lower(): value for name, value in reply.getheaders()}
        finally:
            connection.close()

    def post(self, what: str, body: bytes, **headers: str) -> tuple[int, Any]:
        """The status and the JSON of an answer; `headers` with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        status, answer, _ = self.send("POST", f"/api/{what}", body, {"Content-Type": "application/json"} | named)
        return status, json.loads(answer)

    def ask(self, what: str, **question: Any) -> Any:
        status, answer = self.post(what, json.dumps(question).encode())
        assert status == 200, answer
        return answer

    def refused(self, what: str, **question: Any) -> str:
        """The sentence of a refusal."""
        status, answer = self.post(what, json.dumps(question).encode())
        assert status == 422 and list(answer) == ["error"], (status, answer)
        return str(answer["error"])


def as_bytes(images: Tensor) -> bytes:
    """Images in [0, 1] as the page gets them, by way of another order of operations than the viewer's."""
    return bytes(
        round(255 * float(pixel)) for image in images for row in image.movedim(0, -1) for pixel in row.flatten()
    )


def same_picture(shown: bytes, expected: bytes) -> bool:
    """Whether two images agree to one grey level in 255.

    A product of matrices sums in another order when it has another number of rows. The viewer decodes a walk as one
    batch and a code by itself, so a mean that lies halfway between two levels may be rounded to either.
    """
    return len(shown) == len(expected) and all(abs(a - b) <= 1 for a, b in zip(shown, expected, strict=True))
