"""AdaMax (Kingma and Ba 2015, Sec. 7.1) over one flat buffer.

    m <- b₁ m + (1-b₁) g,   u <- max(b₂ u, |g| + ε),   θ <- θ - lr / (1 - b₁^t) · m / u

torch's own AdaMax visits a thousand small tensors one by one, and reads each large one from memory again for every
operation. Here all parameters are views of one buffer, which `kernels.adamax` updates in a few passes. The numbers are
the same, and a step takes a fraction of the time.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dvaepp.kernels import adamax


class Adamax(torch.optim.Optimizer):
    """AdaMax for the parameters of a whole model, with the arguments of `torch.optim.Adamax`.

    The state of a parameter, "exp_avg" and "exp_inf" as in torch, consists of views of the flat buffers. It must
    therefore be filled in place, which `load` does. The number of steps is kept once for each group of parameters.
    """

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
        """Put the saved state of one parameter, and the number of steps that it was saved after, in its place."""
        for group in self.param_groups:
            group["step"] = step
        for name, value in state.items():
            self.state[parameter][name].copy_(value)
