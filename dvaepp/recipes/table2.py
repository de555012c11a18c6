"""Table 2: feed-forward VAEs with RBM and directed priors (Sec. 7.2, App. F). One function per column.

What the paper does not state is set as in public runs of the model: a rate of 3e-4 for the first 2 % of the steps, and
a weight decay of 1e-4 on kernels. The paper chose β from {5, 6, 8, 10} by validation; our defaults are those of later
public runs.
"""

from typing import Literal

from dvaepp.recipes.prior import PriorConfig
from dvaepp.recipes.schema import (
    ChainsConfig,
    DataConfig,
    DecayConfig,
    FeedForwardConfig,
    OptimizerConfig,
    Recipe,
    SmoothingConfig,
    TrainingConfig,
    within,
)

# β by (data set is MNIST, layers, linear)
EXPONENTIAL_BETA = {(True, 1, True): 12.0, (True, 1, False): 14.0, (False, 1, True): 14.0, (False, 1, False): 12.0}


def exponential_beta(dataset: str, layers: int, linear: bool) -> float:
    """Our default β of exponential smoothing."""
    return EXPONENTIAL_BETA.get(("mnist" in dataset, layers, linear), 10.0)


def _recipe(
    name: str,
    objective: Literal["boltzmann", "rolfe", "joint", "marginal"],
    dataset: str,
    layers: int,
    linear: bool,
    beta: float | None,
    seed: int,
    prior: PriorConfig | None = None,
) -> Recipe:
    layers = within("layers", layers, 64)
    spike = objective == "rolfe"
    if beta is None and spike:
        beta = 5.0 if layers == 1 else 4.0
    elif beta is None:
        beta = exponential_beta(dataset, layers, linear)
    return Recipe(
        name=name,
        data=DataConfig(name=dataset),
        model=FeedForwardConfig(
            groups=(200,) * layers,
            hidden=() if linear else (200, 200),
            prior=prior or PriorConfig.of("rbm" if objective in ("boltzmann", "rolfe") else "directed"),
        ),
        smoothing=SmoothingConfig.of("spike_exponential" if spike else "exponential", beta=beta),
        optimizer=OptimizerConfig(
            learning_rate=3e-3,
            epsilon=1e-3,
            weight_decay=1e-4,
            warmup=0.02,
            decays=tuple(DecayConfig(at=at, factor=0.3) for at in (0.6, 0.75, 0.95)),
        ),
        chains=ChainsConfig(num_chains=100, num_sweeps=40),
        training=TrainingConfig(steps=1_000_000, batch_size=100, objective=objective, kl_warmup=0.3, seed=seed),
    )


def rbm(
    dataset: str = "mnist_static", layers: int = 1, linear: bool = True, beta: float | None = None, seed: int = 0
) -> Recipe:
    """Table 2, the paper's own column: an RBM prior, overlapping smoothing and the KL of Sec. 5."""
    return _recipe("table2.rbm", "boltzmann", dataset, layers, linear, beta, seed)


def bm(
    dataset: str = "mnist_static",
    layers: int = 1,
    linear: bool = True,
    beta: float | None = None,
    seed: int = 0,
    graph: str = "complete",
) -> Recipe:
    """Beside Table 2: a general Boltzmann machine (Sec. 5, "general BMs") on a graph, e.g. graph=king."""
    prior = PriorConfig.of("boltzmann_machine", graph=graph)
    return _recipe("table2.bm", "boltzmann", dataset, layers, linear, beta, seed, prior)


def rolfe(
    dataset: str = "mnist_static", layers: int = 1, linear: bool = True, beta: float | None = None, seed: int = 0
) -> Recipe:
    """Table 2, "RBM (Rolfe)": spike-and-exponential smoothing and its own KL."""
    return _recipe("table2.rolfe", "rolfe", dataset, layers, linear, beta, seed)


def joint(
    dataset: str = "mnist_static", layers: int = 1, linear: bool = True, beta: float | None = None, seed: int = 0
) -> Recipe:
    """Table 2, "Joint ELBO" (Eq. 4): directed prior."""
    return _recipe("table2.joint", "joint", dataset, layers, linear, beta, seed)


def marginal(
    dataset: str = "mnist_static", layers: int = 1, linear: bool = True, beta: float | None = None, seed: int = 0
) -> Recipe:
    """Table 2, "Marg. ELBO" (Eq. 5): directed prior."""
    return _recipe("table2.marginal", "marginal", dataset, layers, linear, beta, seed)
