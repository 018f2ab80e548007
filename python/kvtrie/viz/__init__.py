"""Drawings of a prefix cache: text, DOT, SVG, what a notebook shows, and a live widget.

    print(kvtrie.viz.tree_text(cache, decode=model.tokenizer.decode))
    kvtrie.viz.watch(cache)  # on the last line of a notebook's cell

Each function takes a `kvtrie.PrefixCache` (anything with `nodes()` and `stats()`), an optional `decode` that turns
token ids into text for the labels, and `max_nodes`: what does not fit is folded into rows that say how much. They only
read, but for what one clicks in a `watch`. `PrefixCache.tree`, `.to_dot`, `.to_svg` and `._repr_html_` are these
functions.
"""

from .dot import tree_dot
from .notebook import tree_html
from .svg import tree_svg
from .text import tree_text
from .watching import Watch, watch

__all__ = ["Watch", "tree_dot", "tree_html", "tree_svg", "tree_text", "watch"]
