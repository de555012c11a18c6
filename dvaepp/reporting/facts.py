"""What a page says about a run in words and numbers; what it shows in pictures is in `figures`."""

import datetime
import platform
import shlex
from typing import Any, NamedTuple

import numpy as np
import torch

from dvaepp.evaluation import record as evaluations
from dvaepp.models.trained import Trained
from dvaepp.recipes.schema import Recipe
from dvaepp.reporting import numbers
from dvaepp.reporting.figures import kl, rbm, units
from dvaepp.reporting.run import Record, Run, last_step, series
from dvaepp.version import __version__


class Fact(NamedTuple):
    """A name, a value and, small beside it, what to know about it."""

    name: str
    value: str
    detail: str = ""


def dataset_name(run: Run) -> str:
    if run.trained is not None and "dataset" in run.trained.record:
        return str(run.trained.record["dataset"])
    return run.recipe.data.path or run.recipe.data.name


def glance(run: Run) -> list[Fact]:
    """The few numbers a reader looks for first."""
    facts = []
    if run.evaluation is not None:
        facts.append(Fact(f"log p(x), {run.evaluation.get('split', '')}", _log_likelihood(run.evaluation), "nats"))
    for name, key in (("Validation log p(x)", "validation_log_likelihood"), ("Validation bound", "validation_bound")):
        found = series(run.validation, key)
        if len(found.values):
            best = int(np.argmax(found.values))
            facts.append(Fact(name, numbers.nats(found.values[best]), f"best, step {numbers.count(found.steps[best])}"))
    found = series(run.validation, "validation_kl")
    if len(found.values):
        facts.append(Fact("Validation KL", numbers.nats(found.values[-1]), "nats, last"))
    if active := units.last(run):
        facts.append(
            Fact("Active units", numbers.count(sum(active)), f"of {numbers.count(sum(run.recipe.model.unit_groups))}")
        )
    total = numbers.count(run.recipe.training.steps)
    if run.exported and run.trained is not None:
        return facts + _of_an_export(run, run.trained, total)
    facts.append(Fact("Steps", numbers.count(last_step(run)), f"of {total}"))
    return facts


def _of_an_export(run: Run, trained: Trained, total: str) -> list[Fact]:
    """What can be said of a model without the metrics of its training."""
    groups = run.recipe.model.unit_groups
    facts = [Fact("log Z", log_z.value.removesuffix(" nats"), f"nats, {log_z.detail}") for log_z in partition(run)[:1]]
    if groups:
        facts.append(Fact("Binary units", numbers.count(sum(groups)), f"in {numbers.plural(len(groups), 'group')}"))
    facts.append(Fact("Parameters", numbers.count(sum(p.numel() for p in trained.model.parameters()))))
    facts.append(Fact("Trained for", f"{numbers.count(trained.record['step'])} steps", f"of {total} in its recipe"))
    return facts


def _log_likelihood(evaluation: Record) -> str:
    if "standard_error" not in evaluation:
        return numbers.nats(evaluation["log_likelihood"])
    return numbers.with_error(evaluation["log_likelihood"], evaluation["standard_error"])


def evaluation(run: Run) -> list[Fact]:
    e = run.evaluation
    if e is None:
        return []
    value = e["log_likelihood"]
    facts = [Fact("log p(x)", f"{_log_likelihood(e)} nats")]
    if "standard_error" in e:
        low, high = (numbers.nats(value + side * 1.96 * e["standard_error"]) for side in (-1, 1))
        facts.append(Fact("95 % interval", f"{low} to {high} nats"))
    else:
        facts.append(Fact("95 % interval", "none", "one image has no spread"))
    if "num_images" in e:
        facts.append(Fact("Images", f"{numbers.count(e['num_images'])} of the {e.get('split')} set"))
    if "num_samples" in e:
        facts.append(Fact("Samples", f"K = {numbers.count(e['num_samples'])} per image"))
    facts.append(Fact("Sharpness", "β = ∞, the binary limit" if e.get("beta") == "inf" else f"β = {e.get('beta')}"))
    if "bits_per_dim" in e:
        facts.append(Fact("Per dimension", f"{numbers.nats(e['bits_per_dim'], 4)} bits"))
    return facts


def evaluate_command(run: Run) -> str:
    """What evaluates the run, to be copied as it is. The page names the run's folder and not the way to it."""
    if run.recipe.model.kind == "own":
        return f"dvaepp.evaluate({run.name!r}, model=build())"
    name = f"./{run.name}" if run.name.startswith("-") else run.name  # or it would be taken for an option
    return f"dvaepp evaluate {shlex.quote(name)}"


class Past(NamedTuple):
    """A row of the evaluations that were made of a run."""

    split: str
    images: str
    samples: str
    beta: str
    step: str
    log_likelihood: str
    note: str


def history(run: Run) -> list[Past]:
    """Every evaluation of the run's folder, in order; none where there is only one, which the page shows anyway."""
    return [_past(run, each) for each in run.history] if len(run.history) > 1 else []


def _past(run: Run, each: Record) -> Past:
    images, samples, step = (
        numbers.count(each[key]) if key in each else "?" for key in ("num_images", "num_samples", "steps")
    )
    beta = "∞" if each.get("beta") == "inf" else str(each.get("beta", "?"))
    digest = "" if run.trained is None else run.trained.record.get(evaluations.DIGEST)
    other = evaluations.DIGEST in each and each[evaluations.DIGEST] != digest
    note = "shown above" if each == run.evaluation else "another checkpoint" if other else ""
    return Past(str(each.get("split", "?")), images, samples, beta, step, _log_likelihood(each), note)


def kl_facts(run: Run) -> list[Fact]:
    """The KL at its last record: each of a few groups, otherwise global units and local ones summed."""
    groups = kl.last(run)
    if groups is None:
        return []
    step, values = numbers.count(groups.steps[-1]), dict(zip(groups.names, groups.values[-1], strict=True))
    facts = [Fact("Sum", f"{numbers.nats(sum(values.values()))} nats", f"{groups.source}, step {step}")]
    local = sum(value for name, value in values.items() if name.startswith("h"))
    if any(name.startswith("h") for name in values):
        facts.append(Fact("Global", f"{numbers.nats(sum(values.values()) - local)} nats"))
        facts.append(Fact("Local", f"{numbers.nats(local)} nats"))
    elif len(values) > 1:
        facts += [Fact(name, f"{numbers.nats(value)} nats") for name, value in values.items()]
    return facts


def unit_facts(run: Run) -> list[Fact]:
    active, sizes = units.last(run), run.recipe.model.unit_groups
    if len(active) != len(sizes):
        return []
    rows = zip(active, sizes, strict=True)
    return [Fact(f"z{a + 1}", f"{numbers.count(n)} of {numbers.count(size)}") for a, (n, size) in enumerate(rows)]


def rbm_facts(run: Run) -> list[Fact]:
    if run.prior is None or not rbm.finite(run.prior):
        return []
    weight = rbm.parts(run.prior).weight
    values, edge = np.linalg.svd(weight, compute_uv=False), rbm.random_edge(weight)
    return [
        Fact("Units", ", ".join(f"{numbers.count(len(b))} {side}" for side, b in rbm.parts(run.prior).biases.items())),
        Fact("Spread of W", numbers.short(float(weight.std())), "standard deviation"),
        Fact("Stand out", f"{int((values > edge).sum())} of {len(values)}", "singular values above a random matrix's"),
    ]


def partition(run: Run) -> list[Fact]:
    """log Z as evaluated, its diagnostics, and the estimate that training made at the same step."""
    found = (run.evaluation or {}).get("log_partition")
    if run.evaluation is None or not found:
        return []
    diagnostics, value, error = found["diagnostics"], found["value"], found["standard_error"]
    shown = numbers.with_error(value, error) if error else numbers.nats(value, 3)
    facts = [Fact("log Z", f"{shown} nats", found["method"])]
    names = {
        "r_hat": ("R̂ of replicas", 4, "from 1.01 on they disagree"),
        "effective_sample_size": ("Effective samples", 0, ""),
        "round_trips": ("Round trips", 0, ""),
        "num_sweeps": ("Sweeps", 0, ""),
    }
    for key, (name, digits, detail) in names.items():
        if key in diagnostics:
            facts.append(Fact(name, numbers.nats(diagnostics[key], digits), detail))
    own = series([r for r in run.validation if r["step"] == run.evaluation.get("steps")], "log_z").values
    if len(own):
        gap = own[0] - value
        sign = "+" if gap >= 0 else ""
        facts.append(Fact("In training", f"{numbers.nats(own[0])} nats", f"same step, {sign}{numbers.nats(gap, 3)}"))
    facts.append(Fact("Warnings", "; ".join(diagnostics["warnings"]) or "none"))
    return facts


def readable(recipe: Recipe) -> list[tuple[str, list[Fact]]]:
    """The sections of a recipe with their fields in words."""
    sections = []
    for section, value in recipe.model_dump(mode="json").items():
        if isinstance(value, dict):
            sections.append((section, [Fact(key.replace("_", " "), _in_words(entry)) for key, entry in value.items()]))
    return sections


def _in_words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_in_words(entry)}" for key, entry in value.items()) or "none"
    if isinstance(value, list):
        nested = any(isinstance(entry, (list, dict)) for entry in value)
        return ("; " if nested else ", ").join(map(_in_words, value)) or "none"
    if isinstance(value, int):
        return numbers.count(value)
    return numbers.short(value) if isinstance(value, float) else str(value)


def about_run(run: Run) -> list[Fact]:
    facts = [Fact("Recipe", run.recipe.name), Fact("Data set", dataset_name(run))]
    if run.trained is not None:
        record = run.trained.record
        facts += [
            Fact("Checksum of the data", str(record.get("data_checksum") or "none recorded")),
            Fact("Image", " × ".join(map(str, record.get("image_shape", []))), "channels, height, width"),
            Fact("Checkpoint", f"step {numbers.count(record['step'])}", _standing(run, record["step"])),
            Fact("Trained with dvaepp", str(record.get("version", "not recorded"))),
            Fact("Parameters", numbers.count(sum(p.numel() for p in run.trained.model.parameters()))),
        ]
    facts.append(Fact("Seed", str(run.recipe.training.seed)))
    speed = series(run.training, "steps_per_second")
    if len(speed.values):
        facts.append(Fact("Speed", f"{numbers.short(speed.values[-1])} steps per second", "mean since the last start"))
    return facts


def _standing(run: Run, step: int) -> str:
    """Checkpoints are judged by the K-sample log-likelihood where there is one, else by the bound."""
    found = series(run.validation, "validation_log_likelihood")
    found = found if len(found.steps) else series(run.validation, "validation_bound")
    best = len(found.steps) and found.steps[int(np.argmax(found.values))] == step
    return "the best by validation" if best else ""


def about_report() -> list[Fact]:
    now = datetime.datetime.now(datetime.UTC)
    return [
        Fact("Written", now.strftime("%Y-%m-%d %H:%M UTC")),
        Fact("dvaepp", __version__),
        Fact("Python", platform.python_version()),
        Fact("PyTorch", torch.__version__),
        Fact("NumPy", np.__version__),
        Fact("System", f"{platform.system()} {platform.machine()}"),
        Fact("Threads", str(torch.get_num_threads())),
    ]
