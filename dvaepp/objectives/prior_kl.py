"""The KL of the groups of binary units by the name of an objective, for a prior of the kind that it takes.

boltzmann, rolfe   an undirected prior (Sec. 5): one KL for all groups together
relaxed            an undirected prior, smoothed like the posterior: log q(ζ|x) - log p(ζ), by mean field
gaussian_integral  the same for normal smoothing, exactly
joint, marginal    a directed prior (Eq. 4, Eq. 5): one KL for each group
"""

from collections.abc import Sequence

from torch import Tensor

from dvaepp.errors import UsageError
from dvaepp.objectives.boltzmann import boltzmann_kl
from dvaepp.objectives.gaussian_integral import gaussian_integral_kl
from dvaepp.objectives.joint import joint_per_group
from dvaepp.objectives.marginal import marginal_per_group
from dvaepp.objectives.relaxed import relaxed_kl
from dvaepp.objectives.spike import rolfe_kl
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.family import DirectedPrior, Kind, Prior
from dvaepp.smoothing.base import Overlapping, Smoothing
from dvaepp.smoothing.gaussian import Gaussian
from dvaepp.smoothing.groups import for_groups

PRIOR_KIND: dict[str, Kind] = {
    "boltzmann": "undirected",
    "rolfe": "undirected",
    "relaxed": "undirected",
    "gaussian_integral": "undirected",
    "joint": "directed",
    "marginal": "directed",
}
"""The kind of prior that each objective trains."""


def prior_kl(
    objective: str,
    prior: Prior,
    logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Smoothing | Sequence[Smoothing],
    log_z: Tensor | float = 0.0,
    *,
    path_only: bool = True,
) -> Tensor:
    """One sample of the KL, (1, batch) of an undirected prior and (groups, batch) of a directed one.

    `log_z` is as for `boltzmann_kl` and ignored by a directed prior; `path_only` is as for `marginal`.

    Choose it in code that takes any prior: it calls the objective of this name, and refuses one that does not fit.

    >>> smoothing, logits = Exponential(8.0), torch.zeros(5, 4)
    >>> zeta = smoothing.sample(logits, torch.rand(5, 4))
    >>> prior_kl("marginal", Factorial([4]), [logits], [zeta], smoothing).shape
    torch.Size([1, 5])
    """
    check_objective(objective, prior.kind)
    each = for_groups(smoothing, len(zeta))
    if isinstance(prior, BoltzmannPrior):
        return _undirected(objective, prior, logits, zeta, each, log_z, path_only)[None]
    assert isinstance(prior, DirectedPrior)
    if objective == "joint":
        return joint_per_group(logits, prior.logits(zeta))
    smoothings = _overlapping(objective, each)
    return marginal_per_group(logits, prior.logits(zeta), zeta, smoothings, path_only=path_only)


def _undirected(
    objective: str,
    prior: BoltzmannPrior,
    logits: Sequence[Tensor],
    zeta: Sequence[Tensor],
    smoothing: Sequence[Smoothing],
    log_z: Tensor | float,
    path_only: bool,
) -> Tensor:
    if objective == "rolfe":
        return rolfe_kl(prior, logits, zeta, log_z)
    overlapping = _overlapping(objective, smoothing)
    if objective == "boltzmann":
        return boltzmann_kl(prior, logits, zeta, overlapping, log_z)
    if objective == "relaxed":
        return relaxed_kl(prior, logits, zeta, overlapping, log_z, path_only=path_only)
    return gaussian_integral_kl(prior, logits, zeta, _one_gaussian(overlapping), log_z, path_only=path_only)


def _one_gaussian(smoothing: Sequence[Overlapping]) -> Gaussian:
    """The normal smoothing that all groups share: the prior has one β."""
    first = smoothing[0]
    if not isinstance(first, Gaussian) or any(each != first for each in smoothing):
        raise UsageError("objective 'gaussian_integral' needs the smoothing gaussian, with one scale for all groups")
    return first


def check_objective(objective: str, kind: Kind) -> None:
    """Refuse an objective that does not train priors of this kind."""
    if PRIOR_KIND.get(objective) != kind:
        fits = " or ".join(name for name, takes in PRIOR_KIND.items() if takes == kind)
        raise UsageError(
            f"objective {objective!r} does not train {'an' if kind[0] == 'u' else 'a'} {kind} prior: {fits} does"
        )


def _overlapping(objective: str, smoothing: Sequence[Smoothing]) -> list[Overlapping]:
    found = [each for each in smoothing if isinstance(each, Overlapping)]
    if len(found) < len(smoothing):
        other = next(each for each in smoothing if not isinstance(each, Overlapping))
        raise UsageError(f"objective {objective!r} needs an overlapping smoothing, got {type(other).__name__}")
    return found
