"""Smoothing transformations r(ζ|z) of binary units (Sec. 3): what every member shares.

A smoothing replaces a binary z by a continuous ζ that follows it, so that gradients pass:

    q(ζ|x) = Σ_z q(z|x) r(ζ|z)                                                  (Eq. 2)

`Smoothing.sample(logits, rho)` maps uniform noise ρ to ζ ~ q(ζ|x) by inverting its CDF F. The derivative is
that of the implicit function F(ζ, μ) = ρ and never that of the root's formula, which breaks in float32:

    ∂ζ/∂μ = (F₀(ζ) - F₁(ζ)) / ((1-μ) r(ζ|0) + μ r(ζ|1)),   ∂ζ/∂logit = μ (1-μ) ∂ζ/∂μ

The same theorem gives the derivative in every parameter θ of the smoothing (β, a scale, ...) that is a tensor which
requires gradients, so that a smoothing can be learned together with the networks:

    ∂ζ/∂θ = -∂F(ζ, μ, θ)/∂θ / ((1-μ) r(ζ|0) + μ r(ζ|1))

An `Overlapping` smoothing has densities r(ζ|0) and r(ζ|1) on one common support, mirror images of each other
about `center`; then q(z|x, ζ) is not a step and the bounds of Sec. 4 and 5 need no gradients by hand. A new
member states r(ζ|0) and its CDF; mixture, inversion and gradients follow. It can be sampled in a second way,
`sample_components(logits, rho)`, which draws z and then ζ ~ r(ζ|z) (see `components.py`): the law of ζ and of its
derivatives is the same, and no mixture is inverted. Public methods check their arguments, underscored ones compute.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import logsigmoid

from dvaepp.numerics import (
    Evaluation,
    as_float64,
    flushed,
    full_precision,
    in_dtype,
    increasing_root,
    known_signature,
    saturate,
    working_dtype,
)
from dvaepp.smoothing.components import split
from dvaepp.smoothing.quadratic import add_scaled_
from dvaepp.types import Parameter, Units


class Inverse(NamedTuple):
    """ζ = F⁻¹(ρ) and ∂ζ/∂logit; the slope is None where nobody asked for it."""

    zeta: Tensor
    slope: Tensor | None


class Moments(NamedTuple):
    """Mean and variance of r(ζ|z=0)."""

    mean: Parameter
    variance: Parameter


@dataclass(frozen=True)
class Smoothing(ABC):
    """A map from uniform noise to a relaxed binary unit.

    `validate_args` works as in torch.distributions: None follows Python's `-O`; a training loop passes
    False and pays for no check of values. Shapes are always checked.

    Choose it as the base of a smoothing of your own whose two densities do not overlap; a recipe takes any member.

    >>> isinstance(Concrete(0.5), Smoothing), isinstance(Concrete(0.5), Overlapping)
    (True, False)
    """

    validate_args: bool | None = field(default=None, kw_only=True, compare=False, repr=False)

    @property
    def validates(self) -> bool:
        return __debug__ if self.validate_args is None else self.validate_args

    def sample(self, logits: Units, rho: Units) -> Units:
        """ζ = F⁻¹(ρ) for the mixture with μ = sigmoid(logits); differentiable in logits and parameters (Eq. 3).

        `rho` in [0, 1] broadcasts against `logits`. Infinite logits are certain z: ζ follows r(ζ|z) and the
        gradient in the logits is zero. Half precision is computed in float32.
        """
        return self._sample(*self._checked(logits, rho))

    def draw(self, logits: Units, rho: Units) -> Units:
        """ζ ~ q(ζ|x) with its derivative, in the cheapest way that the member has: what models train with.

        It is `sample` unless the inverse CDF has to be searched for, as a power law's or a normal mixture's has.
        """
        return self.sample(logits, rho)

    @abstractmethod
    def _sample(self, logits: Tensor, rho: Tensor) -> Tensor:
        """`sample` after checks, on equal shapes and types."""

    def _checked(self, logits: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and noise in one shape and type; values that no unit can have are refused."""
        parameters = self.parameters()
        if logits.shape != rho.shape or parameters:
            shape = broadcast_shape(logits=logits, rho=rho, **parameters)
            logits, rho = logits.expand(shape), rho.expand(shape)
        if self.validates:
            check_values("logits", logits, ~torch.isnan(logits), "anything but NaN")
            check_values("rho", rho, (rho >= 0) & (rho <= 1), "in [0, 1]")
        dtype = torch.promote_types(logits.dtype, rho.dtype)
        return logits.to(dtype), rho.to(dtype)

    def parameters(self) -> dict[str, Tensor]:
        """Parameters given per unit, whose shapes must broadcast against the logits."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def learns(self) -> bool:
        """Whether a parameter requires a gradient now."""
        return torch.is_grad_enabled() and any(value.requires_grad for value in self.parameters().values())

    def positive(self, *names: str, remedy: str = "") -> None:
        """Refuse parameters that are not finite and > 0; integers become floats."""
        for name in names:
            self.require(name, lambda v: (v > 0) & (v < torch.inf), "finite and > 0", remedy)

    def require(self, name: str, allowed: Callable[[Tensor], Tensor], range: str, remedy: str = "") -> None:
        """Check parameter `name` against a condition; `remedy` ends the message."""
        value = getattr(self, name)
        if not isinstance(value, Tensor):
            object.__setattr__(self, name, value := float(value))
            value = torch.tensor(value, dtype=torch.float64, device="cpu")
        elif not self.validates:
            return
        check_values(name, value, allowed(value), range, remedy)


class _ImplicitFunction(torch.autograd.Function):
    """Attach a derivative to an already computed ζ: ∂ζ/∂source = slope, elementwise."""

    generate_vmap_rule = True

    @staticmethod
    @known_signature
    def forward(source: Tensor, zeta: Tensor, slope: Tensor) -> Tensor:
        return zeta.view_as(zeta)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        source, slope = ctx.saved_tensors
        through_slope = flushed(grad * slope)  # where ζ is near a pole of its density, both are tiny
        if torch.is_grad_enabled():  # somebody may differentiate this gradient
            through_slope = _Once.apply(through_slope, source)
        return through_slope, grad if ctx.needs_input_grad[1] else None, None


class _FirstOrder(torch.autograd.Function):
    """The identity, with a gradient that cannot be differentiated."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Once.apply(grad, *ctx.saved_tensors)


class _Once(torch.autograd.Function):
    """A gradient that refuses to be differentiated, as a function of the `source` that it belongs to.

    Without the source, a gradient that happens to be constant in everything else would count as one without a second
    derivative, and sums with other terms would lose theirs without a word.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, source: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        raise RuntimeError(
            "no second derivatives: a sample of a smoothing has its slope from the implicit function theorem, and "
            "rolfe_kl, relaxed_kl and path_only hold quantities constant that their first derivative does not need; "
            "samples of Concrete, and boltzmann_kl, joint and marginal at given points have them"
        )


def first_order(x: Tensor) -> Tensor:
    """x, whose gradient is right and whose second derivatives are refused."""
    return _FirstOrder.apply(x)


def attach(source: Tensor, zeta: Tensor, slope: Tensor) -> Tensor:
    """ζ in value, with ∂ζ/∂source = slope beside whatever derivative ζ has already."""
    return _ImplicitFunction.apply(source, zeta, slope)


def implicit_sample(solve: Callable[[Tensor, Tensor, bool], Inverse], logits: Tensor, rho: Tensor) -> Tensor:
    """Run `solve(logits, rho, with_slope)` without autograd and hang its slope on the result.

    Half precision is solved in float32.
    """
    with_slope = torch.is_grad_enabled() and logits.requires_grad
    dtype, work = logits.dtype, working_dtype(logits.dtype)
    with torch.no_grad():
        zeta, slope = _solved(solve, logits.detach().to(work), rho.detach().to(work), with_slope)
        zeta = zeta.to(dtype)
        if slope is None:
            return zeta
        slope = slope if dtype == work else saturate(slope, dtype)
    return attach(logits, zeta, slope)


class _Elementwise(torch.autograd.Function):
    """ζ and its slope from a solver that works element by element, for `torch.func.vmap`.

    A solver iterates until all elements are solved and works in place, neither of which vmap can look into. It need
    not: for a function of elements a mapped axis is one more axis.
    """

    @staticmethod
    def forward(solve: Callable[[Tensor, Tensor, bool], Inverse], logits: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        zeta, slope = solve(logits, rho, True)
        assert slope is not None
        return zeta, slope

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        return None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[None, int | None, int | None], solve: Any, logits: Tensor, rho: Tensor) -> Any:
        unmapped = logits.shape if in_dims[1] is None else logits.movedim(in_dims[1], 0).shape[1:]
        shape = (info.batch_size, *unmapped)
        moved = [
            (tensor if dim is None else tensor.movedim(dim, 0)).expand(shape).contiguous()
            for tensor, dim in ((logits, in_dims[1]), (rho, in_dims[2]))
        ]
        return _Elementwise.apply(solve, *moved), (0, 0)


def _solved(solve: Callable[[Tensor, Tensor, bool], Inverse], logits: Tensor, rho: Tensor, with_slope: bool) -> Inverse:
    if torch._C._functorch.maybe_current_level() is None:  # the common case, with nothing around the solver
        return solve(logits, rho, with_slope)
    return Inverse(*_Elementwise.apply(solve, logits, rho))


@dataclass(frozen=True)
class Overlapping(Smoothing):
    """A smoothing whose two densities share their support and mirror each other about `center`.

    A member states r(ζ|0) alone: `log_density0`, `cdf0`, `sf0` and `moments0`. The other component is its mirror
    image, r(ζ|1) = r(2 center - ζ|0), so that F₁(ζ) = 1 - F₀(2 center - ζ).

    Choose it as the base of a smoothing of your own: the bounds of Sec. 4 and 5 take any member.

    >>> Exponential(8.0).log_ratio(torch.tensor([0.5])).item()  # ζ halfway says nothing about z
    0.0
    """

    @property
    def support(self) -> constraints.Constraint:
        """Where ζ lives; the unit interval unless a member says otherwise."""
        return constraints.unit_interval

    @property
    def center(self) -> Parameter:
        """The point about which r(ζ|0) and r(ζ|1) mirror each other."""
        return 0.5

    @abstractmethod
    def log_density0(self, zeta: Tensor) -> Tensor:
        """log r(ζ|0)."""

    @abstractmethod
    def cdf0(self, zeta: Tensor) -> Tensor:
        """F₀(ζ), accurate where it is small."""

    @abstractmethod
    def sf0(self, zeta: Tensor) -> Tensor:
        """1 - F₀(ζ), accurate where it is small."""

    @abstractmethod
    def moments0(self) -> Moments:
        """Mean and variance of r(ζ|0)."""

    def sample_components(self, logits: Units, rho: Units) -> Units:
        """ζ ~ q(ζ|x) by drawing z ~ q(z|x) and then ζ ~ r(ζ|z), both from `rho`; gradients as for `sample`.

        Use it to train with a smoothing whose mixture has no closed inverse. Where ζ has to increase with ρ, as in
        quasi-random sampling, use `sample`.

            zeta = PowerLaw(30.0).sample_components(logits, torch.rand_like(logits))
        """
        logits, rho = self._checked(logits, rho)
        zeta = implicit_sample(self._by_components, logits, rho)
        return self._with_parameters(zeta, logits.detach()) if self.learns else zeta

    def draw(self, logits: Units, rho: Units) -> Units:
        searched = type(self)._invert is Overlapping._invert
        return self.sample_components(logits, rho) if searched else self.sample(logits, rho)

    @full_precision
    def log_density(self, zeta: Units, z: Parameter) -> Units:
        """log r(ζ|z) for z in {0, 1}, broadcasting."""
        z = torch.as_tensor(z, dtype=zeta.dtype, device=zeta.device)
        broadcast_shape(zeta=zeta, z=z, **self.parameters())
        self._check_support(zeta)
        if self.validates:
            check_values("z", z, (z == 0) | (z == 1), "0 or 1")
        return self.log_density0(torch.where(z == 1, self._mirror_in_density(zeta), zeta))

    @full_precision
    def log_ratio(self, zeta: Units) -> Units:
        """log r(ζ|1) - log r(ζ|0); logits + log_ratio is the logit of ν = q(z=1|x, ζ) (Sec. 5)."""
        broadcast_shape(zeta=zeta, **self.parameters())
        self._check_support(zeta)
        return self._log_ratio(zeta)

    @full_precision
    def log_prob(self, zeta: Units, logits: Units) -> Units:
        """log q(ζ|x) of the mixture (Eq. 2), differentiable in both arguments."""
        self._check_point(zeta, logits)
        return self._log_prob(zeta, logits)

    @full_precision
    def cdf(self, zeta: Units, logits: Units) -> Units:
        """F(ζ) = (1-μ) F₀(ζ) + μ F₁(ζ)."""
        self._check_point(zeta, logits)
        return self._cdf(zeta, logits)

    def expected_log_prob0(self, logits: Tensor) -> Tensor:
        """E log q(ζ|x) over ζ ~ r(ζ|0), where a member has it in closed form; entropies and KL divergences follow."""
        raise NotImplementedError(
            f"{type(self).__name__} has no entropy and no KL divergence in closed form; average log_prob over samples, "
            "or take Exponential, which has both"
        )

    def _mirror(self, zeta: Tensor) -> Tensor:
        return 2 * self.center - zeta

    def _mirror_in_density(self, zeta: Tensor) -> Tensor:
        """The mirror image as `log_density0` takes it; a member with a pole keeps away from it."""
        return self._mirror(zeta)

    def _log_ratio(self, zeta: Tensor) -> Tensor:
        return self.log_density0(self._mirror_in_density(zeta)) - self.log_density0(zeta)

    def _log_prob(self, zeta: Tensor, logits: Tensor) -> Tensor:
        zero = logsigmoid(-logits) + self.log_density0(zeta)
        one = logsigmoid(logits) + self.log_density0(self._mirror_in_density(zeta))
        return torch.logaddexp(zero, one)

    def _cdf(self, zeta: Tensor, logits: Tensor) -> Tensor:
        return torch.sigmoid(-logits) * self.cdf0(zeta) + torch.sigmoid(logits) * self.sf0(self._mirror(zeta))

    def _check_point(self, zeta: Tensor, logits: Tensor) -> None:
        broadcast_shape(zeta=zeta, logits=logits, **self.parameters())
        self._check_support(zeta)
        if self.validates:
            check_values("logits", logits, ~torch.isnan(logits), "anything but NaN")

    def _check_support(self, zeta: Tensor) -> None:
        if self.validates:
            check_values("zeta", zeta, self.support.check(zeta), f"in the support ({self.support})")

    # Inversion for members without a closed form. By symmetry (ρ, μ, ζ) -> (1-ρ, 1-μ, 2 center - ζ) the root
    # is always sought in the lower half, where ζ near its end keeps all its digits.

    @property
    def lowest_coordinate(self) -> Parameter:
        """A coordinate below which the mixture has no mass worth a float64."""
        return 0.0

    def to_coordinate(self, zeta: Tensor) -> Tensor:
        """The solver's coordinate: ζ itself unless F is steep in it somewhere."""
        return zeta

    def from_coordinate(self, x: Tensor) -> Evaluation:
        """ζ and dζ/dx."""
        return Evaluation(x, torch.ones_like(x))

    def _sample(self, logits: Tensor, rho: Tensor) -> Tensor:
        zeta = implicit_sample(self._invert, logits, rho)
        return self._with_parameters(zeta, logits.detach()) if self.learns else zeta

    def _with_parameters(self, zeta: Tensor, logits: Tensor) -> Tensor:
        """Attach ∂ζ/∂θ = -∂F/∂θ / q(ζ): F is evaluated at the sample with a graph that reaches the parameters only.

        Float64, because where the density is tiny so is ∂F/∂θ, and only their quotient is an ordinary number.
        """
        point, logits = zeta.detach().double(), logits.double()
        level = self._cdf(point, logits)
        with torch.no_grad():
            density = self._log_prob(point, logits).exp().clamp_min(torch.finfo(torch.float64).tiny)
        return attach(level, zeta, -1 / density)

    def _invert(self, logits: Tensor, rho: Tensor, with_slope: bool) -> Inverse:
        """F⁻¹(ρ) by safe Newton steps in float64, and its implicit derivative."""
        dtype, logits = logits.dtype, logits.double()
        rho = rho.double().clamp(2.0**-53, 1 - 2.0**-53)  # the ends of an unbounded support stay finite
        center = as_float64(self.center, rho.device).expand_as(rho)
        upper = rho > self._cdf(center, logits)
        logits = torch.where(upper, -logits, logits)
        rho = torch.where(upper, 1 - rho, rho)

        def excess(x: Tensor) -> Evaluation:
            zeta, jacobian = self.from_coordinate(x)
            return Evaluation(self._cdf(zeta, logits) - rho, self._log_prob(zeta, logits).exp() * jacobian)

        low = as_float64(self.lowest_coordinate, rho.device).expand_as(rho)
        zeta = self.from_coordinate(increasing_root(excess, low, self.to_coordinate(center), scale=rho)).value
        slope = flushed(saturate(self._slope(zeta, logits), dtype)) if with_slope else None
        return Inverse(flushed(torch.where(upper, self._mirror(zeta), zeta).to(dtype)), slope)

    # Sampling by components needs a draw of r(ζ|0) and the slope there.

    def draw0(self, u: Tensor) -> Tensor:
        """ζ ~ r(ζ|0) from uniform u; F₀ is inverted by a search unless a member knows better."""
        return self._invert(torch.full_like(u, -torch.inf), u, False).zeta

    def slope0(self, zeta: Tensor, u: Tensor, share: Tensor, rest: Tensor) -> Tensor:
        """∂ζ/∂logit where r(ζ|0) has the weight `share` in the mixture and r(ζ|1) the `rest`; `zeta` is `draw0(u)`.

        A member with a closed form saves exponentials, and the float64 that is needed here. It may overwrite `rest`.
        """
        logits = torch.log(rest.double()) - torch.log(share.double())
        return saturate(self._slope(zeta.double(), logits), zeta.dtype)

    def _by_components(self, logits: Tensor, rho: Tensor, with_slope: bool) -> Inverse:
        z, share, rest, u = split(logits, rho)
        zeta = self.draw0(u)
        slope = self.slope0(zeta, u, share, rest) if with_slope else None
        # the mirror image where z = 1
        return Inverse(add_scaled_(zeta * (1 - 2 * z), 2 * in_dtype(self.center, zeta.dtype), z), slope)

    def _slope(self, zeta: Tensor, logits: Tensor) -> Tensor:
        """∂ζ/∂logit by the implicit function theorem; the same at a point and its mirror image."""
        weight = torch.sigmoid(logits) * torch.sigmoid(-logits)
        density = self._log_prob(zeta, logits).exp().clamp_min(torch.finfo(zeta.dtype).tiny)
        return weight * (self.cdf0(zeta) - self.sf0(self._mirror(zeta))) / density


def broadcast_shape(**tensors: Tensor) -> torch.Size:
    """The common shape of the named tensors, or a ValueError that names them."""
    first, *others = (t.shape for t in tensors.values())
    if all(shape == first for shape in others):  # the common case, without the rules of broadcasting
        return first
    try:
        return torch.broadcast_shapes(*(t.shape for t in tensors.values()))
    except RuntimeError:
        shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        raise ValueError(f"shapes do not broadcast: {shapes}") from None


def check_values(name: str, value: Tensor, allowed: Tensor, range: str, remedy: str = "") -> None:
    """Raise a ValueError naming the argument, its first offending value and the range."""
    if bool(allowed.all()):
        return
    first = value[~allowed].reshape(-1)[0].item()
    count = int((~allowed).sum())
    others = f" ({count} such values)" if count > 1 else ""
    raise ValueError(f"{name} must be {range}, got {first:g}{others}{'; ' + remedy if remedy else ''}")
