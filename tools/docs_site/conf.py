"""Sphinx configuration of the documentation site, see tools/build_site.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/batonq/__init__.py").read_text(), re.MULTILINE)

project = "Baton"
author = "the Baton authors"
copyright = author
release = version = _VERSION[1] if _VERSION else ""

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "README"
exclude_patterns: list[str] = []
suppress_warnings = ["myst.header"]  # generated parts begin at a lower level

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the same anchors as other Markdown renderers make

html_theme = "furo"
html_title = "Baton"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False

pygments_style = "friendly"
pygments_dark_style = "monokai"
