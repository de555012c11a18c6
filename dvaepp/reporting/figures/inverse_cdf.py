"""Fig. 5 (App. C): inverse CDFs and their gradients at ρ = 0.25, three temperatures for each smoothing."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from dvaepp.smoothing.base import Smoothing
from dvaepp.smoothing.concrete import Concrete
from dvaepp.smoothing.exponential import Exponential
from dvaepp.smoothing.spike_exponential import SpikeExponential

RHO = 0.25
# "temperature values that are often used in practice" (App. C prints none): one row of three per column.
COLUMNS: list[tuple[str, dict[str, Smoothing]]] = [
    ("overlapping (exponential)", {f"$\\beta={b:g}$": Exponential(b) for b in (5.0, 8.0, 12.0)}),
    ("Concrete", {f"$\\lambda={t:g}$": Concrete(t) for t in (0.67, 0.5, 0.25)}),
    ("spike-and-exponential", {f"$\\beta={b:g}$": SpikeExponential(b) for b in (3.0, 5.0, 8.0)}),
]


def draw(device: str = "cpu") -> Figure:
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey="row")
    q = torch.linspace(0.001, 0.999, 999, dtype=torch.float32, device=device)
    for column, (title, members) in enumerate(COLUMNS):
        for label, smoothing in members.items():
            zeta, slope = curve(smoothing, q)
            axes[0, column].plot(q.cpu(), zeta.cpu(), label=label)
            axes[1, column].plot(q.cpu(), slope.cpu(), label=label)
        axes[0, column].set_title(title)
        axes[0, column].legend(loc="upper left")
        axes[1, column].set_xlabel("$q(z=1|x)$")
    axes[0, 0].set_ylabel(f"$\\zeta$ at $\\rho={RHO:g}$")
    axes[1, 0].set(yscale="log", ylim=(1e-2, 3e2))  # small gradients are the point of the comparison
    axes[1, 0].set_ylabel(r"$\partial\zeta/\partial q$")
    return figure


def curve(smoothing: Smoothing, q: Tensor) -> tuple[Tensor, Tensor]:
    """ζ and ∂ζ/∂q along q, through the same derivative that training uses."""
    logits = torch.logit(q).requires_grad_()
    zeta = smoothing.sample(logits, torch.full_like(q, RHO))
    (slope,) = torch.autograd.grad(zeta.sum(), logits)
    return zeta.detach(), slope / (q * (1 - q))
