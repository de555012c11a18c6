"""The README as the package page shows it: hatchling calls this when it writes the metadata of a wheel or an sdist.

Links of README.md are relative, so that they work in every checkout. On a package page they would lead nowhere. With
`repository` in `[tool.hatch.metadata.hooks.custom]` of pyproject.toml, the address of the public repository, they
become absolute, pictures included. While the project has no public address, links become plain text and pictures their
descriptions: a page without a dead link.
"""

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#)([^)]+)\)")


class PackageReadme(MetadataHookInterface):
    def update(self, metadata: dict[str, object]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        shown = for_package_page(text, str(self.config.get("repository", "")))
        metadata["readme"] = {"content-type": "text/markdown", "text": shown}


def for_package_page(text: str, repository: str) -> str:
    """README.md with absolute links into `repository`, or without links where that is empty."""

    def absolute(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not repository:
            return f"*[{words}]*" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return LINK.sub(absolute, text)
