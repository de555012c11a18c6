"""What a plan would cost, from steps measured here on one thread."""

import time

import torch

from dvaepp.data import load
from dvaepp.reproduction.plan import Task
from dvaepp.training.loop import step
from dvaepp.training.state import build

SECONDS = 1.0  # of measuring a recipe, at least two steps


def seconds_per_step(task: Task) -> float:
    """The median step of the task's recipe; validations come on top."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        recipe = task.recipe
        dataset = load(recipe.data.name, task.data_dir, recipe.data.path)
        state = build(recipe, dataset, task.device)
        state, _, _ = step(recipe, dataset, state, task.device)
        times: list[float] = []
        while len(times) < 2 or sum(times) < SECONDS:
            start = time.perf_counter()
            state, _, loss = step(recipe, dataset, state, task.device)
            loss.item()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]
    finally:
        torch.set_num_threads(before)
