"""Docstrings of this library are plain text: `code` between single backticks, formulas and examples indented.

Sphinx reads reStructuredText, where |x|, a trailing underscore and an asterisk mean something. This extension writes
each docstring as reStructuredText that shows what the docstring says, so that the source stays readable in a terminal.
"""

import re

from sphinx.application import Sphinx

LIST = re.compile(r"^(- |\d+\. )")
SHAPELESS = re.compile(r"[~.\w]+\[(Tensor), '\.\.\.'\]")
BACKSLASH = "\\"
PAGE = re.compile(r"docs/((?:\w|\\_)+)\.md")
SPECIAL = re.compile(r"([\\*_|`])")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True}


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = as_rst(lines)


def _signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Float[Tensor, '...'] without a shape says no more than Tensor."""
    short = (text and SHAPELESS.sub(r"\1", text) for text in (signature, returns))
    return tuple(short)


def as_rst(lines: list[str]) -> list[str]:
    """Paragraph by paragraph: examples stay, indented ones become literal blocks, the others prose."""
    found: list[str] = []
    for block in _paragraphs(lines):
        found += [*_block(block), ""]
    return found


def _paragraphs(lines: list[str]) -> list[list[str]]:
    """Runs of lines without a blank one; consecutive indented runs are one, since a literal block may have gaps."""
    blocks: list[list[str]] = []
    for text in re.split(r"\n\s*\n", "\n".join(lines).strip("\n")):
        block = text.split("\n")
        if blocks and _indented(block) and _indented(blocks[-1]):
            blocks[-1] += ["", *block]
        else:
            blocks.append(block)
    return blocks


def _indented(block: list[str]) -> bool:
    return any(block) and all(line.startswith("    ") for line in block if line.strip())


def _block(block: list[str]) -> list[str]:
    if block[0].startswith(">>>"):
        return block
    if _indented(block):
        return ["::", "", *block]
    return _list(block) if LIST.match(block[0]) else _prose(block)


def _prose(block: list[str]) -> list[str]:
    """Text, which may go over to an indented formula or to an example without a blank line between."""
    for i, line in enumerate(block):
        if i and (line.startswith("    ") or line.startswith(">>>") or LIST.match(line)):
            return [*_inline(block[:i]), "", *as_rst(block[i:])]
    return _inline(block)


def _list(block: list[str]) -> list[str]:
    return _inline(block)


def _inline(lines: list[str]) -> list[str]:
    """Escape what has a meaning, except in `code`, which may run over the end of a line."""
    parts = re.split(r"`([^`]+)`", "\n".join(lines))
    parts[::2] = [PAGE.sub(_page, SPECIAL.sub(r"\\\1", part)) for part in parts[::2]]
    parts[1::2] = [f"``{' '.join(part.split())}``\\ " for part in parts[1::2]]
    return "".join(parts).split("\n")


def _page(found: re.Match[str]) -> str:
    """docs/priors.md, the name of a file to those who read the source, is a link on the site."""
    return f":doc:`/{found[1].replace(BACKSLASH, '')}`"
