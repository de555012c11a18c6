"""The figure of docs/bounds.md shows what the page says of it."""

import pytest

from dvaepp.reporting.figures import bounds

NOISE = 0.02  # nats: four standard errors of a mean over 48 000 weights that differ by about 1


@pytest.mark.parametrize("beta", [3.0, 8.0])
def test_forgetting_z_never_loosens_a_bound(beta: float) -> None:
    """App. D for a Boltzmann prior: Sec. 5 is the loosest, K closes the gap, the mean field only widens it."""
    found = bounds.gaps(bounds.Toy(), beta)
    relaxed, exact = found.mean_field, found.exact
    assert found.section5 > relaxed[0] > relaxed[1] > relaxed[2] > 0
    assert all(loose >= tight - 1e-9 for loose, tight in zip(relaxed, exact, strict=True))
    assert all(gap > -NOISE for gap in exact)
    assert relaxed[0] - exact[0] < (0.1 if beta == 3.0 else 0.01)
