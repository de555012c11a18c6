"""How long a plan would take, from the time of a few training steps on one thread of this machine."""

import time

from dvaepp.reproduction.plan import Task
from dvaepp.reproduction.work import one_thread
from dvaepp.training.state import build
from dvaepp.training.step import step

SECONDS = 1.0  # how long the steps of a recipe are measured; there are at least two of them


def seconds_per_step(task: Task) -> float:
    """The median step of the task's recipe; validations come on top."""
    recipe = task.recipe
    dataset = recipe.data.load(task.data_dir)
    with one_thread():
        state = build(recipe, dataset, task.device)
        state, _, _ = step(recipe, dataset, state, task.device)
        times: list[float] = []
        while len(times) < 2 or sum(times) < SECONDS:
            start = time.perf_counter()
            state, _, loss = step(recipe, dataset, state, task.device)
            loss.item()
            times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2]
