"""Make sure that the data sets of a plan are there, before many workers try to download them at the same time."""

from collections.abc import Callable, Sequence

from dvaepp import data
from dvaepp.reproduction.plan import Task


def without_data(tasks: Sequence[Task], say: Callable[[str], None]) -> dict[str, str]:
    """The names of the tasks whose data set is not available, each with a short reason; `say` gets the whole reason.

    Once a download has failed for want of a network, no other download is tried, so that the reason is told only once.
    """
    reasons: dict[str, str] = {}
    offline = False
    for task in tasks:
        name = task.recipe.data.name
        if name in reasons or task.recipe.data.path is not None:
            continue
        try:
            if not offline:
                data.obtain(name, task.data_dir)
            reasons[name] = "" if not offline or data.here(name, task.data_dir) else f"{name} is not here"
        except data.NoNetwork as error:
            offline, reasons[name] = True, f"{name} is not here"
            say(str(error))
        except OSError as error:
            reasons[name] = f"the files of {name} cannot be used"
            say(" ".join(str(error).split()))
    named = {task.name: reasons.get(task.recipe.data.name, "") for task in tasks if task.recipe.data.path is None}
    return {name: reason for name, reason in named.items() if reason}
