"""index, search, compress and decompress end to end on a small run, and 500 damaged files and queries."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dvaepp import coding, runs
from dvaepp.cli import main
from dvaepp.errors import UsageError
from tests.training.toy import halves


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halves(tmp_path_factory.mktemp("data"))


def _trained(images: Path, folder: Path, recipe: str, groups: str) -> Path:
    changes = [f"data.path={images}", f"model.groups={groups}", "training.steps=200", "training.validate_every=0.5"]
    changes += ["chains.num_chains=20", "chains.num_sweeps=3", "training.kl_warmup=0", "optimizer.warmup=0"]
    changes += ["model.hidden=[12]", "training.batch_size=40"]
    sets = [part for change in changes for part in ("--set", change)]
    main(["train", recipe, "layers=2", "linear=false", "--run-dir", str(folder), *sets])
    return folder


@pytest.fixture(scope="module")
def run(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _trained(images, tmp_path_factory.mktemp("runs") / "marginal", "table2.marginal", "[4,4]")


@pytest.fixture(scope="module")
def made(run: Path, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index and an archive of all images."""
    folder = tmp_path_factory.mktemp("made")
    main(["index", str(run), "--images", str(images), "--out", str(folder / "index.npz")])
    main(["compress", str(run), str(images), "--out", str(folder / "images.dvaeppz")])
    return folder


def _pixels(path: Path) -> np.ndarray:
    return np.load(path, allow_pickle=False)["images"]


def test_search_finds_the_queries_own_kind(run: Path, images: Path, made: Path, tmp_path: Path, capsys) -> None:
    arguments = ["search", str(run), str(made / "index.npz"), "--images", str(images), "--limit", "30"]
    main([*arguments, "--k", "5", "--json"])
    found = json.loads(capsys.readouterr().out)
    indices = np.array(found["indices"])
    assert indices.shape == (30, 5) and found["quality"] is None and np.array(found["distances"])[:, 0].max() == 0
    main([*arguments, "--k", "5", "--out", str(tmp_path / "hits.npz"), "--threads", "2"])
    assert np.array_equal(np.load(tmp_path / "hits.npz", allow_pickle=False)["indices"], indices)
    assert "and 20 more" in capsys.readouterr().out
    left = _pixels(images)[:, :, :3].mean((1, 2)) > 0.5
    rows = np.sort(np.random.RandomState(0).permutation(400)[:30])
    assert (left[indices] == left[rows][:, None]).mean() > 0.9
    main([*arguments, "--rerank", "50", "--out", str(tmp_path / "hits.png")])
    assert (tmp_path / "hits.png").read_bytes().startswith(b"\x89PNG")


def test_hits_are_not_shown_from_images_that_have_changed(run: Path, images: Path, tmp_path: Path, capsys) -> None:
    own, index, out = tmp_path / "own.npz", tmp_path / "index.npz", tmp_path / "hits.png"
    np.savez(own, images=_pixels(images)[:20])
    main(["index", str(run), "--images", str(own), "--out", str(index)])
    np.savez(own, images=_pixels(images)[1:21])
    capsys.readouterr()
    error = _refused(capsys, "search", run, index, "--images", images, "--limit", 3, "--k", 2, "--out", out)
    assert "does not hold the images that the index was made of" in error and not out.exists()


def test_labels_tell_how_good_the_hits_are(run: Path, images: Path) -> None:
    """The label is the half that is dark; codes of a trained model keep it, shuffled labels have chance."""
    trained = runs.load(run)
    made = coding.make_index(trained, coding.Which(images))
    labels = (_pixels(images)[:, :, :3].mean((1, 2)) > 0.5).astype(np.int64)
    queries = coding.chosen(trained, coding.Which(images, limit=60))._replace(labels=None)
    assert coding.search(trained, replace(made, labels=labels), queries, 20).quality is None
    rows = np.sort(np.random.RandomState(0).permutation(400)[:60])
    queries = queries._replace(labels=labels[rows])
    found = coding.search(trained, replace(made, labels=labels), queries, 20)
    assert found.quality is not None and found.quality.precision.low > 0.8
    reranked = coding.search(trained, replace(made, labels=labels), queries, 20, rerank=100)
    assert reranked.quality is not None and reranked.quality.precision.low > 0.8
    assert reranked.neighbours.distances.dtype == np.float64
    shuffled = replace(made, labels=np.random.default_rng(0).permutation(labels))
    chance = coding.search(trained, shuffled, queries, 20).quality
    assert chance is not None and abs(chance.precision.value - 0.5) < 0.2
    with pytest.raises(UsageError, match="rerank must be from k = 20 to the 400 codes"):
        coding.search(trained, made, queries, 20, rerank=10)


def test_images_are_read_as_the_recipe_says(run: Path, tmp_path: Path) -> None:
    """Where 71 may be white or dark grey, the recipe knows; a run that does not is asked for it."""
    trained = runs.load(run)
    np.save(tmp_path / "grey.npy", np.arange(72, dtype=np.uint8).reshape(2, 6, 6), allow_pickle=False)
    with pytest.raises(UsageError, match="may be white"):
        coding.chosen(trained, coding.Which(tmp_path / "grey.npy"))
    white = trained.recipe.data.model_copy(update={"white": 71.0})
    trained.recipe = trained.recipe.model_copy(update={"data": white})
    assert coding.chosen(trained, coding.Which(tmp_path / "grey.npy")).x.shape == (2, 1, 6, 6)


def test_means_round_to_the_code(run: Path, images: Path) -> None:
    trained = runs.load(run)
    x = coding.chosen(trained, coding.Which(images)).x
    means = coding.means_of(trained, x)
    assert np.array_equal(means > 0.5, coding.bits_of(trained, x)) and 0 < means.min() < means.max() < 1


def test_images_come_back_from_the_command_line(run: Path, images: Path, made: Path, tmp_path: Path, capsys) -> None:
    main(["decompress", str(run), str(made / "images.dvaeppz"), "--out", str(tmp_path / "back.npz")])
    assert np.array_equal(_pixels(tmp_path / "back.npz"), _pixels(images))
    capsys.readouterr()
    main(["compress", str(run), "--split", "test", "--limit", "7", "--out", str(tmp_path / "few")])
    assert capsys.readouterr().out.startswith("wrote 7 images in ")
    assert 8 * (made / "images.dvaeppz").stat().st_size < 0.6 * 400 * 36  # a toy model, briefly trained


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    error = capsys.readouterr().err
    assert caught.value.code in (1, 2) and error.startswith("dvaepp: ") and error.count("\n") == 1, error
    assert "Error" not in error and "Traceback" not in error, error
    return error


def test_other_models_and_grey_images_are_refused(run: Path, images: Path, made: Path, tmp_path: Path, capsys) -> None:
    other = _trained(images, tmp_path / "other", "table2.rbm", "[4,4]")
    capsys.readouterr()
    out = tmp_path / "x.npz"
    assert "another model" in _refused(capsys, "search", other, made / "index.npz", "--images", images)
    assert "another model" in _refused(capsys, "decompress", other, made / "images.dvaeppz", "--out", out)
    grey = tmp_path / "grey.npy"
    np.save(grey, np.arange(184, 256, dtype=np.uint8).reshape(2, 6, 6), allow_pickle=False)
    assert "grey images" in _refused(capsys, "compress", run, grey, "--out", out)
    wrong = tmp_path / "wrong.npy"
    np.save(wrong, np.zeros((2, 5, 5), np.uint8), allow_pickle=False)
    assert "images must have shape" in _refused(capsys, "compress", run, wrong, "--out", out)
    np.save(wrong, np.zeros((2, 4, 9), np.uint8), allow_pickle=False)  # as many pixels as the model's 6 x 6
    assert "images must have shape" in _refused(capsys, "compress", run, wrong, "--out", out)
    assert "of shape (1, 4, 9), and the model takes (1, 6, 6)" in _refused(capsys, "index", run, "--images", wrong)
    assert "k must be from 1" in _refused(capsys, "search", run, made / "index.npz", "--images", images, "--k", 401)
    assert "must end in .npz or .png" in _refused(
        capsys, "search", run, made / "index.npz", "--images", images, "--out", tmp_path / "x.gif"
    )
    assert "is no file" in _refused(capsys, "decompress", run, tmp_path / "none", "--out", out)
    assert not out.exists()
    main(["compress", str(other), str(images), "--out", str(out)])  # eight units: small enough to enumerate


def _damaged(whole: bytes, random: np.random.Generator) -> bytes:
    """Flipped bits, a cut, a part doubled, a part overwritten, or bytes that have nothing to do with it."""
    kind, place = random.integers(0, 6), int(random.integers(0, len(whole)))
    if kind <= 1:
        return whole[:place] + bytes([whole[place] ^ (1 << random.integers(0, 8))]) + whole[place + 1 :]
    if kind == 2:
        return whole[:place]
    if kind == 3:
        return whole[:place] + whole[place // 2 :]
    if kind == 4:
        return whole[:place] + random.bytes(40) + whole[place + 40 :]
    return random.bytes(place)


def test_500_damaged_files_are_refused_in_one_line(
    run: Path, images: Path, made: Path, tmp_path: Path, capsys, monkeypatch
) -> None:
    """200 archives, 150 indices and 150 queries; nothing is written. A change that nothing depends on is harmless."""
    trained = runs.load(run)
    monkeypatch.setattr(runs, "load", lambda *arguments, **options: trained)  # reading it 500 times takes a minute
    random, damaged, out = np.random.default_rng(0), tmp_path / "damaged.npz", tmp_path / "out.npz"
    index = made / "index.npz"
    main(["search", str(run), str(index), "--images", str(images), "--k", "3", "--json"])
    answer = capsys.readouterr().out
    commands = {
        "archive": (made / "images.dvaeppz", ["decompress", run, damaged, "--out", out], 200),
        "index": (index, ["search", run, damaged, "--images", images, "--k", 3, "--json"], 150),
        "queries": (images, ["search", run, index, "--images", damaged, "--k", 3, "--json"], 150),
    }
    refused = dict.fromkeys(commands, 0)
    for name, (source, command, count) in commands.items():
        whole = source.read_bytes()
        for _ in range(count):
            damaged.write_bytes(_damaged(whole, random))
            try:
                main([str(part) for part in command])
            except SystemExit as caught:
                error = capsys.readouterr().err
                assert caught.code in (1, 2) and error.startswith("dvaepp: ") and error.count("\n") == 1, error
                assert "Traceback" not in error and "--debug" not in error, error
                refused[name] += 1
            else:
                assert name != "archive" and capsys.readouterr().out == answer
            assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged.npz"]
    assert refused["archive"] == 200 and refused["index"] > 100 and refused["queries"] > 100
    assert coding.ARCHIVE_LIMIT > 10**9
