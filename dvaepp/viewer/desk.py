"""The answers of the viewer: every method takes a request and returns what JSON can say.

A desk is used by one thread at a time. It asks a model for nothing but its protocol, and says what a model cannot do.
"""

import base64
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.models.base import Model
from dvaepp.models.trained import Trained
from dvaepp.viewer import requests
from dvaepp.viewer.library import Library
from dvaepp.viewer.painting import LEVELS, painted
from dvaepp.viewer.units import marginals, measures
from dvaepp.viewer.walk import flip_energies, walk

MEASURED = 500  # images that the measures of units are taken over
OWN_IMAGES = 100  # images that the model draws itself where there is no data set

Answer = dict[str, Any]


class Desk:
    """A trained model, the facts of its run, and the images of its data set once `load_data` found them."""

    def __init__(self, trained: Trained, facts: Answer, find_data: Callable[[], Dataset]) -> None:
        self._trained, self._model, self._facts, self._find_data = trained, trained.model, facts, find_data
        self._library: Library | None = None
        self._reading, self._missing = True, "the data set is being read: ask again in a moment"
        self._measures: Answer | None = None

    def load_data(self) -> None:
        """Read the data set, or remember in a sentence why there is none."""
        try:
            self._library = Library(self._trained, self._find_data())
        except Exception as error:  # the data set may be anybody's program
            self._missing = _sentence(error)
        self._reading = False

    def grow(self) -> bool:
        """Encode some more images; whether any are left. A data set that fails now counts as missing from then on."""
        try:
            return self._library is not None and self._library.grow()
        except Exception as error:  # images are read here, by the same program
            self._library, self._missing = None, _sentence(error)
            return False

    def about(self, asked: requests.Nothing) -> Answer:
        """What the page shows at the top, and which parts of it this model has."""
        model = self._model
        channels, height, width = model.image_shape
        return {
            **self._facts,
            "image": {"channels": channels, "height": height, "width": width},
            "groups": list(model.group_sizes) if model.binary_code else [],
            "varies": model.images_per_code > 1,
            "energy": model.binary_code and model.boltzmann is not None,
            "completes": type(model).draw_latents is not Model.draw_latents,
            "paints": model.reads in LEVELS,
            "binary_pixels": model.reads == "bernoulli",
            "data": self._data(),
        }

    def code(self, asked: requests.Code) -> Answer:
        """The image of a code, and what the prior thinks of it."""
        z = self._bits(asked.bits)
        return {"image": self._packed(self._decoded(z[None], asked.seed)), **self._energy(z)}

    def effects(self, asked: requests.Code) -> Answer:
        """For each unit, the mean change of a pixel when it is flipped, from 0 to 1."""
        z = self._bits(asked.bits)
        flips = (z[None] - torch.eye(len(z), dtype=z.dtype, device=z.device)).abs()
        images = self._shown(self._decoded(torch.cat([z[None], flips]), asked.seed))
        return {"pixels": (images[1:] - images[0]).abs().flatten(1).mean(1).tolist()}

    def samples(self, asked: requests.Draw) -> Answer:
        """Images of the prior and their codes."""
        generator = self._generator(asked.seed)
        if not self._model.binary_code:
            return {"images": self._packed(self._trained.sample(asked.count, generator)), "bits": None}
        z = self._trained.sample_code(asked.count, generator)
        return {"images": self._packed(self._decoded(z, asked.seed)), "bits": _written(z)}

    def data(self, asked: requests.Draw) -> Answer:
        """Images of the data set and their codes."""
        library = self._images()
        places = library.some(asked.count, torch.Generator("cpu").manual_seed(asked.seed))
        return {**self._with_codes(library.images(places)), "places": places.tolist()}

    def walk(self, asked: requests.Way) -> Answer:
        """Every image between two codes, and the unit that is flipped before each."""
        prior = self._model.boltzmann
        with torch.no_grad():
            flipped, codes = walk(self._bits(asked.start), self._bits(asked.end), prior)
            energy = None if prior is None else prior.energy(codes).tolist()
        return {"images": self._packed(self._decoded(codes, asked.seed)), "flipped": flipped, "energy": energy}

    def inpaint(self, asked: requests.Paint) -> Answer:
        """Completions of a painted image, and last their mean."""
        x, seen = painted(asked, self._model, self._library)
        generator = self._generator(asked.seed)
        found = self._trained.inpaint(x, seen, generator, num_samples=asked.count, num_rounds=asked.rounds)
        answer = self._with_codes(found.samples[:, 0])
        return {**answer, "mean": self._packed(found.mean), "moved": found.moved}

    def units(self, asked: requests.Nothing) -> Answer:
        """Which units matter, over images of the data set or, without one, over images of the model itself."""
        self._binary()
        if self._measures is None or self._measures["own"] != (self._library is None):
            generator, library = self._generator(0), self._library
            if library is None:
                x = self._trained.sample(OWN_IMAGES, generator, mean=False)
            else:
                x = library.images(torch.arange(min(MEASURED, len(library)), dtype=torch.int64, device="cpu"))
            self._measures = {**measures(self._trained, x, marginals(self._trained, generator)), "own": library is None}
        return self._measures

    def nearest(self, asked: requests.Near) -> Answer:
        """The images whose codes differ least from this one, and in how many bits."""
        z, library = self._bits(asked.bits), self._images()
        found = library.nearest(z, asked.count)
        answer = self._with_codes(library.images(torch.from_numpy(found.indices[0])))
        return {**answer, "distances": found.distances[0].tolist(), "places": found.indices[0].tolist(), **self._data()}

    def _data(self) -> Answer:
        if self._library is None:
            return {"missing": self._missing, "reading": self._reading}
        return self._library.state()

    def _images(self) -> Library:
        if self._library is None:
            raise UsageError(self._missing)
        return self._library

    def _with_codes(self, x: Tensor) -> Answer:
        bits = _written(self._trained.encode(x)) if self._model.binary_code else None
        return {"images": self._packed(x), "bits": bits}

    @torch.no_grad()
    def _energy(self, z: Tensor) -> Answer:
        prior = self._model.boltzmann
        if prior is None:
            return {"energy": None, "flips": None}
        return {"energy": prior.energy(z).item(), "flips": flip_energies(prior, z).tolist()}

    def _decoded(self, z: Tensor, seed: int) -> Tensor:
        """Images of codes, all with the same latents below the code.

        Where there are such latents codes are decoded one at a time, because each row of a batch gets noise of its own.
        """
        rows = z.split(1 if self._model.images_per_code > 1 else len(z))
        return torch.cat([self._trained.decode(each, self._generator(seed)) for each in rows])

    def _bits(self, bits: str) -> Tensor:
        self._binary()
        if len(bits) != self._model.num_units:
            raise UsageError(f"bits must have {self._model.num_units} digits of 0 and 1, got {len(bits)}")
        return torch.tensor([float(bit) for bit in bits], dtype=self._trained.dtype, device=self._trained.device)

    def _binary(self) -> None:
        if not self._model.binary_code or not self._model.num_units:
            raise UsageError("this model has no binary code: its global units are continuous, or it has none")

    def _generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self._trained.device).manual_seed(seed)

    def _shown(self, images: Tensor) -> Tensor:
        return self._trained.shown(images.reshape(len(images), *self._model.image_shape)).clamp(0, 1)

    def _packed(self, images: Tensor) -> str:
        """Images as bytes in base64, each row by row with its channels side by side."""
        pixels = (self._shown(images) * 255).round().byte().permute(0, 2, 3, 1)
        return base64.b64encode(pixels.cpu().numpy().tobytes()).decode()


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _written(z: Tensor) -> list[str]:
    return ["".join("1" if bit else "0" for bit in row) for row in z.bool().tolist()]
