"""The training loop, top to bottom: build, then step, log, validate and save until the last step."""

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

from dvaepp.data import Dataset, load
from dvaepp.errors import UsageError
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.noise import Noise
from dvaepp.objectives import importance_weighted, kl_balance
from dvaepp.progress import progress
from dvaepp.recipes.schema import Convolutional, Recipe
from dvaepp.samplers import pcd
from dvaepp.training import checkpoint
from dvaepp.training.bounds import Terms, terms
from dvaepp.training.metrics import Metrics
from dvaepp.training.schedules import kl_weight, learning_rate, sharpness, smoothing_at
from dvaepp.training.state import Progress, State, build, estimate_log_z, restore, save, sums_exactly
from dvaepp.training.targets import FeedForwardTarget
from dvaepp.training.validation import active_units, score, validate
from dvaepp.version import __version__

LOGS = 500  # lines of metrics per run, about


class Run(NamedTuple):
    """What stays the same during a run."""

    recipe: Recipe
    folder: Path
    dataset: Dataset
    device: str
    say: Callable[[str], None]
    about: dict[str, Any]


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
    folder = Path(run_dir)
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    last = folder / "checkpoints" / "last.safetensors"
    if last.exists() and not resume:
        raise UsageError(f"{folder} already holds a run: continue it with --resume, or choose another --run-dir")
    dataset = load(recipe.data.name, data_dir, recipe.data.path)
    expected = recipe.model.likelihood if isinstance(recipe.model, Convolutional) else "bernoulli"
    if dataset.likelihood != expected:
        kinds = {"bernoulli": "binary images", "logistic_mixture": "colour images"}
        raise UsageError(f"{dataset.name} has {kinds[dataset.likelihood]}; this model takes {kinds[expected]}")
    state = build(recipe, dataset, device)
    if resume:
        state = restore(state, checkpoint.read(last, device))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.json").write_text(recipe.model_dump_json(indent=1) + "\n")
    about = {
        "dataset": dataset.name,
        "data_checksum": dataset.checksum,
        "image_shape": list(dataset.image_shape),
        "version": __version__,
    }
    say(f"{recipe.name} on {dataset.name}: {len(dataset.train)} training images, {recipe.training.steps} steps")
    with _Signals() as signals:
        _loop(Run(recipe, folder, dataset, device, say, about), state, signals)
    return folder


def _loop(run: Run, state: State, signals: "_Signals") -> None:
    steps = run.recipe.training.steps
    validate_every = max(1, round(steps * run.recipe.training.validate_every))
    log_every = max(1, steps // LOGS)
    clock = _Clock(state.step, steps)
    # on a terminal a bar; elsewhere the lines of each validation carry the time left
    tensorboard = run.recipe.training.tensorboard
    with Metrics(run.folder, tensorboard) as metrics, progress(run.recipe.name, steps) as advance:
        advance(state.step)
        while state.step < steps:
            state, found, loss = step(run.recipe, run.dataset, state, run.device)
            advance(1)
            if state.step % log_every == 0 or state.step == steps:
                if not math.isfinite(loss.item()):
                    raise RuntimeError(
                        f"the loss is {loss.item()} at step {state.step}; the last checkpoint is in {run.folder}"
                    )
                metrics.write(_train_record(run.recipe, state, found, clock.speed(state.step)))
            clock.announce(state.step, run.say)
            if state.step % validate_every == 0 or state.step == steps:
                record = validate(run.recipe, run.dataset, state, run.device)
                metrics.write(record)
                run.say(_line(record, steps, clock.left(state.step)))
                state = _judged(run, state, record)
            if signals.received:
                save(run.folder / "checkpoints" / "last.safetensors", state, run.about)
                run.say(
                    f"stopped by a signal at step {state.step}; saved. Continue with --resume --run-dir {run.folder}"
                )
                raise SystemExit(128 + signals.received)


def step(recipe: Recipe, dataset: Dataset, state: State, device: str) -> tuple[State, Terms, Tensor]:
    """One update: chains, bound, gradient, optimizer. The state returned has counted it."""
    t = state.step / recipe.training.steps
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(recipe.optimizer, t, state.progress.decays)
    state.model.train()
    indices = batch_indices(len(dataset.train), recipe.training.batch_size, state.step, recipe.training.seed)
    x = dataset.batch(indices, state.generator).to(device)
    return update(recipe, state, x)


def update(recipe: Recipe, state: State, x: Tensor) -> tuple[State, Terms, Tensor]:
    if state.estimator is not None:
        return _estimated_update(recipe, state, x)
    if state.model.prior is not None and state.chains is not None:
        chains = pcd.step(state.model.prior, state.chains, state.generator, recipe.chains.num_sweeps)
        state = state._replace(chains=chains)
        if recipe.training.kl_balance and sums_exactly(state.model):
            state = state._replace(log_z=estimate_log_z(state.model, state.generator))
    loss, found = _loss(recipe, state, x)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    state.optimizer.step()
    return state._replace(step=state.step + 1), found, loss.detach()


def _estimated_update(recipe: Recipe, state: State, x: Tensor) -> tuple[State, Terms, Tensor]:
    """One backward pass serves the model and, apart, the estimator's own parameters (Sec. 7.1)."""
    assert state.estimator is not None and isinstance(state.model, FeedForward)
    optimizers = [o for o in (state.optimizer, state.own_optimizer) if o is not None]
    if state.own_optimizer is not None and recipe.estimator is not None:
        for group in state.own_optimizer.param_groups:
            rate = learning_rate(recipe.optimizer, state.step / recipe.training.steps, state.progress.decays)
            group["lr"] = recipe.estimator.rate_factor * rate
    state.estimator.train()
    found = state.estimator.estimate(FeedForwardTarget(state.model, x.flatten(1)), state.generator)
    loss = -found.surrogate.mean()
    if found.own_loss is not None:
        loss = loss + found.own_loss
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
    bound = Terms(found.bound, found.bound.new_zeros(0, len(x)), [])
    return state._replace(step=state.step + 1), bound, -found.bound.mean()


def _loss(recipe: Recipe, state: State, x: Tensor) -> tuple[Tensor, Terms]:
    """Minus the bound with its KL weighted by γ, and balanced over groups while γ < 1 (App. H)."""
    training, t = recipe.training, state.step / recipe.training.steps
    weight = kl_weight(training.kl_warmup, t)
    samples = training.importance_samples
    images = x if samples == 1 else x.repeat(samples, 1, 1, 1)
    noise = Noise(state.generator, x.device)
    smoothing = smoothing_at(recipe.smoothing, t)
    found = terms(training.objective, state.model, images, smoothing, _log_z(state), noise)
    if samples > 1:
        log_w = (found.log_likelihood - weight * found.kl.sum(0)).reshape(samples, len(x))
        return -importance_weighted(log_w).mean(), found
    kl = found.kl
    if training.kl_balance and weight < 1:
        kl = kl * kl_balance(kl)[:, None]
    return -(found.log_likelihood - weight * kl.sum(0)).mean(), found


def _log_z(state: State) -> Tensor | float:
    """The number of log Z as last estimated, with the gradient of the chains (App. E)."""
    if state.model.prior is None or state.chains is None:
        return 0.0
    surrogate = state.model.prior.log_z_surrogate(state.chains.z)
    return surrogate - surrogate.detach() + state.log_z


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


def _judged(run: Run, state: State, record: dict[str, Any]) -> State:
    """Take a validation into account: log Z, the plateau, the best checkpoint, and the last one."""
    old, bound = state.progress, record["validation_bound"]
    improved = bound > old.best_bound
    new = Progress(
        max(old.best, score(record)), max(old.best_bound, bound), 0 if improved else old.waited + 1, old.decays
    )
    plateau = run.recipe.optimizer.plateau
    # while γ grows the bound of the next validation is expected to move by itself
    annealing = kl_weight(run.recipe.training.kl_warmup, state.step / run.recipe.training.steps) < 1
    if plateau is not None and annealing:
        new = new._replace(best_bound=-math.inf, waited=0)
    elif plateau is not None and new.waited >= plateau.patience:
        new = new._replace(waited=0, decays=old.decays + 1)
    state = state._replace(log_z=record["log_z"], progress=new)
    if score(record) > old.best:
        save(run.folder / "checkpoints" / "best.safetensors", state, run.about)
    save(run.folder / "checkpoints" / "last.safetensors", state, run.about)
    return state


def _train_record(recipe: Recipe, state: State, found: Terms, speed: float) -> dict[str, Any]:
    t = (state.step - 1) / recipe.training.steps
    with torch.no_grad():
        record: dict[str, Any] = {
            "step": state.step,
            "bound": (found.log_likelihood - found.kl.sum(0)).mean().item(),
            "learning_rate": learning_rate(recipe.optimizer, t, state.progress.decays),
            "steps_per_second": speed,
        }
        if recipe.estimator is None:  # an estimator gives the bound whole
            record |= {
                "reconstruction": found.log_likelihood.mean().item(),
                "kl": found.kl.sum(0).mean().item(),
                "kl_per_group": found.kl.mean(1).tolist(),
                "kl_weight": kl_weight(recipe.training.kl_warmup, t),
                "beta": sharpness(recipe.smoothing, t),
                "active_units": active_units(found.logits),
            }
        if state.model.prior is not None and state.chains is not None:
            record["log_z"] = state.log_z  # as last estimated: it enters the KL's number, not its gradient
            record["chain_energy"] = state.model.prior.energy(state.chains.z).mean().item()
            record["chain_mean"] = state.chains.z.mean().item()
    return record


def _line(record: dict[str, Any], steps: int, minutes_left: float) -> str:
    estimate = ""
    if "validation_samples" in record:
        estimate = f"log p(x) {record['validation_log_likelihood']:.2f} (K={record['validation_samples']})  "
    return (
        f"step {record['step']}/{steps}  bound {record['validation_bound']:.2f}  {estimate}"
        f"KL {record['validation_kl']:.2f}  {minutes_left:.0f} min left"
    )


class _Clock:
    """Steps per second since the start or the resumption of a run, and the time left."""

    def __init__(self, first_step: int, steps: int) -> None:
        self.first_step, self.steps = first_step, steps
        self.started = time.monotonic()
        self._announced = False

    def speed(self, step: int) -> float:
        return (step - self.first_step) / (time.monotonic() - self.started)

    def left(self, step: int) -> float:
        """Minutes."""
        return (self.steps - step) / max(self.speed(step), 1e-9) / 60

    def announce(self, step: int, say: Callable[[str], None]) -> None:
        """Once, after some seconds."""
        if not self._announced and time.monotonic() - self.started > 5:
            self._announced = True
            say(f"{self.speed(step):.3g} steps/s; about {self.left(step):.0f} min for all steps")


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
