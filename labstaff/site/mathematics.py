"""Renders formulas with KaTeX while the site is built, so that a reader's browser runs nothing and bad TeX fails."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

KATEX = "katex.min.js"
RENDER = """(function (tex, display) {
  // As JSON: quickjs hands a string that was put together from pieces to Python only once it is one piece.
  try { return JSON.stringify({html: katex.renderToString(tex, {displayMode: display, strict: "error"})}); }
  catch (error) { return JSON.stringify({error: String(error.message)}); }
})"""

logger = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer `katex` to Sphinx."""
    app.add_html_math_renderer("katex", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": False}


class TexError(ValueError):
    """TeX that KaTeX does not understand, in KaTeX's words."""


@cache
def render(tex: str, display: bool) -> str:
    """Return `tex` as HTML, with MathML beside it for screen readers; raises TexError for bad TeX."""
    result = json.loads(_renderer()(tex, display))
    if "error" in result:
        raise TexError(" ".join(result["error"].removeprefix("KaTeX parse error: ").split()))
    html: str = result["html"]
    return html


@cache
def _renderer() -> Any:
    import quickjs

    from labstaff.site import HERE

    context = quickjs.Context()
    context.eval((HERE / "katex" / KATEX).read_text(encoding="utf-8"))
    return context.eval(RENDER)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(f'<span class="math">{_html(node, display=False)}</span>')
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{_html(node, display=True)}</div>\n')
    raise nodes.SkipNode


def _html(node: nodes.Element, display: bool) -> str:
    try:
        return render(node.astext().strip(), display)
    except TexError as error:
        logger.warning("TeX: %s", error, location=node, type="tex")
        return ""
