"""Run directories: load a trained model, evaluate it, look at it."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dvaepp import ranks
from dvaepp.data import Dataset, subset
from dvaepp.errors import UsageError, to_stderr
from dvaepp.evaluation import log_likelihood
from dvaepp.evaluation import record as evaluations
from dvaepp.evaluation.pieces import IMAGES_AT_ONCE, in_pieces
from dvaepp.files import write_durably
from dvaepp.log_partition import LogPartition, log_partition
from dvaepp.log_partition.starts import with_starts
from dvaepp.models.dvaepp import DVAE, Posterior, Prior
from dvaepp.models.noise import Noise as BatchNoise
from dvaepp.progress import progress
from dvaepp.recipes import budget
from dvaepp.recipes.schema import Convolutional, Recipe
from dvaepp.smoothing.binary import Binary
from dvaepp.training import checkpoint
from dvaepp.training.bounds import Model
from dvaepp.training.same_data import check_same_data
from dvaepp.training.schedules import smoothing_at
from dvaepp.training.state import build_model

FIG4 = 5  # images per sample of the global prior
CHECKED_IMAGES = 256  # whose bits chains start from, to test log Z


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

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @torch.no_grad()
    def encode(self, x: Tensor) -> Tensor:
        """The most likely bit of every global unit in turn, (batch, units) of 0 and 1; x (batch, ...pixels)."""
        self._binary_only("encode")
        x = self._images(x)
        if isinstance(self.model, DVAE):
            bits: list[Tensor] = []
            encoded = self.model.encode(x)
            for _ in self.model.group_sizes:
                bits.append((self.model.posterior_parameters(encoded, bits) > 0).to(self.dtype))
            return torch.cat(bits, -1)
        half = [x.new_full((len(x), size), 0.5) for size in self.model.group_sizes]
        return torch.cat(self.model.posterior(x.flatten(1), half, Binary(validate_args=False)).zeta, -1)

    def shown(self, images: Tensor) -> Tensor:
        """Images of this model as a picture shows them, from black at 0 to white at 1."""
        return self.model.likelihood.shown(images) if isinstance(self.model, DVAE) else images

    @torch.no_grad()
    def decode(self, bits: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        """Images (batch, channels, height, width) of given bits; local units are drawn from their prior.

        `mean` False draws the pixels; see `sample`.
        """
        self._binary_only("decode")
        if bits.shape[-1] != self.model.num_units:
            raise ValueError(f"bits must have shape (batch, {self.model.num_units}), got {tuple(bits.shape)}")
        return self._decoded(bits.to(self.device, self.dtype), generator, mean)

    def _decoded(self, code: Tensor, generator: torch.Generator | None, mean: bool) -> Tensor:
        groups = list(code.split(self.model.group_sizes, -1)) if self.model.group_sizes else []
        if isinstance(self.model, DVAE):
            drawn = self.model.top_down(Prior(self.model, groups, self._noise(generator)), len(code))
            return self.model.decoder.generate(drawn.features, generator, mean)
        pixels = torch.sigmoid(self.model.pixel_logits(groups)).reshape(-1, *self.model.image_shape)
        return pixels if mean else (self._noise(generator).uniform(*pixels.shape) < pixels).to(self.dtype)

    @torch.no_grad()
    def reconstruct(self, x: Tensor, generator: torch.Generator | None = None, mean: bool = True) -> Tensor:
        """Images given a draw of all latents from the posterior of x, in the binary limit; `mean` as for `sample`."""
        x = self._images(x)
        if isinstance(self.model, DVAE):
            q = Posterior(self.model, self.model.encode(x), self._noise(generator), None, exact=True)
            return self.model.decoder.generate(self.model.top_down(q, len(x)).features, generator, mean)
        return self.decode(self.encode(x), generator, mean)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None, per_code: int = 1, mean: bool = True) -> Tensor:
        """Images of the prior, `per_code` of them for each of n samples of the global units (Fig. 4).

        With `mean` False every pixel is drawn: a sample of p(x). With `mean` True pixels show their means, which look
        smoother. Where pixels depend on each other, as in a conditional decoder, only the finest scale does so, and the
        coarser ones show the pixels drawn there, so that the parts of an image belong together.
        """
        return self._decoded(self.sample_code(n, generator).repeat_interleave(per_code, 0), generator, mean)

    @torch.no_grad()
    def sample_code(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Global units of the prior, (n, units); a Boltzmann prior is sampled by parallel tempering."""
        model, noise = self.model, self._noise(generator)
        if model.prior is not None:
            return model.prior.sample(n, generator)
        if isinstance(model, DVAE):
            if not model.group_sizes:
                return torch.empty(n, 0, dtype=self.dtype, device=self.device)
            parts = [part.expand(n, -1) for part in model.global_priors()]
            return torch.cat([model.global_latent.draw(part, noise, None).value for part in parts], -1)
        z: list[Tensor] = []
        for a, size in enumerate(model.group_sizes):
            logits = model.prior_logits(z)[a] if a else model.first_logits
            z.append((noise.uniform(n, size) < torch.sigmoid(logits)).to(self.dtype))
        return torch.cat(z, -1)

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
        return BatchNoise(generator, self.device, dtype=self.dtype)

    def _binary_only(self, what: str) -> None:
        if isinstance(self.model, DVAE) and self.model.global_kind not in ("rbm", "bernoulli"):
            raise UsageError(f"cannot {what}: this model has no binary global units ({self.model.global_kind})")

    def _images(self, x: Tensor) -> Tensor:
        shape = self.model.image_shape
        if x.dim() < 2 or math.prod(x.shape[1:]) != math.prod(shape):
            raise ValueError(f"x must be (batch, {', '.join(map(str, shape))}), got {tuple(x.shape)}")
        return x.reshape(len(x), *shape).to(self.device, self.dtype)


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
    recipe = read_recipe(run_dir)
    saved = checkpoint.read(Path(run_dir) / "checkpoints", which, device, say or to_stderr)
    try:
        return Trained(_model(recipe, saved).to(device), recipe, _record(saved))
    except (KeyError, TypeError, ValueError, RuntimeError, StopIteration) as error:
        reason = " ".join(str(error).split())[:200]
        raise OSError(f"the checkpoint in {run_dir} does not hold the model of its recipe.json: {reason}") from None


def _record(saved: checkpoint.Checkpoint) -> dict[str, Any]:
    """What a checkpoint says of itself, with the digest that evaluations refer to."""
    return {**saved.record, evaluations.DIGEST: saved.digest}


def _model(recipe: Recipe, saved: checkpoint.Checkpoint) -> Model:
    weights = checkpoint.under("model", saved.tensors)
    shape = _image_shape(recipe, saved.record["image_shape"], weights)
    budget.check(recipe, shape)
    blank = torch.zeros(shape, dtype=torch.float32, device="cpu")
    mean = weights["train_mean"].cpu().reshape(shape) if "train_mean" in weights else blank
    model = build_model(recipe, mean)
    model = model.to(next(value.dtype for value in weights.values() if value.is_floating_point()))
    model.load_state_dict(weights)
    return model


def _image_shape(recipe: Recipe, stated: Any, weights: dict[str, Tensor]) -> tuple[int, int, int]:
    """The shape that a checkpoint states, if its weights or its recipe bear it out.

    It is checked before anything is made of it: a file of a few kilobytes may state any size.
    """
    whole = isinstance(stated, list) and len(stated) == 3 and all(type(n) is int and n > 0 for n in stated)
    if not whole:
        raise ValueError(f"image_shape {str(stated)[:60]} is not made of three whole positive numbers")
    channels, height, width = stated
    if isinstance(recipe.model, Convolutional):
        side = recipe.model.image_size
        fits = channels <= 3 and max(height, width) <= side
        holds = f"takes at most 3 channels of {side} x {side}"
    else:
        pixels = weights["train_mean"].numel()
        fits, holds = channels * height * width == pixels, f"has {pixels} pixels"
    if not fits:
        raise ValueError(f"image_shape {stated} cannot be: its model {holds}")
    return channels, height, width


def export(run_dir: Path | str, out: Path | str, *, say: Callable[[str], None] | None = None) -> Path:
    """Copy a run's best model into a new folder without what only training needs; `load` takes it like a run.

    Its evaluation goes along if it is of this very model.
    """
    out = Path(out)
    if out.exists():
        raise UsageError(f"{out} is there already: choose another folder")
    recipe = read_recipe(run_dir)
    saved = checkpoint.read(Path(run_dir) / "checkpoints", "best")
    weights = {name: value for name, value in saved.tensors.items() if name.startswith("model.")}
    kept = ("step", "dataset", "data_checksum", "image_shape", "version")
    record = {name: saved.record[name] for name in kept}
    out.mkdir(parents=True)
    digest = checkpoint.write(out / "checkpoints", weights, record, recipe.model_dump(mode="json"), best=True)
    write_durably(out / "recipe.json", (recipe.model_dump_json(indent=1) + "\n").encode())
    found = evaluations.read(Path(run_dir))
    if found is not None and evaluations.belongs(found, _evaluated(recipe, _record(saved))):
        # the same weights, in a file without the rest of the checkpoint: only their digest is another
        evaluations.write(out, {**found, evaluations.DIGEST: digest})
    elif found is not None:
        (say or to_stderr)(
            f"{evaluations.FILE} is of another checkpoint ({evaluations.in_words(found)}) and was left out; "
            f"dvaepp evaluate {out} makes one"
        )
    return out


def evaluation_of(run_dir: Path | str) -> dict[str, Any]:
    """The evaluation of the model that a run has now, as `evaluate` wrote it; refuses that of another."""
    found = evaluations.read(Path(run_dir))
    recipe = read_recipe(run_dir)
    saved = checkpoint.read(Path(run_dir) / "checkpoints", "best")
    if found is not None and evaluations.belongs(found, _evaluated(recipe, _record(saved))):
        return found
    other = "" if found is None else f" of this checkpoint, but one of another ({evaluations.in_words(found)})"
    raise OSError(f"{run_dir} has no evaluation{other}; dvaepp evaluate {run_dir} makes one")


def _evaluated(recipe: Recipe, record: dict[str, Any]) -> evaluations.Model:
    return evaluations.Model(record[evaluations.DIGEST], record, recipe.training.seed, recipe.evaluation.beta)


def dataset_of(recipe: Recipe, data_dir: Path | str | None = None) -> Dataset:
    return recipe.data.load(data_dir)


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
    show: Callable[[dict[str, Any]], None] = lambda result: None,
    say: Callable[[str], None] | None = None,
    **log_z_options: Any,
) -> dict[str, Any]:
    """Importance-weighted log-likelihood of a run, with log Z and its error folded in.

    `num_samples` and `beta` ("inf" or "training") are the recipe's unless given. The result is handed to `show` as soon
    as it is there, before anything is written. Then it is added to `evaluations.jsonl`, and becomes `evaluation.json`
    unless that holds a better one of the same model (see `evaluation.record`); `say` is told which. Raises
    NonFiniteResult and writes nothing where there is no finite result, and NotWritten where it cannot be written.
    """
    say = say or to_stderr
    trained = load(run_dir, device=device, say=say)
    recipe, model = trained.recipe, trained.model
    num_samples = recipe.evaluation.samples if num_samples is None else num_samples
    if num_samples < 1 or (limit is not None and limit < 1):
        raise UsageError(f"samples and limit must be at least 1, got {num_samples} and {limit}")
    dataset = dataset_of(recipe, data_dir)
    check_same_data(run_dir, trained.record, dataset, recipe.data)
    _check_weights(run_dir, model)
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
    _check_result(run_dir, estimates, result)
    result = evaluations.strict(result) | {
        "num_samples": num_samples,
        "num_images": len(x),
        "split": split,
        "beta": "inf" if smoothing is None else recipe.smoothing.end,
        "dataset": dataset.name,
        "data_checksum": dataset.checksum,
        "recipe": recipe.name,
        "steps": trained.record["step"],
        "seed": recipe.training.seed,
        evaluations.DIGEST: trained.record[evaluations.DIGEST],
    }
    if first:
        try:
            show(result)
        finally:  # it may have taken hours: it is kept although nobody could be shown it
            _keep(Path(run_dir), result, _evaluated(recipe, trained.record), say)
    return result


class NotWritten(OSError):
    """An evaluation was made and could not be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error.errno, f"evaluated, but {error.strerror or error}")


class NonFiniteResult(ValueError):
    """A log-likelihood or a log Z is infinite or no number."""


def _keep(folder: Path, result: dict[str, Any], model: evaluations.Model, say: Callable[[str], None]) -> None:
    try:
        line = evaluations.keep(folder, result, model).line
    except OSError as error:
        raise NotWritten(error) from None
    if line:
        say(line)


def _check_weights(run_dir: Path | str, model: Model) -> None:
    """Before hours are spent on them."""
    broken = [name for name, value in model.state_dict().items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise NonFiniteResult(
            f"{run_dir} has weights that are not finite ({', '.join(broken[:3])}; {len(broken)} tensors), so that its "
            "log-likelihood is no number; train it again with a lower optimizer.learning_rate"
        )


def _check_result(run_dir: Path | str, estimates: Tensor, result: dict[str, Any]) -> None:
    partition = result["log_partition"] or {"value": 0.0, "standard_error": 0.0}
    if all(map(math.isfinite, (result["log_likelihood"], partition["value"], partition["standard_error"]))):
        return
    broken = int((~torch.isfinite(estimates)).sum())
    log_z = f", log Z = {partition['value']} ± {partition['standard_error']}" if result["log_partition"] else ""
    raise NonFiniteResult(
        f"the log-likelihood of {run_dir} is {result['log_likelihood']}: {broken} of {len(estimates)} images have none "
        f"that is finite{log_z}; nothing was written. More --samples may help, or --set training.precision=float64 and "
        "a lower optimizer.learning_rate in training"
    )


def _result(estimates: Tensor, log_z: LogPartition | None, num_pixels: int) -> dict[str, Any]:
    """Mean over images; its standard error adds that of log Z, which all images share.

    One image says nothing about the spread over images: there the standard error is None, rather than that of log Z
    alone or 0.
    """
    mean = estimates.mean().item()
    shared = log_z.standard_error if log_z else 0.0
    several = len(estimates) > 1
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
        "standard_error": math.hypot(estimates.std().item() / len(estimates) ** 0.5, shared) if several else None,
        "bits_per_dim": -mean / (num_pixels * math.log(2)),
        "log_partition": partition,
    }


def for_each(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a method of a model to many images in pieces."""
    return torch.cat([function(part) for part in x.split(IMAGES_AT_ONCE)])
