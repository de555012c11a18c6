"""Lossless coding: the stack beside information content, integers beside mpmath, archives beside their images."""

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dvaepp.codes import archive, integers
from dvaepp.codes.ans import PRECISION, TOTAL, BitStack, borrowed_word
from dvaepp.codes.bits_back import push_image
from dvaepp.codes.integer_network import IntegerNetwork, quantized
from dvaepp.codes.integer_priors import BoltzmannIntegers
from dvaepp.codes.quantize import integer_model
from dvaepp.errors import UsageError
from dvaepp.models.binary_vae import BinaryVAE
from tests.codes.toy import MODELS, SHAPE, own
from tests.codes.toy import images as drawn
from tests.codes.toy import model as small

FREQUENCIES = st.lists(st.integers(1, TOTAL - 1), min_size=1, max_size=200)


@settings(max_examples=100, deadline=None)
@given(ones=FREQUENCIES, seed=st.integers(0, 2**32))
def test_what_was_pushed_is_popped_and_what_was_popped_is_pushed_back(ones: list[int], seed: int) -> None:
    symbols = (np.random.default_rng(seed).random(len(ones)) < np.array(ones) / TOTAL).astype(int).tolist()
    stack = BitStack()
    stack.push(symbols, ones)
    assert stack.pop(ones) == symbols and stack.is_back_at_start()
    taken = stack.pop(ones)  # borrows
    stack.push(taken, ones)
    assert stack.is_back_at_start() and len(stack.words) == stack.borrowed


def test_symbols_cost_their_information_and_borrowed_bits_are_random() -> None:
    random = np.random.default_rng(0)
    ones = random.integers(1, TOTAL, 20_000)
    symbols = (random.random(20_000) < ones / TOTAL).astype(int)
    stack = BitStack()
    stack.push(symbols.tolist(), ones.tolist())
    exact = -np.log2(np.where(symbols, ones, TOTAL - ones) / TOTAL).sum()
    assert stack.bits == pytest.approx(exact, rel=1e-4)
    taken = BitStack().pop([TOTAL // 4] * 20_000)
    assert abs(np.mean(taken) - 0.25) < 0.0153  # five standard errors
    assert len({borrowed_word(i) for i in range(1000)}) == 1000


def test_integer_functions_are_right_to_their_last_bits() -> None:
    x = np.rint(np.linspace(-30, 30, 401) * 2**integers.LOGIT).astype(np.int64)
    exact = [mpmath.mpf(int(v)) / 2**integers.LOGIT for v in x]
    unit = 2**integers.UNIT
    powers = integers.exp_minus(np.abs(x))
    assert max(abs(p - unit * mpmath.exp(-abs(v))) for p, v in zip(powers.tolist(), exact, strict=True)) < 4
    curves = integers.tanh(x, 16)
    assert max(abs(t - 2**16 * mpmath.tanh(v)) for t, v in zip(curves.tolist(), exact, strict=True)) < 1.01
    soft = integers.softplus(x)
    assert max(abs(s - unit * mpmath.log1p(mpmath.exp(v))) for s, v in zip(soft.tolist(), exact, strict=True)) < 16
    ones = integers.frequencies(x)
    assert ones.min() == 1 and ones.max() == TOTAL - 1
    sigmoids = [min(max(TOTAL / (1 + mpmath.exp(-v)), 1), TOTAL - 1) for v in exact]
    assert max(abs(o - s) for o, s in zip(ones.tolist(), sigmoids, strict=True)) < 0.51


def test_no_number_overflows_at_the_ends_of_its_range() -> None:
    ends = np.array([-(2**52), -(2**33), 0, 2**33, 2**52], np.int64)
    assert integers.frequencies(ends).tolist() == [1, 1, TOTAL // 2, TOTAL - 1, TOTAL - 1]
    assert integers.tanh(ends, 16).tolist() == [-65536, -65536, 0, 65536, 65536]


@pytest.mark.parametrize("name", MODELS)
def test_images_come_back(name: str) -> None:
    model, images = integer_model(MODELS[name]()), drawn(30)
    made = archive.compress(model, images)
    assert np.array_equal(archive.decompress(model, made.data), images)
    assert archive.compress(model, images).data == made.data
    assert archive.decompress(model, archive.compress(model, images[:0]).data).shape == (0, *SHAPE)


def _log_prob(bits: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Bernoulli(logits=logits).log_prob(bits).sum(-1)


def _negative_elbo(model: BinaryVAE, x: torch.Tensor) -> torch.Tensor:
    """E_q[log q(z|x) - log p(x|z) - log p(z)] in bits by enumeration of all codes, (images,)."""
    units = model.num_units
    model = model.double()
    z = ((torch.arange(2**units)[:, None] >> torch.arange(units)) & 1).double()
    groups = list(z.split(model.group_sizes, -1))
    log_p = torch.log_softmax(model.prior.unnormalized_log_prob(z), 0)  # directed ones are normalised already
    costs = []
    for image in x.double():
        context = model.context(image[None].expand(len(z), *SHAPE))
        logits = [encoder(context, *groups[:a]) for a, encoder in enumerate(model.encoders)]
        log_q = sum(_log_prob(g, q) for g, q in zip(groups, logits, strict=True))
        pixels = model.likelihood_parameters(groups).reshape(len(z), -1)
        log_x = _log_prob(image.flatten().expand(len(z), -1), pixels)
        costs.append((log_q.exp() * (log_q - log_x - log_p)).sum() / math.log(2))
    return torch.stack(costs)


@pytest.mark.parametrize("name", MODELS)
def test_the_net_length_is_the_bound(name: str) -> None:
    """One image 600 times, each on top of fresh random bits. Failure rate below 1e-6 (five standard errors).

    In a chain the bits below are what earlier images left there, which is random only as far as the model fits them.
    """
    model, image, random = MODELS[name](), drawn(1), np.random.default_rng(0)
    integer, bits = integer_model(model), []
    for _ in range(600):
        stack = BitStack(int(random.integers(2**32, 2**63)), random.integers(0, 2**32, 40).tolist())
        before = stack.bits
        push_image(stack, integer, image.reshape(-1).astype(np.int64))
        bits.append(stack.bits - before)
    with torch.no_grad():
        expected = _negative_elbo(model, torch.from_numpy(image)).item()
    error = np.std(bits) / math.sqrt(600)
    assert abs(np.mean(bits) - expected) < 5 * error + 0.01, (np.mean(bits), expected, error)
    assert 5 * error < 0.05 * expected  # sharp enough to notice 5 %: leaving out the refund of z costs far more


def test_a_boltzmann_prior_is_coded_by_its_probabilities() -> None:
    """Every state of a small machine that is no RBM, beside its probability by enumeration."""
    random = np.random.default_rng(2)
    bias, upper = random.normal(size=6), np.triu(random.normal(size=(6, 6)), 1)
    upper[1, 4] = upper[1, 5] = upper[4, 5] = 0  # units 1, 4, 5 are independent given the others
    prior = BoltzmannIntegers(quantized(bias), quantized(upper + upper.T), [1, 4, 5])
    states = (np.arange(64)[:, None] >> np.arange(6)) & 1
    energy = -states @ bias - ((states @ upper) * states).sum(1)
    exact = -np.log2(np.exp(-energy) / np.exp(-energy).sum())
    for z, bits in zip(states, exact, strict=True):
        stack = BitStack()
        prior.push(stack, z)
        assert stack.bits == pytest.approx(bits, abs=2e-3)
        assert np.array_equal(prior.pop(stack), z) and stack.is_back_at_start()


def test_what_cannot_be_coded_is_refused_with_the_reason() -> None:
    with pytest.raises(UsageError, match="20 units must be enumerated, and at most 16 can be"):
        integer_model(small([40], "rbm"))
    with pytest.raises(UsageError, match="a Linear cannot be coded"):
        integer_model(torch.nn.Linear(2, 2))
    with pytest.raises(UsageError, match="a Sigmoid here cannot be coded"):
        integer_model(own(last=nn.Sequential(nn.Linear(9, 25), nn.Sigmoid())))
    with pytest.raises(UsageError, match="a Linear here cannot be coded"):
        integer_model(own(last=nn.Sequential(nn.Linear(9, 9), nn.Linear(9, 25))))
    with pytest.raises(UsageError, match="must end in a linear layer"):
        integer_model(own(last=nn.Sequential(nn.Linear(9, 25), nn.Tanh())))
    with pytest.raises(UsageError, match="zeros and ones: what is grey would not come back"):
        archive.compress(integer_model(small([3])), np.full((1, *SHAPE), 7, np.uint8))
    with pytest.raises(UsageError, match=r"images must have shape \(n, 1, 5, 5\)"):
        archive.compress(integer_model(small([3])), np.zeros((1, 1, 4, 5), np.uint8))
    with pytest.raises(UsageError, match="a sum may pass 2\\^53"):
        IntegerNetwork([(np.array([[2**40]] * 2), np.zeros(2, int)), (np.full((1, 2), 2**38), np.zeros(1, int))])
    with pytest.raises(UsageError, match="weights must be finite"):
        quantized([np.nan])


def test_no_archive_is_made_that_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MOST_PIXELS", 74)
    model = integer_model(small([3]))
    assert len(archive.decompress(model, archive.compress(model, drawn(2)).data)) == 2
    with pytest.raises(UsageError, match="an archive takes at most 74 pixels, got 75: make several"):
        archive.compress(model, drawn(3))


def _altered(content: bytearray, random: np.random.Generator) -> bytearray:
    """Another state, other words, another number of images, a flipped bit, or a word left out; 48 bytes are header."""
    kind, words = random.integers(0, 5), (len(content) - 48) // 4
    if kind == 0:
        content[40:48] = int(random.integers(2**32, 2**63)).to_bytes(8, "little")
    elif kind == 1:
        content[48:] = random.bytes(4 * words)
    elif kind == 2:
        content[24:28] = int(random.integers(0, 12) * 2).to_bytes(4, "little")  # there are 11
    elif kind == 3:
        content[int(random.integers(24, len(content)))] ^= 1 << int(random.integers(0, 8))
    else:
        place = 48 + 4 * int(random.integers(0, words))
        del content[place : place + 4]
    return content


@pytest.mark.parametrize("name", MODELS)
def test_a_checksum_made_anew_turns_no_damage_into_images(name: str) -> None:
    """Whoever alters an archive can compute its checksum; the coder must still end where it began."""
    model, random = integer_model(MODELS[name]()), np.random.default_rng(4)
    whole = archive.compress(model, drawn(11)).data
    for _ in range(60):
        content = bytes(_altered(bytearray(whole[:-16]), random))
        with pytest.raises(archive.Damaged, match="the archive is damaged"):
            archive.decompress(model, content + hashlib.sha256(content).digest()[:16])


def test_another_model_is_refused() -> None:
    model = small([4])
    data = archive.compress(integer_model(model), drawn(3)).data
    with torch.no_grad():
        model.decoder.layers[0].weight[0, 0] += 1e-5
    with pytest.raises(UsageError, match="made with another model"):
        archive.decompress(integer_model(model), data)


def test_products_in_another_order_give_the_same_integers() -> None:
    """float64 sums of integers below 2^53 are exact; the same weights unrounded give sums that depend on the order."""
    random = np.random.default_rng(3)
    weight, bits = random.normal(size=(40, 784)), random.random((50, 784)) < 0.3
    network = IntegerNetwork(
        [(quantized(weight), quantized(np.zeros(40))), (quantized(weight[:, :40]), quantized(np.zeros(40)))]
    )
    together = network.logits(bits)
    assert np.array_equal(together, np.stack([network.logits(row) for row in bits]))
    order = random.permutation(784)
    shuffled = IntegerNetwork(
        [(quantized(weight[:, order]), quantized(np.zeros(40))), (quantized(weight[:, :40]), quantized(np.zeros(40)))]
    )
    assert np.array_equal(together, shuffled.logits(bits[:, order]))
    unrounded = (
        bits.astype(float) @ weight.T,
        np.stack([np.cumsum(row[order] * weight[:, order], 1)[:, -1] for row in bits]),
    )
    assert not np.array_equal(*unrounded)


CHILD = """
import sys, torch
torch.set_num_threads(2)
from dvaepp.codes import archive
from dvaepp.codes.quantize import integer_model
from tests.codes.toy import MODELS, images
sys.stdout.buffer.write(archive.compress(integer_model(MODELS["three groups"]()), images(20)).data)
"""


def test_threads_and_kernels_change_no_byte() -> None:
    """Made in a process with two threads and without kernels, read in this one with one thread and with them."""
    switches = {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "DVAEPP_KERNEL": "off"}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, env=os.environ | switches, cwd=root)
    assert done.returncode == 0, done.stderr.decode()
    model = integer_model(MODELS["three groups"]())
    assert done.stdout == archive.compress(model, drawn(20)).data
    assert np.array_equal(archive.decompress(model, done.stdout), drawn(20))
    assert PRECISION == 20  # a change of it is a new version of the format
