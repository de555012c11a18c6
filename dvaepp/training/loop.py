"""The training loop, top to bottom: build, then step, log, validate and save until the last step."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from dvaepp import ranks
from dvaepp.data import Dataset, load
from dvaepp.errors import UsageError, to_stderr
from dvaepp.files import write_durably
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.noise import Noise
from dvaepp.objectives import importance_weighted, kl_balance
from dvaepp.progress import progress
from dvaepp.ranks import Shard
from dvaepp.recipes import differences
from dvaepp.recipes.schema import Convolutional, Recipe
from dvaepp.samplers import pcd
from dvaepp.training import checkpoint
from dvaepp.training.bounds import Terms, terms
from dvaepp.training.faults import Before, NonFinite, Signals, Stopped, check_finite
from dvaepp.training.lock import owned
from dvaepp.training.metrics import Metrics
from dvaepp.training.same_data import check_same_data
from dvaepp.training.schedules import kl_weight, learning_rate, sharpness, smoothing_at
from dvaepp.training.state import PRECISIONS, Progress, State, build, estimate_log_z, restore, save, sums_exactly
from dvaepp.training.targets import FeedForwardTarget
from dvaepp.training.validation import active_units, score, validate
from dvaepp.version import __version__

LOGS = 500  # lines of metrics per run, about
FREE = ("training.tensorboard", "training.checkpoint_minutes", "evaluation.")  # may change when a run is resumed


class Run(NamedTuple):
    """What stays the same during a run."""

    recipe: Recipe
    folder: Path
    dataset: Dataset
    device: str
    say: Callable[[str], None]
    about: dict[str, Any]

    def save(self, state: State, best: bool = False) -> None:
        save(self.folder / "checkpoints", state, self.recipe, self.about, best)


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
    143 or 130. Inside `ranks.joined()` all processes of the job train one model.
    """
    folder = Path(run_dir)
    say = say or to_stderr
    if ranks.rank() != 0:
        say = _nothing
    if resume:
        _check_resumable(folder)
    else:
        _check_empty(folder)
    _check_processes(recipe)
    dataset = load(recipe.data.name, data_dir, recipe.data.path)
    _check_images(recipe, dataset)
    state = build(recipe, dataset, device)
    with owned(folder) if ranks.rank() == 0 else nullcontext():
        if resume:
            state = _resumed(recipe, state, folder, dataset, device, say)
        else:
            _check_empty(folder)  # of what another process may have done since
        about = {
            "dataset": dataset.name,
            "data_checksum": dataset.checksum,
            "image_shape": list(dataset.image_shape),
            "version": __version__,
        }
        if ranks.rank() == 0:
            write_durably(folder / "recipe.json", (recipe.model_dump_json(indent=1) + "\n").encode())
        processes = f", {ranks.size()} processes" if ranks.size() > 1 else ""
        count = f"{len(dataset.train)} training images, {recipe.training.steps} steps{processes}"
        say(f"{recipe.name} on {dataset.name}: {count}")
        with Signals() as signals:
            _loop(Run(recipe, folder, dataset, device, say, about), state, signals)
    return folder


def _nothing(line: str) -> None:
    """What the other processes of a job say."""


def _check_empty(folder: Path) -> None:
    if checkpoint.exists(folder / "checkpoints"):
        raise UsageError(f"{folder} already holds a run: continue it with --resume, or choose another --run-dir")


def _check_resumable(folder: Path) -> None:
    """Tell of an export before anything is read, computed or locked for it."""
    record = checkpoint.last_record(folder / "checkpoints")
    if record is not None and "progress" not in record:
        raise UsageError(
            f"{folder} is an exported model: without the optimizer, the chains and the random numbers of its training "
            "it cannot be resumed; resume the run that it was exported from, or train its recipe in a new --run-dir"
        )


def _check_processes(recipe: Recipe) -> None:
    n = ranks.size()
    if n > 1 and recipe.estimator is not None:
        raise UsageError("gradient estimators train in one process: start without torchrun")
    if n > min(recipe.training.batch_size, recipe.chains.num_chains):
        raise UsageError(
            f"{n} processes are more than a batch of {recipe.training.batch_size} or {recipe.chains.num_chains} "
            "chains can be shared by: start fewer"
        )


def _check_images(recipe: Recipe, dataset: Dataset) -> None:
    expected = recipe.model.likelihood if isinstance(recipe.model, Convolutional) else "bernoulli"
    if dataset.likelihood != expected:
        kinds = {"bernoulli": "binary images", "logistic_mixture": "colour images"}
        raise UsageError(f"{dataset.name} has {kinds[dataset.likelihood]}; this model takes {kinds[expected]}")


def _resumed(
    recipe: Recipe, state: State, folder: Path, dataset: Dataset, device: str, say: Callable[[str], None]
) -> State:
    """The state of the last checkpoint, for the recipe it was made by or one that only goes on for longer."""
    if not checkpoint.exists(folder / "checkpoints"):
        say(f"{folder} has no checkpoint yet: starting from step 0")
        return state
    saved = _recovered(folder / "checkpoints", device, say)
    if saved.recipe is not None:
        changes = differences(saved.recipe, recipe)
        shorter = recipe.training.steps < saved.recipe["training"]["steps"]
        free = FREE if shorter else (*FREE, "training.steps")
        refused = [text for path, text in changes.items() if not path.startswith(free)]
        if refused:
            raise UsageError(
                f"{folder} was trained by another recipe ({'; '.join(refused)}): a resumed run may only extend "
                "training.steps; train the changed recipe in a new --run-dir"
            )
    check_same_data(folder, saved.record, dataset, recipe.data)
    state = restore(state, saved)
    if state.step >= recipe.training.steps:
        say(f"{folder} is finished, at step {state.step}; --set training.steps=N with a larger N extends it")
    else:
        say(f"resuming at step {state.step}")
    return state


def _recovered(folder: Path, device: str, say: Callable[[str], None]) -> checkpoint.Checkpoint:
    """The last intact checkpoint. The first process sets damaged files aside before the others begin to read."""
    if ranks.rank() == 0:
        saved = checkpoint.recover(folder, device, say)
    ranks.largest(0)  # all wait here for the first
    return saved if ranks.rank() == 0 else checkpoint.read(folder, device=device)


def _loop(run: Run, state: State, signals: Signals) -> None:
    steps = run.recipe.training.steps
    validate_every = max(1, round(steps * run.recipe.training.validate_every))
    log_every = max(1, steps // LOGS)
    clock = _Clock(state.step, steps, run.recipe.training.checkpoint_minutes)
    # on a terminal a bar; elsewhere the lines of each validation carry the time left
    first = ranks.rank() == 0
    with (
        Metrics(
            run.folder if first else None, run.recipe.training.tensorboard, state.step, state.progress.validated
        ) as metrics,
        progress(run.recipe.name, steps, None if first else False) as advance,
    ):
        advance(state.step)
        while True:
            if state.progress.validated < state.step and (state.step % validate_every == 0 or state.step == steps):
                state = _validated(run, state, signals, metrics, clock)
            if state.step >= steps:
                return
            state, found = _guarded_step(run, state)
            advance(1)
            if state.step % log_every == 0 or state.step == steps:
                found = _of_all_processes(run, found)
                metrics.write(_train_record(run.recipe, state, found, clock.speed(state.step)))
            clock.announce(state.step, run.say)
            stop, due = ranks.largest(signals.received, int(clock.save_due()))
            if stop:
                _stop(run, state, int(stop))
            if due:
                run.save(state)
                clock.saved()
                run.say(f"step {state.step} saved")


def _guarded_step(run: Run, state: State) -> tuple[State, Terms]:
    """A step, or the end of the run with all that is needed to take this step again."""
    before = Before.of(state)
    try:
        state, found, _ = step(run.recipe, run.dataset, state, run.device)
    except NonFinite as error:
        save(run.folder / "failure", before.restored(), run.recipe, run.about)
        raise NonFinite(
            f"{error}; parameters and checkpoints are those before it. A lower optimizer.learning_rate may help; "
            f"dvaepp.training.replay({str(run.folder)!r}) takes the step again"
        ) from None
    return state, found


def _validated(run: Run, state: State, signals: Signals, metrics: Metrics, clock: "_Clock") -> State:
    """Validate and save. A signal cuts a long validation short: it is made up for when the run is resumed."""
    if ranks.size() > 1:  # there nothing is cut short, so that the processes keep together
        run.save(state)
    try:
        with signals.raising() if ranks.size() == 1 else nullcontext():
            record = validate(run.recipe, run.dataset, state, run.device)
    except Stopped:
        _stop(run, state, signals.received)
    metrics.write(record)
    state, best = _judged(run.recipe, state, record)
    run.save(state, best)
    clock.saved()
    run.say(_line(record, run.recipe.training.steps, clock.left(state.step)))
    return state


def _stop(run: Run, state: State, number: int) -> NoReturn:
    run.save(state)
    run.say(f"stopped by a signal at step {state.step}; saved. Continue with --resume --run-dir {run.folder}")
    raise SystemExit(128 + number)


def step(recipe: Recipe, dataset: Dataset, state: State, device: str) -> tuple[State, Terms, Tensor]:
    """One update: chains, bound, gradient, optimizer. The state returned has counted it."""
    t = state.step / recipe.training.steps
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(recipe.optimizer, t, state.progress.decays)
    if not state.model.training:
        state.model.train()  # walks through all modules
    indices = batch_indices(len(dataset.train), recipe.training.batch_size, state.step, recipe.training.seed)
    x = dataset.batch(indices, state.generator)
    shard = ranks.shard(len(x)) if ranks.size() > 1 else None
    if shard is not None:
        x = x[shard.first : shard.last]
    return update(recipe, state, x.to(device, PRECISIONS[recipe.training.precision]), shard)


def update(recipe: Recipe, state: State, x: Tensor, shard: Shard | None = None) -> tuple[State, Terms, Tensor]:
    """The update from images x, a batch or this process's shard of it; raises NonFinite and changes no parameter."""
    if state.estimator is not None:
        return _estimated_update(recipe, state, x)
    if state.model.prior is not None and state.chains is not None:
        chains = pcd.step(state.model.prior, state.chains, state.generator, recipe.chains.num_sweeps)
        state = state._replace(chains=chains)
        if recipe.training.kl_balance and sums_exactly(state.model):
            state = state._replace(log_z=estimate_log_z(state.model, state.generator))
    loss, found = _loss(recipe, state, x, shard)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    loss = ranks.sum_gradients(parameters, loss.detach())
    check_finite(state, loss)
    state.optimizer.step()
    return state._replace(step=state.step + 1), found, loss


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
    check_finite(state, loss.detach())
    for optimizer in optimizers:
        optimizer.step()
    bound = Terms(found.bound, found.bound.new_zeros(0, len(x)), [])
    return state._replace(step=state.step + 1), bound, -found.bound.mean()


def _loss(recipe: Recipe, state: State, x: Tensor, shard: Shard | None = None) -> tuple[Tensor, Terms]:
    """Minus the bound with its KL weighted by γ, and balanced over groups while γ < 1 (App. H).

    Of a shard: the part of the batch's mean that its examples contribute.
    """
    training, t = recipe.training, state.step / recipe.training.steps
    weight = kl_weight(training.kl_warmup, t)
    samples = training.importance_samples
    images = x if samples == 1 else x.repeat(samples, 1, 1, 1)
    noise = Noise(state.generator, x.device, shard, samples, x.dtype)
    smoothing = smoothing_at(recipe.smoothing, t)
    log_z = _log_z(state, shard)
    found = terms(training.objective, state.model, images, smoothing, log_z, noise, weights=samples > 1)
    if samples > 1:
        log_w = (found.log_likelihood - weight * found.kl.sum(0)).reshape(samples, len(x))
        return -_mean(importance_weighted(log_w), shard), found
    kl = found.kl
    if training.kl_balance and weight < 1:
        kl = kl * kl_balance(kl if shard is None else ranks.gather(kl.detach(), shard, 1))[:, None]
    return -_mean(found.log_likelihood - weight * kl.sum(0), shard), found


def _mean(values: Tensor, shard: Shard | None) -> Tensor:
    return values.mean() if shard is None else values.sum() / shard.total


def _log_z(state: State, shard: Shard | None) -> Tensor | float:
    """The number of log Z as last estimated, with the gradient of the chains (App. E).

    Each process has a shard of the chains and one of the examples; their shares may differ, and the sum over all
    processes must be the mean over all chains.
    """
    if state.model.prior is None or state.chains is None:
        return 0.0
    surrogate = state.model.prior.log_z_surrogate(state.chains.z)
    if shard is not None and state.chains.shard is not None:
        chains = state.chains.shard
        surrogate = surrogate * (chains.rows / chains.total) / (shard.rows / shard.total)
    return surrogate - surrogate.detach() + state.log_z


def _of_all_processes(run: Run, found: Terms) -> Terms:
    if ranks.size() == 1:
        return found
    training = run.recipe.training
    shard, copies = ranks.shard(min(training.batch_size, len(run.dataset.train))), training.importance_samples

    def whole(x: Tensor, dim: int) -> Tensor:
        x = x.detach().unflatten(dim, (copies, shard.rows))
        return ranks.gather(x, shard, dim + 1).flatten(dim, dim + 1)

    return Terms(whole(found.log_likelihood, 0), whole(found.kl, 1), [whole(logits, 0) for logits in found.logits])


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
        _order_cache[key] = torch.randperm(size, generator=torch.Generator("cpu").manual_seed(mixed), device="cpu")
    return _order_cache[key]


def _judged(recipe: Recipe, state: State, record: dict[str, Any]) -> tuple[State, bool]:
    """Take a validation into account: log Z, the plateau, and whether it is the best so far."""
    old, bound = state.progress, record["validation_bound"]
    improved = bound > old.best_bound
    new = Progress(
        max(old.best, score(record)),
        max(old.best_bound, bound),
        0 if improved else old.waited + 1,
        old.decays,
        state.step,
    )
    plateau = recipe.optimizer.plateau
    # while γ grows the bound of the next validation is expected to move by itself
    annealing = kl_weight(recipe.training.kl_warmup, state.step / recipe.training.steps) < 1
    if plateau is not None and annealing:
        new = new._replace(best_bound=-math.inf, waited=0)
    elif plateau is not None and new.waited >= plateau.patience:
        new = new._replace(waited=0, decays=old.decays + 1)
    return state._replace(log_z=record["log_z"], progress=new), score(record) > old.best


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
            z = state.chains.z if state.chains.shard is None else ranks.gather(state.chains.z, state.chains.shard)
            record["chain_energy"] = state.model.prior.energy(z).mean().item()
            record["chain_mean"] = z.mean().item()
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
    """Steps per second since the start or the resumption of a run, the time left, and when to save."""

    def __init__(self, first_step: int, steps: int, checkpoint_minutes: float) -> None:
        self.first_step, self.steps = first_step, steps
        self.started = self._saved = time.monotonic()
        self._between = 60 * checkpoint_minutes
        self._announced = False

    def saved(self) -> None:
        self._saved = time.monotonic()

    def save_due(self) -> bool:
        return time.monotonic() - self._saved >= self._between

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
