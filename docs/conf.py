"""Configuration of the documentation: `make docs` writes it to site/. Warnings are errors; the network is not used."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

import corten
from corten.results.fitted import _INTERNAL as INTERNAL

sys.path.insert(0, str(Path(__file__).resolve().parent))
import make_gallery
import make_notebooks

project = "corten"
author = "the authors of corten"
version = release = corten.__version__
html_title = f"corten {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
exclude_patterns = ["results/*.md", "benchmarks-run/*.md", "_build"]
templates_path = ["_templates"]
suppress_warnings = ["myst.header"]  # generated tables start at the third level

myst_enable_extensions = ["dollarmath", "colon_fence", "attrs_block"]
myst_heading_anchors = 4

default_role = "obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # types are in the numpydoc sections
autosummary_generate = True
numpydoc_show_class_members = False  # the class template lists them

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["corten.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options: dict[str, Any] = {
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "header_links_before_dropdown": 5,
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_math_renderer = "mathml"


def _math(source: str, *, block: bool) -> str:
    """Presentation MathML, which browsers draw by themselves: no script, no font from the network."""
    return tex2mathml(source, as_block=block)


def _inline_math(writer: Any, node: Any) -> None:
    writer.body.append(_math(node.astext(), block=False))
    raise SkipNode


def _block_math(writer: Any, node: Any) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    writer.body.append(_math(node.astext(), block=True) + "</div>\n")
    raise SkipNode


def _bars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Escape the bars of |x| in docstrings, which reStructuredText would take for a substitution."""
    example = False
    for place, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if "|" in line and not example:
            parts = line.split("``")
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[place] = "``".join(parts)


def _internal(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Whether a member of a result is left out: what `dir` of an instance does not list."""
    owner = getattr(getattr(obj, "fget", None) or getattr(obj, "func", None) or obj, "__qualname__", "").split(".")[0]
    inside = {"Fitted": name in INTERNAL, "Intervals": name.endswith("_array") or name == "widths_at"}
    return True if inside.get(owner) else None


def _tutorial(app: Any, name: str, source: list[str]) -> None:
    """Add its output to the code of a tutorial."""
    folder, _, page = name.rpartition("/")
    if folder == "tutorials" and page != "index":
        source[0] = make_notebooks.with_outputs(source[0], page)


def setup(app: Any) -> None:
    """Register the renderer of formulas; draw the gallery and run the tutorials before pages are read."""
    app.add_html_math_renderer("mathml", (_inline_math, None), (_block_math, None))
    app.connect("autodoc-skip-member", _internal)
    app.connect("source-read", _tutorial)
    app.connect("autodoc-process-docstring", _bars)
    app.connect("builder-inited", lambda app: (make_gallery.main(), make_notebooks.main()))
