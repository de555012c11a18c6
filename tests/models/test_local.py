"""Networks of the local groups: their faster forms are the networks as the paper draws them, group after group."""

from functools import reduce

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dvaepp.models.local import Cut, LocalNetworks, Share

SHARED, CHANNELS = 5, 2


def _random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def _networks(num_groups: int, blocks: tuple[str, ...]) -> LocalNetworks:
    g = torch.Generator().manual_seed(0)
    networks = LocalNetworks(SHARED, CHANNELS, num_groups, blocks, g).double()
    for parameter in networks.parameters():
        parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=g))
    return networks


def _inputs(num_groups: int, size: int) -> tuple[Tensor, list[Tensor]]:
    shared = _random(3, SHARED, size, size, seed=1)
    return shared, [_random(3, CHANNELS, size, size, seed=10 + j) for j in range(num_groups)]


def _gradients(outputs: Tensor, wanted: list[Tensor]) -> list[Tensor]:
    direction = _random(*outputs.shape, seed=99).detach()
    found = torch.autograd.grad((outputs * direction).sum(), wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]


def _written_out(networks: LocalNetworks, j: int, x: Tensor) -> Tensor:
    """ELU, convolution, ELU, convolution, squeeze-and-excitation, skip: block after block on a concatenation."""
    for block in networks.networks[j].children():
        p = dict(block.named_parameters())
        f = F.conv2d(F.elu(x), p["first.weight"], p["first.bias"], padding=1)
        f = F.conv2d(F.elu(f), p["second.weight"], p["second.bias"], padding=1)
        hidden = F.elu(F.linear(f.mean((2, 3)), p["excitation.squeeze.weight"], p["excitation.squeeze.bias"]))
        scale = torch.sigmoid(F.linear(hidden, p["excitation.excite.weight"], p["excitation.excite.bias"]))
        skip = F.conv2d(x, p["skip.weight"], p["skip.bias"]) if "skip.weight" in p else x
        x = skip + f * scale[:, :, None, None]
    return x


def _one_after_another(cut: Cut, share: Share, h: list[Tensor], size: int) -> Tensor:
    """As a pass that draws h group by group."""
    shares = cut.split(share)
    return torch.cat([cut.one(j, shares[j], _joined(h[:j]), size) for j in range(len(shares))], 1)


def _beside(networks: LocalNetworks, shared: Tensor, h: list[Tensor], size: int) -> list[Tensor]:
    """As a pass that knows all h."""
    cut = networks.cut(shared.shape[1])
    return cut.beside(cut.share(shared), [_joined(h[:j]) for j in networks.ends], size)


def _joined(h: list[Tensor]) -> Tensor | None:
    return torch.cat(h, 1).permute(2, 3, 0, 1).flatten(0, 1) if h else None


CASES = [
    (6, ("4", "4", "3"), 4),  # more groups than lie beside each other, and no multiple of them
    (3, ("4", "4", "4"), 1),
    (2, ("4",), 2),
    (1, ("8", "2"), 4),
    (5, ("4", "6"), 8),
    (3, ("4", "4"), 16),
    (2, ("40", "40"), 4),
]


@pytest.mark.parametrize("num_groups, blocks, size", CASES)
def test_the_faster_forms_equal_network_after_network(num_groups: int, blocks: tuple[str, ...], size: int) -> None:
    """Values to 1e-10 and gradients of every parameter and input to 1e-12 of the largest, in float64."""
    networks = _networks(num_groups, blocks)
    shared, h = _inputs(num_groups, size)
    wanted = [shared, *h, *networks.parameters()]

    def in_parts(*parts: int) -> Tensor:
        """As the posterior does: features of x first, ζ scaled up second."""
        cut = networks.cut(*parts)
        first, *others = (cut.share(x, part) for part, x in enumerate(shared.split(parts, 1)))
        return _one_after_another(cut, reduce(Share.plus, others, first), h, size)

    forms = {
        "plain": lambda: torch.cat([networks.plain(j, shared, h[:j]) for j in range(num_groups)], 1),
        "beside": lambda: torch.cat(_beside(networks, shared, h, size), 1),
        "one": lambda: in_parts(SHARED),
        "one, shared in two parts": lambda: in_parts(SHARED - 2, 2),
    }
    expected = torch.cat([_written_out(networks, j, torch.cat([shared, *h[:j]], 1)) for j in range(num_groups)], 1)
    truth = _gradients(expected, wanted)
    largest = max(g.abs().max().item() for g in truth)
    for name, form in forms.items():
        found = form()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-10, msg=name)
        for a, b in zip(_gradients(found, wanted), truth, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12 * largest + 1e-10, msg=f"gradient of {name}")


def test_beside_group_j_depends_on_earlier_h_and_on_no_other() -> None:
    networks = _networks(6, ("4", "3"))
    shared, h = _inputs(6, 4)
    for j, output in enumerate(_beside(networks, shared, h, 4)):
        gradients = torch.autograd.grad(output.sum(), h, allow_unused=True, retain_graph=True)
        reaches = [g is not None and bool(g.abs().max() > 0) for g in gradients]
        assert reaches == [k < j for k in range(6)], j


def test_a_new_network_starts_near_zero() -> None:
    """16 groups on unit noise: no group's spread may grow with the number of groups before it."""
    networks = LocalNetworks(8, 8, 16, ("8", "8", "16"), torch.Generator().manual_seed(0))
    shared = torch.randn(4, 8, 4, 4, generator=torch.Generator().manual_seed(1))
    h = list(torch.randn(16, 4, 8, 4, 4, generator=torch.Generator().manual_seed(2)))
    with torch.no_grad():
        spread = [networks.plain(j, shared, h[:j]).std().item() for j in range(16)]
    assert max(spread) < 1, spread
