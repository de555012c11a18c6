"""Table 1: single-layer models of 200 units with a factorial prior (Sec. 7.1); our two columns.

Settings of the REBAR code: batch 24, 2M steps, no batch norm, no weight decay, no KL annealing, decoder input 2z - 1.
The paper's own columns take Adam with eps 1e-3, a rate from {1e-4, 5e-4} and β from {5..8} to {12..18}; our defaults
are 5e-4 and 6 -> 16.
"""

from typing import Literal

from dvaepp.recipes.schema import Data, Evaluation, Model, Optimizer, Recipe, Smoothing, Training


def _recipe(name: str, objective: Literal["joint", "marginal"], dataset: str, linear: bool, seed: int) -> Recipe:
    return Recipe(
        name=name,
        data=Data(name=dataset),
        model=Model(
            groups=(200,), hidden=() if linear else (200, 200), prior="directed", batch_norm=False, centered_code=True
        ),
        smoothing=Smoothing(name="exponential", start=6.0, end=16.0),
        optimizer=Optimizer(learning_rate=5e-4, epsilon=1e-3),
        training=Training(steps=2_000_000, batch_size=24, objective=objective, kl_warmup=0.0, seed=seed),
        evaluation=Evaluation(samples=100),
    )


def joint(dataset: str = "mnist_static", linear: bool = True, seed: int = 0) -> Recipe:
    """Table 1, "Joint ELBO"."""
    return _recipe("table1.joint", "joint", dataset, linear, seed)


def marginal(dataset: str = "mnist_static", linear: bool = True, seed: int = 0) -> Recipe:
    """Table 1, "Marg. ELBO"."""
    return _recipe("table1.marginal", "marginal", dataset, linear, seed)
