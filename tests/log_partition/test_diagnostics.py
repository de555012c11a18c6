"""R-hat and effective sample size against known cases and against a second implementation, by loops in numpy."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm, rankdata

from dvaepp.log_partition.diagnostics import effective_sample_size, split_r_hat


def _chains(records: int, chains: int, phi: float = 0.0, seed: int = 0) -> np.ndarray:
    """Stationary AR(1) chains with standard normal marginals."""
    noise = np.random.default_rng(seed).normal(size=(records, chains))
    x = noise.copy()
    for t in range(1, records):
        x[t] = phi * x[t - 1] + math.sqrt(1 - phi**2) * noise[t]
    return x


def _scores_by_loops(x: np.ndarray) -> list[np.ndarray]:
    half = len(x) // 2
    parts = [x[:half, c] for c in range(x.shape[1])] + [x[-half:, c] for c in range(x.shape[1])]
    ranks = rankdata(np.concatenate(parts))
    z = norm.ppf((ranks - 3 / 8) / (len(ranks) + 1 / 4))
    return list(z.reshape(len(parts), half))


def _r_hat_by_loops(x: np.ndarray) -> float:
    found = []
    for part in (x, np.abs(x - np.sort(x.ravel())[(x.size - 1) // 2])):
        chains = _scores_by_loops(part)
        n, means = len(chains[0]), [chain.mean() for chain in chains]
        within = np.mean([((c - c.mean()) ** 2).sum() / (n - 1) for c in chains])
        between = n * ((np.array(means) - np.mean(means)) ** 2).sum() / (len(means) - 1)
        found.append(math.sqrt(((n - 1) / n * within + between / n) / within))
    return max(found)


def _ess_by_loops(x: np.ndarray) -> float:
    chains = _scores_by_loops(x)
    n, m = len(chains[0]), len(chains)
    means = np.array([c.mean() for c in chains])

    def covariance(lag: int) -> float:
        return float(np.mean([((c - c.mean())[: n - lag] * (c - c.mean())[lag:]).sum() / n for c in chains]))

    within = covariance(0) * n / (n - 1)
    total = within * (n - 1) / n + means.var(ddof=1)
    tau, smallest, lag = -1.0, math.inf, 0
    while lag + 1 < n:
        first = 1.0 if lag == 0 else 1 - (within - covariance(lag)) / total
        pair = first + 1 - (within - covariance(lag + 1)) / total
        if pair <= 0:
            break
        smallest = min(smallest, pair)
        tau += 2 * smallest
        lag += 2
    return n * m / max(tau, 1 / math.log10(n * m))


CASES = {
    "independent": _chains(400, 8),
    "slow": _chains(401, 6, 0.9),
    "antithetic": _chains(300, 4, -0.6),
    "few values": np.round(_chains(200, 5, 0.5)),
    "apart": _chains(200, 6) + np.arange(6),
    "heavy tails": np.tan(_chains(200, 6, 0.5)),
    "drift": _chains(200, 6) + np.linspace(0, 2, 200)[:, None],
}


@pytest.mark.parametrize("name", CASES)
def test_equal_a_second_implementation(name: str) -> None:
    x = CASES[name]
    assert split_r_hat(torch.from_numpy(x)) == pytest.approx(_r_hat_by_loops(x), rel=1e-9)
    assert effective_sample_size(torch.from_numpy(x)) == pytest.approx(_ess_by_loops(x), rel=1e-9)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.5])
def test_effective_sample_size_of_an_autoregression(phi: float) -> None:
    """N (1 - φ) / (1 + φ) for a mean; normal scores of a normal are itself. 32 000 records: within 15 %."""
    found = effective_sample_size(torch.from_numpy(_chains(2000, 16, phi, seed=1)))
    assert found == pytest.approx(32_000 * (1 - phi) / (1 + phi), rel=0.15)


def test_good_chains_pass_and_bad_ones_do_not() -> None:
    good = _chains(500, 16)
    assert split_r_hat(torch.from_numpy(good)) < 1.005 and effective_sample_size(torch.from_numpy(good)) > 6000
    shifted = good + 3 * (np.arange(16) % 2)
    wider = good * np.where(np.arange(16) % 2, 3, 1)
    drifting = good + np.linspace(0, 1.5, 500)[:, None]
    for bad in (shifted, wider, drifting):
        assert split_r_hat(torch.from_numpy(bad)) > 1.01
    assert effective_sample_size(torch.from_numpy(shifted)) < 100


def test_ranks_see_what_a_mean_of_heavy_tails_hides() -> None:
    """Chains of Cauchy variables, half of them shifted: variances are infinite, and plain R-hat says 1.00."""
    rng = np.random.default_rng(0)
    x = rng.standard_cauchy(size=(500, 8)) + 2 * (np.arange(8) % 2)
    halves = np.concatenate([x[:250], x[250:]], 1)
    plain = math.sqrt(249 / 250 + halves.mean(0).var(ddof=1) / halves.var(0, ddof=1).mean())
    assert plain < 1.01 < 1.05 < split_r_hat(torch.from_numpy(x))


def test_constants() -> None:
    same = torch.ones(40, 4, dtype=torch.float64)
    assert split_r_hat(same) == 1.0 and effective_sample_size(same) == 160
    stuck = same * torch.arange(4)
    assert split_r_hat(stuck) == math.inf and effective_sample_size(stuck) < 20


def test_results_take_no_type_from_the_default() -> None:
    x = torch.from_numpy(_chains(100, 4))
    before = split_r_hat(x), effective_sample_size(x)
    torch.set_default_dtype(torch.float64)
    try:
        assert (split_r_hat(x), effective_sample_size(x)) == before
    finally:
        torch.set_default_dtype(torch.float32)
