"""The modules of DVAE++ by the names of the paper's Table 4, the maps they end at, and their parameters."""

from typing import Any

from torch import nn

from dvaepp.models.summary import Row, count
from dvaepp.networks.convolution import Conv
from dvaepp.networks.norm import BatchNorm
from dvaepp.networks.residual import Residual


def rows(model: Any) -> list[Row]:
    size = model.canvas.size
    norms = [norm for _, norm in model.named_children() if isinstance(norm, BatchNorm)]
    found = [Row("batch norms", "", "", sum(map(count, norms)))]

    def chain(name: str, net: nn.Module, start: int, times: int = 1) -> int:
        blocks = [block for block in net.children() if isinstance(block, Residual)]
        end = start
        for block in blocks:
            end = {"": end, "d": end // 2, "u": 2 * end}[block.first.resize]
        filters = ", ".join(f"{len(block.first.bias)}{block.first.resize}" for block in blocks)
        found.append(Row(name, filters, f"{end} x {end} x {len(blocks[-1].first.bias)}", times * count(net)))
        return end

    local = chain("down 1", model.down1, size)
    if model.group_sizes:
        top = chain("down 2", model.down2, local)
        per_group = str(model.group_sizes[0])
        found.append(Row(f"q(z_i), {len(model.group_sizes)} of them", per_group, per_group, count(model.encoders)))
        chain("upsample", model.upsample, top)
    if model.prior is not None:
        found.append(Row("p(z), RBM", "", str(model.num_units), count(model.prior)))
    for name, nets in (("q(h_j)", model.q), ("p(h_j)", model.p)):
        chain(f"{name}, {nets.num_groups} of them", nets.networks[0], local)
        found[-1] = found[-1]._replace(parameters=count(nets))
    decoder = model.decoder
    end = chain("context", decoder.context, local)
    for index, net in enumerate(decoder.upsamples):
        end = chain(f"upsample {index + 1}", net, end)
    scales = model.canvas.scales if decoder.conditional else [size]
    for scale, head in zip(scales, decoder.heads, strict=True):
        assert isinstance(head, Conv)
        outputs = len(head.bias)
        found.append(Row(f"p(x) at {scale} x {scale}", str(outputs), f"{scale} x {scale} x {outputs}", count(head)))
    for scale, net in zip(scales, decoder.inputs, strict=False):
        chain(f"input {scale} x {scale}", net, scale)
    return found
