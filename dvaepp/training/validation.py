"""Bound and K-sample log-likelihood on validation images, with noise of their own: training is not disturbed."""

from typing import Any

import torch
from torch import Tensor

from dvaepp.data import Dataset, subset
from dvaepp.evaluation import log_likelihood
from dvaepp.models.noise import Noise
from dvaepp.recipes.schema import Recipe
from dvaepp.training.bounds import terms
from dvaepp.training.schedules import smoothing_at
from dvaepp.training.state import State, estimate_log_z

ACTIVE_VARIANCE = 0.01  # a unit is active when its μ varies this much over images
AT_ONCE = 100


@torch.no_grad()
def validate(recipe: Recipe, dataset: Dataset, state: State, device: str) -> dict[str, Any]:
    """The record of one validation; log Z is estimated anew."""
    t = state.step / recipe.training.steps
    generator = torch.Generator(device).manual_seed(recipe.training.seed + 1)
    chosen = subset(len(dataset.validation), recipe.training.validation_images)
    model, smoothing = state.model, smoothing_at(recipe.smoothing, t)
    model.eval()
    log_z = estimate_log_z(model, generator)
    noise = Noise(generator, torch.device(device))
    batches = [dataset.images("validation", part).to(device) for part in chosen.split(AT_ONCE)]
    each = [terms(recipe.training.objective, model, x, smoothing, log_z, noise) for x in batches]
    reconstruction, kl = torch.cat([t.log_likelihood for t in each]), torch.cat([t.kl for t in each], 1)
    record = {
        "step": state.step,
        "validation_bound": (reconstruction - kl.sum(0)).mean().item(),
        "validation_reconstruction": reconstruction.mean().item(),
        "validation_kl": kl.sum(0).mean().item(),
        "validation_kl_per_group": kl.mean(1).tolist(),
        "validation_images": len(chosen),
        "log_z": log_z,
        "active_units": active_units([torch.cat(group) for group in zip(*(t.logits for t in each), strict=True)]),
    }
    samples = recipe.training.validation_samples
    if samples is not None:
        pieces = [log_likelihood(model, x, samples, log_z=log_z, generator=generator) for x in batches]
        record |= {
            "validation_log_likelihood": torch.cat(pieces).mean().item(),
            "validation_samples": samples,
        }
    return record


def score(record: dict[str, Any]) -> float:
    """What the best checkpoint is chosen by: the K-sample log-likelihood where there is one, else the bound."""
    return float(record.get("validation_log_likelihood", record["validation_bound"]))


def active_units(logits: list[Tensor]) -> list[int]:
    return [int((torch.sigmoid(group).var(0) > ACTIVE_VARIANCE).sum()) for group in logits]
