"""What the tokens of a tokenizer spell, so that a text is found whatever its tokens are (``PrefixCache.respell``).

Byte-level BPE (GPT-2's alphabet, Radford et al. 2019) writes each byte as one printable character; SentencePiece writes
a space as U+2581, and bytes without a piece as ``<0x0A>``. A special token spells bytes that no text has: one that
begins with 0xFF, which UTF-8 never uses. So letters that look like one are never taken for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from .._core import TokenTexts

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_SAMPLES = ("a", " a b", "Hello, world!\n\n  1,024 = 2^10\t", "\u00e9\u00df \u4f60\u597d \U0001f600", "x")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_texts_of(tokenizer: Tokenizer) -> TokenTexts | None:
    """None for a tokenizer whose tokens do not spell texts one after the other (WordPiece, for example)."""
    decoder = json.loads(tokenizer.raw.to_str()).get("decoder")
    kinds = set(_kinds(decoder))
    spell: Callable[[str], bytes]
    if "ByteLevel" in kinds:
        spell = _byte_level
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        spell = _sentence_piece
    else:
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


def _kinds(decoder: object) -> Iterator[str]:
    """The types of a decoder, as its JSON has them, and of what it is made of."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for each in decoder.get("decoders") or ():
            yield from _kinds(each)


def _special(token: int) -> bytes:
    return b"\xff" + token.to_bytes(4, "big")


def _alphabet() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _byte_level(piece: str) -> bytes:
    return bytes(_ALPHABET[letter] for letter in piece) if all(each in _ALPHABET for each in piece) else piece.encode()


def _sentence_piece(piece: str) -> bytes:
    found = _BYTE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else piece.replace("\u2581", " ").encode()


def _agrees(tokenizer: Tokenizer, texts: TokenTexts) -> bool:
    """Whether what tokens spell is what they stand for; a space in front may be the tokenizer's own."""
    for sample in _SAMPLES:
        spelled = b"".join(texts[token] for token in tokenizer.encode(sample, add_special_tokens=False))
        if spelled not in (sample.encode(), b" " + sample.encode()):
            return False
    return True
