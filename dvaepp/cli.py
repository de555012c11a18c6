"""The command line: one function per command. torch is imported only by the commands that need it."""

import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import tyro

from dvaepp import __version__
from dvaepp.errors import UsageError

FigureName = Literal["smoothing", "inverse-cdf"]
Device = Annotated[str, tyro.conf.arg(help="Where to compute, e.g. cpu or cuda.", metavar="DEVICE")]
Debug = Annotated[bool, tyro.conf.arg(help="Show the traceback of a failure.")]


def figure(
    name: tyro.conf.Positional[FigureName],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    device: Device = "cpu",
    debug: Debug = False,
) -> None:
    """Draw a figure of the paper: "smoothing" is Fig. 1, the exponential smoothing and its inverse CDF;
    "inverse-cdf" is Fig. 5 (App. C), inverse CDFs of three smoothings and their gradients.

    Args:
        name: Which figure.
        out: File to write; its ending (.png, .pdf, .svg) chooses the format. Without it NAME.png is written here.
    """
    from dvaepp.reporting.figures import save

    out = out or Path(f"{name}.png")
    save(name, out, _device(device))
    print(f"wrote {out}")


COMMANDS = {"figure": figure}


def main(argv: list[str] | None = None) -> None:
    """Parse, run, and turn a failure into one line: 2 for bad usage, 1 for a failure, 130 after SIGINT."""
    arguments = sys.argv[1:] if argv is None else argv
    debug = "--debug" in arguments
    if arguments == ["--version"]:
        print(f"dvaepp {__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="dvaepp",
            description="Generative models with binary latent variables (DVAE++, ICML 2018).",
            args=arguments or ["--help"],
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            raise
        _fail(error)


def _fail(error: BaseException) -> NoReturn:
    if isinstance(error, KeyboardInterrupt):
        print("dvaepp: interrupted", file=sys.stderr)
        sys.exit(130)
    message = " ".join(str(error).split()) or type(error).__name__
    expected = isinstance(error, (ValueError, OSError))
    hint = "" if expected else f" ({type(error).__name__}; --debug shows the traceback)"
    print(f"dvaepp: {message}{hint}", file=sys.stderr)
    sys.exit(2 if isinstance(error, UsageError) else 1)


def _device(name: str) -> str:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used here: {reason}; try --device cpu") from None
    return name
