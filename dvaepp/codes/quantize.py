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
from dvaepp.models.binary_vae import BinaryVAE
from dvaepp.models.feedforward import FeedForward
from dvaepp.models.likelihoods import BernoulliPixels
from dvaepp.networks.dense import Dense
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.directed import Directed
from dvaepp.priors.factorial import Factorial
from dvaepp.priors.family import Prior

Map = tuple[Integers, Integers]
Floats = npt.NDArray[np.float64]
MEAN = 24  # fractional bits of the training mean
RESHAPING = (nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)  # which leave all numbers as they are, in evaluation


def integer_model(model: nn.Module) -> IntegerModel:
    """The integer form of a `BinaryVAE` with Bernoulli pixels and tanh networks; others are refused with the reason."""
    if not isinstance(model, BinaryVAE) or not isinstance(model.likelihood, BernoulliPixels):
        raise UsageError(
            f"a {type(model).__name__} cannot be coded in whole numbers: compression takes feed-forward models with "
            "binary pixels, such as those of table1 and table2"
        )
    encoders, decoder = [_maps(net) for net in model.encoders], _maps(model.decoder)
    if isinstance(model, FeedForward):
        encoders, decoder = _around_the_mean(model, encoders, decoder)
    networks = [IntegerNetwork(maps) for maps in encoders]
    return IntegerModel(networks, _prior(model.prior), IntegerNetwork(decoder), tuple(model.image_shape))


def _around_the_mean(
    model: FeedForward, encoders: list[list[Map]], decoder: list[Map]
) -> tuple[list[list[Map]], list[Map]]:
    """Encoders read x - mean, the decoder reads z or 2z - 1 and adds a fixed bias: all of it goes into biases."""
    mean = np.rint(_numbers(model.train_mean) * (1 << MEAN)).astype(np.int64)
    if model.centered_code:
        weight, bias = decoder[0]
        decoder[0] = 2 * weight, bias - weight.sum(1)
    weight, bias = decoder[-1]
    decoder[-1] = weight, bias + quantized(_numbers(model.output_bias))
    return [_centered(maps, mean) for maps in encoders], decoder


def _prior(prior: Prior) -> IntegerPrior:
    if isinstance(prior, BoltzmannPrior):
        return _boltzmann(prior)
    if isinstance(prior, Factorial):
        return DirectedIntegers(quantized(_numbers(prior.unit_logits)), [])
    if isinstance(prior, Directed):
        networks = [IntegerNetwork(_maps(net)) for net in prior.networks]
        return DirectedIntegers(quantized(_numbers(prior.first_logits)), networks)
    raise UsageError(f"a {type(prior).__name__} prior cannot be coded in whole numbers; use rbm, directed or factorial")


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
    """Integer weights and biases of a network in evaluation mode, tanh between its maps and batch norms folded in."""
    maps: list[tuple[Floats, Floats]] = []
    bent = True  # whether a tanh came since the last map: two maps in a row would be one
    for layer in _layers(net):
        if isinstance(layer, nn.Linear) and bent:
            weight = _numbers(layer.weight)
            maps.append((weight, _numbers(layer.bias) if layer.bias is not None else np.zeros(len(weight))))
            bent = False
        elif isinstance(layer, nn.modules.batchnorm._BatchNorm) and maps and not bent:
            maps[-1] = _normalized(maps[-1], layer)
        elif isinstance(layer, nn.Tanh) and maps and not bent:
            bent = True
        elif not isinstance(layer, RESHAPING):
            raise _refused(layer)
    if bent:
        raise UsageError("a network must end in a linear layer to be coded in whole numbers: its outputs are logits")
    return [(quantized(weight), quantized(bias)) for weight, bias in maps]


def _layers(net: nn.Module) -> list[nn.Module]:
    """The layers in order, also of a `Dense`, whose tanhs have no module."""
    if isinstance(net, nn.Sequential):
        return [layer for part in net for layer in _layers(part)]
    if not isinstance(net, Dense):
        return [net]
    layers: list[nn.Module] = []
    for index, layer in enumerate(net.layers):
        norms = [net.norms[index]] if index < len(net.norms) else []
        layers += [layer, *norms, nn.Tanh()]
    return layers[:-1]


def _normalized(found: tuple[Floats, Floats], norm: nn.modules.batchnorm._BatchNorm) -> tuple[Floats, Floats]:
    if norm.running_mean is None or norm.running_var is None or norm.weight is None:
        raise _refused(norm)
    weight, bias = found
    scale = _numbers(norm.weight) / np.sqrt(_numbers(norm.running_var) + norm.eps)
    return weight * scale[:, None], _numbers(norm.bias) + (bias - _numbers(norm.running_mean)) * scale


def _refused(layer: nn.Module) -> UsageError:
    return UsageError(
        f"a {type(layer).__name__} here cannot be coded in whole numbers; use nn.Sequential or Dense of linear maps, "
        "batch norms and tanh"
    )


def _numbers(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()
