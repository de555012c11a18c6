"""Every command, in the groups that `dvaepp --help` shows. A command is a function: its signature is its arguments."""

from collections.abc import Callable
from typing import Any

from dvaepp.cli.codes import compress, decompress, encode, index, search
from dvaepp.cli.data import data
from dvaepp.cli.figures import figure
from dvaepp.cli.pictures import inpaint, reconstruct, report, sample
from dvaepp.cli.reproduction import reproduce
from dvaepp.cli.sharing import export, models, pull, push
from dvaepp.cli.system import completion, doctor
from dvaepp.cli.training import compare, evaluate, recipes, show, train
from dvaepp.cli.viewer import view

Command = Callable[..., Any]

GROUPS: dict[str, tuple[Command, ...]] = {
    "Train and evaluate": (recipes, show, train, evaluate, compare),
    "Look at a run": (sample, reconstruct, inpaint, report, view),
    "Use its codes": (encode, index, search, compress, decompress),
    "Share models": (models, export, push, pull),
    "Data sets": (data,),
    "The paper": (figure, reproduce),
    "This machine": (doctor, completion),
}

COMMANDS: dict[str, Command] = {command.__name__: command for group in GROUPS.values() for command in group}
