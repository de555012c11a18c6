"""Fig. 5 (App. C): inverse CDFs and their gradients at ρ = 0.25, three temperatures for each smoothing."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from dvaepp.reporting.drawing import DASHES, SERIES, legend
from dvaepp.reporting.panels import Panel, together
from dvaepp.smoothing.base import Smoothing
from dvaepp.smoothing.concrete import Concrete
from dvaepp.smoothing.exponential import Exponential
from dvaepp.smoothing.spike_exponential import SpikeExponential

RHO = 0.25
# "temperature values that are often used in practice" (App. C prints none): one row of three per column.
COLUMNS: dict[str, dict[str, Smoothing]] = {
    "Overlapping exponentials": {f"β = {b:g}": Exponential(b) for b in (5.0, 8.0, 12.0)},
    "Concrete": {f"λ = {t:g}": Concrete(t) for t in (0.67, 0.5, 0.25)},
    "Spike-and-exponential": {f"β = {b:g}": SpikeExponential(b) for b in (3.0, 5.0, 8.0)},
}


def draw(device: str = "cpu") -> Figure:
    values = [_panel(name, device, gradient=False) for name in COLUMNS]
    return together([("", values + [_panel(name, device, gradient=True) for name in COLUMNS])])


def _panel(name: str, device: str, gradient: bool) -> Panel:
    def fill(axes: Axes) -> None:
        q = torch.linspace(0.001, 0.999, 999, dtype=torch.float32, device=device)
        for (label, smoothing), colour, dash in zip(COLUMNS[name].items(), SERIES, DASHES, strict=False):
            axes.plot(q.cpu(), curve(smoothing, q)[gradient].cpu(), dash, lw=1.5, color=colour, label=label)
        axes.set(xlabel="q(z=1|x)", xlim=(0, 1))
        if gradient:
            axes.set(yscale="log", ylim=(1e-2, 3e2))  # small gradients are the point of the comparison
        else:
            axes.set_ylim(-0.02, 1.02)
        legend(axes)

    shown = "∂ζ/∂q" if gradient else f"ζ at ρ = {RHO:g}"
    return Panel(f"{name}: {shown}", f"{shown} against q(z=1|x) for {', '.join(COLUMNS[name])}.", fill)


def curve(smoothing: Smoothing, q: Tensor) -> tuple[Tensor, Tensor]:
    """ζ and ∂ζ/∂q along q, through the same derivative that training uses."""
    logits = torch.logit(q).requires_grad_()
    zeta = smoothing.sample(logits, torch.full_like(q, RHO))
    (slope,) = torch.autograd.grad(zeta.sum(), logits)
    return zeta.detach(), slope / (q * (1 - q))
