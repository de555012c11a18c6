"""A dry run: a user's networks get two rows of zeros, so that shapes that do not fit are refused before training."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.priors.family import DirectedPrior, Prior

if TYPE_CHECKING:
    from dvaepp.models.binary_vae import BinaryVAE
else:
    BinaryVAE = Any  # known to type checkers alone, because its file imports this one

ROWS = 2


def check_parts(encoders: object, decoder: object, prior: object) -> None:
    """Refuse what is no network or no prior, naming what was given."""
    if isinstance(encoders, nn.Module) and not isinstance(encoders, nn.ModuleList):
        raise UsageError(
            f"encoders is one {type(encoders).__name__}; expected a list with a network for each group, encoders=[...]"
        )
    if not isinstance(encoders, list | tuple | nn.ModuleList) or len(encoders) == 0:
        kind = f"a {type(encoders).__name__}" if not isinstance(encoders, list | tuple) else "empty"
        raise UsageError(f"encoders is {kind}; expected a list with a network for each group, encoders=[...]")
    for name, part in [*((f"encoders[{a}]", net) for a, net in enumerate(encoders)), ("decoder", decoder)]:
        if not isinstance(part, nn.Module):
            raise UsageError(f"{name} is a {type(part).__name__}; expected a torch.nn.Module")
    if not isinstance(prior, Prior):
        raise UsageError(f"prior is a {type(prior).__name__}; expected a prior such as dvaepp.priors.RBM(100, 100)")


@torch.no_grad()
def dry_run(model: BinaryVAE, expected: Sequence[int] = ()) -> list[int]:
    """The sizes of the groups; networks run in evaluation mode, so that no statistics are touched."""
    training = model.training
    model.eval()
    try:
        zeta = _encoded(model)
        sizes = [group.shape[1] for group in zeta]
        if expected and sizes != list(expected):
            raise UsageError(f"the encoders give groups of {sizes} units, and group_sizes says {list(expected)}")
        _check_prior(model.prior, zeta)
        x = _zeros(model, model.sample_shape)
        what = f"the decoder does not take zeta of shape {(ROWS, sum(sizes))}"
        parameters = _called(what, lambda: model.likelihood_parameters(zeta))
        if not isinstance(parameters, Tensor) or len(parameters) != ROWS:
            got = f"shape {tuple(parameters.shape)}" if isinstance(parameters, Tensor) else type(parameters).__name__
            raise UsageError(f"the decoder gives {got} for zeta of shape {(ROWS, sum(sizes))}; expected {ROWS} rows")
        _called("the likelihood does not take what the decoder gives", lambda: model.likelihood.check(parameters, x))
        return sizes
    finally:
        model.train(training)


def _zeros(model: BinaryVAE, shape: Sequence[int]) -> Tensor:
    found = next(model.decoder.parameters(), None)
    like = found if found is not None else next(model.prior.parameters())
    return torch.zeros(ROWS, *shape, dtype=like.dtype, device=like.device)


def _encoded(model: BinaryVAE) -> list[Tensor]:
    x = _zeros(model, model.sample_shape)
    context = model.context(x)
    zeta: list[Tensor] = []
    for a, encoder in enumerate(model.encoders):
        given = f"x of shape {tuple(x.shape)}" + "".join(f" and zeta of shape {tuple(z.shape)}" for z in zeta)
        logits = _called(f"encoders[{a}] does not take {given}", lambda net=encoder: net(context, *zeta))
        if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != ROWS:
            got = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise UsageError(f"encoders[{a}] gives {got} for {given}; expected (rows, units), here ({ROWS}, units)")
        zeta.append(torch.sigmoid(logits))
    return zeta


def _check_prior(prior: Prior, zeta: Sequence[Tensor]) -> None:
    sizes = [group.shape[1] for group in zeta]
    if sum(sizes) != prior.num_units:
        total = " + ".join(map(str, sizes)) + (f" = {sum(sizes)}" if len(sizes) > 1 else "")
        raise UsageError(f"the encoders give {total} units, and the prior {_shown(prior)} has {prior.num_units}")
    if isinstance(prior, DirectedPrior):
        if list(prior.group_sizes) != sizes:
            raise UsageError(
                f"the encoders give groups of {sizes} units, and the prior has groups of {prior.group_sizes}"
            )
        logits = _called(f"the prior does not take zeta of shapes {sizes}", lambda: prior.logits(zeta))
        for a, (own, group) in enumerate(zip(logits, zeta, strict=True)):
            if own.shape[-1] != group.shape[1]:
                raise UsageError(
                    f"the prior gives {own.shape[-1]} logits for group {a}, which has {group.shape[1]} units"
                )


def _shown(prior: Prior) -> str:
    return str(prior) if "\n" not in str(prior) else type(prior).__name__


def _called(what: str, call: Any) -> Any:
    """The result of a user's network; whatever it raises is told in one line."""
    try:
        return call()
    except UsageError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UsageError(f"{what}: {reason}") from None
