"""Generative models with binary latent variables (DVAE++, ICML 2018), in PyTorch.

Start at `dvaepp.smoothing` (Sec. 3) or `dvaepp.distributions.SmoothedBernoulli`.
"""

__version__ = "0.1.0"
