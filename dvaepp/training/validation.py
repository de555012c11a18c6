"""Bound and K-sample log-likelihood on validation images.

A validation has its own generator, so that a run trains to the same bits however often it validates.
"""

import math
from typing import Any

import torch
from torch import Tensor

from dvaepp import distributed
from dvaepp.data import Dataset, subset
from dvaepp.evaluation import log_likelihood
from dvaepp.evaluation.pieces import in_pieces
from dvaepp.models.base import Model
from dvaepp.models.noise import BatchNoise
from dvaepp.recipes.schema import Recipe
from dvaepp.training.average import renew_statistics
from dvaepp.training.log_z import after_validation
from dvaepp.training.precision import WEIGHTS
from dvaepp.training.schedules import kl_weight, smoothing_at
from dvaepp.training.state import Progress, State, estimate_log_z

ACTIVE_VARIANCE = 0.01  # a unit counts as active if the variance of its μ over images is larger than this


@torch.no_grad()
def validate(recipe: Recipe, dataset: Dataset, state: State, device: str) -> dict[str, Any]:
    """The record of one validation, and beside it that of the averaged weights where there are any."""
    record = _measured(recipe, dataset, state.model, state.step, device)
    if state.average is not None:
        renew_statistics(recipe, dataset, state.average, state.step, device)
        averaged = _measured(recipe, dataset, state.average, state.step, device)
        kept = ("validation_bound", "validation_log_likelihood", "log_z")
        record |= {f"average_{name}": averaged[name] for name in kept if name in averaged}
    return record


def _measured(recipe: Recipe, dataset: Dataset, model: Model, step: int, device: str) -> dict[str, Any]:
    """Bound and log-likelihood of one set of weights, with its own log Z. Several processes share the images."""
    t, seed = step / recipe.training.steps, recipe.training.seed + 1
    chosen = subset(len(dataset.validation), recipe.training.validation_images)
    smoothing, samples = smoothing_at(recipe.smoothing, t), recipe.training.validation_samples
    model.eval()
    log_z = distributed.from_first(estimate_log_z(model, torch.Generator(device).manual_seed(seed)))

    def columns(x: Tensor, generator: torch.Generator) -> Tensor:
        x = x.to(WEIGHTS[recipe.training.precision])
        noise = BatchNoise(generator, x.device, dtype=x.dtype)
        found = model.terms(x, smoothing, noise, objective=recipe.training.objective, log_z=log_z)
        parts = [found.log_likelihood[:, None], found.kl.t(), *found.logits]
        if samples is not None:
            parts.append(log_likelihood(model, x, samples, log_z=log_z, generator=generator)[:, None])
        widths[:] = [part.shape[1] for part in parts]
        return torch.cat([part.double() for part in parts], 1)

    widths: list[int] = []
    whole = in_pieces(dataset.images("validation", chosen), columns, seed=seed, device=device)
    reconstruction, kl, *others = whole.split(distributed.from_first(widths), 1)
    estimates = others.pop() if samples is not None else None
    record = {
        "step": step,
        "validation_bound": (reconstruction[:, 0] - kl.sum(1)).mean().item(),
        "validation_reconstruction": reconstruction.mean().item(),
        "validation_kl": kl.sum(1).mean().item(),
        "validation_kl_per_group": kl.mean(0).tolist(),
        "validation_images": len(chosen),
        "log_z": log_z,
        "active_units": active_units(others),
    }
    if estimates is not None:
        record |= {"validation_log_likelihood": estimates.mean().item(), "validation_samples": samples}
    return record


def score(record: dict[str, Any]) -> float:
    """What the best checkpoint is chosen by: the K-sample log-likelihood where there is one, else the bound."""
    return float(record.get("validation_log_likelihood", record["validation_bound"]))


def active_units(logits: list[Tensor]) -> list[int]:
    return [int((torch.sigmoid(group).var(0, correction=0) > ACTIVE_VARIANCE).sum()) for group in logits]


def judged(recipe: Recipe, state: State, record: dict[str, Any]) -> tuple[State, bool]:
    """The state after a validation, with its log Z and its progress, and whether this validation is the best so far."""
    old, bound = state.progress, record["validation_bound"]
    better, plateau = score(record) > old.best, recipe.optimizer.plateau
    best_bound, waited, decays = max(old.best_bound, bound), 0 if bound > old.best_bound else old.waited + 1, old.decays
    # While γ grows the bound changes by itself, so no validation is held against the run before γ has reached 1.
    annealing = kl_weight(recipe.training.kl_warmup, state.step / recipe.training.steps) < 1
    if plateau is not None and annealing:
        best_bound, waited = -math.inf, 0
    elif plateau is not None and waited >= plateau.patience:
        waited, decays = 0, decays + 1
    stale = 0 if better or annealing else old.stale + 1
    new = Progress(max(old.best, score(record)), best_bound, waited, decays, validated=state.step, stale=stale)
    return after_validation(recipe, state, record["log_z"])._replace(progress=new), better
