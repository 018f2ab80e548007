"""Marks in text that is not complete yet.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterable


def begun(text: str, words: Iterable[str]) -> int:
    """Characters at the end of ``text`` that may be the beginning of one of ``words``, the most of all."""
    most = 0
    for word in words:
        longest = min(len(word) - 1, len(text))
        most = max(most, next((n for n in range(longest, most, -1) if text.endswith(word[:n])), 0))
    return most
