"""A trained model, which turns images into bits and bits into images."""

import math
import warnings
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.log_partition import LogPartition, log_partition
from dvaepp.models.base import Model
from dvaepp.models.importance import log_likelihood
from dvaepp.models.inpainting import Inpainted, inpaint

Images = Tensor | npt.NDArray[Any]
ROUNDING = 1e-3  # pixels may leave their range by this much, as means of pixels do by rounding


class Trained(nn.Module):
    """A model in evaluation mode, with the `recipe` that it was trained by and the `record` of its checkpoint.

    Choose it, by `dvaepp.load`, for codes, images and likelihoods of a finished run or of a shipped model.

    >>> model = dvaepp.load("mnist-rbm")
    >>> model.decode(model.encode(torch.zeros(2, 1, 28, 28))).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(self, model: Model, recipe: Any, record: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.recipe, self.record = model, recipe, record
        self._log_z: LogPartition | None = None
        self.eval()

    def __repr__(self) -> str:
        trained = f"{self.record.get('dataset')}, step {self.record.get('step')}"
        parameters = sum(parameter.numel() for parameter in self.parameters())
        code = f"{self.model.num_units} global units, images {tuple(self.model.image_shape)}"
        return f"Trained({type(self.model).__name__} on {trained}: {code}, {parameters:,} parameters)"

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @torch.no_grad()
    def encode(self, x: Images) -> Tensor:
        """The most likely bit of every global unit in turn, (batch, units) of 0 and 1; x (batch, ...pixels)."""
        self._binary_only("encode")
        return self.model.encode(self._images(x))

    @torch.no_grad()
    def code_means(self, x: Images) -> Tensor:
        """q(z_i = 1|x) of every global unit, (batch, units) in [0, 1]: how certain each bit of `encode` is."""
        self._binary_only("encode")
        return self.model.code_means(self._images(x))

    def shown(self, images: Tensor) -> Tensor:
        """Images of this model as a picture shows them, from black at 0 to white at 1."""
        return self.model.shown(images)

    @torch.no_grad()
    def decode(self, bits: Images, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        """Images (batch, channels, height, width) of given bits; local units are drawn from their prior.

        `mean` False draws the pixels; see `sample`.
        """
        self._binary_only("decode")
        bits = bits if isinstance(bits, Tensor) else torch.from_numpy(bits)
        if bits.dim() != 2 or bits.shape[-1] != self.model.num_units:
            raise UsageError(f"bits must have shape (batch, {self.model.num_units}), got {tuple(bits.shape)}")
        if not bool(((bits >= 0) & (bits <= 1)).all()):  # neither holds for a NaN
            raise UsageError("bits must be 0 or 1, or in between: bits > 0 makes them of -1 and 1")
        return self.model.decode(bits.to(self.device, self.dtype), generator, mean)

    @torch.no_grad()
    def reconstruct(self, x: Images, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        """Images given the latents of x, in the binary limit; `mean` as for `sample`."""
        return self.model.reconstruct(self._images(x), generator, mean)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None, per_code: int = 1, mean: bool = True) -> Tensor:
        """Images of the prior, `per_code` of them for each of n samples of the global units (Fig. 4).

        With `mean` False every pixel is drawn: a sample of p(x). With `mean` True pixels show their means, which look
        smoother. Where pixels depend on each other, as in a conditional decoder, only the finest scale does so, and the
        coarser ones show the pixels drawn there, so that the parts of an image belong together.
        """
        return self.model.decode(self.sample_code(n, generator).repeat_interleave(per_code, 0), generator, mean)

    @torch.no_grad()
    def sample_code(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Global units of the prior, (n, units); a Boltzmann prior is sampled by parallel tempering."""
        if n < 1:
            raise UsageError(f"n must be at least 1, got {n}")
        return self.model.sample_code(n, generator)

    @torch.no_grad()
    def inpaint(
        self,
        x: Images,
        seen: Images,
        generator: torch.Generator | None = None,
        *,
        num_samples: int = 8,
        num_rounds: int = 200,
        num_proposals: int = 8,
    ) -> Inpainted:
        """Images x (batch, ...pixels) with the pixels where `seen` is false drawn from p(x_hidden | x_seen).

        `seen` is boolean, of the shape of x or of one image; what x holds at hidden pixels is ignored. Returns
        `samples` (num_samples, batch, channels, height, width), their `mean`, and how often the latents `moved`: more
        rounds and more proposals bring the samples nearer to the posterior (`models/inpainting.py` has the chain).

        >>> found = model.inpaint(x, seen_pixels("bottom", (1, 28, 28)))
        """
        images = self._shaped(x)
        seen = seen if isinstance(seen, Tensor) else torch.from_numpy(seen)
        if seen.dtype != torch.bool or seen.numel() not in (images.numel(), images[0].numel()):
            raise ValueError(
                f"seen must be a boolean mask of shape {tuple(images.shape)} or {tuple(images.shape[1:])}, "
                f"got {seen.dtype} of shape {tuple(seen.shape)}"
            )
        seen = seen.to(self.device).reshape(-1, *images.shape[1:]).expand_as(images)
        if images.dim() == 4 and bool((seen != seen[:, :1]).any()):
            raise ValueError("seen must be the same in all channels of a pixel")
        images = torch.where(seen, images, 0)
        self._check_levels(images)
        start = self.sample(num_samples * len(images), generator, mean=False).to(self.dtype)
        found = inpaint(
            self.model,
            images,
            seen,
            start=start.reshape(-1, *images.shape[1:]),
            num_samples=num_samples,
            num_rounds=num_rounds,
            num_proposals=num_proposals,
            generator=generator,
        )
        shape = (len(images), *self.model.image_shape)
        return found._replace(samples=found.samples.reshape(num_samples, *shape), mean=found.mean.reshape(shape))

    def log_likelihood(self, x: Images, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Importance-weighted log p(x) in the binary limit, (batch,). log Z is estimated once, with a fixed seed.

        Pixels of a Bernoulli likelihood should be 0 or 1. For grey ones the result is a cross-entropy, with a warning.
        """
        images = self._images(x)
        if self.model.reads == "bernoulli" and bool(((images != 0) & (images != 1)).any()):
            warnings.warn(
                "x has grey pixels, and this model is one of binary images: the result is a cross-entropy and no log "
                "p(x); binarise x, e.g. by torch.bernoulli(x)",
                stacklevel=2,
            )
        return log_likelihood(self.model, images, num_samples, log_z=self._log_z_value(), generator=generator)

    def _log_z_value(self) -> float:
        if self.model.boltzmann is None:
            return 0.0
        if self._log_z is None:  # with the caller's generator the first call would differ from the second
            own = torch.Generator(self.device).manual_seed(0)
            self._log_z = log_partition(self.model.boltzmann, "auto", own)
        return self._log_z.value

    def _binary_only(self, what: str) -> None:
        if not self.model.binary_code:
            raise UsageError(f"cannot {what}: this model has no binary global units")

    def _images(self, x: Images) -> Tensor:
        images = self._shaped(x)
        self._check_levels(images)
        return images

    def _shaped(self, x: Images) -> Tensor:
        x = x if isinstance(x, Tensor) else torch.from_numpy(x)
        shape = self.model.sample_shape
        if x.dim() < 2 or math.prod(x.shape[1:]) != math.prod(shape):
            raise UsageError(f"x must be (batch, {', '.join(map(str, shape))}), got {tuple(x.shape)}")
        return x.reshape(len(x), *shape).to(self.device, self.dtype)

    def _check_levels(self, x: Tensor) -> None:
        """Refuse numbers that no image of this model has, because the model would give wrong results for them."""
        if self.model.reads == "gaussian" or not x.numel():  # a Gaussian likelihood takes any numbers
            return
        low = 0 if self.model.reads == "bernoulli" else -1
        smallest, largest = float(x.min()), float(x.max())
        if low - ROUNDING <= smallest and largest <= 1 + ROUNDING:  # this is false for NaN, too
            return
        if largest > 1 and bool((x == x.round()).all()):
            raise UsageError(
                f"x has whole numbers up to {largest:g}, and a model sees 0 and 1, or levels from -1 to 1 with a "
                "logistic mixture: dvaepp.data.as_dataset(x) makes them, or x / 255"
            )
        raise UsageError(
            f"x has numbers from {smallest:g} to {largest:g}, and this model sees images in [{low}, 1]: scale them, "
            "and remove what is not a number"
        )
