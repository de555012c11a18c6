"""ARM: the layer-wise pairs."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from dvaepp.estimators import ARM, Estimator, Target, arm
from dvaepp.estimators.draws import Layer, antithetic_pairs, branch, draw, log_q_from
from tests.estimators.deviation import deviation
from tests.estimators.models import FEATURES, STANDARD_ERRORS, Toy


def build(sizes: tuple[int, ...], features: int) -> Estimator:
    return ARM(sizes, features)


def test_pairs_share_what_was_drawn_before_them() -> None:
    """f_a(z) - f_a(z̃) by hand for two layers: branch 1 walks on from z̃₁, branch 2 keeps z₁."""
    model = Toy((3, 3), 9)
    layers = draw(model, torch.Generator().manual_seed(0))
    difference, (first, second), log_joint = antithetic_pairs(model, layers)

    def f(z: list[Tensor], start: int) -> Tensor:
        log_q = [torch.distributions.Bernoulli(logits=model.logits(z[:a])).log_prob(z[a]).sum(-1) for a in (0, 1)]
        return model.log_joint(z) - torch.stack(log_q[start:]).sum(0)

    z = [layer.z for layer in layers]
    after = (layers[1].rho > torch.sigmoid(-model.logits([first]))).double()
    torch.testing.assert_close(difference[0], (f(z, 0) - f([first, after], 0)).detach())
    torch.testing.assert_close(difference[1], (f(z, 1) - f([z[0], second], 1)).detach())
    torch.testing.assert_close(
        log_joint, torch.stack([model.log_joint(s) for s in (z, [first, after], [z[0], second])])
    )


def test_enumeration_sees_a_partner_that_does_not_reach_the_next_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Branch 1 with the z₂ that was drawn after z₁, not after z̃₁."""

    def kept(target: Target, layers: Sequence[Layer]) -> tuple[Tensor, list[Tensor], Tensor]:
        difference, split, log_joint = antithetic_pairs(target, layers)
        other = branch(target, layers, split, lambda a, logits, rho: layers[a].z.expand_as(logits))
        signal = log_joint[0] - torch.stack(log_q_from(layers))
        return (signal - other).detach(), split, log_joint

    monkeypatch.setattr(arm, "antithetic_pairs", kept)
    assert deviation(ARM((3, 3), FEATURES), (3, 3), 100_000) > 2 * STANDARD_ERRORS
