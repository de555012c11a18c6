"""What a model is made of: modules by the names of the paper's Table 4, the maps they end at, their parameters."""

from typing import NamedTuple

from torch import nn

from dvaepp.models.dvaepp import DVAE
from dvaepp.models.feedforward import FeedForward
from dvaepp.networks.convolution import Conv
from dvaepp.networks.norm import BatchNorm
from dvaepp.networks.residual import Residual


class Row(NamedTuple):
    module: str
    blocks: str
    output: str
    parameters: int


def summary(model: FeedForward | DVAE) -> list[Row]:
    rows = _convolutional(model) if isinstance(model, DVAE) else _feedforward(model)
    return [*rows, Row("total", "", "", _count(model))]


def _feedforward(model: FeedForward) -> list[Row]:
    rows = [
        Row(f"q(z{a + 1})", "", str(size), _count(net))
        for a, (net, size) in enumerate(zip(model.encoders, model.group_sizes, strict=True))
    ]
    pixels = " x ".join(map(str, model.image_shape))
    prior = model.prior if model.prior is not None else nn.ModuleList(model.prior_networks)
    own = 0 if model.prior is not None else model.first_logits.numel()
    return [
        *rows,
        Row("p(z)", "", str(model.num_units), _count(prior) + own),
        Row("p(x)", "", pixels, _count(model.decoder)),
    ]


def _convolutional(model: DVAE) -> list[Row]:
    size = model.canvas.size
    norms = [norm for name, norm in model.named_children() if isinstance(norm, BatchNorm)]
    rows = [Row("batch norms", "", "", sum(map(_count, norms)))]

    def chain(name: str, net: nn.Module, start: int, times: int = 1) -> int:
        blocks = [block for block in net.children() if isinstance(block, Residual)]
        end = start
        for block in blocks:
            end = {"": end, "d": end // 2, "u": 2 * end}[block.first.resize]
        filters = ", ".join(f"{len(block.first.bias)}{block.first.resize}" for block in blocks)
        rows.append(Row(name, filters, f"{end} x {end} x {len(blocks[-1].first.bias)}", times * _count(net)))
        return end

    local = chain("down 1", model.down1, size)
    if model.group_sizes:
        top = chain("down 2", model.down2, local)
        per_group = str(model.group_sizes[0])
        rows.append(Row(f"q(z_i), {len(model.group_sizes)} of them", per_group, per_group, _count(model.encoders)))
        chain("upsample", model.upsample, top)
    if model.prior is not None:
        rows.append(Row("p(z), RBM", "", str(model.num_units), _count(model.prior)))
    for name, nets in (("q(h_j)", model.q), ("p(h_j)", model.p)):
        chain(f"{name}, {nets.num_groups} of them", nets.networks[0], local)
        rows[-1] = rows[-1]._replace(parameters=_count(nets))
    decoder = model.decoder
    end = chain("context", decoder.context, local)
    for index, net in enumerate(decoder.upsamples):
        end = chain(f"upsample {index + 1}", net, end)
    scales = model.canvas.scales if decoder.conditional else [size]
    for scale, head in zip(scales, decoder.heads, strict=True):
        assert isinstance(head, Conv)
        outputs = len(head.bias)
        rows.append(Row(f"p(x) at {scale} x {scale}", str(outputs), f"{scale} x {scale} x {outputs}", _count(head)))
    for scale, net in zip(scales, decoder.inputs, strict=False):
        chain(f"input {scale} x {scale}", net, scale)
    return rows


def _count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
