"""torch.distributions faces: smoothed binary units and the CIFAR10 likelihood."""

from dvaepp.distributions.logistic_mixture import DiscretizedLogisticMixture
from dvaepp.distributions.smoothed_bernoulli import SmoothedBernoulli

__all__ = ["DiscretizedLogisticMixture", "SmoothedBernoulli"]
