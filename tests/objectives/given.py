"""Models with their noise passed in, as compilers and functional transforms need them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dvaepp.models.base import Model
from dvaepp.models.dvaepp import DVAE, Architecture
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.noise import BatchNoise
from dvaepp.smoothing import Exponential

SMOOTHING = Exponential(8.0, validate_args=False)


class GivenNoise(BatchNoise):
    """Hands out given tensors in turn."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        super().__init__(None, drawn[0].device)
        object.__setattr__(self, "left", list(drawn))

    def uniform(self, *shape: int) -> Tensor:
        return self.left.pop(0).reshape(shape)

    def normal_like(self, mean: Tensor) -> Tensor:
        return self.left.pop(0).reshape(mean.shape)


class Loss(nn.Module):
    """The negative bound, the mean over images x given the noise of each group."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *noise: Tensor) -> Tensor:
        terms = self.model.terms(x, SMOOTHING, GivenNoise(noise), objective="boltzmann", log_z=0.0)
        return (terms.kl.sum(0) - terms.log_likelihood).mean()


def feed_forward(batch_norm: bool = True, dtype: torch.dtype = torch.float32) -> tuple[Loss, list[Tensor]]:
    """Two groups and a hidden layer, with images and noise."""
    g = torch.Generator().manual_seed(0)
    model = FeedForward(torch.rand(1, 3, 3, generator=g), [3, 3], hidden=[4], batch_norm=batch_norm, generator=g)
    return Loss(_random_prior(model, g).to(dtype)), [
        (torch.rand(5, 1, 3, 3, generator=g) < 0.5).to(dtype),
        *torch.rand(2, 5, 3, generator=g).to(dtype),
    ]


def convolutional() -> tuple[Loss, list[Tensor]]:
    """Two global groups and two local ones on 8 x 8 pixels."""
    g = torch.Generator().manual_seed(0)
    architecture = Architecture(["4d"], ["4d", "4d"], ["4u", "4u"], ["4"], ["4"], ["4"], [["4u"]], 4, 8)
    sizes = {"global_units": 4, "global_groups": 2, "local_channels": 2, "local_groups": 2}
    model = DVAE((1, 8, 8), architecture, **sizes, generator=g)
    return Loss(_random_prior(model, g)), [
        (torch.rand(3, 1, 8, 8, generator=g) < 0.5).float(),
        *torch.rand(2, 3, 2, generator=g),
        *torch.randn(2, 3, 2, 4, 4, generator=g),
    ]


def _random_prior(model: Model, g: torch.Generator) -> Model:
    assert model.boltzmann is not None
    with torch.no_grad():
        for parameter in model.boltzmann.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=g))
    return model
