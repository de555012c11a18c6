"""No tensor of the package takes its type or its device from torch's global defaults.

Two looks at the same promise: a walk over the source finds calls that would ask for a default, and a run of everything
under hostile defaults (float64, and the meta device, on which nothing can be computed) must give the bits it gives
under torch's own.
"""

import ast
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import Tensor

import dvaepp
from dvaepp import runs, training
from dvaepp.distributions import DiscretizedLogisticMixture, SmoothedBernoulli
from dvaepp.kernels import bernoulli
from dvaepp.models.latents import LATENTS
from dvaepp.numerics import uniform
from dvaepp.objectives import boltzmann_kl
from dvaepp.priors import RBM
from dvaepp.smoothing import Exponential
from tests.training import toy

WHOLE = {"randint", "randperm"}  # of whole numbers whatever the default type
MAKERS = WHOLE | set(
    "arange as_tensor empty eye full linspace logspace normal ones rand randn scalar_tensor tensor zeros".split()
)
LAYERS = {"Linear", "Conv1d", "Conv2d", "ConvTranspose2d", "BatchNorm1d", "BatchNorm2d", "LayerNorm", "Embedding"}
PACKAGE = Path(dvaepp.__file__).parent


class _Walk(ast.NodeVisitor):
    """Calls of torch's makers without `dtype` or `device`.

    The constructor of a module may leave `device` out: then torch's device context says where it is built, as for
    torch's own modules.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self.functions = [""]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.functions.append(node.name)
        self.generic_visit(node)
        self.functions.pop()

    def visit_Call(self, node: ast.Call) -> None:
        name, given = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
        needed: set[str] = set()
        if name.removeprefix("torch.") in MAKERS and name.startswith("torch."):
            needed = {"device"} if name.removeprefix("torch.") in WHOLE else {"dtype", "device"}
        elif name.removeprefix("nn.") in LAYERS and name.startswith("nn."):
            needed = {"dtype", "device"}
        elif name == "torch.Generator" and not node.args:
            needed = {"device"}
        elif name in ("torch.get_default_dtype", "torch.get_default_device"):
            self.found.append(f"{node.lineno}: {name}")
        if self.functions[-1] == "__init__" and needed != {"device"}:
            needed -= {"device"}
        if needed - given:
            self.found.append(f"{node.lineno}: {name} without {' and '.join(sorted(needed - given))}")
        self.generic_visit(node)


def _found(source: str) -> list[str]:
    walk = _Walk()
    walk.visit(ast.parse(source))
    return walk.found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_call_asks_for_a_default(path: Path) -> None:
    assert _found(path.read_text()) == []


@pytest.mark.parametrize(
    "snippet",
    [
        "torch.zeros(3)",
        "torch.zeros(3, dtype=torch.float32)",
        "torch.empty(3, device=x.device)",
        "torch.randperm(3)",
        "torch.Generator()",
        "nn.Linear(2, 3)",
        "class A(nn.Module):\n    def __init__(self):\n        self.a = torch.zeros(3)",
        "torch.get_default_dtype()",
    ],
)
def test_the_walk_sees(snippet: str) -> None:
    assert _found(snippet)


def _everything(folder: Path) -> dict[str, Tensor]:
    """Results of the public functions and of short trainings of every kind of model, all with fixed seeds."""
    cpu = torch.device("cpu")
    seeded = lambda: torch.Generator(cpu).manual_seed(3)  # noqa: E731
    f32 = {"dtype": torch.float32, "device": cpu}
    found: dict[str, Tensor] = {}
    logits = uniform(5, 6, generator=seeded()) * 4 - 2
    q = SmoothedBernoulli(logits=logits, smoothing=Exponential(8.0))
    found["zeta"] = q.rsample(generator=seeded())
    found["log_prob"], found["mean"] = q.log_prob(found["zeta"]), q.mean
    with cpu:
        rbm = RBM(3, 3)
    found["kl"] = boltzmann_kl(rbm, [logits], [found["zeta"]], Exponential(8.0), 0.0)
    q_h, p_h, h = (torch.full((2, size, 4, 4), 0.3, **f32) for size in (8, 8, 4))
    found["normal"] = LATENTS["normal"].kl(q_h, -p_h, h, Exponential(8.0))
    found["pixels"] = bernoulli.log_prob((logits > 0).float(), logits)
    mixture = DiscretizedLogisticMixture.from_channels(torch.full((2, 100, 2, 2), 0.1, **f32))
    found["colours"] = mixture.sample(generator=seeded())
    images = toy.stripes(folder)
    for name in ("table2.rbm", "table2.marginal", "table1.nvil", "table1.rebar", "table3.rbm", "table3.bernoulli"):
        run = training.train(toy.recipe(images, name, 3), folder / name, say=toy.quiet)
        trained = runs.load(run, say=toy.quiet)
        x = runs.dataset_of(trained.recipe).images("test")[:4]
        bits = trained.encode(x)
        found[f"{name} bits"] = bits
        found[f"{name} decoded"] = trained.decode(bits, seeded())
        found[f"{name} reconstructed"] = trained.reconstruct(x, seeded())
        found[f"{name} sampled"] = trained.sample(3, seeded())
        found[f"{name} log p"] = trained.log_likelihood(x, 5, seeded())
        for parameter, value in trained.model.state_dict().items():
            found[f"{name} {parameter}"] = value
    return found


HOSTILE: dict[str, Callable[[ExitStack], None]] = {
    "float64": lambda stack: _default_type(stack, torch.float64),
    "meta": lambda stack: stack.enter_context(torch.device("meta")),
}


def _default_type(stack: ExitStack, dtype: torch.dtype) -> None:
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(dtype)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return _everything(tmp_path_factory.mktemp("expected"))


@pytest.mark.parametrize("default", HOSTILE)
def test_defaults_change_no_bit(default: str, expected: dict[str, Tensor], tmp_path: Path) -> None:
    with ExitStack() as stack:
        HOSTILE[default](stack)
        found = _everything(tmp_path)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype and found[name].device == value.device, name
        assert torch.equal(found[name], value), name
