"""Whether a model thinks before it answers, as one word says it, and the limit of its reasoning over context shifts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import kvtrie as kv

from ...sampling import Logits, LogitsProcessor, Tokens
from ...thinking.asked import NoSuchThinking, Thinking, ThinkingAsked, thinking_of
from ...thinking.limit import ThinkingLimit

if TYPE_CHECKING:
    from kvtrie.models import Tokenizer

AS_IT_LIKES = Thinking({})  # the template is told nothing
WORDS = {
    "auto": ThinkingAsked(),
    "on": ThinkingAsked(on=True),
    "off": ThinkingAsked(on=False),
    **{effort: ThinkingAsked(effort=effort) for effort in ("minimal", "low", "medium", "high")},
}


def thinking_by(word: str, tokenizer: Tokenizer, raw: bool = False) -> Thinking:
    """What one of ``WORDS`` comes to with this model's template; ``raw``: there is none.

    ``kv.errors.ArgumentError`` names the words that the template knows.
    """
    found = _known(word, tokenizer, raw)
    if found is None:
        known = ", ".join(each for each in WORDS if _known(each, tokenizer, raw) is not None)
        why = "there is no chat template" if raw else "this model's chat template knows no other"
        raise kv.errors.ArgumentError(f"[chat] thinking: got {word!r}, allowed {known}: {why}")
    return found


def _known(word: str, tokenizer: Tokenizer, raw: bool) -> Thinking | None:
    if word == "auto":
        return AS_IT_LIKES
    if raw or word not in WORDS:
        return None
    try:
        return thinking_of(tokenizer, WORDS[word], None)
    except NoSuchThinking:
        return None


def unshifted(limit: ThinkingLimit, before: Sequence[int], start: int) -> LogitsProcessor:
    """``limit`` as if nothing had been shifted: it is shown ``before`` in the place of the first ``start`` tokens."""
    said = np.asarray(before, np.int32)

    def process(tokens: Tokens, logits: Logits) -> None:
        limit(np.concatenate((said, tokens[start:])), logits)

    return process
