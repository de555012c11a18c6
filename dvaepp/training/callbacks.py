"""Ready-made callbacks for `dvaepp.train(..., callbacks=[...])`, each called with the record of every validation."""

from pathlib import Path
from typing import Any

from dvaepp.errors import UsageError
from dvaepp.training.loop import Callback
from dvaepp.training.metrics import scalars, summary_writer


def tensorboard(folder: Path | str) -> Callback:
    """A callback that writes the numbers of every validation for TensorBoard (extra `tb`).

    Choose it to watch validations; `set={"training.tensorboard": True}` writes the numbers of training steps, too.

    >>> dvaepp.train(model, data=x, run_dir="run", callbacks=[tensorboard("run/tensorboard")])
    """
    writer = summary_writer(folder)

    def write(record: dict[str, Any]) -> None:
        for name, value in scalars(record).items():
            writer.add_scalar(name, value, record["step"])
        writer.flush()

    return write


def wandb(project: str, **options: Any) -> Callback:
    """A callback that sends the numbers of every validation to Weights & Biases (extra `wandb`).

    Choose it to compare runs there; `options` go to `wandb.init`.

    >>> dvaepp.train(model, data=x, run_dir="run", callbacks=[wandb("digits", name="rbm")])
    """
    try:
        import wandb as service  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise UsageError("the wandb callback needs the extra: pip install 'dvaepp[wandb]'") from None
    run = service.init(project=project, **options)

    def log(record: dict[str, Any]) -> None:
        run.log(scalars(record), step=record["step"])

    return log
