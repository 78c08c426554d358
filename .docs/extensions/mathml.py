"""Write formulas as MathML, which browsers show without scripts, fonts or a network."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml


def write_inline(writer: Any, node: nodes.math) -> None:
    """Write a formula within a line."""
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def write_block(writer: Any, node: nodes.math_block) -> None:
    """Write a formula of its own line."""
    writer.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>\n')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer and choose it."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True, "parallel_write_safe": True}
