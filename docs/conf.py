"""How `make docs` builds the documentation site: Sphinx with furo and myst-nb, offline, warnings as errors."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "extensions"))

from jupyter_client.manager import KernelManager  # noqa: E402

import dvaepp  # noqa: E402

project, author = "dvaepp", "The dvaepp developers"
copyright = author
version = release = dvaepp.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",  # the source of what is documented is part of the site
    "api_pages",
    "plain_docstrings",
    "code_links",
]
exclude_patterns = ["_build", "extensions"]
nitpicky = True
nitpick_ignore_regex = [  # parts of types that Python prints as text
    ("py:class", r"Tensor|feedforward|convolutional|own|(dict|tuple)\[str"),
]

myst_enable_extensions = ["colon_fence", "attrs_inline"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]

# Notebooks are stored without outputs. DVAEPP_NOTEBOOKS names those to execute, by the stems of their files: all by
# default, "none", or a list such as "smoothing,quantizer", which is what the test of the site takes.
notebooks = sorted(path.stem for path in (HERE / "notebooks").glob("*.md"))
chosen = os.environ.get("DVAEPP_NOTEBOOKS", "all")
executed = {"all": set(notebooks), "none": set()}.get(chosen, set(chosen.split(",")))
if executed - set(notebooks):
    raise ValueError(f"DVAEPP_NOTEBOOKS names {sorted(executed - set(notebooks))}; there are {', '.join(notebooks)}")
KernelManager.transport_encryption.default_value = "auto"  # other users of the machine cannot listen to a kernel
nb_execution_mode = "force"
nb_execution_excludepatterns = [f"notebooks/{name}.md" for name in notebooks if name not in executed]
nb_execution_in_temp = True
nb_execution_timeout = 900  # seconds for a cell; a busy machine stretches half a minute a long way
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars, a line for each movement

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "dvaepp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5f99", "color-brand-content": "#1f5f99"},
    "dark_css_variables": {"color-brand-primary": "#7db7ec", "color-brand-content": "#7db7ec"},
}
pygments_style, pygments_dark_style = "friendly", "github-dark"
