"""Run directories: load a trained model, evaluate it, look at it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dvaepp.data import Dataset, subset
from dvaepp.data import load as load_data
from dvaepp.errors import UsageError
from dvaepp.evaluation.importance import log_likelihood
from dvaepp.log_partition import LogPartition, log_partition
from dvaepp.models.feedforward import FeedForward
from dvaepp.numerics import uniform
from dvaepp.progress import progress
from dvaepp.recipes.schema import Recipe
from dvaepp.samplers.blocks import base_from_pilot
from dvaepp.samplers.noise import Noise
from dvaepp.samplers.tempering import Tempering, adapt_ladder
from dvaepp.smoothing.binary import Binary
from dvaepp.training import checkpoint
from dvaepp.training.loop import build_model, smoothing_at

IMAGES_AT_ONCE = 100
SAMPLING_SWEEPS = 300  # tempered sweeps from independent units to samples of a trained prior


class Trained(nn.Module):
    """A trained model in evaluation mode: images in, bits out, and back."""

    def __init__(self, model: FeedForward, recipe: Recipe, record: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.recipe, self.record = model, recipe, record
        self._log_z: LogPartition | None = None
        self.eval()

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The most likely bit of every unit in turn, (batch, units) of 0 and 1; x (batch, ...pixels) in [0, 1]."""
        x = self._flat(x)
        half = [torch.full((len(x), size), 0.5, device=x.device) for size in self.model.group_sizes]
        return torch.cat(self.model.posterior(x, half, Binary(validate_args=False)).zeta, -1)

    @torch.no_grad()
    def decode(self, bits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mean images (batch, channels, height, width) of given bits; nothing is random in a feed-forward model."""
        if bits.shape[-1] != self.model.num_units:
            raise ValueError(f"bits must have shape (batch, {self.model.num_units}), got {tuple(bits.shape)}")
        groups = list(bits.float().split(self.model.group_sizes, -1))
        return torch.sigmoid(self.model.pixel_logits(groups)).reshape(-1, *self.model.image_shape)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Mean images of n samples of the prior; a Boltzmann prior is sampled by parallel tempering."""
        return self.decode(self.sample_bits(n, generator))

    @torch.no_grad()
    def sample_bits(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        device = self.model.train_mean.device
        if self.model.prior is None:
            z: list[Tensor] = []
            for a in range(len(self.model.group_sizes)):
                logits = self.model.prior_logits(z)[a] if a else self.model.first_logits
                noise = uniform(n, self.model.group_sizes[a], generator=generator, device=device)
                z.append((noise < torch.sigmoid(logits)).float())
            return torch.cat(z, -1)
        noise_source = Noise(generator, device)
        base = base_from_pilot(self.model.prior, noise_source)
        ladder = adapt_ladder(self.model.prior, base, noise_source).ladder
        run = Tempering(self.model.prior, ladder, n, base, noise_source)
        for _ in range(SAMPLING_SWEEPS):
            run.sweep()
        return run.states()

    def log_likelihood(self, x: Tensor, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Importance-weighted log p(x) in the binary limit, (batch,); log Z is estimated once."""
        return log_likelihood(
            self.model, self._flat(x), num_samples, log_z=self._log_z_value(generator), generator=generator
        )

    def _log_z_value(self, generator: torch.Generator | None) -> float:
        if self.model.prior is None:
            return 0.0
        if self._log_z is None:
            self._log_z = log_partition(self.model.prior, "auto", generator)
        return self._log_z.value

    def _flat(self, x: Tensor) -> Tensor:
        pixels = math.prod(self.model.image_shape)
        if x.dim() < 2 or math.prod(x.shape[1:]) != pixels:
            raise ValueError(f"x must be (batch, {', '.join(map(str, self.model.image_shape))}), got {tuple(x.shape)}")
        return x.reshape(len(x), pixels).float().to(self.model.train_mean.device)


def read_recipe(run_dir: Path | str) -> Recipe:
    path = Path(run_dir) / "recipe.json"
    if not path.is_file():
        raise UsageError(f"{run_dir} is not a run directory: it has no recipe.json")
    try:
        return Recipe.model_validate_json(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None


def load(run_dir: Path | str, *, which: str = "best", device: str = "cpu") -> Trained:
    """The model of a run: its best checkpoint by validation, or its `last`."""
    recipe = read_recipe(run_dir)
    tensors, record = checkpoint.read(Path(run_dir) / "checkpoints" / f"{which}.safetensors", device)
    weights = checkpoint.under("model", tensors)
    model = build_model(recipe, weights["train_mean"].cpu().reshape(record["image_shape"])).to(device)
    model.load_state_dict(weights)
    return Trained(model, recipe, record)


def dataset_of(recipe: Recipe, data_dir: Path | str | None = None) -> Dataset:
    return load_data(recipe.data.name, data_dir, recipe.data.path)


def evaluate(
    run_dir: Path | str,
    *,
    split: str = "test",
    num_samples: int | None = None,
    limit: int | None = None,
    beta: str = "inf",
    data_dir: Path | str | None = None,
    device: str = "cpu",
    seed: int = 0,
    show_progress: bool | None = None,
    **log_z_options: Any,
) -> dict[str, Any]:
    """Importance-weighted log-likelihood of a run, with log Z and its error folded in; writes `evaluation.json`."""
    trained = load(run_dir, device=device)
    recipe, model = trained.recipe, trained.model
    num_samples = recipe.evaluation.samples if num_samples is None else num_samples
    if num_samples < 1 or (limit is not None and limit < 1):
        raise UsageError(f"samples and limit must be at least 1, got {num_samples} and {limit}")
    dataset = dataset_of(recipe, data_dir)
    chosen = subset(len(dataset.split(split)), limit)
    x = dataset.images(split, chosen).reshape(len(chosen), -1)
    generator = torch.Generator(device).manual_seed(seed)
    log_z: LogPartition | None = None
    if model.prior is not None:
        log_z = log_partition(model.prior, "auto", generator, show_progress=show_progress, **log_z_options)
    smoothing = None if beta == "inf" else smoothing_at(recipe, 1.0)
    parts = []
    with progress(f"log p(x), K = {num_samples}", len(x), show_progress) as advance:
        for part in x.split(IMAGES_AT_ONCE):
            value = log_z.value if log_z else 0.0
            parts.append(
                log_likelihood(
                    model, part.to(device), num_samples, log_z=value, smoothing=smoothing, generator=generator
                )
            )
            advance(len(part))
    estimates = torch.cat(parts)
    result = _result(estimates, log_z, x.shape[1])
    result |= {
        "num_samples": num_samples,
        "num_images": len(x),
        "split": split,
        "beta": "inf" if smoothing is None else recipe.smoothing.end,
        "dataset": dataset.name,
        "data_checksum": dataset.checksum,
        "recipe": recipe.name,
        "steps": trained.record["step"],
        "seed": recipe.training.seed,
    }
    _write_json(Path(run_dir) / "evaluation.json", result)
    return result


def _result(estimates: Tensor, log_z: LogPartition | None, num_pixels: int) -> dict[str, Any]:
    """Mean over images; its standard error adds that of log Z, which all images share."""
    mean = estimates.mean().item()
    spread = estimates.std().item() / math.sqrt(len(estimates)) if len(estimates) > 1 else 0.0
    shared = log_z.standard_error if log_z else 0.0
    partition = None
    if log_z:
        names = ("effective_sample_size", "r_hat", "round_trips", "num_sweeps", "warnings")
        kept = {name: log_z.diagnostics[name] for name in names if name in log_z.diagnostics}
        partition = {
            "value": log_z.value,
            "standard_error": log_z.standard_error,
            "method": log_z.method,
            "diagnostics": kept,
        }
    return {
        "log_likelihood": mean,
        "standard_error": math.hypot(spread, shared),
        "bits_per_dim": -mean / (num_pixels * math.log(2)),
        "log_partition": partition,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(json.dumps(value, indent=1) + "\n")
    partial.replace(path)


def for_each(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a method of a model to many images in pieces."""
    return torch.cat([function(part) for part in x.split(IMAGES_AT_ONCE)])
