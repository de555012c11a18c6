"""Bits-back coding beside oracles that share no code with it: torch in float64, and the coder of `constriction`.

By hand: let L be the length of the stack in bits. Popping z_i by q(z_i|x_i) adds log2 q(z_i|x_i) to it, pushing x_i
adds -log2 p(x_i|z_i), and pushing z_i adds -log2 p(z_i). Over a chain the lengths between images cancel,

    L_n - L_0 = Σ_i [log2 q(z_i|x_i) - log2 p(x_i|z_i) - log2 p(z_i)],

which is the one-sample bound at the very codes that were popped: no average over z is needed to check it.
"""

import math

import constriction
import numpy as np
import pytest
import torch
from torch import Tensor

from dvaepp.codes import archive
from dvaepp.codes.ans import TOTAL, BitStack
from dvaepp.codes.bits_back import pop_image, push_image
from dvaepp.codes.quantize import integer_model
from dvaepp.models.binary_vae import BinaryVAE
from tests.codes.toy import MODELS, SHAPE, images

WORDS = 200  # random ones below the first image
BERNOULLI = constriction.stream.model.Bernoulli(perfect=False)


class Recorder(BitStack):
    """A stack that keeps what is popped: the codes that an encoder chose."""

    def __init__(self, words: list[int]) -> None:
        super().__init__(2**40 + 12345, words, lend=False)
        self.popped: list[list[int]] = []

    def pop(self, ones):
        self.popped.append(super().pop(ones))
        return self.popped[-1]


def _log2_prob(bits: Tensor, logits: Tensor) -> Tensor:
    return torch.distributions.Bernoulli(logits=logits.reshape(bits.shape)).log_prob(bits).sum(-1) / math.log(2)


def _log2_prior(model: BinaryVAE, z: Tensor) -> Tensor:
    """Normalised by a sum over all codes, which directed priors do not need and Boltzmann machines do."""
    states = ((torch.arange(2 ** z.shape[1])[:, None] >> torch.arange(z.shape[1])) & 1).double()
    log_z = torch.logsumexp(model.prior.unnormalized_log_prob(states), 0)
    return (model.prior.unnormalized_log_prob(z) - log_z) / math.log(2)


@torch.no_grad()
def _one_sample_bounds(model: BinaryVAE, x: Tensor, z: Tensor) -> Tensor:
    """log2 q(z|x) - log2 p(x|z) - log2 p(z) of each image, without a whole number in it."""
    groups = list(z.split(model.group_sizes, -1))
    logits = [encoder(model.context(x), *groups[:a]) for a, encoder in enumerate(model.encoders)]
    log_q = torch.stack([_log2_prob(g, q) for g, q in zip(groups, logits, strict=True)]).sum(0)
    return log_q - _log2_prob(x.flatten(1), model.likelihood_parameters(groups)) - _log2_prior(model, z)


@pytest.mark.parametrize("name", MODELS)
def test_the_length_of_a_chain_telescopes_to_the_one_sample_bound(name: str) -> None:
    """Image by image, within 0.02 of about 30 bits; that z is paid for and refunded amounts to several bits."""
    model, pixels, random = MODELS[name](), images(40), np.random.default_rng(5)
    integers = integer_model(model)
    words = random.integers(0, 2**32, WORDS).tolist()
    stack = Recorder(words)
    start, lengths, codes = stack.bits, [], []
    for image in pixels.reshape(len(pixels), -1).astype(np.int64):
        push_image(stack, integers, image)
        lengths.append(stack.bits - start)
        codes.append([bit for group in stack.popped for bit in group])
        stack.popped.clear()
    x, z = torch.from_numpy(pixels).double(), torch.tensor(codes).double()
    bounds = _one_sample_bounds(model.double(), x, z).numpy()
    assert np.abs(np.diff([0.0, *lengths]) - bounds).max() < 0.02
    assert abs(lengths[-1] - bounds.sum()) < 0.1  # of about 1200 bits: rounding does not add up
    for image in pixels[::-1].reshape(len(pixels), -1):
        assert np.array_equal(pop_image(stack, integers), image)
    assert stack.words == words and stack.state == 2**40 + 12345


def test_a_kept_librarys_coder_spends_as_many_bits() -> None:
    """The same symbols at the same probabilities, likely and unlikely ones; both within a word of their information."""
    random = np.random.default_rng(6)
    for sharpness in (0.5, 3, 8):
        ones = np.clip(np.rint(TOTAL / (1 + np.exp(-sharpness * random.normal(size=5000)))), 1, TOTAL - 1).astype(int)
        symbols = (random.random(5000) < ones / TOTAL).astype(np.int32)
        mine, theirs = BitStack(), constriction.stream.stack.AnsCoder()
        mine.push(symbols.tolist(), ones.tolist())
        theirs.encode_reverse(symbols, BERNOULLI, ones / TOTAL)
        information = -np.log2(np.where(symbols, ones, TOTAL - ones) / TOTAL).sum()
        assert abs(mine.bits - information) < 1 and abs(theirs.num_valid_bits() - information) < 33
        assert np.array_equal(theirs.decode(BERNOULLI, ones / TOTAL), symbols)


class Peer:
    """Bits-back coding of `constriction` around torch's own networks in float64, written from the formulas alone."""

    def __init__(self, model: BinaryVAE) -> None:
        self.model = model.double()
        words = np.random.default_rng(7).integers(0, 2**32, WORDS, dtype=np.uint32)
        self.coder = constriction.stream.stack.AnsCoder(words, seal=True)

    def _pop(self, logits: Tensor) -> Tensor:
        bits = self.coder.decode(BERNOULLI, torch.sigmoid(logits).flatten().numpy())
        return torch.from_numpy(bits).double().reshape(1, -1)

    def _push(self, bits: Tensor, logits: Tensor) -> None:
        symbols = bits.flatten().to(torch.int32).numpy()
        self.coder.encode_reverse(symbols, BERNOULLI, torch.sigmoid(logits).flatten().numpy())

    def _prior(self, groups: list[Tensor]) -> list[Tensor]:
        """Logits of every group given the earlier ones; what stands for later ones does not matter."""
        later = [torch.zeros(1, size, dtype=torch.float64) for size in self.model.group_sizes[len(groups) :]]
        return [each.double() for each in self.model.prior.logits([*groups, *later])]

    def push(self, x: Tensor) -> None:
        groups: list[Tensor] = []
        for encoder in self.model.encoders:
            groups.append(self._pop(encoder(self.model.context(x), *groups)))
        self._push(x, self.model.likelihood_parameters(groups))
        for bits, logits in reversed(list(zip(groups, self._prior(groups), strict=True))):
            self._push(bits, logits)

    def pop(self) -> Tensor:
        groups: list[Tensor] = []
        for a in range(len(self.model.group_sizes)):
            groups.append(self._pop(self._prior(groups)[a]))
        x = self._pop(self.model.likelihood_parameters(groups)).reshape(1, *SHAPE)
        for a in reversed(range(len(groups))):
            self._push(groups[a], self.model.encoders[a](self.model.context(x), *groups[:a]))
        return x


@torch.no_grad()
def test_another_coder_around_the_same_model_needs_as_many_bits() -> None:
    """300 images, other random codes, image beside image: the mean difference is within five standard errors."""
    pixels = images(300)
    x = torch.from_numpy(pixels).double()
    mine = np.array(archive.compress(integer_model(MODELS["three groups"]()), pixels).bits)[::-1]  # last image first
    peer, theirs = Peer(MODELS["three groups"]()), []
    for image in x[:, None]:
        before = peer.coder.num_valid_bits()
        peer.push(image)
        theirs.append(peer.coder.num_valid_bits() - before)
    error = np.std(mine - theirs) / math.sqrt(len(pixels))
    assert abs(np.mean(mine - theirs)) < 5 * error < 0.1 * mine.mean()  # the refund of z is more than that
    for image in reversed(x):
        assert torch.equal(peer.pop()[0], image)
