"""Small feed-forward models and images for tests of coding."""

import numpy as np
import torch
from torch import nn

from dvaepp.models.binary_vae import BinaryVAE
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.likelihoods import BernoulliPixels
from dvaepp.priors import Factorial

SHAPE = (1, 5, 5)


def model(groups: list[int], prior: str = "directed", hidden: tuple[int, ...] = (), **options) -> FeedForward:
    """A model with weights that matter, batch norms that have seen something, and a mean that is not grey."""
    generator = torch.Generator().manual_seed(1)
    mean = torch.rand(SHAPE, generator=generator)
    made = FeedForward(mean, groups, hidden=hidden, prior=prior, generator=generator, **options)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, value in made.state_dict().items():
            if value.is_floating_point() and name not in ("train_mean", "output_bias"):
                value.add_(0.5 * torch.rand(value.shape, generator=generator))
    return made.eval()


def own(prior: nn.Module | None = None, last: nn.Module | None = None) -> BinaryVAE:
    """Networks of one's own, in torch's layers, around six units."""
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(8)
    norm(torch.randn(20, 8))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(25, 8), norm, nn.Tanh(), nn.Linear(8, 6))
    decoder = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), last or nn.Linear(9, 25), nn.Unflatten(1, SHAPE))
    made = BinaryVAE([encoder], decoder, prior or Factorial([6]), BernoulliPixels(), image_shape=SHAPE, group_sizes=[6])
    return made.eval()


def images(count: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).random((count, *SHAPE)) < 0.4).astype(np.uint8)


MODELS = {
    "one group": lambda: model([7]),
    "three groups": lambda: model([5, 3, 4], hidden=(6, 8)),
    "centered, without batch norm": lambda: model([5, 3], hidden=(6,), batch_norm=False, centered_code=True),
    "own networks": own,
    "rbm": lambda: model([5, 6], "rbm", hidden=(6,)),
}
