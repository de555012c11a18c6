"""The state of a run: built from a recipe, changed by every step, saved in a checkpoint and restored from it."""

import copy
import inspect
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dvaepp import distributed
from dvaepp.data import Dataset
from dvaepp.errors import UsageError
from dvaepp.estimators import MEMBERS, Estimator
from dvaepp.log_partition import follow, log_partition
from dvaepp.log_partition.exact import num_enumerated
from dvaepp.models.base import Model
from dvaepp.models.build import build_model
from dvaepp.recipes import budget
from dvaepp.recipes.schema import Recipe
from dvaepp.samplers import Chains, pcd
from dvaepp.training import checkpoint, precision
from dvaepp.training.adamax import Adamax

EXACT_SIDE = 12  # up to so many units on the smaller side of an RBM, log Z is summed exactly
LOG_Z_SWEEPS = 300  # sweeps of the estimate of log Z at a validation


class Progress(NamedTuple):
    """What validations have found so far.

    `best` is the best score and `best_bound` the best bound. `waited` counts validations since that bound, and `decays`
    how often this has lowered the learning rate. `validated` is the step of the last validation, and `stale` counts the
    validations since the best score.
    """

    best: float = -math.inf
    best_bound: float = -math.inf
    waited: int = 0
    decays: int = 0
    validated: int = 0
    stale: int = 0


class State(NamedTuple):
    """Everything that changes in a run, and that a resumed run must find again.

    `log_z` is the value of log Z at the parameters of step `log_z_step`, for metrics and balancing; it is 0 with a
    directed prior. `follower` holds the walkers that follow it where it is not summed exactly. `own_optimizer` trains
    the parameters of a gradient estimator, if the recipe names one that has any. `average` is the model with averaged
    weights (see `training.average`), or None.
    """

    model: Model
    optimizer: torch.optim.Optimizer
    chains: Chains | None
    generator: torch.Generator
    step: int
    log_z: float = 0.0
    progress: Progress = Progress()
    estimator: Estimator | None = None
    own_optimizer: torch.optim.Optimizer | None = None
    average: Model | None = None
    log_z_step: int = 0
    follower: follow.Follower | None = None

    @property
    def modules(self) -> list[nn.Module]:
        """All modules that training changes: the model, and the gradient estimator if there is one."""
        return [module for module in (self.model, self.estimator) if module is not None]

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [optimizer for optimizer in (self.optimizer, self.own_optimizer) if optimizer is not None]


def build(recipe: Recipe, dataset: Dataset, device: str = "cpu", model: Model | None = None) -> State:
    """Model, optimizer, chains and generator at step 0, from the recipe's seed, or around a given `model`."""
    budget.check(recipe, dataset.image_shape, device)
    precision.check(recipe.training.precision, device)
    generator = torch.Generator(device).manual_seed(recipe.training.seed)
    if model is None:
        seeded = torch.Generator("cpu").manual_seed(recipe.training.seed)
        model = build_model(recipe.model, dataset.train_mean, seeded)
    model = model.to(device, precision.WEIGHTS[recipe.training.precision])
    optimizer = build_optimizer(recipe, model)
    chains = None
    if model.boltzmann is not None:
        number = recipe.chains.num_chains
        chains = pcd.init(model.boltzmann, number, generator, _chain_shard(number), recipe.chains.make())
    estimator, own_optimizer = _build_estimator(recipe, model, device)
    log_z = estimate_log_z(model, generator)
    average = None if recipe.training.average is None else copy.deepcopy(model).requires_grad_(False)
    state = State(model, optimizer, chains, generator, 0, log_z, Progress(), estimator, own_optimizer, average)
    return state._replace(follower=_follower(state))


def _follower(state: State) -> follow.Follower | None:
    """Walkers that start from the states of all chains; None where log Z needs none."""
    if state.model.boltzmann is None or state.chains is None or sums_exactly(state.model):
        return None
    z, shard = state.chains.z, state.chains.shard
    return follow.start(state.model.boltzmann, z if shard is None else distributed.gather(z, shard), state.log_z)


def _chain_shard(num_chains: int) -> distributed.Shard | None:
    return distributed.shard(num_chains) if distributed.size() > 1 else None


def _build_estimator(
    recipe: Recipe, model: Model, device: str
) -> tuple[Estimator | None, torch.optim.Optimizer | None]:
    """The gradient estimator that the recipe names, and an optimizer for its parameters, if it has any.

    These are baselines, scales and temperatures; they learn `rate_factor` times as fast as the model.
    """
    if recipe.estimator is None:
        return None, None
    member: Any = MEMBERS[recipe.estimator.name]
    options: dict[str, Any] = dict(recipe.estimator.options)
    if "generator" in inspect.signature(member).parameters:
        options["generator"] = torch.Generator("cpu").manual_seed(recipe.training.seed)
    try:
        with torch.device("cpu"):  # the generator of its initial values is on the CPU
            estimator: Estimator = member(model.group_sizes, math.prod(model.image_shape), **options)
        estimator = estimator.to(device, precision.WEIGHTS[recipe.training.precision])
    except TypeError as error:
        raise UsageError(f"estimator.options of {recipe.estimator.name}: {error}") from None
    parameters = list(estimator.parameters())
    if not parameters:
        return estimator, None
    o = recipe.optimizer
    rate = recipe.estimator.rate_factor * o.learning_rate
    return estimator, torch.optim.Adam(parameters, lr=rate, betas=(0.9, o.beta2), eps=o.epsilon, fused=True)


def example_model(recipe: Recipe) -> Model:
    """The recipe's model for images of its data set's size on the meta device: shapes alone, which take no memory."""
    shape = recipe.data.image_shape() or recipe.model.example_shape
    return build_model(recipe.model, torch.full(shape, 0.5, dtype=torch.float32, device="meta"))


def build_optimizer(recipe: Recipe, model: Model) -> torch.optim.Optimizer:
    """The optimizer of the model's parameters, with weight decay on those that are named "weight".

    These are kernels, scales of batch norm and couplings. The `weight_decay` of Adam adds the gradient of 1/2 |w|².
    """
    decayed = [p for name, p in model.named_parameters() if name.endswith("weight")]
    others = [p for name, p in model.named_parameters() if not name.endswith("weight")]
    o = recipe.optimizer
    groups = [{"params": decayed, "weight_decay": o.weight_decay}, {"params": others, "weight_decay": 0.0}]
    if o.name == "adamax":
        return Adamax(groups, lr=o.learning_rate, betas=(0.9, o.beta2), eps=o.epsilon)
    return torch.optim.Adam(groups, lr=o.learning_rate, betas=(0.9, o.beta2), eps=o.epsilon, fused=True)


def sums_exactly(model: Model) -> bool:
    return model.boltzmann is not None and num_enumerated(model.boltzmann) <= EXACT_SIDE


def estimate_log_z(model: Model, generator: torch.Generator) -> float:
    """log Z without gradient where a number is needed; 0 for a directed prior."""
    prior = model.boltzmann
    if prior is None:
        return 0.0
    if sums_exactly(model):
        return log_partition(prior, "exact").value
    if not any(bool(p.any()) for p in prior.parameters()):
        return prior.num_units * math.log(2)  # an untrained machine has independent fair units
    return log_partition(prior, "tempering", generator, num_sweeps=LOG_Z_SWEEPS, num_replicas=16).value


def save(folder: Path, state: State, recipe: Recipe, about: dict[str, Any], best: bool = False) -> None:
    """Write a checkpoint. Of several processes only the first writes, after it has gathered the chains of all."""
    chains = state.chains
    if chains is not None and chains.shard is not None:
        chains = chains._replace(z=distributed.gather(chains.z, chains.shard))
    if distributed.rank() != 0:
        return
    tensors = checkpoint.with_prefix("model", state.model.state_dict())
    if state.average is not None:
        tensors |= checkpoint.with_prefix("average", state.average.state_dict())
    tensors["generator"] = state.generator.get_state()
    progress = {name: v if math.isfinite(v) else None for name, v in state.progress._asdict().items()}
    record: dict[str, Any] = {"step": state.step, "log_z": state.log_z, "log_z_step": state.log_z_step}
    record |= {"progress": progress, **about}
    if state.follower is not None:
        tensors |= {"follower.z": state.follower.z, "follower.log_weights": state.follower.log_weights}
        tensors |= checkpoint.with_prefix("follower.prior", state.follower.parameters)
        record["log_z_anchor"] = state.follower.anchor
    if chains is not None:
        tensors["chains"] = chains.z
        if chains.hot is not None:
            tensors["hot_chains"] = chains.hot
        record["chain_sweeps"] = chains.num_sweeps
    for index, parameter in enumerate(_parameters(state.optimizer)):
        tensors |= checkpoint.with_prefix(f"optimizer.{index}", state.optimizer.state[parameter])
    record["optimized"] = [name for group in _names(state) for name in group]
    if state.estimator is not None:
        tensors |= checkpoint.with_prefix("estimator", state.estimator.state_dict())
    if state.own_optimizer is not None:
        for index, parameter in enumerate(_parameters(state.own_optimizer)):
            tensors |= checkpoint.with_prefix(f"own_optimizer.{index}", state.own_optimizer.state[parameter])
    checkpoint.write(folder, tensors, record, recipe.model_dump(mode="json"), best)


def restore(state: State, saved: checkpoint.Checkpoint) -> State:
    """A state built from the same recipe, filled from a checkpoint."""
    tensors, record = saved.tensors, saved.record
    weights = checkpoint.under("model", tensors)
    state.model.check_weights(weights)
    state.model.load_state_dict(weights)
    if state.average is not None:
        state.average.load_state_dict(checkpoint.under("average", tensors))
    state.generator.set_state(tensors["generator"].cpu())
    parameters: dict[str, Tensor] = dict(state.model.named_parameters())
    for index, name in enumerate(record.get("optimized") or _former_order(state)):
        parameter, found = parameters[name], checkpoint.under(f"optimizer.{index}", tensors)
        if isinstance(state.optimizer, Adamax):
            state.optimizer.load(parameter, found, record["step"])
        else:
            state.optimizer.state[parameter] = found
    if state.estimator is not None:
        state.estimator.load_state_dict(checkpoint.under("estimator", tensors))
    if state.own_optimizer is not None:
        for index, parameter in enumerate(_parameters(state.own_optimizer)):
            state.own_optimizer.state[parameter] = checkpoint.under(f"own_optimizer.{index}", tensors)
    chains = None
    if "chains" in tensors:
        shard = _chain_shard(len(tensors["chains"]))
        z = tensors["chains"] if shard is None else tensors["chains"][shard.first : shard.last]
        chains = Chains(z, record["chain_sweeps"], shard, tensors.get("hot_chains"))
    progress: dict[str, Any] = {name: -math.inf if v is None else v for name, v in record["progress"].items()}
    progress.setdefault("validated", record["step"])  # checkpoints of schema 1 were written at validations only
    step, log_z = record["step"], record["log_z"]
    log_z_step = record.get("log_z_step", step)  # older checkpoints do not tell, because nothing followed log Z then
    state = state._replace(chains=chains, step=step, log_z=log_z, log_z_step=log_z_step, progress=Progress(**progress))
    return state._replace(follower=_restored_follower(state, saved))


def _restored_follower(state: State, saved: checkpoint.Checkpoint) -> follow.Follower | None:
    """The walkers of a checkpoint; one that was written before there were any lets them start from its chains."""
    found = checkpoint.under("follower", saved.tensors)
    if not found:
        return _follower(state)
    parameters = checkpoint.under("prior", found)
    return follow.Follower(found["z"], found["log_weights"], parameters, saved.record["log_z_anchor"])


def _names(state: State) -> list[list[str]]:
    """The names of the model's parameters in each group of its optimizer."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in state.model.named_parameters()}
    return [[names[parameter] for parameter in group["params"]] for group in state.optimizer.param_groups]


def _former_order(state: State) -> list[str]:
    """The order in which the optimizer of an old checkpoint, which does not name its parameters, held them.

    torch lists a model's own parameters before those of its modules. Some of the model's own parameters have become
    those of a module since, so the order has to be made from the names that they had then.
    """
    groups = [sorted(group, key=lambda name: "." in state.model.former_name(name)) for group in _names(state)]
    return [name for group in groups for name in group]


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
