"""A model from the section of a recipe, with the compiled forms of its modules where this machine has a compiler.

A compiled form is the plain module with a faster forward pass: the same class with a kernel before it in its bases, so
that state dict and everything else are the same, and the plain forward pass takes over on other devices and types. No
other file says which modules have one.
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
