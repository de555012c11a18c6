"""The arguments that several commands share, with their help, and the check of a device."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from dvaepp.errors import UsageError


def argument(help: str, metavar: str | None = None, name: str | None = None) -> object:
    """What `--help` says of an argument; a metavar of an optional word stands in brackets, as in "[RECIPE]"."""
    return tyro.conf.arg(help=help, metavar=metavar, name=name, help_behavior_hint=_default)


def _default(shown: str) -> str:
    """The default as the help shows it: nothing where leaving the argument out means "none" or "no"."""
    return "" if shown in ("None", "False", "") else f"(default: {shown})"


Split = Annotated[Literal["train", "validation", "test"], argument("Which part of the data set.")]
Device = Annotated[str, argument("Where to compute, e.g. cpu or cuda.", "DEVICE")]
Pixels = Annotated[
    Literal["mean", "drawn"], argument("Show each pixel's mean, or draw the pixels, which gives a sample of p(x).")
]
Debug = Annotated[bool, argument("Show the traceback of a failure.")]
Json = Annotated[bool, argument("Print the result as JSON and nothing else on stdout.")]
DataDir = Annotated[
    Path | None,
    argument("Where data sets lie. Without it: $DVAEPP_DATA, then the user's cache, then a download.", "DIR"),
]
RunDir = Annotated[Path, argument("A run directory, or one of `dvaepp models`.", "RUN")]
ImagesPath = Annotated[Path | None, argument("A folder of images or an array instead of a split.", "PATH")]
Limit = Annotated[int | None, argument("Only N images, drawn with a fixed seed.", "N")]
Overrides = Annotated[
    tyro.conf.UseAppendAction[list[str]],
    argument("Change any field of the recipe, e.g. training.steps=60000; repeatable.", "PATH=VALUE", name="set"),
]
Arguments = Annotated[
    tuple[str, ...], argument("Arguments of the recipe, e.g. layers=2 linear=false.", "[KEY=VALUE ...]")
]


def usable_device(name: str) -> str:
    """The name of a device that torch can compute on here."""
    from dvaepp.devices import usable

    return usable(name)


def png_file(out: Path) -> Path:
    """Where a picture goes; asked before the work, so that nothing is drawn in vain."""
    if out.suffix.lower() != ".png" and not out.is_char_device():
        raise UsageError(f"cannot write a picture to {out}: its name has to end in .png")
    return out


def npz_file(out: Path) -> Path:
    """Where arrays go; asked before the work, so that nothing is computed in vain."""
    if out.suffix.lower() != ".npz" and not out.is_char_device():
        raise UsageError(f"cannot write arrays to {out}: its name has to end in .npz")
    return out


def at_least(least: int, option: str, value: int | None) -> None:
    """Refuse a smaller count, and name the option."""
    if value is not None and value < least:
        raise UsageError(f"{option} must be at least {least}, got {value}")
