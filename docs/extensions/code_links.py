"""Code in the text that names something of the API, such as `dvaepp.load` or `RBM(3, 4)`, becomes a link to it.

So do types in signatures. autodoc names a class by the file that defines it, `dvaepp.smoothing.base.Overlapping`,
while its page calls it `dvaepp.smoothing.Overlapping`. Types that have no page, such as those of torch, stay plain
text; a name that does not exist at all is a warning, and so an error of the build.
"""

import importlib
import re
from collections import Counter

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"^(?!dvaepp$)([A-Za-z_][\w.]*)(?:\(|$)")
COMMON = {"load", "check", "names", "build", "train", "evaluate", "report", "usage", "joint", "marginal", "sizes"}
"""Words that are also names: they are links only where the text writes them with their module."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(CodeLinks)
    app.connect("missing-reference", _type_in_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


class CodeLinks(SphinxPostTransform):
    default_priority = 5

    def run(self, **kwargs: object) -> None:
        targets = self._targets()
        for literal in list(self.document.findall(nodes.literal)):
            if not isinstance(literal.parent, nodes.reference) and not _in_heading(literal):
                self._link(literal, targets)

    def _targets(self) -> dict[str, tuple[str, str]]:
        """Full names, and last parts that are the name of one class or function only."""
        objects = self.env.domains.python_domain.objects
        shown = {name: entry for name, entry in objects.items() if entry.objtype in ("class", "function", "exception")}
        short = Counter(name.rpartition(".")[2] for name in shown)
        found = {name: (entry.docname, entry.node_id) for name, entry in objects.items()}
        for name, entry in shown.items():
            last = name.rpartition(".")[2]
            if short[last] == 1 and last not in COMMON:
                found[last] = (entry.docname, entry.node_id)
        return found

    def _link(self, literal: nodes.literal, targets: dict[str, tuple[str, str]]) -> None:
        match = NAME.match(literal.astext())
        if match is None:
            return
        name = match[1]
        target = targets.get(name) or (targets.get(f"dvaepp.{name}") if "." in name else None)
        if target is not None:
            here = self.env.current_document.docname
            literal.replace_self(make_refnode(self.app.builder, here, *target, literal.deepcopy()))


def _type_in_signature(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement
) -> nodes.Node | None:
    target = node["reftarget"]
    if node.get("refdomain") != "py" or not _exists(target):
        return None
    head, _, last = target.rpartition(".")
    for name, entry in env.domains.python_domain.objects.items():
        if name.rpartition(".")[2] == last and head.startswith(name.rpartition(".")[0]) and head.startswith("dvaepp"):
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, text)
    return text


def _exists(dotted: str) -> bool:
    module, _, name = dotted.rpartition(".")
    try:
        return hasattr(importlib.import_module(module), name)
    except (ImportError, ValueError):
        return False


def _in_heading(node: nodes.Node) -> bool:
    return isinstance(node.parent, nodes.title)
