"""A page as its reader sees it: elements, their attributes, and text with the markup gone."""

import re
from html.parser import HTMLParser
from pathlib import Path

from dvaepp.cli import main

FORBIDDEN = {"script", "link", "iframe", "object", "embed", "base", "form", "audio", "video"}


class Page(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._text: list[str] = []
        self._hidden = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self._hidden += tag in ("style", "svg")
        self._text.append(" " if tag not in ("small", "code") else "")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in ("style", "svg")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._text.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self._text).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def values(self, attribute: str) -> list[str]:
        return [attributes[attribute] for _, attributes in self.elements if attribute in attributes]


def report(run: Path, *arguments: str) -> Page:
    out = run.parent / "page.html"
    main(["report", str(run), "--out", str(out), *arguments])
    return Page(out.read_text())


def faults(page: Page) -> list[str]:
    """Everything by which the page would need, or reach for, something outside itself; and ids that do not fit."""
    found = [tag for tag, _ in page.elements if tag in FORBIDDEN]
    found += [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    for address in (*page.values("src"), *page.values("href"), *page.values("xlink:href"), *page.values("srcset")):
        if not address.startswith(("#", "data:image/png;base64,")):
            found.append(address)
    found += [inside for inside in re.findall(r"url\(([^)]*)\)", page.html) if not inside.startswith("#")]
    found += re.findall(r"@import|\w+://\S*", page.html)
    ids = page.values("id")
    found += [f"id {name} twice" for name in set(ids) if ids.count(name) > 1]
    referred = [a[1:] for a in page.values("href") if a.startswith("#")] + re.findall(r"url\(#([^)]*)\)", page.html)
    return found + [f"no id {name}" for name in set(referred) - set(ids)]
