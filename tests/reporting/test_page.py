"""The page of a run: it stands alone, it says what the files say, and what is missing does not stop it."""

import errno
import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dvaepp import runs
from dvaepp.cli import main
from dvaepp.data import store
from dvaepp.reporting import numbers, page, pictures
from dvaepp.reporting.run import Run, read
from dvaepp.training import checkpoint
from tests.reporting.pages import Page, faults, report

NAMES = ["rbm", "rebar", "convolutional", "continuous"]


@pytest.fixture(scope="module")
def pages(trained: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    out = tmp_path_factory.mktemp("pages")
    for name, folder in trained.items():
        main(["report", str(folder), "--out", str(out / f"{name}.html")])
    return {name: Page((out / f"{name}.html").read_text()) for name in trained}


@pytest.mark.parametrize("name", NAMES)
def test_a_page_needs_nothing_outside_itself(name: str, pages: dict[str, Page]) -> None:
    assert not faults(pages[name])
    (policy,) = [m["content"] for m in pages[name].all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'") and "script" not in policy


@pytest.mark.parametrize(
    "addition",
    [
        '<script src="x.js"></script>',
        "<script>1</script>",
        '<img src="https://example.org/x.png" alt="">',
        '<img src="x.png" alt="">',
        '<link rel="stylesheet" href="x.css">',
        "<style>@import 'x.css'</style>",
        "<style>p { background: url(x.png) }</style>",
        '<p onclick="x()">',
        '<p id="samples">',
        '<a href="#nowhere">',
    ],
)
def test_the_check_above_sees_what_it_should(addition: str, pages: dict[str, Page]) -> None:
    assert faults(Page(pages["rbm"].html.replace("</main>", f"{addition}</main>")))


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_of_moderate_size_and_accessible(name: str, pages: dict[str, Page]) -> None:
    seen = pages[name]
    assert len(seen.html.encode()) < 1_000_000
    assert len(seen.all("h1")) == 1 and seen.all("html")[0]["lang"] == "en"
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in seen.all("meta")
    assert all(picture["alt"] for picture in seen.all("img")) and len(seen.all("img")) == 2
    plots = [attributes for tag, attributes in seen.elements if attributes.get("role") == "img"]
    assert len(plots) == len(seen.all("svg")) > 5 and all(len(plot["aria-label"]) > 20 for plot in plots)
    assert "prefers-color-scheme: dark" in seen.html


def test_plots_follow_the_page_from_light_to_dark(pages: dict[str, Page]) -> None:
    """Inside plots every colour is a variable that the page sets twice."""
    page_text = pages["rbm"].html
    plots = page_text[page_text.index("<svg") : page_text.rindex("</svg>")]
    assert "var(--ink)" in plots and "var(--blue)" in plots
    for colour in ("#1b1f24", "#59636e", "#1d66c1", "#000000", "#ffffff"):
        assert colour not in plots
    for name in ("ink", "muted", "rule", "blue", "orange", "green", "purple"):
        assert page_text.count(f"--{name}: #") == 2


def test_the_page_says_what_the_files_say(trained: dict[str, Path], pages: dict[str, Page]) -> None:
    folder, text = trained["rbm"], pages["rbm"].text
    evaluation = json.loads((folder / "evaluation.json").read_text())
    value, error = evaluation["log_likelihood"], evaluation["standard_error"]
    assert f"{numbers.nats(value)} ± {numbers.nats(error)} nats" in text
    assert f"{numbers.nats(value - 1.96 * error)} to {numbers.nats(value + 1.96 * error)} nats" in text
    assert f"{numbers.nats(evaluation['log_partition']['value'], 3)} nats exact" in text
    assert evaluation["data_checksum"] in text and "K = 20 per image" in text
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if "validation_bound" in line]
    assert numbers.nats(max(line["validation_bound"] for line in validations)) in text
    assert f"z1 {validations[-1]['active_units'][0]} of 4" in text
    assert "objective boltzmann" in text and "batch norm yes" in text and "at 0.6, factor 0.3" in text
    assert f"step {evaluation['steps']}" in text and "Threads" in text and "4 left, 4 right" in text


def test_a_directed_prior_has_no_rbm_and_an_estimator_no_smoothing(pages: dict[str, Page]) -> None:
    assert "there is no RBM" in pages["rebar"].text and "rbm" not in pages["rebar"].values("id")
    assert "no numbers for: Sharpness β of the smoothing, KL weight γ" in pages["rebar"].text


def test_convolutional_models_with_local_groups(trained: dict[str, Path], pages: dict[str, Page]) -> None:
    labels = " ".join(pages["convolutional"].values("aria-label"))
    assert "KL of 6 groups" in labels and "h5 " in labels and "Couplings W between 8 left and 8 right" in labels
    assert "5 in a row share a sample of the global units" in pages["convolutional"].text
    lines = [json.loads(line) for line in (trained["convolutional"] / "metrics.jsonl").read_text().splitlines()]
    assert f"z4 {lines[-1]['active_units'][3]} of 4" in pages["convolutional"].text
    assert "Active units" not in pages["continuous"].text
    assert "KL of 9 groups" in " ".join(pages["continuous"].values("aria-label"))


SCRIPT = "<script>alert('x')</script>"


def test_markup_in_names_comes_out_as_text(trained: dict[str, Path], tmp_path: Path) -> None:
    """Whatever a recipe, a data set, a folder or an evaluation is called; the schema of recipes may be stricter."""
    run = Path(shutil.copytree(trained["rbm"], tmp_path / "<b onclick=x()>&$_"))
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation["split"] = evaluation["log_partition"]["method"] = f'"{SCRIPT}$'
    evaluation["log_partition"]["diagnostics"]["warnings"] = [SCRIPT]
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    recipe = runs.read_recipe(run)
    data = recipe.data.model_copy(update={"name": SCRIPT, "path": f"{SCRIPT}/x.npz"})
    recipe = recipe.model_copy(update={"name": SCRIPT, "data": data})
    model = runs.load(run)
    model.record["dataset"] = model.record["version"] = SCRIPT
    page.write(read(run, recipe, lambda say: model), tmp_path / "page.html")
    seen = Page((tmp_path / "page.html").read_text())
    assert not faults(seen) and "<script" not in seen.html
    assert seen.text.count(SCRIPT) >= 8 and "<b onclick=x()>&$_" in seen.text


def _young(run: Path) -> None:
    """Training has begun and written nothing but the recipe."""
    for path in run.iterdir():
        if path.name != "recipe.json":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _cut(run: Path) -> None:
    """Stopped while writing a line of metrics; an evaluation cut short."""
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 61, "bound": -1')
    (run / "evaluation.json").write_text('{"log_likelihood": -3')


def _garbled(run: Path) -> None:
    """Lines that are no records, an evaluation with fields missing or of the wrong kind."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    lines[3:6] = ["\x00\xff{", "[1, 2]", '{"bound": 3}']
    (run / "metrics.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    digest = json.loads((run / "evaluation.json").read_text())["checkpoint_sha256"]
    bare = {"log_likelihood": -3.25, "standard_error": 0.5, "steps": "many", "log_partition": {"value": None}}
    (run / "evaluation.json").write_text(json.dumps({**bare, "checkpoint_sha256": digest}))


def _strange(run: Path) -> None:
    """NaN, infinity, text and lists where numbers are expected; an evaluation of another step; no checkpoint."""
    strange = {"bound": None, "kl": "x", "reconstruction": [1], "kl_per_group": ["a", None], "active_units": "all"}
    text = json.dumps({"step": 61, **strange, "beta": float("nan"), "chain_energy": float("inf")})
    with open(run / "metrics.jsonl", "a") as file:
        file.write(f"{text}\n")
    shutil.rmtree(run / "checkpoints")


def _old(run: Path) -> None:
    """Metrics emptied, an evaluation of an earlier model."""
    (run / "metrics.jsonl").write_text("")
    evaluation = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps({**evaluation, "steps": 7, "checkpoint_sha256": "0" * 64}))


def _of_version_1(run: Path) -> None:
    """An evaluation without a digest, of the step, the data and the seed of this model."""
    evaluation = json.loads((run / "evaluation.json").read_text())
    del evaluation["checkpoint_sha256"]
    (run / "evaluation.json").write_text(json.dumps(evaluation))


def _of_version_1_and_another_step(run: Path) -> None:
    evaluation = json.loads((run / "evaluation.json").read_text())
    del evaluation["checkpoint_sha256"]
    (run / "evaluation.json").write_text(json.dumps({**evaluation, "steps": 7}))


def _of_one_image(run: Path) -> None:
    evaluation = json.loads((run / "evaluation.json").read_text())
    (run / "evaluation.json").write_text(json.dumps({**evaluation, "num_images": 1, "standard_error": None}))


def _nested(run: Path) -> None:
    """Deeper than Python recurses, in the evaluation and in a line of metrics."""
    (run / "evaluation.json").write_text('{"log_likelihood":' * 100_000)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 61, "bound": ' + "[" * 100_000 + "]" * 100_000 + "}\n")


def _nested_fields(run: Path) -> None:
    """As deep as the parser takes, which no function that prints could; and a number that no float holds."""
    evaluation = json.loads((run / "evaluation.json").read_text())
    text = json.dumps({**evaluation, "split": "DEEP", "beta": "DEEP", "bits_per_dim": 10**400})
    (run / "evaluation.json").write_text(text.replace('"DEEP"', "[" * 900 + "]" * 900))


@pytest.mark.parametrize(
    "harm, sentences",
    [
        (
            _young,
            [
                "There are no metrics yet: metrics.jsonl is missing. Curves of training, the KL of each group",
                "The model could not be loaded: run",
                "This run has not been evaluated yet.",
            ],
        ),
        (
            _cut,
            [
                "The last line of metrics.jsonl is incomplete and was left out.",
                "evaluation.json is damaged and was left out. In the folder that holds this run, dvaepp evaluate run ",
            ],
        ),
        (_garbled, ["3 of 63 lines of metrics.jsonl are damaged", "−3.25 ± 0.50 nats", "log Z has no error bar yet."]),
        (
            _strange,
            [
                "The model could not be loaded: run",
                "Without the model it could not be checked that this evaluation is of this model.",
            ],
        ),
        (_of_version_1, ["This evaluation was written without the digest of its model; step, data and seed are those"]),
        (
            _of_version_1_and_another_step,
            ["evaluation.json is of another model, the checkpoint of step 7, and was left out"],
        ),
        (_of_one_image, ["1 of the test set", "95 % interval none one image has no spread"]),
        (
            _nested,
            [
                "The last line of metrics.jsonl is incomplete and was left out.",
                "evaluation.json is damaged and was left out. In the folder that holds this run, dvaepp evaluate run ",
            ],
        ),
        (_nested_fields, ["evaluation.json is damaged and was left out."]),
        (
            _old,
            [
                "metrics.jsonl is empty",
                "evaluation.json is of another model, the checkpoint of step 7 (sha256 000000000000), and was left "
                "out: this page shows the checkpoint of step",
                "dvaepp evaluate run computes log p(x)",
            ],
        ),
    ],
)
def test_what_is_missing_is_said_and_the_rest_is_shown(
    harm: Callable[[Path], None], sentences: list[str], run: Path, pages: dict[str, Page]
) -> None:
    harm(run)
    seen = report(run)
    assert not faults(seen)
    for sentence in sentences:
        assert sentence in seen.text and sentence not in pages["rbm"].text
    assert str(run.parent) not in seen.html  # a page is there to be shown to others
    assert _no_panel_is_empty(seen)


def _no_panel_is_empty(seen: Page) -> bool:
    """Every section has a plot, a picture, a table or facts below its heading, or says what it lacks."""
    sections = re.findall(r"<section.*?</section>", seen.html, re.DOTALL)
    links = [link["href"] for link in seen.all("a")]
    return (
        len(sections) >= 4
        and all(re.search('<svg|<img|<table|<dl|class="missing"', section) for section in sections)
        and all(f"#{found}" in links for found in re.findall('<section id="(?!recon)([^"]+)"', seen.html))
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_panel_of_a_whole_run_is_empty_or_lacks_anything(name: str, pages: dict[str, Page]) -> None:
    assert _no_panel_is_empty(pages[name])
    assert ('class="missing"' in pages[name].html) == (name != "rbm")  # the others have not been evaluated


def test_an_exported_model_says_what_it_is(run: Path) -> None:
    main(["export", str(run), "--out", str(run.parent / "model")])
    seen = report(run.parent / "model")
    step = json.loads((run / "evaluation.json").read_text())["steps"]
    assert (
        "Model model, exported from its run" in seen.text
        and f"Trained for {step} steps of 60 in its recipe" in seen.text
    )
    assert "Binary units 8 in 2 groups" in seen.text and "metrics.jsonl" not in seen.text and "Steps 0" not in seen.text
    assert _no_panel_is_empty(seen) and 'class="missing"' not in seen.html
    assert not {"training", "kl", "units"} & set(seen.values("id"))


def test_all_evaluations_are_shown_and_the_one_on_the_page_is_marked(run: Path) -> None:
    main(
        ["evaluate", str(run), "--samples", "30", "--split", "validation"]
    )  # evaluation.json keeps that of the test set
    assert "All evaluations" in report(run).text
    with open(run / "evaluations.jsonl", "a") as file:
        file.write('no evaluation\n{"log_likelihood": -7.5, "split": "<b>", "checkpoint_sha256": "0"}\n{"log_likel')
    seen = report(run)
    rows = re.findall(r"<tr.*?</tr>", seen.html[seen.html.index('class="history"') :].partition("</table>")[0])[1:]
    assert len(rows) == 3 and not faults(seen)
    assert "<td>20</td>" in rows[0] and "shown above" in rows[0] and "chosen" in rows[0]
    assert "<td>30</td>" in rows[1] and "shown above" not in rows[1] and "validation" in rows[1]
    assert "another checkpoint" in rows[2] and "&lt;b&gt;" in rows[2]


def test_a_command_on_the_page_runs_as_it_is_printed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the name of the run has spaces, quotation marks, or a dash in front."""
    moved = run.rename(tmp_path / "-my run's $model")
    (moved / "evaluation.json").unlink()
    (moved / "evaluations.jsonl").unlink()
    found = report(moved)
    (command,) = {html.unescape(code) for code in re.findall("<code>(dvaepp evaluate .*?)</code>", found.html)}
    monkeypatch.chdir(tmp_path)
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True)
    assert words.stdout.splitlines()[0] == "dvaepp"
    main(words.stdout.splitlines()[1:])
    assert json.loads((moved / "evaluation.json").read_text())["num_images"] > 0


def test_the_number_of_another_model_is_nowhere_on_the_page(run: Path) -> None:
    """After more training the evaluation is of a model that the run no longer has."""
    evaluation = json.loads((run / "evaluation.json").read_text())
    shown = {**evaluation, "log_likelihood": -8765.4321}
    (run / "evaluation.json").write_text(json.dumps(shown))
    number = numbers.nats(-8765.4321)
    assert number in report(run).html
    saved = checkpoint.read(run / "checkpoints", "best")
    assert saved.recipe is not None
    saved.tensors["model.prior.bias_left"] += 0.1
    checkpoint.write(run / "checkpoints", saved.tensors, saved.record, saved.recipe, best=True)
    seen = report(run)
    assert number not in seen.html and "evaluation.json is of another model" in seen.text
    main(["evaluate", str(run), "--samples", "2"])
    assert "evaluation.json is of another model" not in report(run).text


def _read(run: Path, path: str | None, name: str = "table2") -> Run:
    """The run, as if trained on other data."""
    recipe = runs.read_recipe(run)
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"name": name, "path": path})})
    return read(run, recipe, lambda say: runs.load(run))


def test_reconstructions_are_left_out_where_the_data_is_not(
    trained: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one's own images nor a data set that could be downloaded are looked for any further."""
    sheet = pictures.reconstructions(_read(trained["rbm"], "moved/away.npz"), None)
    assert "left out: the images at moved/away.npz could not be read" in sheet.missing and not sheet.uri
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DVAEPP_DATA", raising=False)
    monkeypatch.setattr(store, "download", lambda *a, **k: pytest.fail("a report downloads nothing"))
    sheet = pictures.reconstructions(_read(trained["rbm"], None, "mnist_static"), None)
    assert "the data set mnist_static could not be read here. `dvaepp data check mnist_static`" in sheet.missing
    assert not sheet.uri


def test_other_data_than_in_training_is_named(trained: dict[str, Path], images: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.npz"
    np.savez(other, images=np.random.default_rng(1).integers(0, 2, (400, 6, 6), dtype=np.uint8))
    captions = [pictures.reconstructions(_read(trained["rbm"], str(path)), None).caption for path in (images, other)]
    assert ["their checksum differs" in caption for caption in captions] == [False, True]


def test_what_loading_says_is_on_the_page(trained: dict[str, Path]) -> None:
    def load(say: Callable[[str], None]) -> runs.Trained:
        say(f"{trained['rbm'] / 'checkpoints'} is damaged; using another")
        return runs.load(trained["rbm"])

    found = read(trained["rbm"], runs.read_recipe(trained["rbm"]), load)
    assert found.trained is not None and found.problems["model"] == "rbm/checkpoints is damaged; using another."


def test_a_run_may_be_the_current_folder(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(run)
    shutil.rmtree("checkpoints")
    found = read(Path("."), runs.read_recipe("."), lambda say: runs.load("."))
    assert found.name == "run" and "checkpoints holds no checkpoint" in found.problems["model"]
    assert "saved." in found.problems["model"]


def test_a_page_lies_in_the_run_unless_told_otherwise(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "render", lambda *a: "a page")
    before = {path.name for path in run.iterdir()}
    main(["report", str(run)])
    assert capsys.readouterr().out == f"wrote {run / 'report.html'}\n"
    assert {path.name for path in run.iterdir()} == before | {"report.html"}
    assert (run / "report.html").read_text() == "a page"


def test_a_failed_write_leaves_the_old_page(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "report.html").write_text("old")
    before = {path.name for path in run.iterdir()}
    monkeypatch.setattr(page, "render", lambda *a: "a new page")

    def full(descriptor: int) -> None:
        os.ftruncate(descriptor, 5)  # only half of it fits
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SystemExit) as caught:
        main(["report", str(run)])
    assert caught.value.code == 1
    assert (run / "report.html").read_text() == "old" and {path.name for path in run.iterdir()} == before


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["report", str(tmp_path)])
    assert caught.value.code == 2 and "is not a run directory" in capsys.readouterr().err
