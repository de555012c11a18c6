"""Fig. 1: (a) the two exponential conditionals; (b) inverse CDF against q(z=1|x) at ρ = 0.5."""

import torch
from matplotlib.figure import Figure

from dvaepp.smoothing.exponential import Exponential
from dvaepp.smoothing.spike_exponential import SpikeExponential

BETA = 8.0  # App. G trains at 8; the paper prints no value under Fig. 1
RHO = 0.5


def draw(device: str = "cpu") -> Figure:
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    densities, inverse = figure.subplots(1, 2)
    smoothing = Exponential(BETA)

    zeta = torch.linspace(0, 1, 401, dtype=torch.float32, device=device)
    for z, style in ((0, "-"), (1, "--")):
        r = smoothing.log_density(zeta, z).exp()
        densities.plot(zeta.cpu(), r.cpu(), style, label=f"$r(\\zeta|z={z})$")
    densities.set(xlabel=r"$\zeta$", ylabel="density", title=f"(a) exponential smoothing, $\\beta={BETA:g}$")
    densities.legend()

    q = torch.linspace(0.001, 0.999, 999, dtype=torch.float32, device=device)
    rho = torch.full_like(q, RHO)
    inverse.plot(q.cpu(), smoothing.sample(torch.logit(q), rho).cpu(), label="mixture of exponentials")
    inverse.plot(q.cpu(), SpikeExponential(BETA).sample(torch.logit(q), rho).cpu(), "--", label="spike-and-exp")
    inverse.step([0, 0.5, 1], [0, 0, 1], ":", color="gray", where="pre", label="Bernoulli")
    inverse.set(xlabel="$q(z=1|x)$", ylabel=r"$\zeta$", title=f"(b) inverse CDF at $\\rho={RHO:g}$")
    inverse.legend(loc="upper left")
    return figure
