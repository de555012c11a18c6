"""Residual blocks with squeeze-and-excitation (App. G) in one compiled call each, and chains of them.

A chain takes pixel-major activations, (pixels, groups, rows, channels), and has its own blocks for each group; a single
block takes maps. The caller computes the first convolution of the first block, because the local networks have it as a
sum of shares. A whole chain is one node of the autograd graph and one call of residual_chain.c: its layers are so small
that a node and a call for each of them would take as long as the arithmetic. The plain twin is
`networks.residual.Residual`.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from dvaepp.kernels import policy
from dvaepp.kernels.build import Array, call
from dvaepp.kernels.convolution import Convolution, convolve_after_elu
from dvaepp.kernels.operation import check_floats, check_shape, no_second_derivative, operation


@runtime_checkable
class ExcitationLayers(Protocol):
    """What is needed of a `networks.excitation.Excitation`, which this folder must not import."""

    squeeze: nn.Linear
    excite: nn.Linear

    def __call__(self, f: Tensor) -> Tensor: ...


@runtime_checkable
class ResidualBlock(Protocol):
    """What is needed of a `networks.residual.Residual`, which this folder must not import."""

    first: Convolution
    second: Convolution
    excitation: ExcitationLayers
    skip: Convolution | None


class ResidualKernel:
    """The first base of a compiled `Residual`; the second is the plain class, whose forward pass `super()` calls."""

    first: Any
    second: Any
    excitation: Any
    skip: Any

    def forward(self, x: Tensor) -> Tensor:
        if not any(policy.takes(kernel, (x, self.first.weight)) for kernel in ("winograd", "residual_chain")):
            return super().forward(x)  # type: ignore[misc]
        first = convolve_after_elu(x, self.first)
        return _after_first(self, first, x if self.skip is None else self.skip(x))


def _after_first(block: ResidualBlock, first: Tensor, skip: Tensor) -> Tensor:
    """The output of a block, (rows, channels, size, size), from that of its first convolution and its skip."""
    _, channels, size, width = first.shape
    if size == width and policy.tiles(size, 4) and channels >= policy.LANES:  # fewer channels would not fill a vector
        layers = layers_of([block])
        tensors = [p for layer in layers for p in layer.parameters]
        if policy.in_one_call([block.second.weight], tensors):
            lines = (part.permute(0, 2, 3, 1).flatten(1, 2) for part in (first, skip))
            out: Tensor = _chain(*lines, tensors, _letters(layers), True)[0]
            return out.unflatten(1, (size, size)).permute(0, 3, 1, 2)
    return skip + block.excitation(convolve_after_elu(first, block.second))


def takes(networks: Sequence[Sequence["ChainLayer"]], size: int) -> bool:
    """Whether `chain` can compute these networks, alone and side by side, for maps of this size."""
    kernels = [layer.parameters[0] for layer in networks[0] if layer.kind == "conv"]
    parameters = [p for network in networks for layer in network for p in layer.parameters]
    return policy.tiles(size, 2) and policy.in_one_call(kernels, parameters)


def chain(layers: Sequence["ChainLayer"], first: Tensor, skip: Tensor) -> Tensor:
    """The output of a chain of residual blocks.

    `first` and `skip` are the outputs of the first convolution and of the skip of the first block.
    """
    tensors = [p for layer in layers for p in layer.parameters]
    out: Tensor = _chain(first, skip, tensors, _letters(layers), False)[0]
    return out


class ChainLayer(NamedTuple):
    """One operation on the activations x of a chain, by its kind.

    "conv" is x <- conv(ELU(x)). "project" and "keep" begin a block: its skip becomes a 1x1 convolution of x, or x
    itself. "excite" ends a block: x <- skip + excitation(x).
    """

    kind: str
    parameters: list[Tensor]


def layers_of(blocks: Sequence[ResidualBlock]) -> list[ChainLayer]:
    """The layers of one network that come after the first convolution and the skip of its first block."""
    found = []
    for place, block in enumerate(blocks):
        if place > 0:
            found.append(
                ChainLayer("keep", []) if block.skip is None else ChainLayer("project", _parameters(block.skip))
            )
            found.append(ChainLayer("conv", _parameters(block.first)))
        found.append(ChainLayer("conv", _parameters(block.second)))
        squeeze, excite = block.excitation.squeeze, block.excitation.excite
        found.append(ChainLayer("excite", [squeeze.weight, squeeze.bias, excite.weight, excite.bias]))
    return found


def _parameters(conv: Convolution) -> list[Tensor]:
    return [conv.weight, conv.bias]


def in_groups(networks: Sequence[Sequence[ChainLayer]]) -> list[ChainLayer]:
    """The layers of networks that run as groups: the first parameter of every group, then the second of every group."""
    found = []
    for layers in zip(*networks, strict=True):
        each = zip(*(layer.parameters for layer in layers), strict=True)
        found.append(ChainLayer(layers[0].kind, [p for parameters in each for p in parameters]))
    return found


KINDS = ("conv", "project", "keep", "excite")  # in the order of residual_chain.c; torch.ops gets their first letters
PARAMETERS = {"conv": 2, "project": 2, "keep": 0, "excite": 4}


def _letters(layers: Sequence[ChainLayer]) -> str:
    return "".join(layer.kind[0] for layer in layers)


class _Kind(NamedTuple):
    """The kind and the numbers of channels of a layer; `squeezed` is the number inside an excitation."""

    kind: str
    inputs: int
    outputs: int
    squeezed: int = 0


class Shape(NamedTuple):
    """The sizes of a chain; with `by_rows` it has one group, whose activations are (rows, pixels, channels)."""

    pixels: int
    groups: int
    rows: int
    by_rows: bool
    layers: tuple[_Kind, ...]


def _planned(
    activations: Tensor, parameters: Sequence[Tensor], shapes: Sequence[tuple[int, ...]], letters: str, by_rows: bool
) -> "_Plan":
    """The plan of a chain, from the activations at its beginning or its end and from its parameters and their shapes.

    Activations and parameters that do not fit each other are refused here, before C reads any memory.
    """
    check_floats("residual_chain", activations, *parameters)
    sizes = [int(n) for n in activations.shape]
    pixels, groups, rows = (sizes[1], 1, sizes[0]) if by_rows else sizes[:3]
    side = round(pixels**0.5)
    if len(sizes) != (3 if by_rows else 4) or side % policy.TILE or side**2 != pixels:
        raise ValueError(f"residual_chain: maps must be square and of whole tiles, got activations {tuple(sizes)}")
    kinds = _kinds(letters, tuple(shapes[::groups]))
    wanted = [shape for kind in kinds for shape in _parameter_shapes(kind) for _ in range(groups)]
    if shapes != wanted:
        got = [tuple(shape) for shape in shapes]
        raise ValueError(f"residual_chain: parameters of {groups} groups must have shapes {wanted}, got {got}")
    return _plan(Shape(pixels, groups, rows, by_rows, kinds))


@cache
def _kinds(letters: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[_Kind, ...]:
    """The layers, with their sizes taken from the shape of the first parameter of each."""
    kinds: list[_Kind] = []
    place = 0
    for kind in (next(k for k in KINDS if k[0] == letter) for letter in letters):
        if kind == "keep":
            kinds.append(_Kind(kind, kinds[-1].outputs, kinds[-1].outputs))
            continue
        outputs, inputs = shapes[place][:2]
        kinds.append(_Kind(kind, inputs, inputs, outputs) if kind == "excite" else _Kind(kind, inputs, outputs))
        place += PARAMETERS[kind]
    return tuple(kinds)


@cache
def _parameter_shapes(kind: _Kind) -> list[tuple[int, ...]]:
    if kind.kind == "excite":
        wide, narrow = kind.outputs, kind.squeezed
        return [(narrow, wide), (narrow,), (wide, narrow), (wide,)]
    size = 3 if kind.kind == "conv" else 1
    return [(kind.outputs, kind.inputs, size, size), (kind.outputs,)] if kind.kind != "keep" else []


def _run(
    first: Tensor, skip: Tensor, parameters: list[Tensor], letters: str, by_rows: bool
) -> tuple[Tensor, list[Tensor]]:
    """The output of the chain, and the pieces of memory that hold what the backward pass needs."""
    plan = _planned(first, parameters, [p.shape for p in parameters], letters, by_rows)
    out, kept = _results(plan, first, skip)
    rooms = [first.new_empty(floats) for floats in plan.rooms]
    _call("dvaepp_chain", plan, kept, [first.contiguous(), skip.contiguous(), out, *rooms], parameters)
    return out, kept


def _fake(
    first: Tensor, skip: Tensor, parameters: list[Tensor], letters: str, by_rows: bool
) -> tuple[Tensor, list[Tensor]]:
    return _results(_planned(first, parameters, _whole(parameters), letters, by_rows), first, skip)


def _whole(parameters: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Shapes in numbers, where a compiler may have put symbols for them."""
    return [tuple(map(int, p.shape)) for p in parameters]


def _results(plan: "_Plan", first: Tensor, skip: Tensor) -> tuple[Tensor, list[Tensor]]:
    check_floats("residual_chain", first, skip)
    check_shape("residual_chain", "first", first.shape, plan.first)
    check_shape("residual_chain", "skip", skip.shape, plan.first)
    return first.new_empty(plan.out), [first.new_empty(floats) for floats in plan.kept]


def _run_backward(
    dout: Tensor, kept: list[Tensor], parameters: list[Tensor], letters: str, by_rows: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The gradients of `first`, of `skip` and of the parameters.

    In a chain of one block the gradient of `skip` is that of the output, and an empty tensor is returned for it.
    """
    plan = _planned(dout, parameters, [p.shape for p in parameters], letters, by_rows)
    dfirst, dskip, slopes = _results_backward(plan, dout, kept, parameters)
    rooms = [dout.new_empty(floats) for floats in plan.rooms_backward]
    _call("dvaepp_chain_backward", plan, kept, [dout.contiguous(), dfirst, dskip, *rooms], parameters, slopes)
    return dfirst, dskip, slopes


def _fake_backward(
    dout: Tensor, kept: list[Tensor], parameters: list[Tensor], letters: str, by_rows: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    plan = _planned(dout, parameters, _whole(parameters), letters, by_rows)
    return _results_backward(plan, dout, kept, parameters)


def _results_backward(
    plan: "_Plan", dout: Tensor, kept: list[Tensor], parameters: list[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    check_floats("residual_chain", dout, *kept)
    check_shape("residual_chain", "dout", dout.shape, plan.out)
    check_shape("residual_chain", "kept", [piece.numel() for piece in kept], plan.kept)
    dskip = dout.new_empty(plan.first if plan.blocks > 1 else 0)
    return (
        dout.new_empty(plan.first),
        dskip,
        [torch.empty_like(p, memory_format=torch.contiguous_format) for p in parameters],
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, list[Tensor]]) -> None:
    _, _, parameters, ctx.letters, ctx.by_rows = inputs
    ctx.save_for_backward(*output[1], *parameters)
    ctx.pieces = len(output[1])
    ctx.mark_non_differentiable(*output[1])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dout: Tensor, _: Any) -> tuple[Tensor, Tensor, list[Tensor], None, None]:
    kept, parameters = list(ctx.saved_tensors[: ctx.pieces]), list(ctx.saved_tensors[ctx.pieces :])
    dfirst, dskip, slopes = _chain_backward(dout, kept, parameters, ctx.letters, ctx.by_rows)
    return dfirst, dskip if ctx.letters.count("e") > 1 else dout, slopes, None, None


_chain = operation(
    "residual_chain(Tensor first, Tensor skip, Tensor[] parameters, str layers, bool by_rows) -> (Tensor, Tensor[])",
    _run,
    _fake,
    setup_context=_setup_context,
    backward=_backward,
)
_chain_backward = operation(
    "residual_chain_backward(Tensor dout, Tensor[] kept, Tensor[] parameters, str layers, bool by_rows) "
    "-> (Tensor, Tensor, Tensor[])",
    _run_backward,
    _fake_backward,
    backward=no_second_derivative,
)


class _CLayer(ctypes.Structure):
    """`layer` of residual_chain.c."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in ("kind", "inputs", "outputs", "squeezed", "parameters", "x", "skip", "y", "kept", "dy", "dx")
    ]


class _CChain(ctypes.Structure):
    """`chain` of residual_chain.c."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("layers", "kept", "ends", "parameters", "slopes")] + [
        (name, ctypes.c_int64) for name in ("count", "pixels", "groups", "rows", "by_rows")
    ]


class _Plan(NamedTuple):
    """Where each layer of a chain reads and writes, and how many floats the arrays for this have."""

    layers: ctypes.Array[_CLayer]
    shape: Shape
    first: tuple[int, ...]
    out: tuple[int, ...]
    kept: list[int]
    rooms: list[int]
    rooms_backward: list[int]
    blocks: int


class _Kept:
    """Memory for what the backward pass needs, in pieces small enough for the allocator to keep them.

    The allocator gives larger pieces back to the system, and every step would wait for fresh pages.
    """

    def __init__(self) -> None:
        self.sizes = [0]

    def place(self, floats: int) -> int:
        if self.sizes[-1] and self.sizes[-1] + floats > PIECE:
            self.sizes.append(0)
        self.sizes[-1] += floats
        return (len(self.sizes) - 1 << PIECE_BITS) + self.sizes[-1] - floats


class _Rooms:
    """Arrays for activations on their way from layer to layer, one for each use and each number of channels.

    Layers with different numbers of channels never share an array. The rows of a thread would lie at other places for
    each of them, and a thread could overwrite rows that another one has not read yet.
    """

    def __init__(self, area: int) -> None:
        self.area = area
        self.found: dict[tuple[int, int], int] = {}

    def place(self, use: int, width: int) -> int:
        """The place of an array as residual_chain.c counts places; -1 to -3 are arrays of the caller."""
        return -4 - self.found.setdefault((use, width), len(self.found))

    def sizes(self) -> list[int]:
        return [self.area * width for _, width in self.found]


PIECE = 1 << 21  # floats in a piece: 8 MB, a size that allocators keep for the next step
PIECE_BITS = 40  # as in residual_chain.c
FIRST, SKIP, OUT = DOUT, DFIRST, DSKIP = -1, -2, -3  # places of the caller's arrays, forward and backward


@cache
def _plan(shape: Shape) -> _Plan:
    """Choose the arrays of all layers.

    What the backward pass needs is written to `kept`. Everything else goes through a few arrays that are used again and
    again, so that they stay in a core's cache.
    """
    pixels, groups, rows, by_rows, kinds = shape
    area, parameters = pixels * groups * rows, 0
    layers, rooms, kept = (_CLayer * len(kinds))(), _Rooms(area), _Kept()
    x, skip = FIRST, SKIP
    for i, (layer, kind) in enumerate(zip(layers, kinds, strict=True)):
        following = kinds[i + 1].kind if i + 1 < len(kinds) else ""
        layer.kind, layer.inputs = KINDS.index(kind.kind), kind.inputs
        layer.outputs, layer.squeezed, layer.parameters = kind.outputs, kind.squeezed, parameters
        parameters += PARAMETERS[kind.kind]
        layer.x, layer.skip = x, skip
        if kind.kind == "conv":
            layer.kept = kept.place(area * kind.inputs)
            layer.y = x = kept.place(area * kind.outputs) if following == "excite" else rooms.place(1, kind.outputs)
        elif kind.kind == "project":
            layer.y = skip = rooms.place(0, kind.outputs)
        elif kind.kind == "keep":
            skip = x
        else:
            channels, squeezed = (-(-n // policy.LANES) * policy.LANES for n in (kind.outputs, kind.squeezed))
            layer.kept = kept.place(groups * rows * (2 * channels + squeezed))
            if not following:
                layer.y = x = OUT
            elif following == "project":
                layer.y = x = kept.place(area * kind.outputs)
            else:
                layer.y = x = rooms.place(0, kind.outputs)  # takes the array of the skip
    backward = _plan_backward(layers, kinds, area)
    order = (rows, pixels) if by_rows else (pixels, groups, rows)
    first, out = ((*order, width) for width in (kinds[0].inputs, kinds[-1].outputs))
    blocks = sum(kind.kind == "excite" for kind in kinds)
    return _Plan(layers, shape, first, out, kept.sizes, rooms.sizes(), backward.sizes(), blocks)


def _plan_backward(layers: ctypes.Array[_CLayer], kinds: Sequence[_Kind], area: int) -> _Rooms:
    """Choose the arrays of the gradients.

    The gradient of a block's output is also the gradient of its skip, so it must stay in its array until the gradient
    of the convolutions has passed through the block. That takes two more arrays.
    """
    here = skip = DOUT
    second = [i for i, kind in enumerate(kinds) if kind.kind == "conv"][1:2]  # the first layer of the second block
    rooms = _Rooms(area)
    for i in reversed(range(len(kinds))):
        layer, kind = layers[i], kinds[i]
        if kind.kind in ("project", "keep"):
            layer.dy, layer.dx = skip, here  # the gradient of the skip is added to what is in dx
            continue
        layer.dy = here
        if kind.kind == "excite":
            skip = here
        free = next(p for p in (rooms.place(use, kind.inputs) for use in range(3)) if p not in (here, skip))
        layer.dx = here = DFIRST if i == 0 else DSKIP if [i] == second else free
    return rooms


def _call(
    function: str,
    plan: _Plan,
    kept: Sequence[Tensor],
    ends: Sequence[Tensor],
    parameters: Sequence[Tensor],
    slopes: Sequence[Tensor] = (),
) -> None:
    pixels, groups, rows, by_rows, kinds = plan.shape
    job = _CChain(count=len(kinds), pixels=pixels, groups=groups, rows=rows, by_rows=by_rows)
    job.layers = ctypes.addressof(plan.layers)
    dense = [p.contiguous() for p in parameters]
    arrays: dict[str, Array] = {"kept": kept, "ends": ends, "parameters": dense, "slopes": slopes}
    call(getattr(policy.functions("residual_chain"), function), job, **arrays)
