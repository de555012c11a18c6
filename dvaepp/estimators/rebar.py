"""REBAR: the score function with a relaxed control variate that is reparameterised (Tucker et al. 2017; Table 1).

    z = 1[l + ε > 0],   ε = logit(ρ),   ζ = σ((s l + ε) / λ),   s = (λ² + λ + 1) / (λ + 1)

As λ -> 0, ζ -> z; the authors' s lets ζ -> μ as λ -> ∞, where the control variate becomes MuProp's. With c(ζ) = f(ζ) at
the relaxed point and ζ̃ a relaxed draw given z (noise v, so that ε̃ = ε̃(v, z, l)):

    g = (f(z) - η c(ζ̃)) (z - μ) + η ∂c(ζ)/∂l - η ∂c(ζ̃)/∂l,

where the two last terms hold ρ and v fixed. The authors tie v to ρ such that ε̃ = ε in value: v is the rank of ρ within
its half, uniform and independent of z, hence allowed. Then ζ̃ = ζ, one relaxed evaluation serves all terms, and the
derivatives differ only by what ε̃ does when l moves with v held: ρ = 1-μ+vμ for z = 1, ρ = v(1-μ) for z = 0, so

    κ = -∂ε̃/∂l = (1-μ)/ρ for z = 1,  μ/(1-ρ) for z = 0
    g = (f(z) - η c(ζ)) (z - μ) + η κ ζ(1-ζ)/λ ∂c/∂ζ.

With several layers, each layer a has a branch of its own: z_<a are as drawn, ζ_a is relaxed, and later layers are
relaxed in turn with the noise of the draw. Then c_a is a function of ζ_a and of noise that is independent of it, and
the identity above holds for each a. All branches are evaluated together. This construction is ours; with one layer it
is the authors'.

Each layer has its own η = 2 σ(·) and λ, which minimise the second moment of the estimate. The mean does not depend on
them, so that this minimises the variance. Departure: the authors take the second moment of the gradient of all
parameters; ours is that of g, the gradient of the logits, for each example and summed over units. It needs second
derivatives of c along ζ only, and no large matrix.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.estimators.base import Estimate, Estimator, Target
from dvaepp.estimators.draws import Layer, branch, draw, log_q_from, surrogate
from dvaepp.numerics import Evaluation


class REBAR(Estimator):
    """Relaxed control variate with learned scale η and temperature λ.

    Choose it for the least noise among Table 1's unbiased estimators; it needs a decoder for relaxed z.

    >>> REBAR([4], 5).unbiased
    True
    """

    unbiased = True
    needs_relaxed_target = True
    needs_directed_prior = True

    def __init__(self, layer_sizes: Sequence[int], context_size: int, *, temperature: float = 0.5) -> None:
        super().__init__(layer_sizes, context_size)
        if not temperature > 0:
            raise UsageError(f"temperature must be > 0, got {temperature:g}")
        start = torch.full((len(layer_sizes),), temperature, dtype=torch.float32).log()
        self.log_temperature = nn.Parameter(start)
        self.scale = nn.Parameter(torch.zeros(len(layer_sizes), dtype=torch.float32))  # η = 2 σ(0) = 1

    @property
    def eta(self) -> Tensor:
        return 2 * torch.sigmoid(self.scale)

    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        self.check_target(target)
        layers = draw(target, generator)
        log_joint = target.log_joint([layer.z for layer in layers])
        signal = log_joint.detach() - torch.stack(log_q_from(layers))
        gradients = self._gradients(target, layers, signal)
        return Estimate(surrogate(log_joint, layers, gradients), signal[0], self._own_loss(gradients))

    def _gradients(self, target: Target, layers: Sequence[Layer], signal: Tensor) -> list[Tensor]:
        """g_a of every layer, with a graph to the estimator's own parameters alone or beside the model's."""
        temperature = self.log_temperature.exp()

        def relax(a: int, logits: Tensor, rho: Tensor) -> Tensor:
            t = temperature[a]
            return torch.sigmoid((logits * ((t * t + t + 1) / (t + 1)) + torch.logit(rho)) / t)

        split = [relax(a, layer.logits.detach(), layer.rho) for a, layer in enumerate(layers)]
        if not temperature.requires_grad:
            split = [s.requires_grad_() for s in split]
        values = branch(target, layers, split, relax)
        slopes = torch.autograd.grad(values.sum(), split, create_graph=self._learns)
        if len(layers) == 1:
            # λ changes c through ζ alone, and ∂c/∂ζ is known already, which saves a second pass through the model.
            values = values.detach() + (slopes[0].detach() * (split[0] - split[0].detach())).sum(-1)
        c = [Evaluation(value, slope) for value, slope in zip(values, slopes, strict=True)]
        return [
            (signal[a] - value)[:, None] * layer.score + slope * (s * (1 - s) * (tied_slope(layer) / temperature[a]))
            for a, (layer, s, (value, slope)) in enumerate(
                zip(layers, split, self.control(target, layers, split, c), strict=True)
            )
        ]

    def control(
        self, target: Target, layers: Sequence[Layer], split: Sequence[Tensor], c: Sequence[Evaluation]
    ) -> list[Evaluation]:
        """The control variate η c(ζ) of every layer, and its derivative in ζ."""
        return [Evaluation(eta * value, eta * slope) for eta, (value, slope) in zip(self.eta, c, strict=True)]

    @property
    def _learns(self) -> bool:
        return any(parameter.requires_grad for parameter in self.parameters())

    def _own_loss(self, gradients: Sequence[Tensor]) -> Tensor | None:
        """The second moment of g, whose gradient is taken here: a backward pass through it would reach the model."""
        if not self._learns:
            return None
        moment = torch.stack([g.square().sum(-1).mean() for g in gradients]).sum()
        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        loss = moment.detach()
        for parameter, slope in zip(parameters, torch.autograd.grad(moment, parameters), strict=True):
            loss = loss + (slope * (parameter - parameter.detach())).sum()
        return loss


def tied_slope(layer: Layer) -> Tensor:
    """κ = -∂ε̃/∂l, in (0, 1): (z - μ) / (ρ - 1 + z)."""
    return layer.score / (layer.rho - 1 + layer.z)
