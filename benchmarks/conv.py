"""A training step of the OMNIGLOT DVAE++, batch 100: ours beside plain eager code and beside the products' limit.

The plain one is the same architecture as one writes it first: every network of a local group on its own concatenation,
library convolutions in the default layout, torch's AdaMax. The limit is the plain step's convolutions and products,
counted by torch, at the rate of a large matrix product measured beside each step. Minimal filtering multiplies less
than is counted there, so a step may stay below it.

Other users of a machine only ever add time, and to a step on all cores more than to one that finds a free core: what a
step takes by itself is told by the quickest of many (Chen and Revels 2016), what it took here by medians of turns. Both
are reported.
"""

import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, elu, pad
from torch.utils.flop_counter import FlopCounterMode

from dvaepp import recipes
from dvaepp.models.build import build_model
from dvaepp.networks.residual import parse
from dvaepp.objectives import boltzmann_kl
from dvaepp.priors import RBM
from dvaepp.recipes.schema import ConvolutionalConfig
from dvaepp.samplers import pcd
from dvaepp.smoothing import Exponential
from dvaepp.training.collector import spared
from dvaepp.training.state import State, build_optimizer
from dvaepp.training.step import update

BATCH, CHAINS = 100, 100
THREADS = (1, 2)
ROUNDS = 12
STEPS = {"dvaepp": 3, "plain eager": 2}  # in a turn

Turn = dict[tuple[str, int], list[float]]


def run() -> dict[str, Any]:
    with Contestant("dvaepp") as ours, Contestant("plain eager") as plain:
        work = plain.ask(flops)
        turns = [take_turns(ours, plain, work) for _ in range(ROUNDS)]
        about = ours.ask(about_it)
    rows = []
    for threads in THREADS:
        for name in ("dvaepp", "plain eager"):
            faster, to_limit = ((name, threads), ("dvaepp", threads)), ((name, threads), ("limit", threads))
            rows.append(
                {
                    "threads": threads,
                    "step": name,
                    "s per step": quickest(turns, (name, threads)),
                    "median": statistics.median(t for turn in turns for t in turn[name, threads]),
                    "ours is faster by": ratio(turns, *faster),
                    "by medians": ratio_by_medians(turns, *faster),
                    "ratio to limit": ratio(turns, *to_limit),
                    "to limit by medians": ratio_by_medians(turns, *to_limit),
                }
            )
    scaling = {name: ((name, 1), (name, 2)) for name in ("dvaepp", "limit")}
    return {
        "batch": BATCH,
        "plain_flops_per_step": work,
        "rows": rows,
        "limit_s": {threads: quickest(turns, ("limit", threads)) for threads in THREADS},
        "two_threads_over_one": ratio(turns, *scaling["dvaepp"]),
        "two_threads_over_one_by_medians": ratio_by_medians(turns, *scaling["dvaepp"]),
        "products_two_threads_over_one": ratio(turns, *scaling["limit"]),
        "products_two_threads_over_one_by_medians": ratio_by_medians(turns, *scaling["limit"]),
        "turns": [{f"{name}, {threads}": value for (name, threads), value in turn.items()} for turn in turns],
        **about,
    }


class Contestant:
    """A step in a process of its own, which no other's freed memory slows."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> "Contestant":
        spawn = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(1, mp_context=spawn, initializer=start, initargs=(self.name,))
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.pool.submit(function, *arguments).result()


def take_turns(ours: Contestant, plain: Contestant, work: float) -> Turn:
    """Seconds of every step of a round by contestant and threads, and of as much work in products.

    A machine's speed may change by half within a minute: all take their turns in every round.
    """
    turn: Turn = {}
    for threads in THREADS:
        turn["limit", threads] = ours.ask(products, work, threads)
        turn[ours.name, threads] = ours.ask(steps, STEPS[ours.name], threads)
    for threads in THREADS:
        turn[plain.name, threads] = plain.ask(steps, STEPS[plain.name], threads)
    return turn


_step: Callable[[], object]  # of a contestant's process


def start(name: str) -> None:
    global _step
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(BATCH, 1, 28, 28, generator=generator) < 0.13).float()
    _step = OurStep(x) if name == "dvaepp" else PlainStep(x)
    spared().__enter__()  # for both, until the process ends, as the training loop has it


def steps(number: int, threads: int) -> list[float]:
    torch.set_num_threads(threads)
    _step()  # the first after another's does not find its data in the cache
    return [seconds(_step) for _ in range(number)]


def flops() -> int:
    with FlopCounterMode(display=False) as counter:
        _step()
    return int(counter.get_total_flops())


def about_it() -> dict[str, Any]:
    assert isinstance(_step, OurStep)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    parameters = sum(p.numel() for p in _step.state.model.parameters())
    return {"parameters": parameters, "peak_rss_bytes": peak, "where_the_rest_goes": profile(_step)}


def seconds(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def products(work: float, threads: int) -> list[float]:
    """Seconds that `work` FLOP would take at the rate of each of some 1000 x 1000 x 1000 products."""
    torch.set_num_threads(threads)
    a, out = torch.rand(1000, 1000), torch.empty(1000, 1000)
    return [work / 2e9 * seconds(lambda: torch.mm(a, a, out=out)) for _ in range(30)]


def quickest(turns: Sequence[Turn], key: tuple[str, int]) -> float:
    return min(t for turn in turns for t in turn[key])


def ratio(turns: Sequence[Turn], over: tuple[str, int], under: tuple[str, int]) -> float:
    return quickest(turns, over) / quickest(turns, under)


def ratio_by_medians(turns: Sequence[Turn], over: tuple[str, int], under: tuple[str, int]) -> float:
    """The median, over turns, of the ratio of a turn's medians."""
    return statistics.median(statistics.median(turn[over]) / statistics.median(turn[under]) for turn in turns)


def profile(step: Any) -> list[dict[str, Any]]:
    """The operators that take most of a step on one thread, in ms."""
    torch.set_num_threads(1)
    with torch.profiler.profile() as found:
        step()
    events = sorted(found.key_averages(), key=lambda event: -event.self_cpu_time_total)[:12]
    return [{"operator": e.key, "calls": e.count, "ms": e.self_cpu_time_total / 1e3} for e in events]


class OurStep:
    """What the training loop does with a batch."""

    def __init__(self, x: Tensor, dataset: str = "omniglot") -> None:
        self.recipe = recipes.build("table3.rbm", [f"dataset={dataset}"])
        self.x = x
        model = build_model(self.recipe.model, torch.full((1, 28, 28), 0.13))
        assert model.boltzmann is not None and model.training
        generator = torch.Generator().manual_seed(0)
        chains = pcd.init(model.boltzmann, CHAINS, generator)
        self.state = State(model, build_optimizer(self.recipe, model), chains, generator, 0)

    def __call__(self) -> None:
        self.state = update(self.recipe, self.state, self.x)[0]._replace(step=1000)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, resize: str = "") -> None:
        super().__init__()
        if resize == "u":
            self.first: nn.Module = nn.ConvTranspose2d(inputs, outputs, 3, 2, 1, output_padding=1)
            self.skip: nn.Module = nn.ConvTranspose2d(inputs, outputs, 1, 2, output_padding=1)
        else:
            stride = 2 if resize == "d" else 1
            self.first = nn.Conv2d(inputs, outputs, 3, stride, 1)
            same = inputs == outputs and not resize
            self.skip = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.squeeze, self.excite = nn.Linear(outputs, outputs // 4), nn.Linear(outputs // 4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        f = self.second(elu(self.first(elu(x))))
        scale = torch.sigmoid(self.excite(elu(self.squeeze(f.mean((2, 3))))))
        out: Tensor = self.skip(x) + f * scale[:, :, None, None]
        return out


def chain(inputs: int, blocks: Sequence[str]) -> nn.Sequential:
    layers = []
    for block in blocks:
        outputs, resize = parse(block)
        layers.append(Block(inputs, outputs, resize))
        inputs = outputs
    return nn.Sequential(*layers)


class PlainStep(nn.Module):
    """The same model and bound, written directly, group after group."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.x = x
        recipe = recipes.build("table3.rbm", ["dataset=omniglot"])
        assert isinstance(recipe.model, ConvolutionalConfig)
        m = recipe.model
        c, groups = m.local_channels, m.local_groups
        self.norms = nn.ModuleList([nn.BatchNorm2d(1), nn.BatchNorm2d(128), nn.BatchNorm2d(512)])
        self.down1, self.down2 = chain(1, m.down1), chain(128, m.down2)
        self.heads_z = nn.ModuleList(nn.Linear(512 + 4 * i, 4) for i in range(4))
        self.upsample = chain(16, m.upsample)
        self.q = nn.ModuleList(chain(256 + c * j, [*m.posterior, str(2 * c)]) for j in range(groups))
        self.p = nn.ModuleList(chain(128 + c * j, [*m.prior, str(2 * c)]) for j in range(groups))
        for net in [*self.q, *self.p]:
            last = list(net.children())[-1]
            for part in (last.get_submodule("second"), last.get_submodule("skip")):
                part.get_parameter("weight").data *= 0.1
        self.context = chain(128 + c * groups, m.context)
        widths = [16, 16, 8]
        self.inputs = nn.ModuleList(chain(1, ["32"]) for _ in widths)
        self.ups = nn.ModuleList(chain(w + 32, blocks) for w, blocks in zip(widths, m.upsamples, strict=True))
        self.heads = nn.ModuleList(nn.Conv2d(w, 1, 3, 1, 1) for w in (16, 16, 8, 8))
        self.rbm = RBM(8, 8)
        self.chains = pcd.init(self.rbm, CHAINS)
        self.smoothing = Exponential(8.0, validate_args=False)
        inside = pad(torch.ones(28, 28), (2, 2, 2, 2))
        self.masks = []
        for index, scale in enumerate((4, 8, 16, 32)):
            mask = inside[:: 32 // scale, :: 32 // scale].clone()
            if index:
                mask[::2, ::2] = 0
            self.masks.append(mask)
        self.optimizer = torch.optim.Adamax(self.parameters(), 1e-3)

    def forward(self) -> None:
        x = pad(self.x, (2, 2, 2, 2))
        features = self.norms[1](self.down1(self.norms[0](x)))
        top = self.norms[2](self.down2(features)).flatten(1)
        logits: list[Tensor] = []
        zeta: list[Tensor] = []
        for head in self.heads_z:
            logits.append(head(torch.cat([top, *zeta], 1)))
            zeta.append(self.smoothing.sample(logits[-1], torch.rand_like(logits[-1])))
        up = self.upsample(torch.cat(zeta, 1)[:, :, None, None])
        h: list[Tensor] = []
        kl = []
        for q_net, p_net in zip(self.q, self.p, strict=True):
            q_mean, q_log_sd = (5 * torch.tanh(q_net(torch.cat([features, up, *h], 1)) / 5)).chunk(2, 1)
            p_mean, p_log_sd = (5 * torch.tanh(p_net(torch.cat([up, *h], 1)) / 5)).chunk(2, 1)
            h.append(q_mean + q_log_sd.exp() * torch.randn_like(q_mean))
            gap = ((2 * q_log_sd).exp() + (q_mean - p_mean) ** 2) / (2 * p_log_sd).exp()
            kl.append((p_log_sd - q_log_sd + 0.5 * (gap - 1)).flatten(1).sum(1))
        self.chains = pcd.step(self.rbm, self.chains, None, 40)
        kl.append(boltzmann_kl(self.rbm, logits, zeta, self.smoothing, self.rbm.log_z_surrogate(self.chains.z)))
        log_likelihood = self.decode(self.context(torch.cat([up, *h], 1)), x)
        weights = torch.stack([k.mean().detach().clamp_min(0) + 0.1 for k in kl])
        balanced = torch.stack(kl) * (weights / weights.mean())[:, None]
        loss = -(log_likelihood - 0.5 * balanced.sum(0)).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def decode(self, features: Tensor, x: Tensor) -> Tensor:
        total = x.new_zeros(len(x))
        for index, scale in enumerate((4, 8, 16, 32)):
            here = x[..., :: 32 // scale, :: 32 // scale]
            logits = self.heads[index](elu(features))
            log_prob = -binary_cross_entropy_with_logits(logits, here, reduction="none").squeeze(1)
            total = total + (log_prob * self.masks[index]).flatten(1).sum(1)
            if index < 3:
                features = self.ups[index](torch.cat([features, self.inputs[index](here)], 1))
        return total
