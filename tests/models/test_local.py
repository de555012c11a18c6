"""Networks of the local groups: every form is the networks as the paper draws them, group after group."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dvaepp.models.build import with_kernels
from dvaepp.models.local import LocalNetworks

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


CASES = [
    (6, ("4", "4", "3"), 4),  # more groups than lie beside each other, and no multiple of them
    (3, ("4", "4", "4"), 1),
    (2, ("4",), 2),
    (1, ("8", "2"), 4),
    (5, ("4", "6"), 8),
    (3, ("4", "4"), 16),
    (2, ("40", "40"), 4),
]


def _forms(networks: LocalNetworks, shared: Tensor, h: list[Tensor]) -> dict[str, Callable[[], Tensor]]:
    """The ways in which a model asks for the parameters of all groups, side by side."""

    def posterior() -> Tensor:
        """As q does: features of x first, then ζ scaled up."""
        x, up = shared.split([SHARED - 2, 2], 1)
        walk = networks.given(x).walk(up)
        return torch.cat([walk(h[:j]) for j in range(len(h))], 1)

    def prior() -> Tensor:
        walk = networks.walk(shared)
        return torch.cat([walk(h[:j]) for j in range(len(h))], 1)

    return {
        "posterior": posterior,
        "prior": prior,
        "all": lambda: torch.cat(networks.all(shared, h), 1),
    }


@pytest.mark.parametrize("num_groups, blocks, size", CASES)
@pytest.mark.parametrize("compiled", [False, True])
def test_every_form_equals_network_after_network(
    num_groups: int, blocks: tuple[str, ...], size: int, compiled: bool
) -> None:
    """Values and gradients of parameters and inputs: 1e-10 of the largest in float64, 1e-4 in float32 by kernels."""
    networks = _networks(num_groups, blocks)
    shared, h = _inputs(num_groups, size)
    wanted = [shared, *h, *networks.parameters()]
    expected = torch.cat([_written_out(networks, j, torch.cat([shared, *h[:j]], 1)) for j in range(num_groups)], 1)
    truth = _gradients(expected, wanted)
    tolerance = 1e-10
    if compiled:
        networks, tolerance = with_kernels(networks).float(), 1e-4
        shared, h = shared.detach().float().requires_grad_(), [x.detach().float().requires_grad_() for x in h]
        wanted = [shared, *h, *networks.parameters()]
    largest = max(g.abs().max().item() for g in truth)
    for name, form in _forms(networks, shared, h).items():
        found = form()
        scale = expected.abs().max().item()
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=tolerance * scale, msg=name)
        for a, b in zip(_gradients(found, wanted), truth, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=0, atol=tolerance * largest, msg=f"gradient of {name}")


@pytest.mark.parametrize("compiled", [False, True])
def test_several_samples_of_an_image_share_what_it_gives(compiled: bool) -> None:
    networks = _networks(3, ("16", "16")).float()
    networks = with_kernels(networks) if compiled else networks
    x, up = (_random(rows, channels, 4, 4, seed=rows).float() for rows, channels in ((2, SHARED - 2), (6, 2)))
    h = [_random(6, CHANNELS, 4, 4, seed=20 + j).float() for j in range(2)]
    once = networks.given(x).repeated(3).walk(up)
    again = networks.given(x.repeat(3, 1, 1, 1)).walk(up)
    for j in range(3):
        torch.testing.assert_close(once(h[:j]), again(h[:j]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_group_j_depends_on_earlier_h_and_on_no_other(compiled: bool) -> None:
    networks = _networks(6, ("16", "3")).float()
    networks = with_kernels(networks) if compiled else networks
    shared, h = _inputs(6, 4)
    h = [x.detach().float().requires_grad_() for x in h]
    for j, output in enumerate(networks.all(shared.detach().float(), h)):
        gradients = torch.autograd.grad(output.sum(), h, allow_unused=True, retain_graph=True)
        reaches = [g is not None and bool(g.abs().max() > 0) for g in gradients]
        assert reaches == [k < j for k in range(6)], j


def test_a_new_network_starts_near_zero() -> None:
    """16 groups on unit noise: no group's spread may grow with the number of groups before it."""
    networks = LocalNetworks(8, 8, 16, ("8", "8", "16"), torch.Generator().manual_seed(0))
    shared = torch.randn(4, 8, 4, 4, generator=torch.Generator().manual_seed(1))
    h = list(torch.randn(16, 4, 8, 4, 4, generator=torch.Generator().manual_seed(2)))
    with torch.no_grad():
        spread = [networks.walk(shared)(h[:j]).std().item() for j in range(16)]
    assert max(spread) < 1, spread
