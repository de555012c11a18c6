"""What a run reports: the numbers of a training step for metrics.jsonl, and a line of text for each validation."""

from typing import Any

import torch
from torch import Tensor

from dvaepp import distributed
from dvaepp.models.base import Terms
from dvaepp.recipes.schema import Recipe
from dvaepp.training.log_z import is_known
from dvaepp.training.schedules import kl_weight, learning_rate
from dvaepp.training.state import State
from dvaepp.training.validation import active_units


def train_record(recipe: Recipe, state: State, found: Terms, speed: float) -> dict[str, Any]:
    """The numbers of a training step, as metrics.jsonl holds them.

    Bound and KL contain log Z, so they are left out unless log Z belongs to the parameters of this very step: with an
    older log Z they would jump at every validation.
    """
    t = (state.step - 1) / recipe.training.steps
    with torch.no_grad():
        record: dict[str, Any] = {
            "step": state.step,
            "learning_rate": learning_rate(recipe.optimizer, t, state.progress.decays),
            "steps_per_second": speed,
        }
        if recipe.estimator is None:  # a gradient estimator gives its bound as one number, without these parts
            record |= {
                "reconstruction": found.log_likelihood.mean().item(),
                "kl_weight": kl_weight(recipe.training.kl_warmup, t),
                "beta": recipe.smoothing.sharpness(t),
                "active_units": active_units(found.logits),
            }
        if is_known(state):
            record["bound"] = (found.log_likelihood - found.kl.sum(0)).mean().item()
            if recipe.estimator is None:
                record |= {"kl": found.kl.sum(0).mean().item(), "kl_per_group": found.kl.mean(1).tolist()}
            if state.chains is not None:
                record["log_z"] = state.log_z
        if state.model.boltzmann is not None and state.chains is not None:
            z = state.chains.z if state.chains.shard is None else distributed.gather(state.chains.z, state.chains.shard)
            record["chain_energy"] = state.model.boltzmann.energy(z).mean().item()
            record["chain_mean"] = z.mean().item()
    return record


def validation_line(record: dict[str, Any], steps: int, left: str) -> str:
    """The line that is shown of a validation."""
    estimate = ""
    if "validation_samples" in record:
        estimate = f"log p(x) {record['validation_log_likelihood']:.2f} (K={record['validation_samples']})  "
    if "average_validation_log_likelihood" in record:
        estimate += f"averaged weights {record['average_validation_log_likelihood']:.2f}  "
    return (
        f"step {record['step']}/{steps}  bound {record['validation_bound']:.2f}  {estimate}"
        f"KL {record['validation_kl']:.2f}  {left}".rstrip()
    )


def of_all_processes(recipe: Recipe, num_images: int, found: Terms) -> Terms:
    """The terms of the whole batch, gathered from the processes that have computed a shard of it each."""
    if distributed.size() == 1:
        return found
    training = recipe.training
    shard, copies = distributed.shard(min(training.batch_size, num_images)), training.importance_samples

    def whole(x: Tensor, dim: int) -> Tensor:
        x = x.detach().unflatten(dim, (copies, shard.rows))
        return distributed.gather(x, shard, dim + 1).flatten(dim, dim + 1)

    return Terms(whole(found.log_likelihood, 0), whole(found.kl, 1), [whole(logits, 0) for logits in found.logits])
