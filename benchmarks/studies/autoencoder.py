"""A small convolutional autoencoder of CIFAR10 around a quantiser, and its training; imports torch and nothing else.

The encoder ends at 8 x 8 sites of `DIM` channels. A quantiser is a module that maps these features (n, DIM, 8, 8) to
`Step(features, loss, codes)`: features for the decoder, a loss to add, codes (n, bits, 8, 8) of zeros and ones.
"""

import math
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

DIM = 32
BATCH = 128
LEARNING_RATE = 1e-3


class Step(NamedTuple):
    features: Tensor
    loss: Tensor
    codes: Tensor


class Autoencoder(nn.Module):
    def __init__(self, quantizer: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 32, 4, 2, 1), nn.SiLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.SiLU(), nn.Conv2d(64, DIM, 3, 1, 1)
        )
        self.quantizer = quantizer
        self.decoder = nn.Sequential(
            nn.Conv2d(DIM, 64, 3, 1, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.SiLU(),
            nn.ConvTranspose2d(32, 3, 4, 2, 1),
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Step]:
        step: Step = self.quantizer(self.encoder(x))
        return self.decoder(step.features), step


def train(quantizer: nn.Module, data: Tensor, test: Tensor, epochs: int) -> list[dict[str, Any]]:
    """One record per epoch: errors on the test images, and how many codes they use. Images are uint8 (n, 3, 32, 32)."""
    model = Autoencoder(quantizer)
    optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
    generator = torch.Generator().manual_seed(0)
    history, start = [], time.perf_counter()
    for epoch in range(epochs):
        model.train()
        for rows in torch.randperm(len(data), generator=generator).split(BATCH):
            x = data[rows].float() / 127.5 - 1
            out, step = model(x)
            optimizer.zero_grad()
            ((out - x).square().mean() + step.loss).backward()
            optimizer.step()
        history.append({"epoch": epoch + 1, "seconds": time.perf_counter() - start, **evaluated(model, test)})
    return history


@torch.no_grad()
def evaluated(model: Autoencoder, test: Tensor) -> dict[str, Any]:
    """Mean squared error for pixels in [-1, 1], its PSNR, and the entropy of codes per site in bits."""
    model.eval()
    total, codes = 0.0, []
    for part in test.split(BATCH):
        x = part.float() / 127.5 - 1
        out, step = model(x)
        total += float((out - x).square().sum())
        codes.append(step.codes.movedim(1, -1).flatten(0, 2).to(torch.int64))
    error = total / test.numel()
    return {"mse": error, "psnr": 10 * math.log10(4 / error), **used(torch.cat(codes))}


def used(codes: Tensor) -> dict[str, Any]:
    numbers = (codes * 2 ** torch.arange(codes.shape[1])).sum(1)
    share = torch.unique(numbers, return_counts=True)[1].double() / len(numbers)
    entropy = float(-(share * share.log2()).sum())
    return {"code entropy": entropy, "perplexity": 2**entropy, "codes used": len(share)}


class StraightThrough(nn.Module):
    """Signs whose gradient is taken to be the identity's, without any further loss."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.project_in, self.project_out = nn.Conv2d(DIM, bits, 1), nn.Conv2d(bits, DIM, 1)

    def forward(self, features: Tensor) -> Step:
        soft = torch.tanh(self.project_in(features))
        bits = (soft > 0).to(soft.dtype)
        hard = soft + (2 * bits - 1 - soft).detach()
        return Step(self.project_out(hard), hard.new_zeros(()), bits)
