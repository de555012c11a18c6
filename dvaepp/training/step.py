"""One update of a model: chains, bound, gradient, optimizer (Sec. 4 and 5, App. E and H)."""

import functools

import torch
from torch import Tensor

from dvaepp import distributed
from dvaepp.data import Dataset
from dvaepp.distributed import Shard
from dvaepp.models.base import Terms
from dvaepp.models.noise import BatchNoise, repeated
from dvaepp.objectives import importance_weighted, kl_balance
from dvaepp.recipes.schema import Recipe
from dvaepp.samplers import pcd
from dvaepp.training import log_z
from dvaepp.training.average import follow
from dvaepp.training.finite import check_finite
from dvaepp.training.precision import WEIGHTS, autocast
from dvaepp.training.schedules import kl_weight, learning_rate, smoothing_at
from dvaepp.training.state import State


def step(recipe: Recipe, dataset: Dataset, state: State, device: str) -> tuple[State, Terms, Tensor]:
    """Draw a batch and make one update with it; the state that is returned has counted this step."""
    t = state.step / recipe.training.steps
    for group in state.optimizer.param_groups:
        group["lr"] = learning_rate(recipe.optimizer, t, state.progress.decays)
    if not state.model.training:
        state.model.train()  # a walk through all modules, which most steps can do without
    indices = batch_indices(len(dataset.train), recipe.training.batch_size, state.step, recipe.training.seed)
    x = dataset.batch(indices, state.generator)
    shard = distributed.shard(len(x)) if distributed.size() > 1 else None
    if shard is not None:
        x = x[shard.first : shard.last]
    return update(recipe, state, x.to(device, WEIGHTS[recipe.training.precision]), shard)


def update(recipe: Recipe, state: State, x: Tensor, shard: Shard | None = None) -> tuple[State, Terms, Tensor]:
    """The update from images x, which are a batch or this process's shard of it.

    A loss or gradient that is not finite raises NonFinite before any parameter has changed.
    """
    if state.estimator is not None:
        return _estimated_update(recipe, state, x)
    if state.model.boltzmann is not None and state.chains is not None:
        c = recipe.chains
        chains = pcd.step(state.model.boltzmann, state.chains, state.generator, c.num_sweeps, c.make())
        state = log_z.at_this_step(recipe, state._replace(chains=chains))
    with autocast(recipe.training.precision, x.device):
        loss, found = _loss(recipe, state, x, shard)
    state.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    loss = distributed.sum_gradients(parameters, loss.detach())
    check_finite(state, loss)
    state.optimizer.step()
    state = state._replace(step=state.step + 1)
    follow(recipe, state)
    return state, found, loss


def _estimated_update(recipe: Recipe, state: State, x: Tensor) -> tuple[State, Terms, Tensor]:
    """One backward pass serves the model and, apart, the estimator's own parameters (Sec. 7.1)."""
    assert state.estimator is not None
    if state.own_optimizer is not None and recipe.estimator is not None:
        for group in state.own_optimizer.param_groups:
            rate = learning_rate(recipe.optimizer, state.step / recipe.training.steps, state.progress.decays)
            group["lr"] = recipe.estimator.rate_factor * rate
    state.estimator.train()
    with autocast(recipe.training.precision, x.device):
        found = state.estimator.estimate(state.model.target(x), state.generator)
    loss = -found.surrogate.mean()
    if found.own_loss is not None:
        loss = loss + found.own_loss
    for optimizer in state.optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    check_finite(state, loss.detach())
    for optimizer in state.optimizers:
        optimizer.step()
    bound = Terms(found.bound, found.bound.new_zeros(0, len(x)), [])
    state = state._replace(step=state.step + 1)
    follow(recipe, state)
    return state, bound, -found.bound.mean()


def _loss(recipe: Recipe, state: State, x: Tensor, shard: Shard | None = None) -> tuple[Tensor, Terms]:
    """Minus the bound, with its KL weighted by γ and, while γ < 1, balanced over groups (App. H).

    With K samples the weighted KL is a part of the importance weights. The loss of a shard is what its examples
    contribute to the mean over the batch, so that the losses of all processes add up to that mean.
    """
    training, t = recipe.training, state.step / recipe.training.steps
    weight = kl_weight(training.kl_warmup, t)
    samples = training.importance_samples
    images = repeated(x, samples)
    noise = BatchNoise(state.generator, x.device, shard, samples, x.dtype)
    smoothing = smoothing_at(recipe.smoothing, t)
    found = state.model.terms(
        images, smoothing, noise, objective=training.objective, log_z=_log_z(state, shard), weights=samples > 1
    )
    kl = found.kl
    if training.kl_balance and weight < 1:
        each = kl.detach().reshape(len(kl), samples, len(x)).mean(1)
        kl = kl * kl_balance(each if shard is None else distributed.gather(each, shard, 1))[:, None]
    log_w = (found.log_likelihood - weight * kl.sum(0)).reshape(samples, len(x))
    bound = importance_weighted(log_w) if samples > 1 else log_w[0]
    return -(bound.mean() if shard is None else bound.sum() / shard.total), found


def _log_z(state: State, shard: Shard | None) -> Tensor | float:
    """The last estimate of log Z as a value, with the gradient that the chains give (App. E).

    Gradients are summed over processes, and this sum must be the mean over all chains. A process may hold another share
    of the chains than of the examples, so its gradient is scaled by the ratio of the two.
    """
    if state.model.boltzmann is None or state.chains is None:
        return 0.0
    surrogate = state.model.boltzmann.log_z_surrogate(state.chains.z)
    if shard is not None and state.chains.shard is not None:
        chains = state.chains.shard
        surrogate = surrogate * (chains.rows / chains.total) / (shard.rows / shard.total)
    return surrogate - surrogate.detach() + state.log_z


def batch_indices(size: int, batch_size: int, step: int, seed: int) -> Tensor:
    """Which images a step takes. An epoch visits them in an order that depends on the seed and the epoch alone."""
    per_epoch = max(1, size // batch_size)
    epoch, place = divmod(step, per_epoch)
    order = _epoch_order(size, seed, epoch)
    return order[place * batch_size : (place + 1) * batch_size]


@functools.lru_cache(maxsize=1)
def _epoch_order(size: int, seed: int, epoch: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=generator, device="cpu")
