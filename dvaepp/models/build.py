"""Build the model that a recipe states, with compiled forms of its modules if this machine has a compiler.

A compiled form is a subclass of the plain module and of a kernel, which overrides the forward pass. State dict and
everything else stay the same, and on other devices and types the kernel calls the plain forward pass. This is the only
file that says which modules have a compiled form.
"""

from typing import Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from dvaepp.kernels import policy
from dvaepp.kernels.convolution import ConvKernel
from dvaepp.kernels.local_networks import LocalKernel
from dvaepp.kernels.residual_chain import ResidualKernel
from dvaepp.models.base import Model
from dvaepp.models.local import LocalNetworks
from dvaepp.networks.convolution import Conv
from dvaepp.networks.residual import Residual

M = TypeVar("M", bound=nn.Module)


class CompiledConv(ConvKernel, Conv):
    pass


class CompiledResidual(ResidualKernel, Residual):
    pass


class CompiledLocalNetworks(LocalKernel, LocalNetworks):
    pass


COMPILED: dict[type[nn.Module], type[nn.Module]] = {
    Conv: CompiledConv,
    Residual: CompiledResidual,
    LocalNetworks: CompiledLocalNetworks,
}


def with_kernels(model: M) -> M:
    """The same model with every module in its compiled form, or as it is without a compiler."""
    if policy.on("winograd") or policy.on("residual_chain"):
        for module in model.modules():
            module.__class__ = COMPILED.get(type(module), type(module))
    return model


@runtime_checkable
class Buildable(Protocol):
    """The section of a recipe that states a model."""

    def build(self, train_mean: Tensor, generator: torch.Generator | None) -> Model: ...


def build_model(section: Buildable, train_mean: Tensor, generator: torch.Generator | None = None) -> Model:
    """The model of a section, untrained, on the device of `train_mean`, whatever torch's default device is."""
    with train_mean.device:
        return with_kernels(section.build(train_mean, generator))
