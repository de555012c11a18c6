"""The page of a run: one HTML file that needs nothing else, neither scripts nor the network."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape

from dvaepp.data import Dataset
from dvaepp.files import write_durably
from dvaepp.reporting import facts, numbers, pictures
from dvaepp.reporting.figures import curves, kl, rbm, units
from dvaepp.reporting.panels import Panel, svg
from dvaepp.reporting.run import Run


class Drawing(NamedTuple):
    title: str
    alt: str
    svg: Markup


def write(run: Run, out: Path, data_dir: Path | None = None, dataset: Dataset | None = None) -> None:
    """Write the page of a run whole or not at all; `dataset` stands in for that of its recipe."""
    page = render(run, pictures.samples(run), pictures.reconstructions(run, data_dir, dataset))
    write_durably(out, page.encode())


def render(run: Run, samples: pictures.Sheet, reconstructions: pictures.Sheet) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["with_code"] = _with_code
    return environment.get_template("page.html").render(
        run=run,
        dataset=facts.dataset_name(run),
        glance=facts.glance(run),
        samples=samples,
        reconstructions=reconstructions,
        evaluation=facts.evaluation(run),
        history=facts.history(run),
        evaluate_command=facts.evaluate_command(run),
        curves=_drawings("curves", curves.panels(run)),
        no_curves=curves.missing(run),
        kl=_drawings("kl", kl.panels(run)),
        units=_drawings("units", units.panels(run)),
        local_groups=sum(name.startswith("h") for name in run.recipe.model.kl_names),
        rbm=_drawings("rbm", rbm.panels(run)),
        has_rbm=run.recipe.model.undirected,
        broken_rbm=run.prior is not None and not rbm.finite(run.prior),
        kl_facts=facts.kl_facts(run),
        unit_facts=facts.unit_facts(run),
        rbm_facts=facts.rbm_facts(run),
        partition=facts.partition(run),
        recipe=facts.readable(run.recipe),
        recipe_json=run.recipe.model_dump_json(indent=1),
        modules=run.trained.model.summary() if run.trained else [],
        count=numbers.count,
        about_run=facts.about_run(run),
        about_report=facts.about_report(),
    )


def _with_code(text: str) -> Markup:
    """A sentence with its commands, which stand between backticks, set as code."""
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _drawings(prefix: str, panels: Sequence[Panel]) -> list[Drawing]:
    return [Drawing(p.title, p.alt, Markup(svg(p, f"{prefix}{index}"))) for index, p in enumerate(panels)]
