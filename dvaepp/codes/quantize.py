"""The model of a run in whole numbers, for coding.

Batch norm is folded into the weights in float64 by roots, products and quotients of single numbers, which every machine
rounds alike; sums are taken after rounding to integers. So the same checkpoint gives the same integers everywhere.
"""

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from dvaepp.codes.bits_back import IntegerModel
from dvaepp.codes.integer_network import IntegerNetwork, quantized
from dvaepp.codes.integer_priors import BoltzmannIntegers, DirectedIntegers, IntegerPrior
from dvaepp.codes.integers import Integers, rounded_shift
from dvaepp.errors import UsageError
from dvaepp.models.feedforward import FeedForward
from dvaepp.networks.dense import EPS, Dense
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.directed import Directed

Map = tuple[Integers, Integers]
MEAN = 24  # fractional bits of the training mean


def integer_model(model: nn.Module) -> IntegerModel:
    """The integer form of a feed-forward model with Bernoulli pixels; others are refused with the reason."""
    if not isinstance(model, FeedForward):
        raise UsageError(
            f"a {type(model).__name__} cannot be coded in whole numbers: compression takes feed-forward models with "
            "binary pixels, such as those of table1 and table2"
        )
    mean = np.rint(_numbers(model.train_mean) * (1 << MEAN)).astype(np.int64)
    encoders = [_centered(_maps(net), mean) for net in model.encoders]
    decoder = _maps(model.decoder)
    if model.centered_code:  # 2z - 1 of bits z
        weight, bias = decoder[0]
        decoder[0] = 2 * weight, bias - weight.sum(1)
    weight, bias = decoder[-1]
    decoder[-1] = weight, bias + quantized(_numbers(model.output_bias))
    networks = [IntegerNetwork(maps) for maps in encoders]
    return IntegerModel(networks, _prior(model), IntegerNetwork(decoder), tuple(model.image_shape))


def _prior(model: FeedForward) -> IntegerPrior:
    if model.boltzmann is not None:
        return _boltzmann(model.boltzmann)
    if not isinstance(model.prior, Directed):
        raise UsageError(f"a {type(model.prior).__name__} prior cannot be coded in whole numbers; use rbm or directed")
    networks = [IntegerNetwork(_maps(net)) for net in model.prior.networks]
    return DirectedIntegers(quantized(_numbers(model.prior.first_logits)), networks)


def _boltzmann(prior: BoltzmannPrior) -> BoltzmannIntegers:
    """All units but the largest block, which is independent given the others, are enumerated."""
    bias, matrix = prior.couplings()
    largest = max(prior.blocks(), key=len)
    return BoltzmannIntegers(quantized(_numbers(bias)), quantized(_numbers(matrix)), largest.tolist())


def _centered(maps: list[Map], mean: Integers) -> list[Map]:
    """The same maps for x in place of x - mean, x being the first inputs."""
    weight, bias = maps[0]
    return [(weight, bias - rounded_shift(weight[:, : len(mean)] @ mean, MEAN)), *maps[1:]]


def _maps(net: nn.Module) -> list[Map]:
    """Integer weights and biases of a dense network in evaluation mode, its batch norms folded in."""
    if not isinstance(net, Dense):
        raise UsageError(
            f"a {type(net).__name__} cannot be coded in whole numbers; use networks of dvaepp.networks.dense"
        )
    maps = []
    for index, layer in enumerate(net.layers):
        weight = _numbers(layer.get_parameter("weight"))
        bias = _numbers(layer.bias) if isinstance(layer.bias, Tensor) else np.zeros(len(weight))
        if index < len(net.norms):
            norm = net.norms[index]
            scale = _numbers(norm.get_parameter("weight")) / np.sqrt(_numbers(norm.get_buffer("running_var")) + EPS)
            weight = weight * scale[:, None]
            bias = _numbers(norm.get_parameter("bias")) + (bias - _numbers(norm.get_buffer("running_mean"))) * scale
        maps.append((quantized(weight), quantized(bias)))
    return maps


def _numbers(tensor: Tensor) -> npt.NDArray[np.float64]:
    return tensor.detach().cpu().double().numpy()
