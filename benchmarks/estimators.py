"""Gradient estimators: bias against enumeration, variance on the 200-unit model, ms per step beside storchastic.

bias: the largest |z| over all parameters of a two-layer model of 3 + 3 bits, whose gradient is enumerated. Up to about
4 is noise. variance: that of the encoder's gradient, summed over its parameters, on a batch of 24 digits, for a
784-200-784 model trained for a while; an estimator's own parameters have learned on it. ms: a training step of the
same model, one thread, batch 24; where storchastic has the estimator, its step in the same run.
"""

import itertools
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.timing import seconds
from dvaepp import recipes
from dvaepp.data import Dataset, load
from dvaepp.estimators import MEMBERS, Estimator
from dvaepp.models.dense_target import DenseTarget
from dvaepp.models.feedforward import FeedForward
from dvaepp.recipes.schema import Recipe
from dvaepp.training.state import State, build
from dvaepp.training.step import batch_indices, step

BLOCKS, DRAWS = 50, 4000  # of the bias
WARM_UP, OWN_STEPS, REPEATS = 2000, 1000, 400  # of the variance
SAME = {"rebar": "rebar ms", "concrete": "gumbel_softmax ms", "nvil": "score_function ms"}
ROOT = Path(__file__).parents[1]
PLOT = "benchmarks/output/estimators.png"


def run() -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        dataset = load("demo")
        variances = measure_variances(dataset)
        times = measure_times(dataset)
    finally:
        torch.set_num_threads(before)
    storchastic = peers.measure("storchastic_estimators.py", "storchastic", 1)
    rows = []
    for name in sorted(MEMBERS, key=lambda name: variances[name][0]):
        value, error = variances[name]
        theirs = storchastic.get(SAME.get(name, ""))
        rows.append(
            {
                "estimator": name,
                "unbiased": MEMBERS[name].unbiased,
                "bias, largest |z|": bias(name),
                "variance": value,
                "+-": error,
                "of nvil's": value / variances["nvil"][0],
                "ms per step": times[name],
                "storchastic ms": theirs if theirs is not None else "",
                "faster by": theirs / times[name] if theirs is not None else "",
            }
        )
    plot(rows)
    return {"rows": rows, "storchastic": storchastic, "plot": PLOT, "digits": dataset.name}


def small_model() -> tuple[FeedForward, Tensor]:
    """Two layers of 3 bits and 4 pixels in float64, with weights large enough to matter."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.full((1, 2, 2), 0.4)
    model = FeedForward(mean, (3, 3), hidden=(4,), prior="directed", batch_norm=False, generator=generator).double()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator, dtype=torch.float64)
    return model, torch.tensor([[1.0, 0.0, 1.0, 1.0]], dtype=torch.float64)


def exact_gradient(model: FeedForward, x: Tensor, num_samples: int = 1) -> list[Tensor]:
    """Of E_q log (1/K) Σ_k p(x, z_k) / q(z_k|x), by summing over all z (pairs of z for K = 2)."""
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=6)), dtype=torch.float64)[:, None]
    z = [states[..., :3], states[..., 3:]]
    target = DenseTarget(model, x)
    log_q = sum(-_cross(target.logits(z[:a]).expand_as(z[a]), z[a]) for a in range(2))
    assert isinstance(log_q, Tensor)
    log_w = (target.log_joint(z) - log_q).squeeze(-1)
    q = log_q.squeeze(-1).exp()
    if num_samples == 1:
        bound = (q * log_w).sum()
    else:
        pairs = torch.logaddexp(log_w[:, None], log_w[None]) - math.log(2)
        bound = (q[:, None] * q[None] * pairs).sum()
    return list(torch.autograd.grad(bound, list(model.parameters())))


def _cross(logits: Tensor, z: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(logits, z, reduction="none").sum(-1)


def bias(name: str) -> float:
    """The largest |z| over the parameters' mean gradients."""
    model, x = small_model()
    vimco = name == "vimco"
    estimator = MEMBERS[name]([3, 3], 4, **({"num_samples": 2} if vimco else {})).double().eval()
    exact = exact_gradient(model, x, 2 if vimco else 1)
    target = DenseTarget(model, x.expand(DRAWS, -1))
    generator = torch.Generator().manual_seed(1)
    parameters = list(model.parameters())
    means = [
        torch.autograd.grad(estimator.estimate(target, generator).surrogate.mean(), parameters) for _ in range(BLOCKS)
    ]
    scores = []
    for truth, *found in zip(exact, *means, strict=True):
        blocks = torch.stack(found)
        error = blocks.std(0) / math.sqrt(BLOCKS)
        # rounding is 1e-16 of gradients around 1: without the floor an exact zero would be an infinite score
        scores.append(((blocks.mean(0) - truth).abs() / error.clamp_min(1e-12)).max().item())
    return max(scores)


def recipe_of(name: str, steps: int) -> Recipe:
    known = recipes.functions()
    function = next(f"{file}.{name}" for file in ("table1", "estimators") if f"{file}.{name}" in known)
    return recipes.build(function, ["dataset=demo"], [f"training.steps={steps}"])


def measure_variances(dataset: Dataset) -> dict[str, tuple[float, float]]:
    trained = _trained(recipe_of("disarm", WARM_UP), dataset, WARM_UP).model
    weights = {name: value.clone() for name, value in trained.state_dict().items()}
    return {name: variance(name, weights, dataset) for name in MEMBERS}


def _trained(recipe: Recipe, dataset: Dataset, steps: int) -> State:
    state = build(recipe, dataset)
    for _ in range(steps):
        state = step(recipe, dataset, state, "cpu")[0]
    return state


def variance(name: str, weights: dict[str, Tensor], dataset: Dataset) -> tuple[float, float]:
    """Σ of the variances of the encoder's gradient over repeated draws, with its standard error."""
    recipe = recipe_of(name, OWN_STEPS)
    state = build(recipe, dataset)
    model, estimator = state.model, state.estimator
    assert isinstance(model, FeedForward) and estimator is not None
    model.load_state_dict(weights)
    if state.own_optimizer is not None:
        for index in range(OWN_STEPS):
            _own_step(model, estimator, state, _batch(dataset, index, state))
    estimator.eval()
    target = DenseTarget(model, _batch(dataset, 0, state))
    parameters = list(model.encoders.parameters())
    draws = []
    for _ in range(REPEATS):
        surrogate = estimator.estimate(target, state.generator).surrogate.mean()
        draws.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(surrogate, parameters)]))
    gradients = torch.stack(draws)
    squares = ((gradients - gradients.mean(0)) ** 2).sum(1) * REPEATS / (REPEATS - 1)
    return squares.mean().item(), squares.std().item() / math.sqrt(REPEATS)


def _batch(dataset: Dataset, index: int, state: State) -> Tensor:
    return dataset.batch(batch_indices(len(dataset.train), 24, index, 0), state.generator).flatten(1)


def _own_step(model: FeedForward, estimator: Estimator, state: State, x: Tensor) -> None:
    """The estimator's parameters learn, the model stays."""
    assert state.own_optimizer is not None
    found = estimator.estimate(DenseTarget(model, x), state.generator)
    if found.own_loss is not None:
        state.own_optimizer.zero_grad(set_to_none=True)
        found.own_loss.backward()
        state.own_optimizer.step()


def measure_times(dataset: Dataset) -> dict[str, float]:
    """ms per training step, all estimators taking turns."""
    found = seconds({name: Step(name, dataset) for name in MEMBERS}, threads=1, rounds=9, turn=0.2)
    return {name: 1e3 * value for name, value in found.items()}


class Step:
    def __init__(self, name: str, dataset: Dataset) -> None:
        self.recipe, self.dataset = recipe_of(name, 10**6), dataset
        self.state = build(self.recipe, dataset)

    def __call__(self) -> None:
        self.state = step(self.recipe, self.dataset, self.state, "cpu")[0]


def plot(rows: list[dict[str, Any]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for row in rows:
        colour = "tab:blue" if row["unbiased"] else "tab:red"
        axes.errorbar(row["ms per step"], row["variance"], yerr=row["+-"], fmt="o", color=colour)
        axes.annotate(
            row["estimator"], (row["ms per step"], row["variance"]), xytext=(4, 4), textcoords="offset points"
        )
    axes.set(yscale="log", xlabel="ms per step, one thread", ylabel="variance of the encoder's gradient")
    axes.set_title("blue: unbiased, red: biased; 784-200-784, batch 24")
    (ROOT / PLOT).parent.mkdir(exist_ok=True)
    figure.savefig(ROOT / PLOT, dpi=150)
