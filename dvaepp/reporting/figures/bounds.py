"""How far each bound with a Boltzmann prior stays below log p(x) (docs/bounds.md): a toy model that can be summed.

Six binary units with an RBM prior, eight pixels, one image. The posterior is fitted once for each β, by the relaxed
bound with one sample; all bounds are then taken under that posterior. The sum over the 64 states of the prior is exact,
and log p(x) is so up to the noise of `DRAWS` samples.
"""

from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from torch import Tensor
from torch.nn.functional import softplus

from dvaepp.numerics import uniform
from dvaepp.objectives import boltzmann_kl, importance_weighted, relaxed_kl
from dvaepp.priors.rbm import RBM
from dvaepp.reporting.drawing import COLOURS, SERIES, legend
from dvaepp.reporting.panels import Panel, together
from dvaepp.smoothing.exponential import Exponential

DRAWS, FIT_STEPS, FIT_DRAWS = 48_000, 150, 500
BETAS = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
SAMPLES = (1, 2, 4, 8, 16, 32, 64)
SIDE, PIXELS = 3, 8


class Gaps(NamedTuple):
    """log p(x) minus each bound, in nats: that of Sec. 5, and the relaxed one for every K of `SAMPLES`.

    `mean_field` is what training uses, `exact` has the prior's sum over all states in its place.
    """

    section5: float
    mean_field: list[float]
    exact: list[float]


class Toy:
    """The model and the image; everything is in float64."""

    def __init__(self, device: str = "cpu") -> None:
        self.generator = torch.Generator(device).manual_seed(4)
        self.prior = RBM(SIDE, SIDE).to(device, torch.float64).requires_grad_(False)
        for parameter in self.prior.parameters():
            parameter.copy_(1.5 * self._normal(*parameter.shape))
        self.decoder, self.x = 3 * self._normal(2 * SIDE, PIXELS), (self._normal(PIXELS) > 0).to(torch.float64)
        units = torch.arange(2 * SIDE, dtype=torch.int64, device=device)
        self.states = (torch.arange(4**SIDE, dtype=torch.int64, device=device)[:, None] >> units & 1).to(torch.float64)
        self.log_z = torch.logsumexp(-self.prior.energy(self.states), 0).item()

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64, device=self.generator.device)

    def draw(self, logits: Tensor, smoothing: Exponential, rows: int) -> tuple[Tensor, Tensor]:
        """ζ and its logits, (rows, units)."""
        logits = logits.expand(rows, -1)
        rho = uniform(*logits.shape, generator=self.generator, dtype=torch.float64)
        return smoothing.sample(logits, rho), logits

    def log_likelihood(self, zeta: Tensor) -> Tensor:
        pixels = (zeta - 0.5) @ self.decoder
        return (self.x * pixels - softplus(pixels)).sum(-1)

    def fitted(self, smoothing: Exponential) -> Tensor:
        """Logits of the posterior that maximise the relaxed bound with one sample."""
        logits = torch.zeros_like(self.states[0]).requires_grad_()
        optimizer = torch.optim.Adam([logits], lr=0.1)
        for _ in range(FIT_STEPS):
            zeta, rows = self.draw(logits, smoothing, FIT_DRAWS)
            bound = self.log_likelihood(zeta) - relaxed_kl(self.prior, [rows], [zeta], smoothing, self.log_z)
            optimizer.zero_grad()
            (-bound.mean()).backward()
            optimizer.step()
        return logits.detach()

    def exact_kl(self, logits: Tensor, zeta: Tensor, smoothing: Exponential) -> Tensor:
        """log q(ζ|x) - log p(ζ) with the sum over all states of the prior."""
        b = smoothing.log_ratio(zeta)
        log_p = torch.logsumexp(b @ self.states.t() - self.prior.energy(self.states), -1) - self.log_z
        return (softplus(logits + b) - softplus(logits)).sum(-1) - log_p


def gaps(toy: Toy, beta: float) -> Gaps:
    smoothing = Exponential(beta, validate_args=False)
    with torch.no_grad():
        zeta, logits = toy.draw(torch.enable_grad()(toy.fitted)(smoothing), smoothing, DRAWS)
        fit = toy.log_likelihood(zeta)
        exact = fit - toy.exact_kl(logits, zeta, smoothing)
        relaxed = fit - relaxed_kl(toy.prior, [logits], [zeta], smoothing, toy.log_z)
        section5 = fit - boltzmann_kl(toy.prior, [logits], [zeta], smoothing, toy.log_z)
        evidence = importance_weighted(exact[:, None]).item()
        mean_field, summed = (
            [evidence - importance_weighted(log_w.reshape(k, -1)).mean().item() for k in SAMPLES]
            for log_w in (relaxed, exact)
        )
    return Gaps(evidence - section5.mean().item(), mean_field, summed)


def draw(device: str = "cpu") -> Figure:
    toy = Toy(device)
    found = {beta: gaps(toy, beta) for beta in BETAS}
    return together([("", [_by_sharpness(found), _by_samples(found)])])


def _by_sharpness(found: dict[float, Gaps]) -> Panel:
    def fill(axes: Axes) -> None:
        axes.plot(BETAS, [found[beta].section5 for beta in BETAS], "--", color=COLOURS["ink"], label="Sec. 5")
        for k, colour in zip((1, 4, 64), SERIES, strict=False):
            curve = [found[beta].mean_field[SAMPLES.index(k)] for beta in BETAS]
            axes.plot(BETAS, curve, "o-", ms=4, color=colour, label=f"relaxed, K = {k}")
        axes.set(xlabel="sharpness β", ylim=(0, None))
        legend(axes)

    return Panel("log p(x) − bound (nats)", "The gaps of the bounds against the sharpness of the smoothing.", fill)


def _by_samples(found: dict[float, Gaps]) -> Panel:
    def fill(axes: Axes) -> None:
        for beta, colour in zip((3.0, 8.0), SERIES, strict=False):
            label = f"mean field, β = {beta:g}"
            axes.plot(SAMPLES, found[beta].mean_field, "o-", ms=4, color=colour, label=label)
            axes.plot(SAMPLES, found[beta].exact, ":", color=colour, label=f"exact prior, β = {beta:g}")
        axes.set(xlabel="samples K", xscale="log", ylim=(0, None))
        axes.set_xticks(SAMPLES, [str(k) for k in SAMPLES])
        axes.xaxis.set_minor_locator(NullLocator())
        legend(axes)

    return Panel("log p(x) − relaxed bound (nats)", "The gaps of the relaxed bounds against the samples.", fill)
