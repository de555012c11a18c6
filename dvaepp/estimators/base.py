"""What an estimator of ∇ E_q[f(z)] sees of a model, and what it returns (Sec. 7.1).

    f(z) = log p(x, z) - log q(z|x),   q(z|x) = Π_a q(z_a|x, z_<a),   z_a in {0, 1}^units

The bound E_q[f] has two gradients. That of p is plain, E_q[∇ log p(x, z)]. That of q goes through the logits l_a of
each layer: every member states an estimate g_a of the derivative with respect to l_a and hands back the surrogate

    log p(x, z) + Σ_a stop[g_a] · l_a(x, z_<a),

so that one backward pass reaches all parameters. Only terms that follow the draw of z_a belong in g_a: the local signal

    f_a(z) = log p(x, z) - Σ_{b>=a} log q(z_b|x, z_<b),

since E[∇ log q(z_a|x, z_<a) | z_<a] = 0. For the same reason the derivative of -log q itself never enters: its mean is
zero. log q(z) = z · l - log(1 + e^l) is linear in z, which extends f to relaxed z in [0, 1].
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError


@runtime_checkable
class Target(Protocol):
    """The model seen by an estimator for one batch of x; z_a has shape (..., batch, units of layer a).

    Choose it to give an estimator a model of your own: any object with these four members is one.

    >>> sorted(name for name in vars(Target) if name in ("num_layers", "context", "logits", "log_joint"))
    ['context', 'log_joint', 'logits', 'num_layers']
    """

    @property
    def num_layers(self) -> int: ...

    @property
    def context(self) -> Tensor:
        """The centred input (batch, features), for baselines that depend on it."""

    def logits(self, z: Sequence[Tensor]) -> Tensor:
        """Logits of q(z_a|x, z_<a) for a = len(z), (..., batch, units); differentiable in z too, which may be relaxed.

        Leading axes follow z; without earlier layers the shape is (batch, units).
        """

    def log_joint(self, z: Sequence[Tensor]) -> Tensor:
        """log p(x, z), (..., batch); defined and differentiable for relaxed z if the estimator needs it."""


@runtime_checkable
class RelaxedTarget(Target, Protocol):
    """A target with a directed prior that gives likelihood and prior apart; only `concrete` asks for it.

    Choose it where `ConcreteEstimator` is to train your model: it asks for likelihood and prior apart.

    >>> hasattr(RelaxedTarget, "log_likelihood") and hasattr(RelaxedTarget, "prior_logits")
    True
    """

    def log_likelihood(self, z: Sequence[Tensor]) -> Tensor:
        """log p(x|z), (..., batch)."""

    def prior_logits(self, z: Sequence[Tensor]) -> list[Tensor]:
        """Logits of p(z_a|z_<a) for every layer; each broadcasts to (..., batch, units)."""


class Estimate(NamedTuple):
    """An estimate for each example of a batch; training minimises own_loss - surrogate.mean().

    Choose it to read what `Estimator.estimate` returns: step on the surrogate, and report the bound.

    >>> Estimate(surrogate=torch.zeros(3), bound=torch.ones(3), own_loss=None).bound
    tensor([1., 1., 1.])
    """

    surrogate: Tensor
    """(batch,): its gradient is the estimate, of a bound to be maximised; its number means nothing."""
    bound: Tensor
    """(batch,), detached: the bound at the sample."""
    own_loss: Tensor | None
    """To be minimised over the estimator's own parameters; no gradient of it reaches the model."""


class Estimator(nn.Module, ABC):
    """An estimate of the gradient of a bound; its parameters, if any, are its own and need their own optimizer.

    `layer_sizes` are the units of each layer and `context_size` the features of `Target.context`: every member takes
    these two, so that a recipe builds any of them, and options of its own by keyword.

    Choose it as the base of an estimator of your own; a recipe takes any member by the stem of its file.

    >>> isinstance(DisARM([4], 5), Estimator)
    True
    """

    unbiased: ClassVar[bool]
    needs_relaxed_target: ClassVar[bool] = False
    """Whether it differentiates log p(x, z) with respect to z, mostly at values between 0 and 1."""
    needs_directed_prior: ClassVar[bool] = False

    def __init__(self, layer_sizes: Sequence[int], context_size: int) -> None:
        super().__init__()
        if not layer_sizes or min(layer_sizes) < 1 or context_size < 1:
            raise UsageError(
                f"an estimator needs layers of >= 1 units and >= 1 features, got {list(layer_sizes)} and {context_size}"
            )
        self.layer_sizes = list(layer_sizes)
        self.context_size = context_size

    def extra_repr(self) -> str:
        return f"layer_sizes={self.layer_sizes}, context_size={self.context_size}"

    @abstractmethod
    def estimate(self, target: Target, generator: torch.Generator | None) -> Estimate:
        """Draw z and estimate the gradient."""

    @classmethod
    def check(cls, prior: str, differentiable_decoder: bool = True) -> None:
        """Refuse a model that the estimator cannot train, before any step is taken."""
        if cls.needs_directed_prior and prior != "directed":
            raise UsageError(
                f"{cls.__name__} needs a directed prior, got {prior!r}: it takes log p(z) at relaxed z, where a "
                "Boltzmann machine's energy is no log-probability and its log Z has no number; "
                "use nvil, vimco, arm or disarm"
            )
        if cls.needs_relaxed_target and not differentiable_decoder:
            raise UsageError(
                f"{cls.__name__} differentiates log p(x, z) with respect to z, and this decoder is not differentiable "
                "in z; use nvil, vimco, arm or disarm"
            )

    def check_target(self, target: Target) -> None:
        """Refuse a target with another number of layers or features."""
        if target.num_layers != len(self.layer_sizes) or target.context.shape[-1] != self.context_size:
            raise UsageError(
                f"{type(self).__name__} was built for {len(self.layer_sizes)} layers and {self.context_size} features, "
                f"got {target.num_layers} and {target.context.shape[-1]}"
            )
