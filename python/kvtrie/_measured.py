"""The numbers that :func:`kvtrie.quality` measures: below the table and the plot that show it (viz/quality.py)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FormatQuality", "Measured"]


@dataclass(frozen=True)
class FormatQuality:
    """One way to keep weights and cells, beside the reference."""

    dtype: str
    """Of the weights, as ``model.dtype``."""
    kv_dtype: str
    """Of K and V."""
    precision: str
    """Of products of blocks, as ``model.precision``."""
    kl: float
    """Mean of KL(reference || this) over the scored positions, in nats."""
    kl_tail: float
    """The bound that 99.9 % of them do not exceed."""
    perplexity: float
    perplexity_change: float
    """Perplexity less the reference's."""
    perplexity_error: float
    """Standard error of that difference, over the positions of this text."""
    agreement: float
    """Share of positions where the likeliest token is the reference's."""
    weight_bytes: int
    token_bytes: int
    """Of K and V of one token in all layers that attend; what recurrent layers keep does not grow."""
    prompt_speed: float
    """Tokens of a prompt a second: the median of three."""
    step_speed: float
    """Tokens a second, one by one behind half a window."""


@dataclass(frozen=True)
class Measured:
    """The numbers of a ``Quality``."""

    model: str
    device: str
    integer_units: str
    """That precisions "auto" and "fast" multiply blocks by on this device: "none", "vnni" or "amx"."""
    context: int
    """Tokens of a window."""
    windows: int
    positions: int
    """That were scored, of all windows."""
    reference: FormatQuality
    formats: tuple[FormatQuality, ...]
    """The others, in the order they were asked for."""
