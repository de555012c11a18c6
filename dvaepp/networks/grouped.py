"""Chains of residual blocks on pixel-major activations, (pixels, groups, rows, channels), a chain for each group.

The first convolution of the first block belongs to the caller, who may know it as a sum of shares. On a CPU in float32
a chain is one node of the graph, which winograd.c and excitation.c compute: its parts are so small that keeping books
of each would take as long.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import elu

from dvaepp.compiled import plain_floats
from dvaepp.networks import excitation, winograd
from dvaepp.networks.residual import Conv, Residual, convolve


def chain(blocks: Sequence[Sequence[Residual]], first: Tensor, skip: Tensor) -> Tensor:
    """blocks[place][group], of which the first place takes `first` and `skip`: its first convolution and its skip."""
    layers = _layers(blocks)
    tensors = [p for layer in layers for p in layer.parameters]
    if _compiled_for(blocks, [first, skip, *tensors]):
        out: Tensor = _Chain.apply(first, skip, [(layer.kind, len(layer.parameters)) for layer in layers], *tensors)
        return out
    x = first
    for layer in layers:
        x, skip = _plain(layer, x, skip)
    return x


class _Layer(NamedTuple):
    """kind "conv" is x <- conv(ELU(x)); "project" and "keep" make the skip out of x; "excite" joins x and the skip."""

    kind: str
    parameters: list[Tensor]


def _layers(blocks: Sequence[Sequence[Residual]]) -> list[_Layer]:
    found = []
    for place, groups in enumerate(blocks):
        if place > 0:
            skips = [block.skip for block in groups if block.skip is not None]
            found.append(_Layer("project", _parameters(skips)) if skips else _Layer("keep", []))
            found.append(_Layer("conv", _parameters([block.first for block in groups])))
        found.append(_Layer("conv", _parameters([block.second for block in groups])))
        found.append(_Layer("excite", excitation.parameters_of([block.excitation for block in groups])))
    return found


def _parameters(convs: Sequence[Conv]) -> list[Tensor]:
    return [*(conv.weight for conv in convs), *(conv.bias for conv in convs)]


def _plain(layer: _Layer, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
    """x and skip after a layer, in torch."""
    groups = x.shape[1]
    weights, biases = layer.parameters[:groups], layer.parameters[groups:]
    if layer.kind == "conv":
        return after_elu(x, weights, biases), skip
    if layer.kind == "project":
        return x, _project(x, weights, biases)
    if layer.kind == "keep":
        return x, x
    return excitation.excited(x, skip, layer.parameters), skip


def _project(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    kernels = torch.stack([weight[:, :, 0, 0] for weight in weights])
    return torch.matmul(x, kernels.transpose(1, 2)) + torch.stack(list(biases))[:, None]


def after_elu(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> Tensor:
    """3x3 convolutions of ELU(x), (pixels, groups, rows, channels), with one kernel for each group."""
    size = round(x.shape[0] ** 0.5)
    if winograd.fits(size):
        return winograd.after_elu(x, weights, biases)
    active, found = elu(x), []
    for g, weight in enumerate(weights):
        maps = active[:, g].unflatten(0, (size, size)).permute(2, 3, 0, 1)
        y = convolve(maps, weight, None if biases is None else biases[g])
        found.append(y.permute(2, 3, 0, 1).flatten(0, 1))
    return torch.stack(found, 1)


def _compiled_for(blocks: Sequence[Sequence[Residual]], tensors: Sequence[Tensor]) -> bool:
    kernels = [[c.weight] for groups in blocks for c in (groups[0].first, groups[0].second)][1:]
    return (
        winograd.fits(round(tensors[0].shape[0] ** 0.5))
        and all(winograd.in_the_cache(tensors[0], kernel) for kernel in kernels)
        and plain_floats(tensors)
        and excitation.compiled()
    )


class _Chain(torch.autograd.Function):
    """`chain` with its own books: each layer's saved tensors lie behind those of the layer before."""

    @staticmethod
    def forward(
        ctx: Any, first: Tensor, skip: Tensor, layers: Sequence[tuple[str, int]], *parameters: Tensor
    ) -> Tensor:
        x, groups, saved, sizes = first, first.shape[1], [], []
        for kind, own in _dealt(layers, parameters):
            kept: list[Tensor] = []
            if kind == "conv":
                x, active, weights = winograd.forward(x, own[:groups], own[groups:])
                kept = [active, *weights]
            elif kind == "project":
                skip, kept = _project(x, own[:groups], own[groups:]), [x, *own[:groups]]
            elif kind == "keep":
                skip = x
            else:
                x, found = excitation.forward(x, skip, own)
                kept = [*found, *own]
            saved += kept
            sizes.append(len(kept))
        ctx.save_for_backward(*saved)
        ctx.layers, ctx.sizes = layers, sizes
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
        saved, slopes, dskip = list(ctx.saved_tensors), [], dx
        for (kind, _), size in zip(reversed(ctx.layers), reversed(ctx.sizes), strict=True):
            kept = saved[len(saved) - size :]
            del saved[len(saved) - size :]
            found: list[Tensor] = []
            if kind == "conv":
                gradient, dw, dbias = winograd.backward(dx, kept[0], kept[1:], True, True, True)
                assert gradient is not None
                dx, found = gradient, [*dw, *dbias]
            elif kind == "project":
                through, found = _project_backward(dskip, kept[0], kept[1:])
                dx = dx + through
            elif kind == "keep":
                dx = dx + dskip
            else:
                dskip = dx
                dx, found = excitation.backward(dx, excitation.Saved(*kept[:4]), kept[4:])
            slopes.append(found)
        return dx, dskip, None, *(slope for found in reversed(slopes) for slope in found)


def _dealt(layers: Sequence[tuple[str, int]], parameters: Sequence[Tensor]) -> Iterator[tuple[str, Sequence[Tensor]]]:
    first = 0
    for kind, size in layers:
        yield kind, parameters[first : first + size]
        first += size


def _project_backward(dskip: Tensor, x: Tensor, weights: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """The gradients of x and of the parameters."""
    dx = torch.matmul(dskip, torch.stack([weight[:, :, 0, 0] for weight in weights]))
    over = dskip.transpose(0, 1).flatten(1, 2), x.transpose(0, 1).flatten(1, 2)  # (groups, pixels · rows, channels)
    dw = torch.bmm(over[0].transpose(1, 2), over[1])
    return dx, [*(w[:, :, None, None] for w in dw.unbind(0)), *over[0].sum(1).unbind(0)]
