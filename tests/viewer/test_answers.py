"""What the viewer answers, against the model itself."""

import base64
import json
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch.distributions import Bernoulli, kl_divergence

from dvaepp import runs
from dvaepp.data import as_dataset
from dvaepp.errors import UsageError
from dvaepp.models.trained import Trained
from dvaepp.recipes import build
from dvaepp.viewer import requests
from dvaepp.viewer.desk import Desk
from dvaepp.viewer.facts import facts
from dvaepp.viewer.units import marginals, measures
from tests.contracts.test_models import MODELS
from tests.viewer.serving import RUN, Client, as_bytes, same_picture

CODE = ("1101000" * 29)[:200]


def _bits(code: str) -> torch.Tensor:
    return torch.tensor([[float(bit) for bit in code]])


def test_facts_are_those_of_the_run(viewer: tuple[Trained, Client]) -> None:
    about = viewer[1].ask("about")
    assert about["run"] == RUN and about["recipe"] == "table2.rbm" and about["step"] == 960_000
    assert about["log_likelihood"] == pytest.approx(-85.203, abs=1e-3) and about["groups"] == [200]
    assert about["energy"] and about["completes"] and about["binary_pixels"] and not about["varies"]


def test_the_image_of_a_code_and_the_energy_of_every_flip(viewer: tuple[Trained, Client]) -> None:
    trained, client = viewer
    answer, z = client.ask("code", bits=CODE), _bits(CODE)
    assert same_picture(base64.b64decode(answer["image"]), as_bytes(trained.decode(z)))
    prior = trained.model.boltzmann
    assert prior is not None
    energy = prior.energy(z)
    flipped = prior.energy((z - torch.eye(200)).abs())
    assert answer["energy"] == pytest.approx(energy.item(), abs=1e-3)
    torch.testing.assert_close(torch.tensor(answer["flips"]), flipped - energy, atol=1e-3, rtol=1e-4)


def test_effects_are_those_of_one_flip_at_a_time(viewer: tuple[Trained, Client]) -> None:
    trained, client = viewer
    found = client.ask("effects", bits=CODE)["pixels"]
    for unit in (0, 17, 199):
        z = _bits(CODE)
        before = trained.decode(z)
        z[0, unit] = 1 - z[0, unit]
        assert found[unit] == pytest.approx((trained.decode(z) - before).abs().mean().item(), abs=1e-5)


def test_samples_come_with_their_codes_and_a_seed_repeats_them(viewer: tuple[Trained, Client]) -> None:
    trained, client = viewer
    first, again = (client.ask("samples", count=3, seed=4) for _ in range(2))
    assert first == again and len(set(first["bits"])) == 3
    z = torch.cat([_bits(code) for code in first["bits"]])
    assert same_picture(base64.b64decode(first["images"]), as_bytes(trained.decode(z)))


def test_a_walk_flips_the_cheapest_bit_first_and_arrives(viewer: tuple[Trained, Client]) -> None:
    trained, client = viewer
    end = CODE[::-1]
    answer = client.ask("walk", start=CODE, end=end)
    differing = {n for n in range(200) if CODE[n] != end[n]}
    assert set(answer["flipped"]) == differing and len(answer["flipped"]) == len(differing)
    images = base64.b64decode(answer["images"])
    assert len(images) == 784 * (len(differing) + 1)
    assert same_picture(images[-784:], as_bytes(trained.decode(_bits(end))))
    assert not same_picture(images[:784], as_bytes(trained.decode(_bits(end))))
    costs = client.ask("code", bits=CODE)["flips"]
    assert answer["flipped"][0] == min(differing, key=lambda unit: costs[unit])
    assert answer["energy"][-1] == pytest.approx(client.ask("code", bits=end)["energy"], abs=1e-3)
    assert client.ask("walk", start=CODE, end=CODE)["flipped"] == []


def test_images_of_the_data_set_are_nearest_to_their_own_codes(viewer: tuple[Trained, Client]) -> None:
    _, client = viewer
    while (state := client.ask("about")["data"])["encoded"] < state["images_in_all"]:
        time.sleep(0.01)
    some = client.ask("data", count=4, seed=1)
    for n, code in enumerate(some["bits"]):
        found = client.ask("nearest", bits=code, count=64)
        assert found["distances"][0] == 0 and some["places"][n] in found["places"][: found["distances"].count(0)]
        own = [sum(a != b for a, b in zip(code, other, strict=True)) for other in found["bits"]]
        assert own == found["distances"] == sorted(own) and len(own) == state["images_in_all"]


def test_painted_pixels_stay_and_hidden_ones_are_filled_in(viewer: tuple[Trained, Client]) -> None:
    _, client = viewer
    painted = "".join("?" if row >= 14 else str(int(10 <= column < 13)) for row in range(28) for column in range(28))
    answer = client.ask("inpaint", pixels=painted, count=2, rounds=8)
    images = base64.b64decode(answer["images"])
    for image in (images[:784], images[784:]):
        assert set(image) == {0, 255}
        assert all(pixel == 255 * int(letter) for pixel, letter in zip(image, painted, strict=True) if letter != "?")
    assert len(answer["bits"]) == 2 and len(base64.b64decode(answer["mean"])) == 784
    kept = client.ask("inpaint", pixels="=" * 400 + "?" * 384, of=3, count=1, rounds=4)
    data = client.ask("data", count=30, seed=0)
    given = base64.b64decode(data["images"])[784 * data["places"].index(3) :][:400]
    assert base64.b64decode(kept["images"])[:400] == given


def test_requests_that_do_not_fit_the_model_are_refused_in_a_sentence(viewer: tuple[Trained, Client]) -> None:
    _, client = viewer
    assert client.refused("code", bits="101") == "bits must have 200 digits of 0 and 1, got 3"
    assert client.refused("inpaint", pixels="1" * 784).startswith("no pixel is hidden")
    assert client.refused("inpaint", pixels="?") == "pixels must have 784 letters, got 1"
    assert "one of the 30 images" in client.refused("inpaint", pixels="=?" * 392, of=30)
    assert "one of the 30 images" in client.refused("inpaint", pixels="=?" * 392)


def _desk(name: str, **changes: object) -> tuple[Trained, Desk]:
    torch.manual_seed(0)
    model = MODELS[name]()
    for attribute, value in changes.items():
        setattr(model, attribute, value)
    trained = Trained(model, build("demo"), {"step": 1, "dataset": "toy"})

    def absent() -> object:
        raise OSError("toy is not here: dvaepp data fetch toy")

    desk = Desk(trained, {}, absent)  # type: ignore[arg-type]
    desk.load_data()
    return trained, desk


@pytest.mark.parametrize("name", MODELS)
def test_codes_of_every_model_of_the_protocol_can_be_viewed(name: str) -> None:
    trained, desk = _desk(name)
    units, pixels = trained.model.num_units, 6
    about = desk.about(requests.Nothing())
    assert about["energy"] == (trained.model.boltzmann is not None) and sum(about["groups"]) == units
    code = "10110"[:units]
    first, again = (desk.code(requests.Code(bits=code, seed=3))["image"] for _ in range(2))
    assert first == again and len(base64.b64decode(first)) == pixels
    assert len(desk.effects(requests.Code(bits=code))["pixels"]) == units
    assert len(desk.walk(requests.Way(start=code, end="0" * units))["flipped"]) == code.count("1")


@pytest.mark.parametrize("name", ["dense, directed", "own, factorial", "dvae++"])
def test_models_draw_complete_and_measure_as_far_as_they_can(name: str) -> None:
    trained, desk = _desk(name)
    assert len(desk.samples(requests.Draw(count=2))["bits"]) == 2
    assert len(desk.inpaint(requests.Paint(pixels="?01???", count=2, rounds=4))["bits"]) == 2
    if trained.model.boltzmann is None:  # which is quick
        found = desk.units(requests.Nothing())
        assert found["own"] and len(found["kl"]) == trained.model.num_units


@pytest.mark.parametrize("name", ["own, gaussian", "own, function"])
def test_painting_is_refused_where_pixels_have_no_levels_or_cannot_be_drawn(name: str) -> None:
    _, desk = _desk(name)
    with pytest.raises(UsageError):
        desk.inpaint(requests.Paint(pixels="?01???", count=2, rounds=4))


def test_a_flip_changes_only_what_it_draws_where_latents_below_the_code_vary() -> None:
    _, desk = _desk("dvae++")
    walk = base64.b64decode(desk.walk(requests.Way(start="0000", end="1000", seed=7))["images"])
    ends = [base64.b64decode(desk.code(requests.Code(bits=b, seed=7))["image"]) for b in ("0000", "1000")]
    assert walk == b"".join(ends)


def test_without_binary_units_samples_remain_and_the_rest_is_explained() -> None:
    _, desk = _desk("dvae++", binary_code=False)
    assert desk.about(requests.Nothing())["groups"] == []
    assert desk.samples(requests.Draw(count=2))["bits"] is None
    for ask in (lambda: desk.code(requests.Code(bits="0000")), lambda: desk.units(requests.Nothing())):
        with pytest.raises(UsageError, match="no binary code"):
            ask()


def test_without_a_data_set_the_reason_is_told() -> None:
    _, desk = _desk("dense, rbm")
    assert desk.about(requests.Nothing())["data"] == {
        "missing": "toy is not here: dvaepp data fetch toy",
        "reading": False,
    }
    with pytest.raises(UsageError, match="dvaepp data fetch toy"):
        desk.nearest(requests.Near(bits="00000"))


def test_a_data_set_that_fails_while_it_is_encoded_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images are read piece by piece: a file can vanish after the data set was opened."""
    trained, _ = _desk("dense, rbm")
    data = as_dataset(torch.zeros(60, *trained.model.image_shape[1:]))
    desk = Desk(trained, {}, lambda: data)
    desk.load_data()
    monkeypatch.setattr(type(data), "images", Mock(side_effect=OSError("7.png has vanished")))
    assert not desk.grow()
    assert desk.about(requests.Nothing())["data"] == {"missing": "7.png has vanished", "reading": False}
    with pytest.raises(UsageError, match="vanished"):
        desk.nearest(requests.Near(bits="00000"))


def test_an_evaluation_with_strange_fields_leaves_out_its_numbers(tmp_path: Path) -> None:
    """evaluation.json may have come from a stranger, and its digest vouches for the model alone."""
    run = runs.export(RUN, tmp_path / "run")
    file = run / "evaluation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"log_likelihood": "high", "log_partition": "low"}))
    found = facts(run, runs.load(run))
    assert found["log_likelihood"] is None and found["log_z"] is None and found["standard_error"] > 0


@pytest.mark.parametrize("name", ["dense, rbm", "own, factorial"])
def test_measures_of_units_are_what_they_say(name: str) -> None:
    trained, _ = _desk(name)
    x = torch.randint(2, (9, *trained.model.image_shape), generator=torch.Generator().manual_seed(0)).float()
    q, p = trained.code_means(x).double(), marginals(trained, torch.Generator().manual_seed(5))
    found = measures(trained, x, p)
    assert bool(((p > 0) & (p < 1)).all())
    expected = kl_divergence(Bernoulli(q), Bernoulli(p.expand_as(q))).mean(0)
    torch.testing.assert_close(torch.tensor(found["kl"], dtype=torch.float64), expected, atol=1e-9, rtol=1e-6)
    assert found["activity"] == pytest.approx(q.var(0).tolist()) and (found["energy"] is None) == ("rbm" not in name)
