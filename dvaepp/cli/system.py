"""This machine: `doctor` and `completion`."""

from typing import Annotated, Literal

import tyro

from dvaepp.cli.arguments import DataDir, Debug, argument

Shell = Annotated[Literal["bash", "zsh", "fish"], argument("Your shell.")]


def doctor(data_dir: DataDir = None, debug: Debug = False) -> None:
    """Tell what this machine offers, and what slows it down.

    Compiler, kernels, threads, memory, devices and data sets; a line with ! slows you down.

    Examples:
        dvaepp doctor
    """
    from dvaepp.doctor import findings

    for finding in findings(data_dir):
        print(f"{' ' if finding.good else '!'} {finding.what:24} {finding.found}", flush=True)


def completion(shell: tyro.conf.Positional[Shell], debug: Debug = False) -> None:
    """Print the completion script of a shell.

    Commands, options, recipes, figures and data sets complete, and file names everywhere else.

    Examples:
        echo 'eval "$(dvaepp completion bash)"' >> ~/.bashrc
        echo 'eval "$(dvaepp completion zsh)"' >> ~/.zshrc
        dvaepp completion fish > ~/.config/fish/completions/dvaepp.fish
    """
    from dvaepp.cli.completion import script

    print(script(shell))
