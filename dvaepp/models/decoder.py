"""p(x|ζ, h): factorial at full resolution, or scale by scale (Sec. 6.1, App. G.1).

    p(x|ζ, h) = p(x₀|ζ, h) Π_i p(x_i|ζ, h, x_<i)

Scale i holds every s_i-th pixel of the padded image in both directions. A pixel that a coarser scale has generated is
not generated again, so each pixel belongs to exactly one scale. The padding is 0 wherever a network reads it, and has
no likelihood.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, pad

from dvaepp.models.likelihoods import Likelihood
from dvaepp.networks.convolution import Conv
from dvaepp.networks.residual import factor, parse, residual


class Canvas(nn.Module):
    """A square of `size` pixels with the image in its middle, and the scales it is generated at.

    It is a module, so that its masks move to the model's device with it; they are not saved in checkpoints.
    """

    def __init__(self, height: int, width: int, size: int, num_scales: int) -> None:
        super().__init__()
        self.size, self.scales = size, [size >> i for i in reversed(range(num_scales))]
        top, left = (size - height) // 2, (size - width) // 2
        self.margins = (left, size - width - left, top, size - height - top)
        self.rows, self.columns = slice(top, top + height), slice(left, left + width)
        inside = torch.zeros(size, size, dtype=torch.bool)
        inside[self.rows, self.columns] = True
        for index, scale in enumerate(self.scales):
            mask = self.at(inside, scale).clone()
            if index > 0:
                mask[::2, ::2] = False
            self.register_buffer(f"new{index}", mask, persistent=False)

    def pad(self, x: Tensor) -> Tensor:
        return pad(x, self.margins)

    def crop(self, x: Tensor) -> Tensor:
        return x[..., self.rows, self.columns]

    def at(self, x: Tensor, scale: int) -> Tensor:
        """The pixels of a padded image that a scale holds."""
        step = self.size // scale
        return x[..., ::step, ::step]

    def new(self, index: int) -> Tensor:
        """Which pixels of scale number `index` are generated there: neither padding nor pixels of a coarser scale."""
        return self.get_buffer(f"new{index}")

    def owner(self) -> Tensor:
        """For each pixel of the image the number of the scale that generates it (Fig. 8), (height, width)."""
        owner = torch.full((self.size, self.size), -1, dtype=torch.int64, device=self.new(0).device)
        for index, scale in enumerate(self.scales):
            at_scale = self.at(owner, scale)  # a view
            at_scale[self.new(index)] = index
        return self.crop(owner)


class Decoder(nn.Module):
    """Networks of the paper's Table 4: context, upsample 1 ..., one output convolution per scale, input nets.

    An unconditional decoder has no input nets and a single output convolution at full resolution.
    """

    def __init__(
        self,
        inputs: int,
        resolution: int,
        canvas: Canvas,
        likelihood: Likelihood,
        context: Sequence[str],
        upsamples: Sequence[Sequence[str]],
        input_filters: int,
        conditional: bool,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.canvas, self.likelihood, self.conditional = canvas, likelihood, conditional
        self.context = residual(inputs, context, generator)
        self.upsamples, self.inputs, self.heads = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        width, size = parse(context[-1])[0], round(resolution * factor(context))
        for index, scale in enumerate(canvas.scales):
            if index > 0:
                self.upsamples.append(residual(width, upsamples[index - 1], generator))
                width = parse(upsamples[index - 1][-1])[0]
                size = round(size * factor(upsamples[index - 1]))
            last = scale == canvas.size
            if conditional or last:
                # The map of the coarsest scale may be twice as large as the scale; a stride of 2 halves it.
                resize = "d" if size == 2 * scale else ""
                self.heads.append(Conv(width, likelihood.outputs, 3, resize, generator))
            if conditional and not last:
                resize = "u" if size == 2 * scale else ""
                self.inputs.append(residual(likelihood.channels, [f"{input_filters}{resize}"], generator))
                width += input_filters

    def forward(self, features: Tensor, x: Tensor, scored: Tensor | None = None) -> Tensor:
        """log p(x|ζ, h) of padded images, (rows,); `scored` (rows, height, width) may restrict it to some pixels."""
        features = self.context(features)
        if not self.conditional:
            parameters = self.canvas.crop(self._last(features))
            log_prob = self.likelihood.log_prob(parameters, self.canvas.crop(x))
            if scored is not None:
                log_prob = log_prob * self.canvas.crop(scored)
            return log_prob.flatten(1).sum(1)
        total = x.new_zeros(len(x))
        for index, scale in enumerate(self.canvas.scales):
            features = self.upsamples[index - 1](features) if index > 0 else features
            here = self.canvas.at(x, scale)
            log_prob = self.likelihood.log_prob(self.heads[index](elu(features)), here)
            if scored is not None:
                log_prob = log_prob * self.canvas.at(scored, scale)
            total = total + (log_prob * self.canvas.new(index)).flatten(1).sum(1)
            if scale != self.canvas.size:
                features = torch.cat([features, self.inputs[index](here)], 1)
        return total

    def _last(self, features: Tensor) -> Tensor:
        for upsample in self.upsamples:
            features = upsample(features)
        parameters: Tensor = self.heads[-1](elu(features))
        return parameters

    def generate(
        self,
        features: Tensor,
        generator: torch.Generator | None,
        mean: bool = True,
        known: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Images (rows, channels, height, width): a sample of p(x|ζ, h), or with `mean` one to look at.

        With `mean`, an unconditional decoder shows the mean of every pixel. A conditional one does so at its finest
        scale only. Its coarser scales show the pixels that were drawn, because the finer scales depend on them: means
        in their place would belong to another image.

        `known` holds padded images and a mask of their seen pixels, which are kept instead of being drawn.
        """
        features = self.context(features)
        if not self.conditional:
            pixels = self._pixels(self._last(features), generator, mean)
            return self.canvas.crop(pixels if known is None else torch.where(known[1], known[0], pixels))
        image = features.new_zeros(len(features), self.likelihood.channels, self.canvas.size, self.canvas.size)
        for index, scale in enumerate(self.canvas.scales):
            features = self.upsamples[index - 1](features) if index > 0 else features
            finest = scale == self.canvas.size
            pixels = self._pixels(self.heads[index](elu(features)), generator, mean and finest)
            if known is not None:
                given, seen = (self.canvas.at(part, scale) for part in known)
                pixels = torch.where(seen, given, pixels)
            here = self.canvas.at(image, scale)  # a view
            here += self.canvas.new(index) * pixels
            if not finest:
                features = torch.cat([features, self.inputs[index](here.contiguous())], 1)
        return self.canvas.crop(image)

    def _pixels(self, parameters: Tensor, generator: torch.Generator | None, mean: bool) -> Tensor:
        return self.likelihood.mean(parameters) if mean else self.likelihood.sample(parameters, generator)
