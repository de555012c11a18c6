"""Fig. 1: (a) the two exponential conditionals; (b) inverse CDF against q(z=1|x) at ρ = 0.5."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dvaepp.reporting.drawing import COLOURS, SERIES, legend
from dvaepp.reporting.panels import Panel, together
from dvaepp.smoothing.exponential import Exponential
from dvaepp.smoothing.spike_exponential import SpikeExponential

BETA = 8.0  # App. G trains at 8; the paper prints no value under Fig. 1
RHO = 0.5


def draw(device: str = "cpu") -> Figure:
    return together([("", [_densities(device), _inverse_cdf(device)])])


def _densities(device: str) -> Panel:
    def fill(axes: Axes) -> None:
        zeta = torch.linspace(0, 1, 401, dtype=torch.float32, device=device)
        for z, dash in ((0, "-"), (1, "--")):
            density = Exponential(BETA).log_density(zeta, z).exp()
            axes.plot(zeta.cpu(), density.cpu(), dash, lw=1.8, color=SERIES[z], label=f"r(ζ|z={z})")
        axes.set(xlabel="ζ", xlim=(0, 1), ylim=(0, None))
        legend(axes)

    alt = f"r(ζ|z=0) falls from {BETA:g} at ζ = 0, r(ζ|z=1) rises to {BETA:g} at ζ = 1; they overlap in between."
    return Panel(f"(a) Exponential smoothing, β = {BETA:g}: densities", alt, fill)


def _inverse_cdf(device: str) -> Panel:
    def fill(axes: Axes) -> None:
        q = torch.linspace(0.001, 0.999, 999, dtype=torch.float32, device=device)
        rho = torch.full_like(q, RHO)
        exponential, spike = (
            member.sample(torch.logit(q), rho).cpu() for member in (Exponential(BETA), SpikeExponential(BETA))
        )
        axes.step(
            [0, 0.5, 1], [0, 0, 1], ":", lw=1.8, color=COLOURS["muted"], where="pre", label="Bernoulli", clip_on=False
        )
        axes.plot(q.cpu(), exponential, lw=1.8, color=SERIES[0], label="exponential")
        axes.plot(q.cpu(), spike, "--", lw=1.8, color=SERIES[1], label="spike-and-exp")
        axes.set(xlabel="q(z=1|x)", xlim=(0, 1), ylim=(0, 1.02))
        legend(axes)

    alt = "ζ as a function of q(z=1|x): a step for the Bernoulli, smooth on both sides only with overlap."
    return Panel(f"(b) Inverse CDF: ζ at ρ = {RHO:g}", alt, fill)
