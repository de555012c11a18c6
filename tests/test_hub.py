"""Models to the Hub and back, through the Hub's own client and a Hub on the loopback address (`hub_server.py`)."""

import os

os.environ["HF_HUB_DISABLE_XET"] = "1"  # read when the client is imported: large files go the way of git LFS
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch

import dvaepp
from dvaepp import hub, pretrained, runs
from dvaepp.cli import main
from dvaepp.hub import client
from dvaepp.training import train
from tests.hub_server import PART, TOKEN, Hub
from tests.training import toy

# The client itself calls its HTTP library in a way that this one deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

REPO = "ada/digits"
TENSORS = "checkpoints/step-000960000-94e5e41b.safetensors"


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """What `push` makes of a shipped model."""
    with Hub() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", running.address)
        patch.setenv("HF_TOKEN", TOKEN)
        hub.push("mnist-rbm", REPO)
        assert running.commits == 1, "all files in one commit"
        assert len([line for line in running.requests if "PUT /parts/" in line]) == 2, "a large file in parts"
        return running.repositories[REPO]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of images of one's own, not evaluated."""
    folder = tmp_path_factory.mktemp("private")
    return train(toy.recipe(toy.stripes(folder), steps=2), folder / "run", say=toy.quiet)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as running:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running


@pytest.fixture
def pushed(server: Hub, files: dict[str, bytes]) -> Hub:
    """A Hub with a shipped model, as `push` has put it there."""
    server.repositories[REPO] = dict(files)
    return server


def _refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that fails and leaves nothing behind."""
    before = sorted(Path.cwd().rglob("*"))
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    error = capsys.readouterr().err
    assert caught.value.code in (1, 2) and error.startswith("dvaepp: ") and error.count("\n") == 1
    assert [path for path in sorted(Path.cwd().rglob("*")) if path.name != "runs"] == before
    return error


def test_a_model_that_was_pushed_is_pulled_with_equal_tensors(pushed: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    main(["pull", REPO])
    assert capsys.readouterr().out == "wrote runs/digits\n"
    ours, theirs = dvaepp.load("mnist-rbm"), dvaepp.load("runs/digits")
    assert ours.recipe == theirs.recipe and ours.record == theirs.record
    mine, their_own = ours.model.state_dict(), theirs.model.state_dict()
    assert mine.keys() == their_own.keys() and all(torch.equal(mine[name], their_own[name]) for name in mine)
    assert runs.evaluation_of("runs/digits") == pretrained.evaluation("mnist-rbm")
    assert not list(Path("runs").rglob(".*")), "neither notes of the client nor a partial folder"


def test_nothing_goes_but_safetensors_json_a_picture_and_the_card(files: dict[str, bytes]) -> None:
    kinds = {Path(name).suffix or name for name in files}
    assert kinds == {".safetensors", ".json", ".md", ".png", ".gitattributes"}
    assert len(files[TENSORS]) > PART and files[TENSORS] == (pretrained.folder("mnist-rbm") / TENSORS).read_bytes()


def test_another_model_replaces_the_files_of_the_first(
    pushed: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["push", str(run), REPO])
    assert capsys.readouterr().out == f"pushed to {pushed.address}/{REPO}\n"
    assert pushed.commits == 1 and TENSORS not in pushed.repositories[REPO]
    assert dvaepp.load(hub.pull(REPO)).model.num_units == 8


def test_the_card_states_the_evaluation(pushed: Hub) -> None:
    card = pushed.repositories[REPO]["README.md"].decode()
    found = pretrained.evaluation("mnist-rbm")
    assert f"| log p(x) | {found['log_likelihood']:.2f} ± {found['standard_error']:.2f} nats |" in card
    partition = found["log_partition"]
    assert f"| {partition['value']:.3f} ± {partition['standard_error']:.3f} (tempering) |" in card
    recipe = json.loads(card.partition("```json\n")[2].partition("```")[0])
    assert recipe == json.loads(pushed.repositories[REPO]["recipe.json"])
    assert f"dvaepp pull {REPO}" in card and 'dvaepp.load("runs/digits")' in card


def test_a_run_of_ones_own_goes_without_its_path_and_says_that_it_has_no_numbers(server: Hub, run: Path) -> None:
    hub.push(run, "ada/mine", private=True)
    assert server.private == {"ada/mine"}
    for name, data in server.repositories["ada/mine"].items():
        assert b"private" not in data, name
    assert b"has not been evaluated" in server.repositories["ada/mine"]["README.md"]
    assert dvaepp.load(hub.pull("ada/mine", "pulled")).recipe.data.memory


def test_an_endpoint_may_end_in_a_slash(pushed: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the client of the Hub itself allows."""
    monkeypatch.setenv("HF_ENDPOINT", f"{pushed.address}/")
    with client.connected(REPO) as api:
        assert api.endpoint == pushed.address and api.model_info(REPO).id == REPO


def test_an_evaluation_of_another_checkpoint_is_left_out_with_a_remedy_that_can_be_followed(
    server: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = run / "evaluation.json"
    evaluation.write_text(json.dumps({"checkpoint_sha256": "0" * 64}))
    try:
        hub.push(run, "ada/mine")
    finally:
        evaluation.unlink()
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.endswith(f"was left out; dvaepp evaluate {run} makes one\n")


# What is damaged or foreign is refused, and nothing of it stays.


@pytest.mark.parametrize("name", [TENSORS, "recipe.json", "evaluation.json", "samples/samples.png"])
def test_a_file_that_is_damaged_on_its_way_is_refused(
    name: str, pushed: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.serve = lambda asked, data: data[:-1] + bytes([data[-1] ^ 1]) if asked == name else data
    assert f"{name} is damaged: expected digest" in _refused(["pull", REPO], capsys)


def _flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _other_size(data: bytes) -> bytes:
    return data.replace(b"200", b"100", 1)


def _other_digest(data: bytes) -> bytes:
    return json.dumps(json.loads(data) | {"checkpoint_sha256": "0" * 64}).encode()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (TENSORS, _flip, "94e5e41b.safetensors is damaged: expected sha256"),
        ("recipe.json", _other_size, "best.json has another recipe than recipe.json"),
        ("checkpoints/best.json", _other_size, "best.json is damaged"),
        ("checkpoints/step-000960000.json", _flip, "step-000960000.json is damaged: it is no manifest"),
        ("evaluation.json", _other_digest, "no evaluation of this checkpoint, but one of another"),
    ],
)
def test_a_repository_that_was_changed_is_refused(
    name: str, change: Any, message: str, pushed: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Hub states the digest of the changed file, and the model's own digests do not fit it."""
    pushed.repositories[REPO][name] = change(pushed.repositories[REPO][name])
    error = _refused(["pull", REPO], capsys)
    assert f"the model in {REPO} is not intact" in error and message in error and "partial" not in error


class Trap:
    """Its pickle makes a file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("sprung"),))


@pytest.mark.parametrize("name", ["model.pkl", "checkpoints/pytorch_model.bin", "checkpoints/best.pt"])
def test_a_pickle_in_the_repository_is_never_fetched(
    name: str, pushed: Hub, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.repositories[REPO][name] = pickle.dumps(Trap())
    pushed.requests.clear()
    assert f"{REPO} holds {name}, which is no file of a dvaepp model" in _refused(["pull", REPO], capsys)
    assert pushed.requests == [f"GET /api/models/{REPO}"] and not Path("sprung").exists()


def test_a_pickle_under_the_name_of_tensors_is_never_read(pushed: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    pushed.repositories[REPO][TENSORS] = pickle.dumps(Trap())
    assert f"the model in {REPO} is not intact" in _refused(["pull", REPO], capsys)
    assert not Path("sprung").exists()


@pytest.mark.parametrize("name", ["../recipe.json", "/etc/recipe.json", "checkpoints/../../best.json", "recipe.json\n"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, pushed: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    pushed.repositories[REPO][name] = b"{}"
    assert "which is no file of a dvaepp model" in _refused(["pull", REPO], capsys)


def test_what_is_no_model_or_no_place_for_one_is_refused(
    pushed: Hub, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed.repositories["ada/empty"] = {"README.md": b""}
    assert "is not a model of dvaepp: it has no recipe.json" in _refused(["pull", "ada/empty"], capsys)
    pushed.repositories["ada/empty"]["config.py"] = b""
    assert "ada/empty holds config.py" in _refused(["push", str(run), "ada/empty"], capsys)
    pushed.repositories[REPO]["samples/big.png"] = bytes(10_000_001)
    assert "samples/big.png has 10000001 bytes" in _refused(["pull", REPO], capsys)
    Path("here").mkdir()
    assert "here is there already" in _refused(["pull", REPO, "--run-dir", "here"], capsys)


# What is missing is told in one line.


@pytest.mark.parametrize("arguments", [["push", "mnist-rbm", REPO], ["pull", REPO]])
def test_without_the_extra(
    arguments: list[str], server: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'dvaepp[hub]'" in _refused(arguments, capsys)


def test_without_a_token(
    pushed: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is pushed, and what everybody may read is pulled."""
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    pushed.requests.clear()
    assert "needs a token to write" in _refused(["push", "mnist-rbm", "ada/other"], capsys)
    assert not pushed.requests
    pushed.private.add(REPO)
    assert "hides it from you" in _refused(["pull", REPO], capsys)
    pushed.private.clear()
    assert hub.pull(REPO).is_dir()


def test_a_token_that_may_not_write(
    server: Hub, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    error = _refused(["push", str(run), REPO], capsys)
    assert "refuses your token" in error and "hf_of_somebody_else" not in error


def test_a_repository_that_is_not_there(server: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{server.address} has no model ada/none" in _refused(["pull", "ada/none"], capsys)


@pytest.mark.parametrize("repo", ["digits", "ada/", "ada/..", "a/b/c", "ada/x..y", "-/x"])
def test_a_name_that_cannot_be_a_repository(repo: str, server: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{repo!r} cannot be a repository" in _refused(["pull", repo], capsys)
    assert not server.requests


def test_a_hub_that_cannot_be_reached(
    server: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached" in _refused(["pull", REPO], capsys)
