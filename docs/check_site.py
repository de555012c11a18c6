"""Checks a built site: `python docs/check_site.py docs/_build/html`. `make docs` ends with it.

- Every link inside the site leads to a file that exists and to an anchor that this file has.
- Nothing is loaded from elsewhere: scripts, styles, fonts and pictures are part of the site, which works offline.
- No path and no name of the machine that built it is in any page.

External links are not followed. They are listed, with a page that has them, in `external-links.txt` of the site.
"""

import re
import socket
import sys
import tempfile
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("source", "src"), ("iframe", "src"), ("video", "src")}
IN_STYLES = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""")
LISTING = "external-links.txt"


class Page(HTMLParser):
    """Anchors, links and what a page loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif (tag, name) in LOADED:
                self.loads.add(value or "")
            elif name == "href":
                self.links.add(value or "")


class Findings(NamedTuple):
    errors: list[str]
    external: dict[str, list[str]]
    num_pages: int
    num_links: int


def check(site: Path) -> Findings:
    """What is wrong with a site, and where it links to."""
    site = site.resolve()
    pages = {path: Page(path.read_text()) for path in sorted(site.rglob("*.html"))}
    errors, external = [] if pages else [f"{site} has no page"], defaultdict(list)
    for path, page in pages.items():
        here = path.relative_to(site)
        for link in sorted(page.links | page.loads):
            if urlsplit(link).scheme in ("http", "https") or link.startswith("//"):
                external[link].append(str(here))
            elif problem := _inside(site, path, link, pages):
                errors.append(f"{here}: {link!r} {problem}")
        loads = [link for link in page.loads if urlsplit(link).scheme not in ("", "data") or link.startswith("//")]
        errors += [f"{here}: loads {link!r} from elsewhere" for link in sorted(loads)]
    for path in sorted(site.rglob("*.css")):
        loads = IN_STYLES.findall(path.read_text())
        errors += [f"{path.relative_to(site)}: loads {link!r} from elsewhere" for link in loads]
    errors += [f"{path.relative_to(site)}: {what}" for path, what in _machine(site)]
    return Findings(errors, dict(sorted(external.items())), len(pages), sum(len(page.links) for page in pages.values()))


def _inside(site: Path, path: Path, link: str, pages: dict[Path, Page]) -> str | None:
    """What is wrong with a link to the site itself."""
    parts = urlsplit(link)
    if parts.scheme in ("mailto", "data"):
        return None
    if parts.scheme or parts.netloc:
        return "is no link that a reader can follow"
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_relative_to(site):
        return "leads out of the site"
    if not target.is_file():
        return "leads to no file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "leads to no anchor of that page"
    return None


def _machine(site: Path) -> list[tuple[Path, str]]:
    """Texts of the site that name the machine: its folders, or its host."""
    folders = {str(Path.home()), str(Path.cwd()), str(site.parent), sys.prefix, tempfile.gettempdir()} - {"/"}
    words = [rf"{re.escape(folder)}(?=/)" for folder in sorted(folders)]
    words += [r"(?<![\w.])/(?:home|Users|root)/\w+", r"site-packages/"]
    if len(host := socket.gethostname()) > 4:
        words.append(rf"\b{re.escape(host)}\b")
    pattern = re.compile("|".join(words))
    texts = [path for path in sorted(site.rglob("*")) if path.suffix in (".html", ".js", ".txt", ".json", ".css")]
    return [(path, f"names the machine: {found[0]!r}") for path in texts if (found := pattern.search(path.read_text()))]


def main(site: Path) -> int:
    found = check(site)
    lines = [f"{link}  (on {len(pages)} pages, first {pages[0]})" for link, pages in found.external.items()]
    (site / LISTING).write_text("".join(line + "\n" for line in lines))
    print("\n".join(found.errors), file=sys.stderr, end="\n" if found.errors else "")
    print(
        f"{site}: {found.num_pages} pages, {found.num_links} links, {len(found.errors)} errors; "
        f"{len(found.external)} external links listed in {LISTING}"
    )
    return 1 if found.errors else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
