"""Sphinx's settings for the slides; the command is `lab slides OUT`."""

from __future__ import annotations

from labstaff.site import HERE as SITE
from labstaff.site.conf import (
    mathjax_display,
    mathjax_inline,
    mathjax_path,
    myst_dmath_allow_space,
    myst_dmath_double_inline,
    myst_enable_extensions,
    myst_heading_anchors,
    myst_heading_slug_func,
    myst_update_mathjax,
    pygments_style,
)
from labstaff.slides import HERE

__all__ = [
    "mathjax_display",
    "mathjax_inline",
    "mathjax_path",
    "myst_dmath_allow_space",
    "myst_dmath_double_inline",
    "myst_enable_extensions",
    "myst_heading_anchors",
    "myst_heading_slug_func",
    "myst_update_mathjax",
    "pygments_style",
]

project = "Attention Labs"
extensions = ["myst_parser", "sphinx_revealjs", "labstaff.slides.deck"]
highlight_language = "python"
html_copy_source = False
revealjs_static_path = [str(HERE / "slides.css"), str(SITE / "katex"), str(SITE / "static" / "math.js")]
revealjs_style_theme = "slides.css"
revealjs_css_files = ["katex.min.css"]
revealjs_js_files = [("math.js", {"defer": "defer", "priority": 900})]  # after KaTeX, which Sphinx adds
revealjs_script_conf = {
    **{"width": 1280, "height": 720, "margin": 0.03, "center": False, "transition": "none"},
    **{"hash": True, "slideNumber": "c/t", "pdfSeparateFragments": False},
}
