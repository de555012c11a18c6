"""Run directories: load a trained model, evaluate it, look at it."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dvaepp import ranks
from dvaepp.data import Dataset, subset
from dvaepp.data import load as load_data
from dvaepp.errors import UsageError
from dvaepp.evaluation import log_likelihood
from dvaepp.evaluation.pieces import IMAGES_AT_ONCE, in_pieces
from dvaepp.files import write_durably
from dvaepp.log_partition import LogPartition, log_partition
from dvaepp.log_partition.starts import with_starts
from dvaepp.models.dvae import DVAE, Posterior, Prior
from dvaepp.models.noise import Noise as BatchNoise
from dvaepp.progress import progress
from dvaepp.recipes import budget
from dvaepp.recipes.schema import Recipe
from dvaepp.samplers.blocks import base_from_pilot
from dvaepp.samplers.noise import Noise
from dvaepp.samplers.tempering import Tempering, adapt_ladder
from dvaepp.smoothing.binary import Binary
from dvaepp.training import checkpoint
from dvaepp.training.bounds import Model
from dvaepp.training.schedules import smoothing_at
from dvaepp.training.state import build_model

FIG4 = 5  # images per sample of the global prior
CHECKED_IMAGES = 256  # whose bits chains start from, to test log Z
SAMPLING_SWEEPS = 300  # tempered sweeps from independent units to samples of a trained prior


class Trained(nn.Module):
    """A trained model in evaluation mode: images in, bits out, and back."""

    def __init__(self, model: Model, recipe: Recipe, record: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.recipe, self.record = model, recipe, record
        self._log_z: LogPartition | None = None
        self.eval()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The most likely bit of every global unit in turn, (batch, units) of 0 and 1; x (batch, ...pixels)."""
        self._binary_only("encode")
        x = self._images(x)
        if isinstance(self.model, DVAE):
            bits: list[Tensor] = []
            encoded = self.model.encode(x)
            for _ in self.model.group_sizes:
                bits.append((self.model.posterior_parameters(encoded, bits) > 0).float())
            return torch.cat(bits, -1)
        half = [torch.full((len(x), size), 0.5, device=x.device) for size in self.model.group_sizes]
        return torch.cat(self.model.posterior(x.flatten(1), half, Binary(validate_args=False)).zeta, -1)

    @torch.no_grad()
    def decode(self, bits: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mean images (batch, channels, height, width) of given bits; local units are drawn from their prior."""
        self._binary_only("decode")
        if bits.shape[-1] != self.model.num_units:
            raise ValueError(f"bits must have shape (batch, {self.model.num_units}), got {tuple(bits.shape)}")
        return self._decoded(bits.to(self.device, next(self.model.parameters()).dtype), generator)

    def _decoded(self, code: Tensor, generator: torch.Generator | None) -> Tensor:
        groups = list(code.split(self.model.group_sizes, -1)) if self.model.group_sizes else []
        if isinstance(self.model, DVAE):
            drawn = self.model.top_down(Prior(self.model, groups, self._noise(generator)), len(code))
            return self.model.decoder.generate(drawn.features, generator)
        return torch.sigmoid(self.model.pixel_logits(groups)).reshape(-1, *self.model.image_shape)

    @torch.no_grad()
    def reconstruct(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mean images given a draw of all latents from the posterior of x, in the binary limit."""
        x = self._images(x)
        if isinstance(self.model, DVAE):
            q = Posterior(self.model, self.model.encode(x), self._noise(generator), None, exact=True)
            return self.model.decoder.generate(self.model.top_down(q, len(x)).features, generator)
        return self.decode(self.encode(x))

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None, per_code: int = 1) -> Tensor:
        """Mean images of the prior, `per_code` of them for each of n samples of the global units (Fig. 4)."""
        return self._decoded(self.sample_code(n, generator).repeat_interleave(per_code, 0), generator)

    @torch.no_grad()
    def sample_code(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Global units of the prior, (n, units); a Boltzmann prior is sampled by parallel tempering."""
        model, noise = self.model, self._noise(generator)
        if model.prior is not None:
            return self._tempered(n, generator)
        if isinstance(model, DVAE):
            if not model.group_sizes:
                return torch.empty(n, 0, device=self.device)
            parts = [part.expand(n, -1) for part in model.global_priors()]
            return torch.cat([model.global_latent.draw(part, noise, None).value for part in parts], -1)
        z: list[Tensor] = []
        for a, size in enumerate(model.group_sizes):
            logits = model.prior_logits(z)[a] if a else model.first_logits
            z.append((noise.uniform(n, size) < torch.sigmoid(logits)).float())
        return torch.cat(z, -1)

    def _tempered(self, n: int, generator: torch.Generator | None) -> Tensor:
        assert self.model.prior is not None
        source = Noise(generator, self.device)
        base = base_from_pilot(self.model.prior, source)
        run = Tempering(self.model.prior, adapt_ladder(self.model.prior, base, source).ladder, n, base, source)
        for _ in range(SAMPLING_SWEEPS):
            run.sweep()
        return run.states()

    def log_likelihood(self, x: Tensor, num_samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Importance-weighted log p(x) in the binary limit, (batch,); log Z is estimated once."""
        return log_likelihood(
            self.model, self._images(x), num_samples, log_z=self._log_z_value(generator), generator=generator
        )

    def _log_z_value(self, generator: torch.Generator | None) -> float:
        if self.model.prior is None:
            return 0.0
        if self._log_z is None:
            self._log_z = log_partition(self.model.prior, "auto", generator)
        return self._log_z.value

    def _noise(self, generator: torch.Generator | None) -> BatchNoise:
        return BatchNoise(generator, self.device, dtype=next(self.model.parameters()).dtype)

    def _binary_only(self, what: str) -> None:
        if isinstance(self.model, DVAE) and self.model.global_kind not in ("rbm", "bernoulli"):
            raise UsageError(f"cannot {what}: this model has no binary global units ({self.model.global_kind})")

    def _images(self, x: Tensor) -> Tensor:
        shape = self.model.image_shape
        if x.dim() < 2 or math.prod(x.shape[1:]) != math.prod(shape):
            raise ValueError(f"x must be (batch, {', '.join(map(str, shape))}), got {tuple(x.shape)}")
        return x.reshape(len(x), *shape).to(self.device, next(self.model.parameters()).dtype)


def images_per_code(trained: Trained) -> int:
    """Five where local units vary below a global sample, as in Fig. 4; otherwise a code has one image."""
    return FIG4 if isinstance(trained.model, DVAE) else 1


def read_recipe(run_dir: Path | str) -> Recipe:
    path = Path(run_dir) / "recipe.json"
    if not path.is_file():
        raise UsageError(f"{run_dir} is not a run directory: it has no recipe.json")
    try:
        return Recipe.model_validate_json(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from None


def load(
    run_dir: Path | str, *, which: str = "best", device: str = "cpu", say: Callable[[str], None] | None = None
) -> Trained:
    """The model of a run: its best checkpoint by validation, or its `last`; if damaged, another one, and `say` so."""
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    recipe = read_recipe(run_dir)
    saved = checkpoint.read(Path(run_dir) / "checkpoints", which, device, say)
    try:
        return Trained(_model(recipe, saved).to(device), recipe, saved.record)
    except (KeyError, TypeError, ValueError, RuntimeError, StopIteration) as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"the checkpoint in {run_dir} does not hold the model of its recipe.json: {reason}") from None


def _model(recipe: Recipe, saved: checkpoint.Checkpoint) -> Model:
    shape, weights = tuple(map(int, saved.record["image_shape"])), checkpoint.under("model", saved.tensors)
    budget.check(recipe, shape)
    mean = weights["train_mean"].cpu() if "train_mean" in weights else torch.zeros(math.prod(shape))
    model = build_model(recipe, mean.reshape(shape))
    model = model.to(next(value.dtype for value in weights.values() if value.is_floating_point()))
    model.load_state_dict(weights)
    return model


def export(run_dir: Path | str, out: Path | str) -> Path:
    """Copy a run's best model into a new folder without what only training needs; `load` takes it like a run."""
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} is there already: choose another folder")
    recipe = read_recipe(run_dir)
    saved = checkpoint.read(Path(run_dir) / "checkpoints", "best")
    weights = {name: value for name, value in saved.tensors.items() if name.startswith("model.")}
    kept = ("step", "dataset", "data_checksum", "image_shape", "version")
    record = {name: saved.record[name] for name in kept}
    out.mkdir(parents=True)
    checkpoint.write(out / "checkpoints", weights, record, recipe.model_dump(mode="json"), best=True)
    write_durably(out / "recipe.json", (recipe.model_dump_json(indent=1) + "\n").encode())
    evaluation = Path(run_dir) / "evaluation.json"
    if evaluation.is_file():
        write_durably(out / "evaluation.json", evaluation.read_bytes())
    return out


def dataset_of(recipe: Recipe, data_dir: Path | str | None = None) -> Dataset:
    return load_data(recipe.data.name, data_dir, recipe.data.path)


def evaluate(
    run_dir: Path | str,
    *,
    split: str = "test",
    num_samples: int | None = None,
    limit: int | None = None,
    beta: str | None = None,
    data_dir: Path | str | None = None,
    device: str = "cpu",
    seed: int = 0,
    show_progress: bool | None = None,
    **log_z_options: Any,
) -> dict[str, Any]:
    """Importance-weighted log-likelihood of a run, with log Z and its error folded in; writes `evaluation.json`.

    `num_samples` and `beta` ("inf" or "training") are the recipe's unless given.
    """
    trained = load(run_dir, device=device)
    recipe, model = trained.recipe, trained.model
    num_samples = recipe.evaluation.samples if num_samples is None else num_samples
    if num_samples < 1 or (limit is not None and limit < 1):
        raise UsageError(f"samples and limit must be at least 1, got {num_samples} and {limit}")
    dataset = dataset_of(recipe, data_dir)
    chosen = subset(len(dataset.split(split)), limit)
    x = dataset.images(split, chosen)
    beta = recipe.evaluation.beta if beta is None else beta
    first = ranks.rank() == 0
    log_z: LogPartition | None = None
    if model.prior is not None:
        generator = torch.Generator(device).manual_seed(seed)
        shown = show_progress if first else False
        log_z = log_partition(model.prior, "auto", generator, show_progress=shown, **log_z_options)
        if log_z.method != "exact":  # bits of images are states that the prior should know
            bits = trained.encode(x[:: math.ceil(len(x) / CHECKED_IMAGES)])
            log_z = with_starts(model.prior, log_z, bits, generator, shown)
    smoothing = None if beta == "inf" else smoothing_at(recipe.smoothing, 1.0)
    value = ranks.from_first(log_z.value if log_z else 0.0)

    def estimate(images: Tensor, generator: torch.Generator) -> Tensor:
        images = images.to(next(model.parameters()).dtype)
        options = {"log_z": value, "smoothing": smoothing, "generator": generator}
        return log_likelihood(model, images, num_samples, **options)[:, None]

    with progress(f"log p(x), K = {num_samples}", len(x), show_progress if first else False) as advance:
        estimates = in_pieces(x, estimate, seed=seed, device=device, advance=advance)[:, 0]
    result = _result(estimates, log_z, x[0].numel())
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
    if first:
        write_durably(Path(run_dir) / "evaluation.json", (json.dumps(result, indent=1) + "\n").encode())
    return result


def _result(estimates: Tensor, log_z: LogPartition | None, num_pixels: int) -> dict[str, Any]:
    """Mean over images; its standard error adds that of log Z, which all images share."""
    mean = estimates.mean().item()
    spread = estimates.std().item() / math.sqrt(len(estimates)) if len(estimates) > 1 else 0.0
    shared = log_z.standard_error if log_z else 0.0
    partition = None
    if log_z:
        names = ("effective_sample_size", "r_hat", "round_trips", "num_sweeps", "starts", "warnings")
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


def for_each(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a method of a model to many images in pieces."""
    return torch.cat([function(part) for part in x.split(IMAGES_AT_ONCE)])
