"""Recipes with hostile overrides: resolved and able to start, or refused in one line; nothing else, and not for long.

40 recipes in every run of the suite; 2000 with `DVAEPP_FUZZ=1`.
"""

import contextlib
import io
import json
import os
import time
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from dvaepp import cli, recipes
from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.recipes import Recipe, budget
from dvaepp.recipes.schema import ConvolutionalConfig
from dvaepp.training import state
from dvaepp.training.step import step
from tests.data.hostile import MEBIBYTE, memory, peak_memory

NUM_RECIPES = 2000 if "DVAEPP_FUZZ" in os.environ else 40
SECONDS = 20  # for one recipe: resolved twice, shown, and a step taken
STARTED = 48 * MEBIBYTE  # models up to this size take a step
WORK = 10**9  # products in the sweeps of a step up to which one is taken

BASES = [
    ("demo", ()),
    ("table1.nvil", ()),
    ("table1.rebar", ("linear=false",)),
    ("table1.concrete", ()),
    ("table2.rbm", ("layers=2",)),
    ("table2.rolfe", ("linear=false",)),
    ("table2.joint", ()),
    ("table2.marginal", ("layers=2", "linear=false")),
    ("estimators.vimco", ("samples=3",)),
    ("estimators.gumbel_rao", ("layers=2",)),
    ("table3.rbm", ("dataset=caltech", "size=small")),
    ("table3.rolfe", ("dataset=mnist_static", "size=small", "groups=1")),
    ("table3.rbm_bernoulli", ("size=small",)),
    ("table3.continuous", ("dataset=cifar10",)),
    ("ablations.no_global", ("dataset=omniglot", "size=small")),
]
ARGUMENTS = [
    "layers",
    "linear",
    "beta",
    "dataset",
    "size",
    "seed",
    "groups",
    "samples",
    "conditional",
    "",
    "beta=",
    "x",
]


def _paths(tree: dict[str, Any], prefix: str = "") -> list[str]:
    """Of every section and every field."""
    found = []
    for key, value in tree.items():
        found += [f"{prefix}{key}", *(_paths(value, f"{prefix}{key}.") if isinstance(value, dict) else [])]
    return found


TREES = {base: _paths(recipes.build(*base).model_dump(mode="json")) for base in BASES}
PATHS = sorted({path for paths in TREES.values() for path in paths})
PLAUSIBLE = {
    "model.groups": ["[2]", "[3, 4]", "[1, 1]", "[1]", "[5, 1, 2]", "[200, 200]", "[100000]", "[1000, 100000, 2]"],
    "model.hidden": ["[]", "[3]", "[1]", "[7, 2]", "[100000, 100000]"],
    "model.prior": ["rbm", "directed", "[]", '["4"]', '["4", "32d"]'],
    "model.image_size": ["32", "64", "28", "1024", "2", "128"],
    "model.down1": ['["4d", "4d"]', '["4d"]', '["99999d", "4d"]', '["4d", "4u", "4d", "4d"]', '["4", "8d", "1d"]'],
    "model.local_groups": ["1", "2", "128"],
    "model.local_channels": ["1", "4", "1000"],
    "model.global_units": ["2", "4", "10000", "17"],
    "model.global_groups": ["1", "2", "64"],
    "model.global_kind": ["rbm", "bernoulli", "normal", "none"],
    "model.local_kind": ["normal", "bernoulli"],
    "smoothing.name": ["binary", "concrete", "exponential", "gaussian", "logistic", "power_law"]
    + ["spike_exponential", "uniform_exponential", "base", "quadratic"],
    "smoothing": ["{}", '{"name": "logistic"}', '{"name": []}', '{"name": "gaussian", "scale": 0.1, "beta": 1}'],
    "smoothing.beta": ["8", "0", '{"start": 1}', '{"start": 1, "end": 1e6}', "[8, 9]", "[[8]]", "[null]"],
    "smoothing.scale": ["0.1", "-1", "1e-6", "[0.1, 0.2]", "{}"],
    "smoothing.beta.end": ["8", "null", "[]"],
    "training.objective": ["boltzmann", "rolfe", "joint", "marginal"],
    "training.precision": ["float32", "float64", "float16"],
    "training.batch_size": ["1", "2", "7", "100000"],
    "chains.num_chains": ["1", "3", "1000000"],
    "optimizer.name": ["adam", "adamax", "sgd"],
    "optimizer.plateau": ["null", '{"factor": 0.5}', "{}"],
    "optimizer.decays": ['[{"at": 0, "factor": 0.5}]', '[{"at": 2}]', "[1]"],
    "estimator": ["null", "{}", '{"name": "nvil"}', '{"name": "vimco", "options": {"num_samples": 2}}'],
    "estimator.name": ["nvil", "muprop", "rebar", "relax", "vimco", "arm", "disarm", "straight_through", "gumbel_rao"],
    "estimator.options": ['{"hidden": 3}', '{"temperature": 0.1}', '{"temperature": 1e-9}', '{"decay": 0.5}']
    + ['{"hidden": 0}', '{"hidden": true}', '{"generator": 1}', '{"num_samples": 99999}', '{"num_draws": 3}'],
    "data.name": ["demo", "cifar10", "mnist_static", "nothing", "../demo"],
    "data.path": ["null", "/nowhere", "~nobody-of-this-name", "images.npy", '"a\\u0000b"', "x" * 2000],
    "name": ["mine", "../up", "/abs", "a b", "", "a" * 200, "con.aux-1"],
    "model.kind": ["feedforward", "convolutional", "other"],
}
ODD = ["", "null", "true", "false", "NaN", "Infinity", "-Infinity", "1e999", "-1", "0", "-0.0", "1.5", "1e-320", "[]"]
ODD += ["{}", "[[]]", "[[[[1]]]]", "[null]", '[""]', "[NaN]", "9" * 5000, "-" + "9" * 400, "1" + "0" * 30, '{"a": 1}']
ODD += ["[" * 200_000, '{"a":' * 100_000, "[" * 500 + "]" * 500, '"\\ud800"', '"\\u0000"', "\u2028", "é", "\x1b[31m"]
ODD += ["x" * 100_000, '"' + "y" * 100_000 + '"', '["' + "z" * 10_000 + '"]', "../../..", "a\nb", "=", "a=b", "'", '"']
ODD += ["[1" + ", 1" * 50_000 + "]", '{"kind": "convolutional"}', '{"kind": [[[]]]}', '{"name": "x"}']

NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = st.integers(1, 10) | st.integers(-(2**70), 2**70) | st.floats() | st.floats(1e-9, 1e9) | st.floats(0.01, 1.0)
HOSTILE = st.sampled_from(ODD) | NUMBERS.map(str) | NESTED.map(json.dumps) | st.text(max_size=20)


LOGARITHMIC = st.floats(-6, 6).map(lambda power: str(10**power))
SHARE = st.floats(0, 1).map(str)
FLAG = st.sampled_from(["true", "false"])
FEW = st.integers(1, 6).map(str)
TAME = {  # what a user may try: mostly accepted, and then a step must be possible
    "model.groups": st.lists(st.integers(1, 9), min_size=1, max_size=4).map(str),
    "model.hidden": st.lists(st.integers(1, 9), max_size=3).map(str),
    "model.batch_norm": FLAG,
    "model.centered_code": FLAG,
    "model.local_groups": st.integers(1, 3).map(str),
    "model.local_channels": FEW,
    "model.global_units": st.integers(2, 9).map(str),
    "model.global_groups": st.sampled_from(["1", "2"]),
    "model.conditional": FLAG,
    "model.posterior": st.sampled_from(["[]", '["3"]', '["2", "5"]']),
    "model.input_filters": FEW,
    "smoothing.name": st.sampled_from(["exponential", "gaussian", "logistic", "power_law", "uniform_exponential"]),
    "smoothing.beta": LOGARITHMIC
    | st.tuples(LOGARITHMIC, LOGARITHMIC).map(lambda ends: f'{{"start": {ends[0]}, "end": {ends[1]}}}')
    | st.lists(LOGARITHMIC, min_size=1, max_size=3).map(lambda values: f"[{', '.join(values)}]"),
    "optimizer.name": st.sampled_from(["adam", "adamax"]),
    "optimizer.learning_rate": st.floats(-12, 0).map(lambda power: str(10**power)),
    "optimizer.epsilon": st.floats(-20, 0).map(lambda power: str(10**power)),
    "optimizer.beta2": st.sampled_from(["0", "0.5", "0.9999999"]),
    "optimizer.weight_decay": st.sampled_from(["0", "1e-4", "1000"]),
    "optimizer.warmup": SHARE,
    "optimizer.plateau": st.just("null"),
    "chains.num_chains": FEW,
    "chains.num_sweeps": FEW,
    "training.batch_size": st.integers(2, 30).map(str),
    "training.steps": st.sampled_from(["1", "7", "1000000000"]),
    "training.kl_warmup": SHARE,
    "training.kl_balance": FLAG,
    "training.importance_samples": FEW,
    "training.precision": st.sampled_from(["float32", "float64"]),
    "training.seed": st.sampled_from(["0", "9223372036854775806", "9223372036854775807"]),
    "estimator.rate_factor": LOGARITHMIC,
    "estimator.options": st.sampled_from(['{"hidden": 3}', '{"temperature": 0.1}', '{"temperature": 1e-4}', "{}"])
    | st.sampled_from(['{"temperature": 10000}', '{"num_samples": 2}', '{"num_draws": 1}', '{"decay": 0}']),
}


@st.composite
def _hostile_override(draw: st.DrawFn) -> str:
    path = draw(st.sampled_from(list(PLAUSIBLE)) | st.sampled_from(PATHS))
    if draw(st.integers(0, 30)) == 0:
        path = draw(st.text(max_size=30) | st.sampled_from(["training", "model.groups.0", "..", ".", "x" * 10_000]))
    if path in PLAUSIBLE and draw(st.integers(0, 3)):
        return f"{path}={draw(st.sampled_from(PLAUSIBLE[path]))}"
    return f"{path}={draw(HOSTILE)}"


@st.composite
def _request(draw: st.DrawFn) -> "Request":
    """A recipe, arguments and overrides: in half of all cases mild ones only."""
    name, arguments = draw(st.sampled_from(BASES))
    fields = [path for path in TREES[name, arguments] if path in TAME]
    tame = [f"{path}={draw(TAME[path])}" for path in draw(st.lists(st.sampled_from(fields), unique=True, max_size=3))]
    if draw(st.booleans()):
        return (name, list(arguments), tame)
    more = draw(st.just([]) | st.just([]) | st.lists(ARGUMENT, max_size=2))
    hostile = draw(st.lists(_hostile_override(), min_size=1, max_size=3))
    return (name, [*arguments, *more], tame[:2] + hostile + hostile[: draw(st.integers(0, 1))])


ARGUMENT = st.tuples(st.sampled_from(ARGUMENTS), HOSTILE).map("=".join)
Request = tuple[str, list[str], list[str]]

outcomes: Counter[str] = Counter()
slowest = [0.0]


def _one_line(error: Exception) -> None:
    assert "\n" not in str(error) and 0 < len(str(error)) < 1000


def _images(recipe: Recipe) -> Dataset:
    colour = isinstance(recipe.model, ConvolutionalConfig) and recipe.model.likelihood == "logistic_mixture"
    shape = (3, 32, 32) if colour else (1, 28, 28)
    x = torch.randint(256 if colour else 2, (20, *shape), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    return Dataset("noise", shape, "logistic_mixture" if colour else "bernoulli", x, x[:4], x[:4], dynamic=False)


def _small(recipe: Recipe) -> bool:
    """Whether a first step is soon taken: little memory, few products, few blocks."""
    cost = budget.cost(recipe)
    images = min(20, recipe.training.batch_size) * recipe.training.importance_samples
    units = cost.chain // (budget.CHAINED * 4)
    chains = recipe.chains
    blocks = recipe.model.local_groups * 8 if isinstance(recipe.model, ConvolutionalConfig) else 1
    used = cost.model + images * cost.image + chains.num_chains * cost.chain
    work = chains.num_chains * chains.num_sweeps * units**2
    return used < STARTED and work < WORK and blocks < 200


def _resolve(name: str, arguments: list[str], overrides: list[str]) -> str:
    """Resolve, read back, and take a step where the model is small."""
    try:
        recipe = recipes.build(name, arguments, overrides)
    except UsageError as error:
        _one_line(error)
        return "refused"
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    if not _small(recipe):
        return "resolved"
    images = _images(recipe)
    step(recipe, images, state.build(recipe, images), "cpu")
    return "started"


def _show(name: str, arguments: list[str], overrides: list[str]) -> int:
    """The exit code of `dvaepp show`; a failure is one line on stderr, and nothing on stdout."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(["show", name, *arguments, *(part for each in overrides for part in ("--set", each))])
        except SystemExit as stop:
            code = stop.code
    assert code in (0, 1, 2) and "Traceback" not in err.getvalue()
    if code:
        assert out.getvalue() == ""
        assert err.getvalue().startswith("dvaepp: ") and len(err.getvalue().splitlines()) == 1
    return int(code)


@seed(2018)
@settings(
    max_examples=NUM_RECIPES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(request=_request())
def _fuzz(request: Request) -> None:
    begun = time.monotonic()
    outcome = _resolve(*request)
    assert _show(*request) == (2 if outcome == "refused" else 0)
    outcomes[outcome] += 1
    slowest[0] = max(slowest[0], time.monotonic() - begun)
    assert time.monotonic() - begun < SECONDS


@pytest.mark.timeout(3600)
def test_overrides_are_refused_in_one_line_or_able_to_start() -> None:
    _show("demo", [], [])
    for name, arguments in BASES[::6]:  # what is imported and compiled once does not count
        _resolve(name, list(arguments), ["chains.num_sweeps=1", "training.batch_size=20"])
    budget.cost(recipes.build("table3.rbm", ("size=small",)))  # passing images on the meta device loads much of torch
    held, peak, started = memory(), peak_memory(), time.monotonic()
    _fuzz()
    print(
        f"\n{NUM_RECIPES} recipes in {time.monotonic() - started:.0f} s, slowest {slowest[0]:.1f} s: {dict(outcomes)}"
    )
    print(f"memory {(memory() - held) / MEBIBYTE:+.0f} MiB, peak {(peak_memory() - peak) / MEBIBYTE:+.0f} MiB")
    assert all(outcomes[kind] for kind in ("refused", "started"))
    assert peak_memory() - peak < 200 * MEBIBYTE
