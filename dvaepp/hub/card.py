"""The model card: what a repository shows. All of it is read from the model's files, and no number is typed."""

from pathlib import Path
from typing import Any

from dvaepp import runs
from dvaepp.evaluation import record as evaluations
from dvaepp.hub.files import buildable
from dvaepp.hub.samples import NAME as SAMPLES
from dvaepp.recipes.schema import Recipe

HEAD = """---
library_name: dvaepp
tags:
- variational-autoencoder
- binary-latent-variables
- dvaepp
---

# {title}

A generative model with binary latent variables, trained with dvaepp on {data} by the recipe `{recipe}`, which is below
in full.
"""


def card(folder: Path, repo: str) -> str:
    """Markdown for a folder that `runs.export` wrote, as the README.md of `repo`."""
    recipe, evaluation = runs.read_recipe(folder), evaluations.read(folder)
    title = repo.rpartition("/")[2]
    parts = [HEAD.format(title=title, data=recipe.data.name, recipe=recipe.name)]
    if (folder / SAMPLES).is_file():
        parts.append(f"![Samples of the model]({SAMPLES})\n")
    parts += [_numbers(evaluation), _loading(recipe, repo, title)]
    parts.append(f"## Recipe\n\n```json\n{recipe.model_dump_json(indent=1)}\n```\n")
    return "\n".join(parts)


def _numbers(found: dict[str, Any] | None) -> str:
    if found is None:
        return "## Evaluation\n\nThis model has not been evaluated.\n"
    rows = {
        "log p(x)": f"{_with_error(found['log_likelihood'], found['standard_error'], 2)} nats",
        "bits per dimension": f"{found['bits_per_dim']:.4f}",
        "images": f"{found['num_images']} of {found['dataset']}, {found['split']}",
        "importance samples K": f"{found['num_samples']}",
        "sharpness β": f"{found['beta']}",
        "training steps": f"{found['steps']}",
    }
    if partition := found["log_partition"]:
        value = _with_error(partition["value"], partition["standard_error"], 3)
        rows["log Z of the prior"] = f"{value} ({partition['method']})"
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items())
    note = "A higher log p(x) is better; ± is one standard error."
    return f"## Evaluation\n\n| quantity | value |\n| --- | --- |\n{table}\n\n{note}\n"


def _with_error(value: float, error: float | None, digits: int) -> str:
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def _loading(recipe: Recipe, repo: str, title: str) -> str:
    load = f'dvaepp.load("runs/{title}")'
    if not buildable(recipe):
        load = f'dvaepp.load("runs/{title}", model=build())  # build() makes the model as it was made for training'
    return (
        f"## Use\n\n```sh\npip install 'dvaepp[hub]'\ndvaepp pull {repo} --run-dir runs/{title}\n```\n\n"
        f"```python\nimport dvaepp\n\nmodel = {load}\nimages = model.sample(16)\n```\n"
    )
