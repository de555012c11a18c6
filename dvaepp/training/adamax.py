"""AdaMax (Kingma and Ba 2015, Sec. 7.1) over one flat buffer.

    m <- b₁ m + (1-b₁) g,   u <- max(b₂ u, |g| + ε),   θ <- θ - lr / (1 - b₁^t) · m / u

torch's own walks through a thousand small tensors and reads large ones from memory once per operation. Here parameters
are views of one buffer, which is updated in pieces that stay in the cache: the same numbers, several times faster.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

PIECE = 1 << 16  # elements updated together: four arrays of them fit a core's cache


class Adamax(torch.optim.Optimizer):
    """A parameter's state is {"exp_avg", "exp_inf"}, views of the buffers: fill it with `load`; a group has "step"."""

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        for group in self.param_groups:
            tensors = group["params"]
            flat = torch.cat([p.detach().reshape(-1) for p in tensors]) if tensors else torch.empty(0)
            group["flat"] = [flat, torch.zeros_like(flat), torch.zeros_like(flat)]
            group["step"] = 0
            sizes = [p.numel() for p in tensors]
            for p, *views in zip(tensors, *(buffer.split(sizes) for buffer in group["flat"]), strict=True):
                theta, m, u = (view.view(p.shape) for view in views)
                p.data = theta
                self.state[p] = {"exp_avg": m, "exp_inf": u}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # a closure has no use here
        for group in self.param_groups:
            gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group["params"]]
            if not gradients:
                continue
            group["step"] += 1
            gradient = torch.cat([g.reshape(-1) for g in gradients])
            pieces = zip(*(buffer.split(PIECE) for buffer in (*group["flat"], gradient)), strict=True)
            rate = -group["lr"] / (1 - group["betas"][0] ** group["step"])
            for theta, m, u, g in pieces:
                _update(theta, m, u, g, rate, group["betas"], group["eps"], group["weight_decay"])

    def load(self, parameter: Tensor, state: dict[str, Tensor], step: int) -> None:
        for group in self.param_groups:
            group["step"] = step
        for name, value in state.items():
            self.state[parameter][name].copy_(value)


def _update(
    theta: Tensor,
    m: Tensor,
    u: Tensor,
    g: Tensor,
    rate: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    if weight_decay:
        g.add_(theta, alpha=weight_decay)
    m.lerp_(g, 1 - betas[0])
    torch.maximum(u.mul_(betas[1]), g.abs_().add_(eps), out=u)
    theta.addcdiv_(m, u, value=rate)
