"""Figures of runs: what is drawn is what the metrics and the weights say."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import dvaepp
from dvaepp import runs
from dvaepp.cli import main
from dvaepp.priors.rbm import RBM
from dvaepp.reporting import drawing, numbers, panels
from dvaepp.reporting.figures import curves, inverse_cdf, kl, of_runs, rbm, smoothing, units
from dvaepp.reporting.run import Run, read, series, vectors


def _read(folder: Path) -> Run:
    def no_model(say: object) -> Any:
        raise OSError("not needed here")

    return read(folder, runs.read_recipe(folder), no_model)


def _lines(panel: panels.Panel) -> dict[str, np.ndarray]:
    axes = Figure().subplots()
    panel.draw(axes)
    return {str(line.get_label()): np.asarray(line.get_ydata(), float) for line in axes.get_lines()}


@pytest.mark.parametrize("name", ["curves", "kl", "units", "rbm"])
def test_figure_writes_a_picture_of_each_run(name: str, trained: dict[str, Path], tmp_path: Path) -> None:
    folders = [str(trained["rbm"]), str(trained["convolutional"])]
    main(["figure", name, *folders, "--out", str(tmp_path / "runs.svg")])
    written = (tmp_path / "runs.svg").read_text()
    assert "<svg" in written and all(f"<!-- {run} -->" in written for run in ("rbm", "convolutional"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["curves"], "`figure curves` needs at least one run directory"),
        (["smoothing", "RUN"], "`figure smoothing` takes no runs"),
        (["rbm", "REBAR"], "rebar: nothing to draw for 'rbm'"),
        (["units", "CONTINUOUS"], "continuous: nothing to draw for 'units'"),
        (["kl", "nosuch"], "nosuch is not a run directory"),
    ],
)
def test_what_cannot_be_drawn_is_named(
    arguments: list[str], message: str, trained: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = {"RUN": trained["rbm"], "REBAR": trained["rebar"], "CONTINUOUS": trained["continuous"]}
    with pytest.raises(SystemExit) as caught:
        main(["figure", *(str(folders.get(a, a)) for a in arguments), "--out", str(tmp_path / "x.png")])
    assert caught.value.code == 2 and message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_curves_are_the_metrics(trained: dict[str, Path]) -> None:
    folder = trained["rbm"]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    training, validation = ([r for r in records if ("validation_bound" in r) == kind] for kind in (False, True))
    made = {panel.title: _lines(panel) for panel in curves.panels(_read(folder))}
    assert len(made) == 6
    bound, rate = made["Bound and log p(x) (nats)"], made["Learning rate"]
    np.testing.assert_array_equal(bound["training"], [r["bound"] for r in training])
    np.testing.assert_array_equal(bound["validation"], [r["validation_bound"] for r in validation])
    np.testing.assert_array_equal(bound["validation, K = 100"], [r["validation_log_likelihood"] for r in validation])
    np.testing.assert_array_equal(rate["learning rate"], [r["learning_rate"] for r in training])
    np.testing.assert_array_equal(made["KL (nats)"]["validation"], [r["validation_kl"] for r in validation])


def test_the_evaluation_is_among_the_curves_with_its_error_bar(trained: dict[str, Path]) -> None:
    run = _read(trained["rbm"])
    assert run.evaluation is not None
    axes = Figure().subplots()
    curves.panels(run)[0].draw(axes)
    (container,) = axes.containers
    (segment,) = container.lines[2][0].get_segments()
    value, error = run.evaluation["log_likelihood"], run.evaluation["standard_error"]
    np.testing.assert_allclose(segment[:, 1], [value - 2 * error, value + 2 * error])
    assert axes.get_ylim()[0] < value < axes.get_ylim()[1]


def test_groups_have_their_names(trained: dict[str, Path]) -> None:
    models = {name: _read(folder).recipe.model for name, folder in trained.items()}
    local = [f"h{j}" for j in range(1, 6)]
    assert models["rbm"].kl_names == ["z"] and models["rbm"].unit_groups == [4, 4]
    assert models["rebar"].kl_names == ["z1"] and models["rebar"].unit_groups == [6]
    assert models["convolutional"].kl_names == ["z", *local] and models["convolutional"].unit_groups == [4] * 4
    assert models["continuous"].kl_names == ["z1", "z2", "z3", "z4", *local]
    assert models["continuous"].unit_groups == []
    for name, folder in trained.items():  # the metrics have as many
        widths = {len(r["validation_kl_per_group"]) for r in _read(folder).validation}
        assert widths == {len(models[name].kl_names)}
        assert all(len(r["active_units"]) == len(models[name].unit_groups) for r in _read(folder).validation)


def test_many_groups_become_a_heat_map_and_few_stay_lines(trained: dict[str, Path]) -> None:
    for name, images, lines in (("rbm", 0, 1), ("convolutional", 1, 0)):
        axes = Figure(layout="constrained").subplots()
        kl.panels(_read(trained[name]))[0].draw(axes)
        assert (len(axes.get_images()), len(axes.get_lines())) == (images, lines)


def test_a_heat_map_keeps_every_group_in_its_row() -> None:
    steps, values = np.arange(1.0, 401.0), np.tile(np.arange(6.0), (400, 1))
    values[200:, 2] = 5
    axes = Figure(layout="constrained").subplots()
    drawing.over_time(axes, steps, values, list("abcdef"), "nats")
    (image,) = axes.get_images()
    table = np.asarray(image.get_array())
    assert table.shape == (6, drawing.COLUMNS)
    np.testing.assert_allclose(table[:, 0], [0, 1, 2, 3, 4, 5])
    np.testing.assert_allclose(table[:, -1], [0, 1, 5, 3, 4, 5])
    assert (table[2] == 2).sum() == drawing.COLUMNS / 2


def test_active_units_at_the_end_are_those_of_the_last_validation(trained: dict[str, Path]) -> None:
    run = _read(trained["rbm"])
    assert units.last(run) == run.validation[-1]["active_units"]
    assert [panel.title for panel in units.panels(run)] == ["Active units over time", "Active units at the end"]


def test_a_resumed_run_counts_each_step_once_as_last_written(tmp_path: Path) -> None:
    written = [(1, -9.0), (2, -8.0), (3, -7.0), (2, -6.0), (3, -5.0)]
    lines = [json.dumps({"step": step, "bound": bound}) for step, bound in written]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (tmp_path / "recipe.json").write_text('{"name": "any"}')
    run = _read(tmp_path)
    steps, values = series(run.training, "bound")
    assert steps.tolist() == [1, 2, 3] and values.tolist() == [-9, -6, -5] and "metrics" not in run.problems


def test_only_finite_numbers_are_drawn() -> None:
    values: list[Any] = [1.0, math.nan, None, "x", True, math.inf, 2]
    records = [{"step": step, "a": value} for step, value in enumerate(values)]
    assert series(records, "a").steps.tolist() == [0, 6]
    lists: list[Any] = [[1, 2], [1], [1, math.nan], None, [3, 4]]
    found = vectors([{"step": step, "a": value} for step, value in enumerate(lists)], "a")
    assert found.steps.tolist() == [0, 4] and found.values.tolist() == [[1, 2], [3, 4]]


def test_singular_values_beyond_the_edge_of_a_random_matrix() -> None:
    """Independent entries end at the edge (here within 4 %; one part in a thousand would exceed 6 %); a planted
    direction stands out of it."""
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.3, (200, 100))
    assert np.linalg.norm(noise, 2) == pytest.approx(rbm.random_edge(noise), rel=0.04)
    planted = noise + 0.2
    values = np.linalg.svd(planted, compute_uv=False)
    assert (values > 1.04 * rbm.random_edge(planted)).sum() == 1


def _weights(num_left: int, num_right: int, scale: float) -> list[panels.Panel]:
    prior = RBM(num_left, num_right)
    with torch.no_grad():
        for parameter in prior.parameters():
            parameter.normal_(0, scale, generator=torch.Generator().manual_seed(0))
    assert rbm.finite(prior)
    return rbm.weight_panels(prior)


@pytest.mark.parametrize("left, right, scale", [(1, 1, 0.0), (1, 5, 1.0), (3, 2, 0.0), (400, 600, 1.0)])
def test_weights_of_any_size_make_small_plots(left: int, right: int, scale: float) -> None:
    made = _weights(left, right, scale)
    assert len(made) == 4
    assert sum(len(panels.svg(panel, "x")) for panel in made) < 400_000


def test_large_couplings_are_averaged_without_losing_any() -> None:
    matrix = np.arange(450.0)[:, None] * np.ones((1, 3))
    averaged = rbm.averaged(matrix, 0)
    assert averaged.shape == (200, 3) and averaged[0, 0] == pytest.approx(0.5)
    assert averaged[-1, 0] == pytest.approx(448) and (np.diff(averaged[:, 0]) > 0).all()
    np.testing.assert_array_equal(rbm.averaged(matrix.T, 1), averaged.T)


def test_weights_that_are_not_finite_are_left_out(trained: dict[str, Path]) -> None:
    prior = RBM(2, 2)
    prior.weight.data[0, 0] = math.nan
    assert not rbm.finite(prior)


def test_rounding_leaves_the_words_of_a_plot_alone() -> None:
    panel = panels.Panel("", "", lambda axes: axes.set_yticks([0.00012345], ["0.00012345"]) and None)
    assert ">0.00012345<" in panels.svg(panel, "x")


@pytest.mark.parametrize(
    "shown, expected",
    [
        (numbers.nats(-1234.567), "−1\u202f234.57"),
        (numbers.count(60000), "60\u202f000"),
        (numbers.with_error(-87.0454, 0.2331), "−87.05 ± 0.23"),
        (numbers.with_error(245.08398, 0.0109994), "245.084 ± 0.011"),
        (numbers.with_error(12.5, 0.0), "12.50 ± 0.00"),
        (numbers.with_error(1.0, math.nan), "1.00 ± nan"),
        (numbers.short(1e-8), "1e−8"),
        (numbers.short(0.003), "0.003"),
        (numbers.steps(2500), "2.5k"),
        (numbers.steps(1_200_000), "1.2M"),
    ],
)
def test_numbers_read_well(shown: str, expected: str) -> None:
    assert shown == expected


def test_labels_are_taken_as_they_are() -> None:
    assert drawing.plain("a$b$") == r"a\$b\$" and not drawing.plain("_x").startswith("_")


def _laid_out(figure: Figure) -> list[Any]:
    """The plots of a figure, after everything in it has been drawn; colour bars belong to their plots."""
    FigureCanvasAgg(figure).draw()
    return [axes for axes in figure.axes if axes.get_title(loc="left")]


def _figure(name: str, trained: dict[str, Path]) -> Figure:
    if name == "smoothing":
        return smoothing.draw()
    if name == "inverse_cdf":
        return inverse_cdf.draw()
    folders = [trained["rbm"], trained["convolutional"]]
    both = [read(folder, runs.read_recipe(folder), lambda say, run=folder: dvaepp.load(run)) for folder in folders]
    return of_runs(name, both)


@pytest.mark.parametrize("name", ["smoothing", "inverse_cdf", "curves", "kl", "units", "rbm"])
def test_plots_line_up_and_nothing_lies_on_anything_else(name: str, trained: dict[str, Path]) -> None:
    figure = _figure(name, trained)
    plots = _laid_out(figure)
    places = np.array([axes.get_position().bounds for axes in plots])
    assert np.ptp(places[:, 2]) < 1e-9 and np.ptp(places[:, 3]) < 1e-9  # one size
    assert len(set(places[:, 0].round(6))) <= 4  # and few columns
    boxes = []
    for axes in plots:
        title, frame = axes._left_title.get_window_extent(), axes.get_window_extent()
        inner = [text.get_window_extent() for text in axes.get_legend().get_texts()] if axes.get_legend() else []
        inner += [child.get_window_extent() for child in axes.child_axes]
        assert all(frame.y1 <= box.y0 + 1 and box.y1 <= title.y0 + 1 for box in inner)
        boxes.append(axes.get_tightbbox())
    whole = figure.bbox
    for index, box in enumerate(boxes):
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
        assert not any(box.overlaps(other) for other in boxes[:index])


def test_a_figure_of_samples_has_a_panel_for_each_run(trained: dict[str, Path], tmp_path: Path) -> None:
    """Also where recipe, data set and step are the same."""
    copy = shutil.copytree(trained["rbm"], tmp_path / "again")
    main(["figure", "samples", str(trained["rbm"]), str(copy), "--out", str(tmp_path / "samples.svg")])
    written = (tmp_path / "samples.svg").read_text()
    assert "<!-- rbm: table2.rbm on " in written and "<!-- again: table2.rbm on " in written
