import pytest
import torch

from dvaepp.smoothing import UniformExponential
from dvaepp.smoothing.exponential import Exponential

EXAMPLES = [UniformExponential(8.0), UniformExponential(30.0, mix=0.2)]
NEAR_BINARY = UniformExponential(1e4, mix=1e-7)


def test_density_is_the_mixture_and_its_log_ratio_is_bounded() -> None:
    zeta = torch.linspace(0, 1, 101, dtype=torch.float64)
    expected = 0.05 + 0.95 * Exponential(8.0).log_density(zeta, 0).exp()
    torch.testing.assert_close(UniformExponential(8.0).log_density(zeta, 0).exp(), expected)
    sharp = UniformExponential(500.0)
    assert sharp.log_ratio(zeta).abs().max() < torch.log(torch.tensor(500 / 0.05))


def test_vanishing_floor_is_the_exponential() -> None:
    logits, rho = torch.linspace(-3, 3, 31, dtype=torch.float64), torch.linspace(0.02, 0.98, 31, dtype=torch.float64)
    zeta = UniformExponential(8.0, mix=1e-12).sample(logits, rho)
    torch.testing.assert_close(zeta, Exponential(8.0).sample(logits, rho), rtol=0, atol=1e-9)


@pytest.mark.parametrize("mix", [0.0, 1.0, -0.1, 2.0])
def test_bad_mix_is_named(mix: float) -> None:
    with pytest.raises(ValueError, match=r"mix must be in \(0, 1\), got .*Exponential\(beta\)"):
        UniformExponential(8.0, mix=mix)
