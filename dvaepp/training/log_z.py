"""The number of log Z while training: summed exactly, or followed from one validation to the next.

Training needs only the gradient of log Z, which comes from the chains (App. E). Its value is needed for the bound and
the KL that are shown, and for balancing (App. H). Where one side of an RBM has few units, log Z is summed exactly.
Otherwise each validation estimates it, and between two validations walkers follow it (`log_partition.follow`): at
every line of the metrics or at every 50th step, whichever is rarer. The walkers make about one sweep for each step of
training, which adds about 2 % to the work of a step with 100 chains.
"""

import math

import torch

from dvaepp.log_partition import follow
from dvaepp.recipes.schema import Recipe
from dvaepp.training.schedules import line_due, log_every
from dvaepp.training.state import State, estimate_log_z, sums_exactly

FEWEST_STEPS = 50  # steps between two updates of log Z, at least
MOST_SWEEPS = 500  # sweeps that a walker makes for one update, at most


def at_this_step(recipe: Recipe, state: State) -> State:
    """The state with log Z of its present parameters, if the coming step will show it or balance by it."""
    step, steps = state.step + 1, recipe.training.steps
    if sums_exactly(state.model):
        due = recipe.training.kl_balance or line_due(step, steps)
        return _with(state, estimate_log_z(state.model, state.generator)) if due else state
    between = log_every(steps) * math.ceil(FEWEST_STEPS / log_every(steps))
    if state.follower is None or not (step % between == 0 or step == steps):
        return state
    follower = _here(recipe, state)
    return _with(state, follower.log_z)._replace(follower=follower)


def after_validation(recipe: Recipe, state: State, log_z: float) -> State:
    """The state with the log Z that a validation has found, from which it is followed anew."""
    if state.follower is None:
        return _with(state, log_z)
    follower = follow.anchored(_here(recipe, state), log_z, _generator(recipe, state, again=True))
    return _with(state, log_z)._replace(follower=follower)


def is_known(state: State) -> bool:
    """Whether the bound of the last step was made with log Z of its own parameters."""
    return state.chains is None or state.log_z_step == state.step - 1


def _with(state: State, log_z: float) -> State:
    return state._replace(log_z=log_z, log_z_step=state.step)


def _here(recipe: Recipe, state: State) -> follow.Follower:
    """The walkers, moved to the present parameters; they have their own noise, so that training is unaffected."""
    assert state.follower is not None and state.model.boltzmann is not None
    sweeps = min(MOST_SWEEPS, max(1, state.step - state.log_z_step))
    return follow.follow(state.follower, state.model.boltzmann, _generator(recipe, state), sweeps)


def _generator(recipe: Recipe, state: State, again: bool = False) -> torch.Generator:
    """A generator that depends on seed and step alone, so that a resumed run draws the same numbers."""
    seed = (recipe.training.seed * 1_000_003 + 2 * state.step + again + 1) % 2**63
    return torch.Generator(state.generator.device).manual_seed(seed)
