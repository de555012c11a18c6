"""The work of one task: train a cell, or go on with its training, evaluate it, and write its record."""

import contextlib
from collections.abc import Iterator

import torch

from dvaepp import runs, training
from dvaepp.errors import to_stderr
from dvaepp.reproduction import records
from dvaepp.reproduction.plan import Task
from dvaepp.training import checkpoint


def perform(text: str) -> str:
    """Train and evaluate the task given as JSON, on one thread; returns where its record is, or its run."""
    task = Task.model_validate_json(text)
    if task.evaluate and task.record_file.exists():
        return str(task.record_file)
    with one_thread():

        def say(line: str) -> None:
            to_stderr(f"{task.name}: {line}")

        begun = checkpoint.exists(task.folder / "checkpoints")
        training.train(task.recipe, task.folder, data_dir=task.data_dir, resume=begun, device=task.device, say=say)
        if not task.evaluate:
            return str(task.folder)
        runs.evaluate(task.folder, samples=task.samples, data_dir=task.data_dir, device=task.device, say=say)
    record = records.of_run(task.folder, task.cell, task.size, task.full_steps, task.selected_from)
    return str(records.write(task.results, record))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread of torch, because cells run side by side and more threads would slow all of them down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
