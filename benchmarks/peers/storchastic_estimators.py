"""Time training steps of a linear Bernoulli VAE by the estimators of `storchastic`; one JSON object on stdout.

The VAE is 784-200-784 with a factorial Bernoulli prior of trainable logits; a step is forward, estimate, backward and
Adam on 24 images, one sample each. It follows the library's own Bernoulli VAE: a posterior given by its probabilities,
the KL divergence in closed form, the estimator's parameters (REBAR's temperature and eta) in the same optimizer.
The score function has no baseline unless asked for one; it gets the moving average, the only one that storchastic has
for a single sample. Its REBAR is timed as shipped, although 0.3.7 draws the conditional relaxed sample of a Bernoulli
by a wrong formula (log p + log(1 + p) for log p - log(1 - p)), which biases the gradient.
Every estimator first trains untimed on noisy prototypes; its bound with binary samples, in nats, before and after,
shows whether it learns. Then the estimators take turns, and the median turn counts.
"""

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

PIXELS, LATENTS, BATCH = 784, 200, 24
IMAGES, PROTOTYPES, FLIPPED = 2400, 10, 0.05
TRAINING, ROUNDS, STEPS = 500, 15, 10


def prototype_images() -> Any:
    """Binary images (IMAGES, PIXELS): random prototypes with some of their pixels flipped."""
    import torch

    prototypes = (torch.rand(PROTOTYPES, PIXELS) < 0.3).float()
    flips = (torch.rand(IMAGES, PIXELS) < FLIPPED).float()
    return (prototypes[torch.randint(PROTOTYPES, (IMAGES,))] - flips).abs()


def build(method: Any, images: Any) -> tuple[Callable[[], None], Callable[[], float]]:
    """A training step with the estimator, and the bound of the VAE that it trains."""
    import storch  # type: ignore[import-not-found]
    import torch
    from torch import Tensor, nn
    from torch.distributions import Bernoulli
    from torch.distributions.utils import clamp_probs
    from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

    encoder, decoder = nn.Linear(PIXELS, LATENTS), nn.Linear(LATENTS, PIXELS)
    prior = nn.Parameter(torch.zeros(LATENTS))
    parameters = [*encoder.parameters(), *decoder.parameters(), prior, *method.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3)

    def encode(x: Tensor) -> Tensor:
        return clamp_probs(encoder(x).sigmoid())

    def divergence(q: Tensor) -> Tensor:
        from_posterior = q * q.log() + (1 - q) * (1 - q).log()
        return (from_posterior - q * logsigmoid(prior) - (1 - q) * logsigmoid(-prior)).sum(-1)

    def reconstruction(z: Tensor, x: Tensor) -> Tensor:
        logits = decoder(z)
        return binary_cross_entropy_with_logits(logits, x.expand_as(logits), reduction="none").sum(-1)

    # storchastic's decorator: plain tensors inside, one node of its graph outside.
    encode_, divergence_, reconstruction_ = map(storch.deterministic, (encode, divergence, reconstruction))

    def step() -> None:
        optimizer.zero_grad()
        x = storch.denote_independent(images[torch.randint(len(images), (BATCH,))], 0, "data")
        q = encode_(x)
        storch.add_cost(divergence_(q), "divergence")
        storch.add_cost(reconstruction_(method(Bernoulli(probs=q)), x), "reconstruction")
        storch.backward()
        optimizer.step()

    def bound() -> float:
        with torch.no_grad():
            q = encode(images)
            return -float((divergence(q) + reconstruction(torch.bernoulli(q), images)).mean())

    return step, bound


def measure(threads: int) -> dict[str, Any]:
    """Median ms per step of each estimator, and its bound before and after training."""
    import storch
    import torch  # here, so that a missing package is reported as JSON too

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    images = prototype_images()
    methods = {
        "rebar": storch.method.REBAR("z", n_samples=1),
        "gumbel_softmax": storch.method.GumbelSoftmax("z", n_samples=1),
        "score_function": storch.method.ScoreFunction("z", n_samples=1, baseline_factory="moving_average"),
    }
    steps: dict[str, Callable[[], None]] = {}
    bounds: dict[str, list[float]] = {}
    for name, method in methods.items():
        steps[name], bound = build(method, images)
        before = bound()
        for _ in range(TRAINING):
            steps[name]()
        bounds[name] = [before, bound()]
    times: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(STEPS):
                step()
            times[name].append((time.perf_counter() - start) / STEPS)
    return {
        "peer": "storchastic",
        "version": version("storchastic"),
        "threads": threads,
        **{f"{name} ms": 1e3 * statistics.median(turns) for name, turns in times.items()},
        "bound before and after": bounds,
        "call": "storch.method.REBAR, GumbelSoftmax, ScoreFunction; storch.backward()",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("threads", type=int)
    arguments = parser.parse_args()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout carries the JSON alone
            result = measure(**vars(arguments))
    except Exception as error:
        result = {"peer": "storchastic", "error": " ".join(f"{type(error).__name__}: {error}".split())}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
