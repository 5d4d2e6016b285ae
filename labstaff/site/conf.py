"""Sphinx's settings for the site; the command is `lab site OUT`."""

from __future__ import annotations

from labstaff.figures import COLOURS
from labstaff.site import FRONT, HERE, citation

LIGHT, DARK = ({role: pair[at] for role, pair in COLOURS.items()} for at in (0, 1))
LIGHT["aside"], DARK["aside"] = "#f4f6f8", "#171d26"


def _theme(of: dict[str, str]) -> dict[str, str]:
    """The pages use the figures' background, text and blue; takeaways are nearly as large as the text."""
    return {
        "color-background-primary": of["paper"],
        "color-background-secondary": of["aside"],
        "color-background-border": of["grid"],
        "color-foreground-primary": of["ink"],
        "color-foreground-secondary": of["muted"],
        "color-brand-primary": of["blue"],
        "color-brand-content": of["blue"],
        "color-brand-visited": of["blue"],
        "admonition-font-size": "0.95rem",
    }


project = html_title = "Attention Labs"
root_doc = FRONT
extensions = ["myst_parser", "sphinx_copybutton", "labstaff.site.pages", "labstaff.site.cards"]
include_patterns = ["docs/*.md", "labs/*/README.md", "what_goes_wrong.md", "what_goes_wrong/*.md"]

myst_enable_extensions = ["alert", "dollarmath", "html_image", "strikethrough", "tasklist"]
myst_heading_anchors = 4
myst_heading_slug_func = "github"
myst_dmath_allow_space = False
myst_dmath_double_inline = True

# Sphinx's renderer for MathJax leaves TeX in the page for a script. The script here is KaTeX, called by math.js.
mathjax_path = "katex.min.js"
mathjax_inline = mathjax_display = ["", ""]
myst_update_mathjax = False

highlight_language = "none"  # blocks that name no language
pygments_style = "a11y-light"  # from accessible-pygments, which Furo installs
pygments_dark_style = "github-dark"
copybutton_selector = "div:not(.highlight-text, .highlight-output) > div.highlight > pre"

html_theme = "furo"
html_theme_options = {"light_css_variables": _theme(LIGHT), "dark_css_variables": _theme(DARK)}
templates_path = [str(HERE / "templates")]
html_context = {"citation": citation()}
html_static_path = [str(HERE / "static"), str(HERE / "katex")]
html_css_files = ["katex.min.css", "site.css"]
html_js_files = [("math.js", {"defer": "defer"}), ("tables.js", {"defer": "defer"})]
html_copy_source = False
html_last_updated_fmt = "%d %B %Y"  # of the build, or of SOURCE_DATE_EPOCH
html_show_copyright = False
html_show_sphinx = False
html_use_index = False
