"""Sphinx's settings for the site. `lab site OUT` is the command; navigation and handouts come from pages.py."""

from __future__ import annotations

from labstaff.figures import COLOURS
from labstaff.site import HERE
from labstaff.site.pages import ROOT_PAGE

LIGHT, DARK = ({role: pair[at] for role, pair in COLOURS.items()} for at in (0, 1))
LIGHT["aside"], DARK["aside"] = "#f4f6f8", "#171d26"


def _theme(of: dict[str, str]) -> dict[str, str]:
    """The figures' paper, ink and blue for the pages around them, and takeaways in nearly the text's size."""
    return {
        "color-background-primary": of["paper"],
        "color-background-secondary": of["aside"],
        "color-background-border": of["grid"],
        "color-foreground-primary": of["ink"],
        "color-foreground-secondary": of["muted"],
        "color-brand-primary": of["blue"],
        "color-brand-content": of["blue"],
        "color-brand-visited": of["blue"],
        "admonition-font-size": "0.95rem",  # a takeaway is read, not skipped
    }


project = html_title = "Attention Labs"
root_doc = ROOT_PAGE
extensions = [
    "myst_parser",
    "sphinx_copybutton",
    "labstaff.site.pages",
    "labstaff.site.mathematics",
    "labstaff.site.scripts",
    "labstaff.site.search",
]
exclude_patterns = ["_*", "figures"]
nitpicky = True

myst_enable_extensions = ["alert", "dollarmath", "html_image", "strikethrough", "tasklist"]
myst_heading_anchors = 4
myst_heading_slug_func = "github"
myst_dmath_allow_space = False
myst_dmath_double_inline = True

highlight_language = "none"  # blocks that name no language

html_theme = "furo"
html_theme_options = {"light_css_variables": _theme(LIGHT), "dark_css_variables": _theme(DARK)}
html_static_path = [str(HERE / "static"), str(HERE / "katex")]
html_css_files = ["katex.min.css", "site.css"]
html_js_files = [("tables.js", {"defer": "defer"})]
html_math_renderer = "katex"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_use_index = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
