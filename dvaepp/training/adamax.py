"""AdaMax (Kingma and Ba 2015, Sec. 7.1) over one flat buffer.

    m <- b₁ m + (1-b₁) g,   u <- max(b₂ u, |g| + ε),   θ <- θ - lr / (1 - b₁^t) · m / u

torch's own walks through a thousand small tensors and reads large ones from memory once per operation. Here parameters
are views of one buffer, which `kernels.adamax` updates in few passes: the same numbers, several times faster.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dvaepp.kernels import adamax


class Adamax(torch.optim.Optimizer):
    """A parameter's state is {"exp_avg", "exp_inf"}, views of the buffers: fill it with `load`; a group has "step"."""

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        for group in self.param_groups:
            tensors = group["params"]
            if not tensors:
                continue
            flat = torch.cat([p.detach().reshape(-1) for p in tensors])
            group["flat"] = [flat, torch.zeros_like(flat), torch.zeros_like(flat)]
            group["step"] = 0
            group["sizes"] = sizes = [p.numel() for p in tensors]
            for p, *views in zip(tensors, *(buffer.split(sizes) for buffer in group["flat"]), strict=True):
                theta, m, u = (view.view(p.shape) for view in views)
                p.data = theta
                self.state[p] = {"exp_avg": m, "exp_inf": u}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # a closure has no use here
        for group in self.param_groups:
            if not group["params"]:
                continue
            group["step"] += 1
            rate = -group["lr"] / (1 - group["betas"][0] ** group["step"])
            theta, m, u = group["flat"]
            adamax.update(
                theta,
                m,
                u,
                group["sizes"],
                [p.grad for p in group["params"]],
                rate=rate,
                betas=group["betas"],
                epsilon=group["eps"],
                weight_decay=group["weight_decay"],
            )

    def load(self, parameter: Tensor, state: dict[str, Tensor], step: int) -> None:
        for group in self.param_groups:
            group["step"] = step
        for name, value in state.items():
            self.state[parameter][name].copy_(value)
