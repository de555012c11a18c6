"""The training loop, top to bottom: build, then step, log, validate and save until the last step."""

import json
import math
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dvaepp.data import Dataset, load, subset
from dvaepp.errors import UsageError
from dvaepp.evaluation.importance import log_likelihood
from dvaepp.log_partition import log_partition
from dvaepp.models.feedforward import FeedForward, Posterior
from dvaepp.numerics import uniform
from dvaepp.objectives import boltzmann_kl, importance_weighted, joint, marginal, rolfe_kl
from dvaepp.progress import progress
from dvaepp.recipes.schema import Recipe
from dvaepp.samplers import pcd
from dvaepp.smoothing import MEMBERS
from dvaepp.smoothing.base import Overlapping, Smoothing
from dvaepp.training import checkpoint
from dvaepp.training.schedules import kl_weight, learning_rate, sharpness
from dvaepp.version import __version__

EXACT_SIDE = 12  # an RBM side this small is summed exactly whenever a number is needed
LOG_Z_SWEEPS = 300  # budget of the log Z estimate at a validation
ACTIVE_VARIANCE = 0.01  # a unit is active when its μ varies this much over images
LOGS = 500  # lines of metrics per run, about


class State(NamedTuple):
    """Everything that a resumed run must find again."""

    model: FeedForward
    optimizer: torch.optim.Optimizer
    chains: pcd.Chains | None
    generator: torch.Generator
    step: int


class Terms(NamedTuple):
    """One batch's bound: log p(x|ζ), KL and the posterior it came from."""

    log_likelihood: Tensor
    kl: Tensor
    posterior: Posterior


def train(
    recipe: Recipe,
    run_dir: Path | str,
    *,
    data_dir: Path | str | None = None,
    resume: bool = False,
    device: str = "cpu",
    say: Callable[[str], None] | None = None,
) -> Path:
    """Train `recipe` into `run_dir` and return it; `resume` continues from its last checkpoint, bit for bit on a CPU.

    `say` receives progress lines (default: stderr). SIGTERM and SIGINT save a checkpoint and raise SystemExit with
    143 or 130.
    """
    run = Path(run_dir)
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    last = run / "checkpoints" / "last.safetensors"
    if last.exists() and not resume:
        raise UsageError(f"{run} already holds a run: continue it with --resume, or choose another --run-dir")
    dataset = load(recipe.data.name, data_dir, recipe.data.path)
    if dataset.likelihood != "bernoulli":
        raise UsageError(f"{dataset.name} has colour images; the feed-forward models take binary ones")
    state = build(recipe, dataset, device)
    best = -math.inf
    if resume:
        state, best = _resumed(state, checkpoint.read(last, device))
    run.mkdir(parents=True, exist_ok=True)
    (run / "recipe.json").write_text(recipe.model_dump_json(indent=1) + "\n")
    about = {
        "dataset": dataset.name,
        "data_checksum": dataset.checksum,
        "image_shape": list(dataset.image_shape),
        "version": __version__,
    }
    say(f"{recipe.name} on {dataset.name}: {len(dataset.train)} training images, {recipe.training.steps} steps")
    with _Signals() as signals:
        _loop(recipe, run, dataset, state, best, device, say, signals, about)
    return run


def build(recipe: Recipe, dataset: Dataset, device: str = "cpu") -> State:
    """Model, optimizer, chains and generator at step 0, all from the recipe's seed."""
    generator = torch.Generator(device).manual_seed(recipe.training.seed)
    model = build_model(recipe, dataset.train_mean, torch.Generator().manual_seed(recipe.training.seed)).to(device)
    optimizer = _optimizer(recipe, model)
    chains = pcd.init(model.prior, recipe.chains.num_chains, generator) if model.prior is not None else None
    return State(model, optimizer, chains, generator, 0)


def build_model(recipe: Recipe, train_mean: Tensor, generator: torch.Generator | None = None) -> FeedForward:
    return FeedForward(
        train_mean,
        recipe.model.groups,
        hidden=recipe.model.hidden,
        prior=recipe.model.prior,
        batch_norm=recipe.model.batch_norm,
        centered_code=recipe.model.centered_code,
        generator=generator,
    )


def _optimizer(recipe: Recipe, model: FeedForward) -> torch.optim.Optimizer:
    """L2 on kernels, batch-norm scales and couplings only: Adam's `weight_decay` is the gradient of 1/2 |w|²."""
    decayed = [p for name, p in model.named_parameters() if name.endswith("weight")]
    others = [p for name, p in model.named_parameters() if not name.endswith("weight")]
    o = recipe.optimizer
    groups = [{"params": decayed, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if o.name == "adamax":
        return torch.optim.Adamax(groups, lr=o.learning_rate, betas=(0.9, o.beta2), eps=o.epsilon)
    return torch.optim.Adam(groups, lr=o.learning_rate, betas=(0.9, o.beta2), eps=o.epsilon, fused=True)


def smoothing_at(recipe: Recipe, t: float) -> Smoothing:
    member: Any = MEMBERS[recipe.smoothing.name]
    smoothing: Smoothing = member(sharpness(recipe.smoothing, t), validate_args=False)
    return smoothing


def bound_terms(
    recipe: Recipe,
    model: FeedForward,
    x: Tensor,
    smoothing: Smoothing,
    log_z: Tensor | float,
    generator: torch.Generator,
) -> Terms:
    """One sample of each term of the bound for images x (batch, pixels)."""
    rho = [uniform(len(x), size, generator=generator, device=x.device) for size in model.group_sizes]
    posterior = model.posterior(x, rho, smoothing)
    logits, zeta = posterior
    objective = recipe.training.objective
    if model.prior is not None:
        if objective == "rolfe":
            kl = rolfe_kl(model.prior, logits, zeta, log_z)
        else:
            assert isinstance(smoothing, Overlapping)
            kl = boltzmann_kl(model.prior, logits, zeta, smoothing, log_z)
    elif objective == "joint":
        kl = joint(logits, model.prior_logits(zeta))
    else:
        assert isinstance(smoothing, Overlapping)
        kl = marginal(logits, model.prior_logits(zeta), zeta, smoothing)
    return Terms(model.log_likelihood(x, zeta), kl, posterior)


def _loss(recipe: Recipe, state: State, x: Tensor, t: float) -> tuple[Tensor, Terms]:
    model, smoothing = state.model, smoothing_at(recipe, t)
    weight = kl_weight(recipe.training.kl_warmup, t)
    log_z: Tensor | float = 0.0
    if model.prior is not None and state.chains is not None:
        log_z = model.prior.log_z_surrogate(state.chains.z)
    samples = recipe.training.importance_samples
    if samples == 1:
        terms = bound_terms(recipe, model, x, smoothing, log_z, state.generator)
        return -(terms.log_likelihood - weight * terms.kl).mean(), terms
    terms = bound_terms(recipe, model, x.repeat(samples, 1), smoothing, log_z, state.generator)
    log_w = (terms.log_likelihood - weight * terms.kl).reshape(samples, len(x))
    return -importance_weighted(log_w).mean(), terms


def batch_indices(size: int, batch_size: int, step: int, seed: int) -> Tensor:
    """The images of a step: every epoch is a permutation that depends on seed and epoch alone."""
    per_epoch = max(1, size // batch_size)
    epoch, place = divmod(step, per_epoch)
    order = _epoch_order(size, seed, epoch)
    return order[place * batch_size : (place + 1) * batch_size]


_order_cache: dict[tuple[int, int, int], Tensor] = {}


def _epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    key = (size, seed, epoch)
    if key not in _order_cache:
        _order_cache.clear()
        mixed = (seed * 1_000_003 + epoch) % 2**63
        _order_cache[key] = torch.randperm(size, generator=torch.Generator().manual_seed(mixed))
    return _order_cache[key]


def _loop(
    recipe: Recipe,
    run: Path,
    dataset: Dataset,
    state: State,
    best: float,
    device: str,
    say: Callable[[str], None],
    signals: "_Signals",
    about: dict[str, Any],
) -> None:
    steps, training = recipe.training.steps, recipe.training
    validate_every = max(1, round(steps * training.validate_every))
    log_every = max(1, steps // LOGS)
    started, first_step = time.monotonic(), state.step
    estimated = False
    # on a terminal a bar; elsewhere the lines of each validation carry the time left
    with open(run / "metrics.jsonl", "a", buffering=1) as metrics, progress(recipe.name, steps) as advance:
        advance(state.step)
        while state.step < steps:
            t = state.step / steps
            for group in state.optimizer.param_groups:
                group["lr"] = learning_rate(recipe.optimizer, t)
            state.model.train()
            indices = batch_indices(len(dataset.train), training.batch_size, state.step, training.seed)
            x = dataset.batch(indices, state.generator).reshape(len(indices), -1).to(device)
            if state.model.prior is not None and state.chains is not None:
                chains = pcd.step(state.model.prior, state.chains, state.generator, recipe.chains.num_sweeps)
                state = state._replace(chains=chains)
            loss, terms = _loss(recipe, state, x, t)
            state.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            state.optimizer.step()
            state = state._replace(step=state.step + 1)
            advance(1)
            if state.step % log_every == 0 or state.step == steps:
                value = loss.item()
                if not math.isfinite(value):
                    raise RuntimeError(f"the loss is {value} at step {state.step}; the last checkpoint is in {run}")
                speed = (state.step - first_step) / (time.monotonic() - started)
                metrics.write(json.dumps(_train_record(state, terms, t, recipe, speed)) + "\n")
            if not estimated and time.monotonic() - started > 5:
                estimated = True
                speed = (state.step - first_step) / (time.monotonic() - started)
                say(f"{speed:.0f} steps/s; about {(steps - state.step) / speed / 60:.0f} min for all steps")
            if state.step % validate_every == 0 or state.step == steps:
                record = validate(recipe, dataset, state, device)
                metrics.write(json.dumps(record) + "\n")
                say(_line(record, steps, state.step - first_step, time.monotonic() - started))
                if record["validation_log_likelihood"] > best:
                    best = record["validation_log_likelihood"]
                    _save(run / "checkpoints" / "best.safetensors", state, best, about)
                _save(run / "checkpoints" / "last.safetensors", state, best, about)
            if signals.received:
                _save(run / "checkpoints" / "last.safetensors", state, best, about)
                say(f"stopped by a signal at step {state.step}; saved. Continue with --resume --run-dir {run}")
                raise SystemExit(128 + signals.received)


def _train_record(state: State, terms: Terms, t: float, recipe: Recipe, speed: float) -> dict[str, Any]:
    record: dict[str, Any] = {
        "step": state.step,
        "reconstruction": terms.log_likelihood.mean().item(),
        "kl_weight": kl_weight(recipe.training.kl_warmup, t),
        "beta": sharpness(recipe.smoothing, t),
        "learning_rate": learning_rate(recipe.optimizer, t),
        "active_units": [int((torch.sigmoid(g).var(0) > ACTIVE_VARIANCE).sum()) for g in terms.posterior.logits],
        "steps_per_second": speed,
    }
    if state.model.prior is None:
        record["kl"] = terms.kl.mean().item()
    elif state.chains is not None:  # the KL's number needs log Z, which only a validation estimates
        with torch.no_grad():
            record["chain_energy"] = state.model.prior.energy(state.chains.z).mean().item()
            record["chain_mean"] = state.chains.z.mean().item()
    return record


def estimate_log_z(model: FeedForward, generator: torch.Generator, num_sweeps: int = LOG_Z_SWEEPS) -> float:
    """log Z without gradient where a number is needed; 0 for a directed prior."""
    if model.prior is None:
        return 0.0
    if min(model.prior.num_left, model.prior.num_right) <= EXACT_SIDE:
        return log_partition(model.prior, "exact").value
    return log_partition(model.prior, "tempering", generator, num_sweeps=num_sweeps, num_replicas=16).value


@torch.no_grad()
def validate(recipe: Recipe, dataset: Dataset, state: State, device: str) -> dict[str, Any]:
    """Bound and K-sample log-likelihood on validation images, with noise of their own: training is not disturbed."""
    t = state.step / recipe.training.steps
    generator = torch.Generator(device).manual_seed(recipe.training.seed + 1)
    chosen = subset(len(dataset.validation), recipe.training.validation_images)
    x = dataset.images("validation", chosen).reshape(len(chosen), -1).to(device)
    model = state.model
    model.eval()
    log_z = estimate_log_z(model, generator)
    terms = bound_terms(recipe, model, x, smoothing_at(recipe, t), log_z, generator)
    pieces = [
        log_likelihood(model, part, recipe.training.validation_samples, log_z=log_z, generator=generator)
        for part in x.split(100)
    ]
    return {
        "step": state.step,
        "validation_bound": (terms.log_likelihood - terms.kl).mean().item(),
        "validation_reconstruction": terms.log_likelihood.mean().item(),
        "validation_kl": terms.kl.mean().item(),
        "validation_log_likelihood": torch.cat(pieces).mean().item(),
        "validation_samples": recipe.training.validation_samples,
        "validation_images": len(x),
        "log_z": log_z,
        "active_units": [int((torch.sigmoid(g).var(0) > ACTIVE_VARIANCE).sum()) for g in terms.posterior.logits],
    }


def _line(record: dict[str, Any], steps: int, done: int, seconds: float) -> str:
    left = seconds / max(done, 1) * (steps - record["step"])
    return (
        f"step {record['step']}/{steps}  bound {record['validation_bound']:.2f}  "
        f"log p(x) {record['validation_log_likelihood']:.2f} (K={record['validation_samples']})  "
        f"KL {record['validation_kl']:.2f}  {left / 60:.0f} min left"
    )


def _save(path: Path, state: State, best: float, about: dict[str, Any]) -> None:
    tensors = checkpoint.with_prefix("model", state.model.state_dict())
    tensors["generator"] = state.generator.get_state()
    record: dict[str, Any] = {"step": state.step, "best": best if math.isfinite(best) else None, **about}
    if state.chains is not None:
        tensors["chains"] = state.chains.z
        record["chain_sweeps"] = state.chains.num_sweeps
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        tensors |= checkpoint.with_prefix(f"optimizer.{index}", state.optimizer.state[parameter])
    checkpoint.write(path, tensors, record)


def _resumed(state: State, saved: checkpoint.Checkpoint) -> tuple[State, float]:
    tensors, record = saved
    state.model.load_state_dict(checkpoint.under("model", tensors))
    state.generator.set_state(tensors["generator"].cpu())
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        state.optimizer.state[parameter] = checkpoint.under(f"optimizer.{index}", tensors)
    chains = pcd.Chains(tensors["chains"], record["chain_sweeps"]) if "chains" in tensors else None
    return state._replace(chains=chains, step=record["step"]), -math.inf if record["best"] is None else record["best"]


class _Signals:
    """Note SIGTERM and SIGINT instead of dying in the middle of a step; a second SIGINT acts at once."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        for number in (signal.SIGTERM, signal.SIGINT):
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not in the main thread: whoever runs us keeps the signals
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
