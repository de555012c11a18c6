"""The paper's tables and our cells: complete, as printed, each with a recipe that builds."""

import itertools
import re
from pathlib import Path

import pytest

from dvaepp import recipes
from dvaepp.errors import UsageError
from dvaepp.recipes.schema import ConvolutionalConfig
from dvaepp.reproduction import paper, plan

PAPER = Path(__file__).resolve().parents[3] / "shared" / "paper" / "dvaepp.tex"
COUNTS = {"table1": 24, "table2": 32, "table3": 25, "table5": 5, "table6": 3, "table7": 10, "table8": 12}


@pytest.mark.parametrize(("table", "count"), COUNTS.items())
def test_every_cell_is_there_once_and_its_recipe_builds(table: str, count: int) -> None:
    cells = paper.cells(table)
    assert len(cells) == len({cell.name for cell in cells}) == len({(c.row, c.column) for c in cells}) == count
    for cell in cells:
        recipe = recipes.build(cell.recipe, cell.arguments)
        assert recipe.data.name == cell.dataset
        assert (recipe.evaluation.beta == "training") == (table in ("table5", "table6", "table7", "table8"))


@pytest.mark.skipif(not PAPER.exists(), reason="the paper is not beside the project")
@pytest.mark.parametrize("table", COUNTS)
def test_numbers_are_those_of_the_paper(table: str) -> None:
    """Read from its source without our code: the numbers of each printed row, in order."""
    printed = re.findall(r"\\begin\{table\*?\}.*?\\end\{table\*?\}", PAPER.read_text(), re.S)
    assert len(printed) == 7
    body = printed[list(COUNTS).index(table)].split(r"\begin{tabular}")[1].split("\n", 1)[1]
    body = re.sub(r"\\label\{.*?\}|Caltech-101|CIFAR10|\\multi\w+\{\d\}|& 101 &|\\# groups.*", "", body)
    numbers = [float(text) for text in re.findall(r"-?\d+\.\d+", body)]
    if table == "table2":  # a printed row holds both data sets
        by_row = [numbers[i : i + 16] for i in range(0, len(numbers), 16)]
        numbers = [x for half in (slice(0, 8), slice(8, 16)) for row in by_row for x in row[half]]
    both = [(cell.value, cell.deviation) for cell in paper.cells(table)]
    assert [number for pair in both for number in pair if number is not None] == numbers


def test_a_run_that_two_tables_show_is_trained_once() -> None:
    """Table 8's first row is Table 7's better decoder; Caltech stands there although the paper has no number for it."""
    decoders = {cell.name for cell in paper.cells("table7")}
    first = [cell for cell in paper.cells("table8") if cell.row == "DVAE++"]
    assert len(first) == 4 and {cell.name for cell in first} <= decoders
    missing = [(cell.row, cell.column) for cell in paper.cells("table8") if cell.value is None]
    assert missing == [(row, "caltech") for row in ("DVAE++", "without global units", "without KL balancing")]


def test_relaxed_cells_stand_beside_table_2s_own() -> None:
    cells = paper.cells("relaxed")
    own = [cell for cell in paper.cells("table2") if cell.recipe == "table2.rbm"]
    assert len(cells) == 7 * len(own) and [cell for cell in cells if cell.value is not None] == own
    for cell in cells:
        recipe = recipes.build(cell.recipe, cell.arguments)
        assert recipe.training.steps == 1_000_000 and (recipe.training.average is not None) == cell.averaged
    names = [cell.name for cell in plan.chosen_cells("relaxed", ["power_law*mnist*layers=2*linear=false"])]
    assert names == [f"relaxed/power_law/dataset=mnist_static/layers=2/linear=false/samples={k}" for k in (1, 5)]


def test_patterns_choose_cells() -> None:
    names = [cell.name for cell in plan.chosen_cells("table2", ["/rbm/*layers=2", "joint/dataset=omniglot/layers=1"])]
    assert len(names) == 4 + 2 and all("layers=2" in name or "joint" in name for name in names)
    with pytest.raises(UsageError, match="no cell of table2 matches 'rmb'; its cells are like table2/rbm/"):
        plan.chosen_cells("table2", ["rmb"])
    with pytest.raises(UsageError, match="no table called 'table4'.*Table 4 is `dvaepp show`"):
        plan.chosen_cells("table4", [])


def test_scale_shortens_every_schedule_in_proportion(tmp_path: Path) -> None:
    options = {"root": tmp_path, "results": tmp_path, "select": False, "size": "paper"}
    (task,) = plan.tasks(
        plan.chosen_cells("table2", ["/rbm/*static/layers=1/linear=true"]), seeds=[3], scale=0.06, **options
    )
    assert task.recipe.training.steps == 60_000 and task.recipe.training.seed == 3
    assert task.record_file.name == "table2.rbm.dataset=mnist_static.layers=1.linear=true.scale=0.06.seed=3.json"
    with pytest.raises(UsageError, match="scale must be in"):
        plan.tasks([], seeds=[0], scale=0.0, **options)


def test_grids_are_those_that_the_paper_names(tmp_path: Path) -> None:
    """Sec. 7.1: rate, first and last β; App. F: β; Sec. 7.3: inference groups of the global units. Every one builds."""
    rates, first, last = {1e-4, 5e-4}, {5, 6, 7, 8}, {12, 14, 16, 18}
    table1 = [cell for cell in paper.cells("table1") if cell.recipe in ("table1.joint", "table1.marginal")]
    for cell in table1:
        built = [recipes.build(cell.recipe, cell.arguments, changes) for changes in paper.grid(cell)]
        found = {(r.optimizer.learning_rate, r.smoothing.sharpness(0.0), r.smoothing.sharpness(1.0)) for r in built}
        assert found == set(itertools.product(rates, first, last)) and len(built) == len(found) == 32
    for cell in paper.cells("table2"):
        built = [recipes.build(cell.recipe, cell.arguments, changes) for changes in paper.grid(cell)]
        assert [(r.smoothing.sharpness(0.0), r.smoothing.sharpness(1.0)) for r in built] == [
            (beta, beta) for beta in (5, 6, 8, 10)
        ]
    for cell in paper.cells("table3"):
        built = [recipes.build(cell.recipe, cell.arguments, changes) for changes in paper.grid(cell)]
        assert [r.model.global_groups for r in built if isinstance(r.model, ConvolutionalConfig)] == [1, 2, 4]
    with pytest.raises(UsageError, match="leave out --select"):
        paper.grid(paper.cells("table1")[0])
