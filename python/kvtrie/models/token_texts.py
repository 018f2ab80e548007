"""The spelling of a tokenizer's tokens, so that a text is found whatever its tokens are (``PrefixCache.match_text``).

What stands for which bytes says token_bytes.py. A special token spells bytes that no text has: one that begins with
0xFF, which UTF-8 never uses. So letters that look like one are never taken for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core import TokenTexts
from .token_bytes import SAMPLES, speller_of

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


def token_texts_of(tokenizer: Tokenizer) -> TokenTexts | None:
    """None for a tokenizer whose tokens do not spell texts one after the other (WordPiece, for example)."""
    spell = speller_of(tokenizer.raw)
    if spell is None:
        return None
    added = tokenizer.raw.get_added_tokens_decoder()
    made = []
    for token in range(tokenizer.vocab_size):
        token = tokenizer.twins.get(token, token)
        if token in added:
            made.append(_special(token) if added[token].special else added[token].content.encode())
            continue
        piece = tokenizer.raw.id_to_token(token)
        made.append(b"" if piece is None else spell(piece))
    texts = TokenTexts(made)
    return texts if _agrees(tokenizer, texts) else None


def _special(token: int) -> bytes:
    return b"\xff" + token.to_bytes(4, "big")


def _agrees(tokenizer: Tokenizer, texts: TokenTexts) -> bool:
    """Whether what tokens spell is what they stand for; a space in front may be the tokenizer's own."""
    for sample in SAMPLES:
        spelled = b"".join(texts[token] for token in tokenizer.encode(sample, add_special_tokens=False))
        if spelled not in (sample.encode(), b" " + sample.encode()):
            return False
    return True
