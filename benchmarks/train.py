"""A training step of Table 2's two-layer nonlinear RBM model, batch 100, 100 chains: ours, plain eager code, the limit.

The plain one is the same mathematics as one writes it first: Eq. 3 as printed under autograd, `torch.bernoulli` in the
Gibbs sweeps, the default Adam. The limit is the matrix products of the step by `torch.mm`, forward and backward, and
our 40 Gibbs sweeps, and nothing else. Where the kernel `products` is on there is a second limit, with its products.
Beside them the same model with a relaxed prior, with one sample and with five.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.timing import seconds
from dvaepp import recipes
from dvaepp.kernels import policy, products
from dvaepp.models.build import build_model
from dvaepp.priors import RBM
from dvaepp.samplers import gibbs, pcd
from dvaepp.training.collector import spared
from dvaepp.training.state import State, build_optimizer
from dvaepp.training.step import update

LIMIT = "products and sweeps alone (limit)"
BATCH, UNITS, HIDDEN, PIXELS, CHAINS, SWEEPS, BETA = 100, 200, 200, 784, 100, 40, 10.0


def run() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(1000, PIXELS, generator=generator) < 0.13).float()
    contestants: dict[str, Callable[[], object]] = {
        "dvaepp": OurStep(x),
        "dvaepp, relaxed.power_law": OurStep(x, "relaxed.power_law", "samples=1"),
        "dvaepp, relaxed.power_law, K = 5": OurStep(x, "relaxed.power_law", "samples=5"),
        "plain eager": PlainStep(x),
        LIMIT: Limit(torch.mm),
    }
    if policy.on("products"):
        contestants["the same with the products of oneDNN"] = Limit(products.product)
    with spared():  # for all of them, as the training loop has it
        found = {threads: seconds(contestants, threads=threads, rounds=9, turn=0.5) for threads in (1, 2)}
    rows = [
        {
            "threads": threads,
            "step": name,
            "ms per step": 1e3 * time,
            "ours is faster by": time / times["dvaepp"],
            "ratio to limit": time / times[LIMIT],
            "of its time on one thread": time / found[1][name],
        }
        for threads, times in found.items()
        for name, time in times.items()
    ]
    return {"batch": BATCH, "chains": CHAINS, "sweeps": SWEEPS, "rows": rows}


class Limit:
    """The products of a step, and the sweeps of the chains.

    A layer has three products, of its output, of its weight's gradient and of its input's gradient. The input of the
    encoders has no gradient.
    """

    def __init__(self, product: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.product = product
        shapes = [(PIXELS, HIDDEN), (PIXELS + UNITS, HIDDEN), (2 * UNITS, HIDDEN)]  # the three first layers
        shapes += [(HIDDEN, HIDDEN), (HIDDEN, UNITS)] * 2 + [(HIDDEN, HIDDEN), (HIDDEN, PIXELS)]
        shapes += [(UNITS, UNITS)] * 2  # the energies of the posterior's samples and of the chains
        without = {0: PIXELS, 1: PIXELS}  # inputs of a layer that are pixels
        self.products: list[tuple[Tensor, Tensor]] = []
        for index, (inputs, outputs) in enumerate(shapes):
            x, w, dy = torch.rand(BATCH, inputs), torch.rand(outputs, inputs), torch.rand(BATCH, outputs)
            self.products += [(x, w.t()), (dy.t(), x)]
            seen = w[:, without.get(index, 0) :].contiguous()
            if seen.numel():
                self.products.append((dy, seen))
        self.prior = RBM(UNITS, UNITS)
        self.z = (torch.rand(CHAINS, 2 * UNITS) < 0.5).float()

    def __call__(self) -> None:
        for a, b in self.products:
            self.product(a, b)
        gibbs(self.prior, self.z, SWEEPS)


class OurStep:
    """What the training loop does with a batch."""

    def __init__(self, x: Tensor, name: str = "table2.rbm", argument: str = f"beta={BETA}") -> None:
        self.recipe = recipes.build(name, ["layers=2", "linear=false", argument])
        assert self.recipe.chains.num_sweeps == SWEEPS
        self.x = x.reshape(-1, 1, 28, 28)
        model = build_model(self.recipe.model, self.x.mean(0))
        assert model.boltzmann is not None
        generator = torch.Generator().manual_seed(0)
        model.train()
        chains = pcd.init(model.boltzmann, CHAINS, generator)
        self.state = State(model, build_optimizer(self.recipe, model), chains, generator, 0)

    def __call__(self) -> None:
        x = self.x[torch.randint(len(self.x), (BATCH,))]
        self.state = update(self.recipe, self.state, x)[0]._replace(step=self.recipe.training.steps // 2)


def dense(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in (HIDDEN, HIDDEN):
        layers += [nn.Linear(inputs, size), nn.BatchNorm1d(size, eps=1e-2, momentum=0.2), nn.Tanh()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class PlainStep:
    """The same model and bound, written directly."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.mean = x, x.mean(0)
        self.first, self.second = dense(PIXELS, UNITS), dense(PIXELS + UNITS, UNITS)
        self.decoder = dense(2 * UNITS, PIXELS)
        self.a, self.b = nn.Parameter(torch.zeros(UNITS)), nn.Parameter(torch.zeros(UNITS))
        self.w = nn.Parameter(torch.zeros(UNITS, UNITS))
        parameters = [*self.first.parameters(), *self.second.parameters(), *self.decoder.parameters()]
        self.optimizer = torch.optim.Adam([*parameters, self.a, self.b, self.w], 3e-3, eps=1e-3, weight_decay=1e-4)
        self.left = torch.bernoulli(torch.full((CHAINS, UNITS), 0.5))
        self.right = self.left.clone()

    def smooth(self, logits: Tensor) -> Tensor:
        rho, q, d = torch.rand_like(logits), torch.sigmoid(logits), math.exp(-BETA)
        b = (rho + d * (q - rho)) / (1 - q) - 1
        c = -(q * d) / (1 - q)
        return -torch.log((-b + torch.sqrt(b**2 - 4 * c)) / 2) / BETA

    def __call__(self) -> None:
        x = self.x[torch.randint(len(self.x), (BATCH,))]
        with torch.no_grad():
            for _ in range(SWEEPS):
                self.right = torch.bernoulli(torch.sigmoid(self.left @ self.w + self.b))
                self.left = torch.bernoulli(torch.sigmoid(self.right @ self.w.t() + self.a))
        centered = x - self.mean
        logits1 = self.first(centered)
        zeta1 = self.smooth(logits1)
        logits2 = self.second(torch.cat([centered, zeta1], 1))
        zeta2 = self.smooth(logits2)
        pixels = self.decoder(torch.cat([zeta1, zeta2], 1))
        reconstruction = -binary_cross_entropy_with_logits(pixels, x, reduction="none").sum(1)
        mu1, mu2 = torch.sigmoid(logits1), torch.sigmoid(logits2)
        nu1 = torch.sigmoid(logits1 + BETA * (2 * zeta1 - 1))
        entropy = torch.stack([self.entropy(logits1), self.entropy(logits2)]).sum(0)
        cross = -mu1 @ self.a - mu2 @ self.b - ((nu1 @ self.w) * mu2).sum(1)
        surrogate = (self.left @ self.a + self.right @ self.b + ((self.left @ self.w) * self.right).sum(1)).mean()
        loss = -(reconstruction - (surrogate - entropy + cross)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @staticmethod
    def entropy(logits: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(logits, torch.sigmoid(logits), reduction="none").sum(1)
