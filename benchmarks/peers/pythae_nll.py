"""Time the importance-weighted likelihood of `pythae`, its VAE's `get_nll`; one JSON object on stdout.

The network is 784-200-200-(200)-200-200-784 with tanh layers, 200 Gaussian latents and Bernoulli pixels, untrained, in
evaluation mode and without gradients, which `get_nll` leaves to its caller. `get_nll` takes one image at a time in
blocks of `batch_size` samples, whole blocks only, and encodes the image anew for every sample. Each batch size takes
a turn in every round after one untimed call; the samples it really draws are counted, and the fastest is the rate.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from importlib.metadata import version
from typing import Any

PIXELS, HIDDEN, LATENTS = 784, 200, 200
BATCH_SIZES = (100, 200, 500, 1000)
ROUNDS = 5


def build_model() -> Any:
    """pythae's VAE on encoder and decoder of our size."""
    from pythae.models import VAE, VAEConfig  # type: ignore[import-not-found]
    from pythae.models.base.base_utils import ModelOutput  # type: ignore[import-not-found]
    from pythae.models.nn import BaseDecoder, BaseEncoder  # type: ignore[import-not-found]
    from torch import Tensor, nn

    class Encoder(BaseEncoder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.hidden = nn.Sequential(nn.Linear(PIXELS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh())
            self.mean, self.log_variance = nn.Linear(HIDDEN, LATENTS), nn.Linear(HIDDEN, LATENTS)

        def forward(self, x: Tensor) -> Any:
            hidden = self.hidden(x)
            return ModelOutput(embedding=self.mean(hidden), log_covariance=self.log_variance(hidden))

    class Decoder(BaseDecoder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            hidden = [nn.Linear(LATENTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()]
            self.layers = nn.Sequential(*hidden, nn.Linear(HIDDEN, PIXELS), nn.Sigmoid())

        def forward(self, z: Tensor) -> Any:
            return ModelOutput(reconstruction=self.layers(z))

    config = VAEConfig(input_dim=(PIXELS,), latent_dim=LATENTS, reconstruction_loss="bce")
    return VAE(config, encoder=Encoder(), decoder=Decoder()).eval()


def drawn(samples: int, batch_size: int) -> int:
    """Samples per image that `get_nll` draws: whole blocks, and never fewer than one."""
    return batch_size * max(1, samples // batch_size)


def measure(threads: int, images: int, samples: int) -> dict[str, Any]:
    """Images x samples per second with the batch size that is fastest, and with each."""
    import torch  # here, so that a missing package is reported as JSON too

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = build_model()
    x = (torch.rand(images, PIXELS) < 0.13).float()
    seconds: dict[int, list[float]] = {batch_size: [] for batch_size in BATCH_SIZES}
    with torch.no_grad():
        for batch_size in BATCH_SIZES:
            model.get_nll(x[:2], samples, batch_size)
        for _ in range(ROUNDS):
            for batch_size, times in seconds.items():
                start = time.perf_counter()
                model.get_nll(x, samples, batch_size)
                times.append(time.perf_counter() - start)
    rates = {size: images * drawn(samples, size) / statistics.median(times) for size, times in seconds.items()}
    best = max(rates, key=lambda size: rates[size])
    return {
        "peer": "pythae",
        "version": version("pythae"),
        "threads": threads,
        "images x samples per second": rates[best],
        "batch size": best,
        "rate by batch size": rates,
        "call": "pythae.models.VAE.get_nll(data, n_samples, batch_size)",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("threads", "images", "samples"):
        parser.add_argument(name, type=int)
    arguments = parser.parse_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON alone
            result = measure(**vars(arguments))
    except Exception as error:
        result = {"peer": "pythae", "error": " ".join(f"{type(error).__name__}: {error}".split())}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
