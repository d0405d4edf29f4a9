"""The site that `make docs` builds from these pages: build/docs/index.html."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the module below, which lies beside this file

from drivetrain import __version__
from recipe_fields import tables

project = "Drivetrain"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "Drivetrain"
html_copy_source = False
html_theme_options = {"footer_icons": []}

myst_heading_anchors = 4  # links to headings are checked
suppress_warnings = ["misc.highlighting_failure"]  # excerpts of YAML and Python need not parse

# Docstrings are written with single backticks, as Markdown has them.
default_role = "literal"
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True


def setup(app) -> None:
    """Put the tables of fields, which are made from the recipe's own declarations, at the end of their page."""
    app.connect("source-read", add_fields)


def add_fields(_, page: str, source: list[str]) -> None:
    """Sphinx hands over a page's text as a list of one, to be changed in place."""
    if page == "reference/recipe":
        source[0] += tables()
