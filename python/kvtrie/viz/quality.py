"""The results of ``kv.quality``, as a table and as a plot.

The plot has two parts that share their rows, one for each format: how far it is from the reference (mean KL and what
99.9 % of the positions do not exceed, on a logarithmic axis), and what it takes (bytes of the weights, and of K and V
of a token). A KL of 0 stands at the left edge. Units: nats, MiB, KiB.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..errors import ArgumentError, NotSupportedError
from .palette import tier_colour
from .table import table_text
from .words import format_bytes, plural

if TYPE_CHECKING:
    from .._measured import FormatQuality, Measured

_HEADER = ["weights", "K and V", "mean KL", "99.9 %", "perplexity", "change", "same", "MiB", "bytes/token"]
_HEADER += ["prompt/s", "step/s"]
_LEAST = 1e-10  # nats that the plot tells from 0


def quality_text(found: Measured) -> str:
    """The table, and below it what was compared and how."""
    rows = [_cells(each, each is found.reference) for each in (found.reference, *found.formats)]
    table = table_text(rows, _HEADER, right=range(2, len(_HEADER)))
    read = f"{plural(found.windows, 'window')} of {found.context} tokens, the second half of each scored"
    return (
        f"{table}\n\n{found.model} on {found.device}: {read}, {plural(found.positions, 'position')}.\n"
        "KL (nats), change and same (the likeliest token) are against the first row, weights as stored, and products, K"
        f" and V in float32;\n{_units(found)}± is the standard error of the change. prompt/s and step/s: tokens a "
        "second, many and one at a time."
    )


def _units(found: Measured) -> str:
    """How blocks of weights are multiplied in the other rows."""
    precisions = {each.precision for each in found.formats} - {"exact"}
    if found.integer_units == "none" or not precisions:
        return 'the others have precision "fast"; ' if "fast" in precisions else ""
    bits = ", activations in 8 bits" if "fast" in precisions else ""
    return f"the others multiply blocks of weights by integer units ({found.integer_units}){bits}; "


def _cells(each: FormatQuality, is_reference: bool) -> tuple[str, ...]:
    apart = ("-", "-") if is_reference else (f"{each.kl:.2e}", f"{each.kl_tail:.2e}")
    change = "-" if is_reference else f"{each.perplexity_change:+.4f} ± {each.perplexity_error:.4f}"
    return (
        each.dtype,
        each.kv_dtype,
        *apart,
        f"{each.perplexity:.4f}",
        change,
        "-" if is_reference else f"{each.agreement:.2%}",
        f"{each.weight_bytes / 2**20:.1f}",
        f"{each.token_bytes:,}",
        f"{each.prompt_speed:.0f}",
        f"{each.step_speed:.1f}",
    )


def draw_quality(found: Measured, path: str | os.PathLike[str]) -> None:
    """Writes the plot; the file's ending says in which format.

    Raises ``kv.errors.NotSupportedError`` without matplotlib, and ``kv.errors.ArgumentError`` for an ending that it
    does not know.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupportedError("[quality] plot: needs matplotlib: pip install matplotlib") from error
    rows = (found.reference, *found.formats)
    places = range(len(rows))
    figure = Figure(figsize=(9, 1.6 + 0.34 * len(rows)), layout="constrained")
    distance, weights, cells = figure.subplots(1, 3, sharey=True, width_ratios=(3, 1, 1))
    for at, each in zip(places, rows):
        ends = [max(each.kl, _LEAST), max(each.kl_tail, _LEAST)]
        distance.plot(ends, [at, at], color=tier_colour("device"), marker="|", linewidth=1)
        distance.plot(ends[:1], [at], color=tier_colour("device"), marker="o")
    distance.set_xscale("log")
    distance.set_xlabel("KL from the reference, nats: mean (dot) and 99.9 %")
    distance.set_yticks(places, [f"{each.dtype}, {each.kv_dtype}" for each in rows])
    distance.invert_yaxis()
    weights.barh(places, [each.weight_bytes / 2**20 for each in rows], color=tier_colour("host"))
    weights.set_xlabel("weights, MiB")
    cells.barh(places, [each.token_bytes / 2**10 for each in rows], color=tier_colour("disk"))
    cells.set_xlabel("K and V, KiB a token")
    size = format_bytes(found.reference.weight_bytes)
    figure.suptitle(f"{found.model} ({size}): formats of weights, and of K and V", fontsize=10)
    try:
        figure.savefig(path)
    except ValueError as error:
        raise ArgumentError(f"[quality] plot: got {os.fspath(path)!r}, allowed a file's name: {error}") from error
