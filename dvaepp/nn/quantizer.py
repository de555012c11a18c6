"""A layer that turns features into binary codes, trained by overlapping smoothing instead of a straight-through copy.

Each site of the features has `bits` binary units with logits l = W f + b. In training they are smoothed, ζ ~ q(ζ|f), so
that gradients pass without bias for the smoothed model (Sec. 3), and the loss is the KL to a prior over codes: of Eq. 5
for a directed prior, of Sec. 5 for a Boltzmann machine. It takes the place of the entropy and commitment losses of
lookup-free quantisers: it is the rate at which the prior could code the bits. In evaluation ζ is the code itself.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from dvaepp.errors import UsageError
from dvaepp.log_partition.exact import log_sums, num_enumerated
from dvaepp.nn.usage import Usage, code_numbers, codes_of_numbers, usage
from dvaepp.numerics import uniform
from dvaepp.objectives.boltzmann import kl_given_nu
from dvaepp.objectives.joint import joint
from dvaepp.objectives.marginal import marginal
from dvaepp.priors.base import BoltzmannPrior
from dvaepp.priors.factorial import Factorial
from dvaepp.priors.family import DirectedPrior, Prior
from dvaepp.smoothing.base import Overlapping, Smoothing
from dvaepp.smoothing.exponential import Exponential

MOST_ENUMERATED = 12  # units of a Boltzmann prior whose states are summed for log Z at every step


class Quantized(NamedTuple):
    """`codes` of zeros and ones, the smoothed `zeta`, both in the layout of the features, and the `loss`, a scalar.

    `codes` are the likeliest bits; in training `zeta` smooths a draw of the bits, in evaluation it is the codes. The
    loss is the KL per site in nats, averaged over sites; add it to yours with a weight.

    Choose it by field: `zeta` goes on to the decoder, and the loss into yours.

    >>> BinaryQuantizer(dim=4, bits=3)(torch.randn(5, 4)).codes.shape
    torch.Size([5, 3])
    """

    codes: Tensor
    zeta: Tensor
    loss: Tensor


class BinaryQuantizer(nn.Module):
    """Features with `dim` channels to codes of `bits` bits.

    Features are (batch, ..., dim), or images (batch, dim, height, width): four or more dimensions count as channels
    first, unless `channel_first` says otherwise. `smoothing` is any overlapping one (default `Exponential(8.)`),
    `prior` any over `bits` units (default: independent units with learned logits).

    Choose it where a VQ or lookup-free quantiser would stand.

    >>> quantizer = BinaryQuantizer(dim=32, bits=10)
    >>> codes, zeta, loss = quantizer(torch.randn(2, 32, 8, 8))
    >>> codes.shape, quantizer.expand(zeta).shape
    (torch.Size([2, 10, 8, 8]), torch.Size([2, 32, 8, 8]))
    """

    def __init__(
        self,
        dim: int,
        bits: int,
        *,
        smoothing: Smoothing | None = None,
        prior: Prior | None = None,
        channel_first: bool | None = None,
    ) -> None:
        super().__init__()
        if dim < 1 or bits < 1:
            raise UsageError(f"dim and bits must be at least 1, got {dim} and {bits}")
        self.dim, self.bits, self.channel_first = dim, bits, channel_first
        smoothing = Exponential(beta=8.0) if smoothing is None else smoothing
        if not isinstance(smoothing, Overlapping):
            raise UsageError(f"smoothing must be overlapping, got {type(smoothing).__name__}; try Exponential(8.0)")
        self.smoothing = smoothing
        self.prior = Factorial([bits]) if prior is None else prior
        _check_prior(self.prior, bits)
        self.project_in = nn.Linear(dim, bits, dtype=torch.float32)
        self.project_out = nn.Linear(bits, dim, dtype=torch.float32)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, bits={self.bits}, smoothing={self.smoothing}"

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Quantized:
        """Codes, ζ and the KL. ζ has the features' type; logits, smoothing and KL are float32 at least."""
        logits = self.logits(features)
        z = (logits > 0).to(logits.dtype)
        zeta = z
        if self.training:
            rho = uniform(*logits.shape, generator=generator, dtype=logits.dtype, device=logits.device)
            zeta = self.smoothing.sample(logits, rho)
        kl = self._kl(logits.reshape(-1, self.bits), zeta.reshape(-1, self.bits))
        loss = kl.sum() / max(1, len(kl))  # a batch without sites has no loss
        first = self._is_channel_first(features)
        return Quantized(_layout(z, first).to(torch.int64), _layout(zeta, first).to(features.dtype), loss)

    def logits(self, features: Tensor) -> Tensor:
        """Logits of the bits, (batch, ..., bits), channels last."""
        channels = self._channels_last(features, self.dim, "features")
        found: Tensor = self.project_in(channels.to(self.project_in.weight.dtype))
        return found if found.dtype == torch.float64 else found.float()  # half precision ends at 65504

    def expand(self, zeta: Tensor) -> Tensor:
        """Features with `dim` channels again, a linear map of 2ζ - 1; the layout stays. Codes are taken as well."""
        channels = self._channels_last(zeta, self.bits, "zeta")
        weight_type = self.project_out.weight.dtype
        found: Tensor = self.project_out((2 * channels - 1).to(weight_type))
        wanted = zeta.dtype if zeta.is_floating_point() else weight_type
        return _layout(found, self._is_channel_first(zeta)).to(wanted)

    def indices(self, codes: Tensor) -> Tensor:
        """Codes as whole numbers below 2^bits, without the channels: what a prior over tokens is trained on."""
        return code_numbers(self._channels_last(codes, self.bits, "codes"))

    def from_indices(self, indices: Tensor, *, channel_first: bool | None = None) -> Tensor:
        """The inverse of `indices`; three or more dimensions count as an image's unless told otherwise."""
        if indices.is_floating_point() or not bool(((indices >= 0) & (indices < 2**self.bits)).all()):
            raise UsageError(f"indices of codes of {self.bits} bits must be whole, from 0 to {2**self.bits - 1}")
        first = self.channel_first if channel_first is None else channel_first
        return _layout(codes_of_numbers(indices, self.bits), indices.dim() >= 3 if first is None else first)

    def usage(self, codes: Tensor) -> Usage:
        """Entropies of codes in the layout that this layer gives them; gather those of a whole validation set."""
        return usage(self._channels_last(codes, self.bits, "codes"))

    def _channels_last(self, given: Tensor, channels: int, name: str) -> Tensor:
        place = 1 if self._is_channel_first(given) else -1
        if given.dim() < 2 or given.shape[place] != channels:
            raise UsageError(
                f"{name} must have {channels} channels in dimension {place}, got {tuple(given.shape)}; "
                "channel_first= tells the layout"
            )
        return given.movedim(place, -1)

    def _is_channel_first(self, features: Tensor) -> bool:
        return features.dim() >= 4 if self.channel_first is None else self.channel_first

    def _kl(self, logits: Tensor, zeta: Tensor) -> Tensor:
        """(sites,): closed form in evaluation and for a Boltzmann machine, one sample of Eq. 5 in training."""
        with torch.autocast(logits.device.type, enabled=False):
            if isinstance(self.prior, BoltzmannPrior):
                return kl_given_nu(self.prior, [logits], [], self._log_z().to(logits.dtype))
            assert isinstance(self.prior, DirectedPrior)
            sizes = self.prior.group_sizes
            groups, samples = list(logits.split(sizes, -1)), list(zeta.split(sizes, -1))
            prior_logits = [each.to(logits.dtype) for each in self.prior.logits(samples)]
            if self.training:
                return marginal(groups, prior_logits, samples, self.smoothing, path_only=True)
            return joint(groups, prior_logits)

    def _log_z(self) -> Tensor:
        """log Z with its exact gradient, by a sum over all states of the smaller side."""
        assert isinstance(self.prior, BoltzmannPrior)
        count, device = num_enumerated(self.prior), self.project_in.weight.device
        numbers = torch.arange(2**count, dtype=torch.int64, device=device)
        return torch.logsumexp(log_sums(self.prior, codes_of_numbers(numbers, count).double()), 0)


def _layout(channels_last: Tensor, channel_first: bool) -> Tensor:
    return channels_last.movedim(-1, 1) if channel_first else channels_last


def _check_prior(prior: Prior, bits: int) -> None:
    if prior.num_units != bits:
        raise UsageError(f"the prior must have as many units as there are bits, {bits}, got {prior.num_units}")
    if isinstance(prior, BoltzmannPrior) and num_enumerated(prior) > MOST_ENUMERATED:
        raise UsageError(
            f"a Boltzmann prior of a layer may have {MOST_ENUMERATED} units to enumerate, got {num_enumerated(prior)}; "
            "larger machines need persistent chains: train a BinaryVAE"
        )
