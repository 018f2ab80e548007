"""The bytes that single tokens stand for, and text that is made of them as they come.

Byte-level BPE (GPT-2's alphabet, Radford et al. 2019) writes each byte as one printable character; SentencePiece writes
a space as U+2581, and bytes without a piece as ``<0x0A>``. So a token may end within a UTF-8 character, which a decoder
of texts shows as U+FFFD. Everything else is asked of the tokenizer's own decoder, behind a letter, since a decoder may
take a space off the first token of a text.

Threads: a table may be shared; a decoder belongs to one text.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Optional

from .._whole import Whole

if TYPE_CHECKING:
    import tokenizers

SAMPLES = ("a", " a b", "Hello, world!\n\n  1,024 = 2^10\t", "\u00e9\u00df \u4f60\u597d \U0001f600", "x")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_UNKNOWN = "\ufffd"
_MOST_HELD = 4  # tokens of an unfinished character, where a tokenizer's bytes are not known

Speller = Callable[[str], bytes]


def speller_of(raw: tokenizers.Tokenizer) -> Optional[Speller]:
    """From a piece of the vocabulary to its bytes; None where pieces are not spelled in bytes (WordPiece)."""
    kinds = set(_kinds(json.loads(raw.to_str()).get("decoder")))
    if "ByteLevel" in kinds:
        return _byte_level
    return _sentence_piece if kinds & {"ByteFallback", "Metaspace", "Replace"} else None


def _kinds(decoder: object) -> Iterator[str]:
    """The types of a decoder, as its JSON has them, and of what it is made of."""
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for each in decoder.get("decoders") or ():
            yield from _kinds(each)


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


class TokenBytes(Whole):
    """Of one ``tokenizers.Tokenizer``, which nobody changes any more. ``twins``: ids that stand for others."""

    def __init__(self, raw: tokenizers.Tokenizer, twins: Mapping[int, int]) -> None:
        self._raw, self._twins = raw, twins
        self.anchor: list[int] = raw.encode("a", add_special_tokens=False).ids
        self._lead = self.decode(self.anchor)
        self._known: dict[tuple[int, bool], bytes] = {}

    @cached_property
    def special(self) -> frozenset[int]:
        """Tokens that decoding may skip."""
        return frozenset(token for token, each in self._raw.get_added_tokens_decoder().items() if each.special)

    def of(self, token: int, first: bool = False) -> bytes:
        """The bytes of the token within a text, or as the ``first`` of one; b"" for an id that there is not."""
        token = self.meant(token)
        key = token, first
        if key not in self._known:
            self._known[key] = self._spelled(token, first)
        return self._known[key]

    def meant(self, token: int) -> int:
        """The token itself, or the one whose text it has."""
        return self._twins.get(token, token)

    @cached_property
    def add_up(self) -> bool:
        """Whether a text is what its tokens stand for, one after the other; else they depend on their neighbours."""
        if self._speller is None or not self._lead:
            return False
        for sample in SAMPLES:
            ids = self._raw.encode(sample, add_special_tokens=False).ids
            said = b"".join(self.of(token, first=at == 0) for at, token in enumerate(ids))
            if said.decode("utf-8", "replace") != self.decode(ids):
                return False
        return True

    @property
    def in_bytes(self) -> bool:
        """Whether a token may be a part of a character."""
        return self._speller is not None

    @cached_property
    def _speller(self) -> Optional[Speller]:
        return speller_of(self._raw)

    def _spelled(self, token: int, first: bool) -> bytes:
        lead, anchor = ("", []) if first else (self._lead, self.anchor)
        said = self.decode([*anchor, token])
        if said.startswith(lead) and _UNKNOWN not in said:
            return said[len(lead) :].encode()
        piece = self._raw.id_to_token(token)
        if self._speller is None or piece is None:
            return said.removeprefix(lead).encode()
        added = self._raw.get_added_tokens_decoder().get(token)
        return self._speller(piece) if added is None else added.content.encode()

    def decode(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        """The tokenizer's own decoding."""
        if self._twins:
            ids = [self.meant(token) for token in ids]
        return str(self._raw.decode(ids, skip_special_tokens=skip_special_tokens))


class ByteStream:
    """Text of tokens that add up. At most three bytes are held, of a character that may still become whole; bytes that
    can be part of none are U+FFFD at once. ``begins``: the first token is that of a text, not what follows one."""

    def __init__(self, table: TokenBytes, skip: frozenset[int], begins: bool) -> None:
        self._table, self._skip, self._first = table, skip, begins
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token: int) -> str:
        if self._table.meant(token) in self._skip:
            return ""
        spelled = self._table.of(token, self._first)
        self._first = self._first and not self._table.of(token)
        return self._decoder.decode(spelled)

    def finish(self) -> str:
        text = self._decoder.decode(b"", True)
        self._decoder.reset()
        return text


class NeighbourStream:
    """Text of tokens that depend on those in front of them.

    Each piece is the difference of two decodings that start at the same earlier token. It is held back while it ends in
    U+FFFD, as an unfinished character does, but no longer than a character can have tokens.
    """

    def __init__(self, table: TokenBytes, skip: frozenset[int], begins: bool) -> None:
        self._table, self._skips = table, bool(skip)
        self._most = _MOST_HELD if table.in_bytes else 0
        self._ids: list[int] = [] if begins else [*table.anchor]
        self._start = 0  # both decodings start here
        self._given = len(self._ids)  # tokens whose text was handed out

    def feed(self, token: int) -> str:
        self._ids.append(token)
        text = self._pending()
        if text.endswith(_UNKNOWN) and len(self._ids) - self._given < self._most:
            return ""
        if text:
            self._start = self._given
        self._given = len(self._ids)
        if self._start > 64:
            del self._ids[: self._start]
            self._given -= self._start
            self._start = 0
        return text

    def finish(self) -> str:
        text = self._pending()
        self._start = self._given = len(self._ids)
        return text

    def _pending(self) -> str:
        before = self._table.decode(self._ids[self._start : self._given], self._skips)
        return self._table.decode(self._ids[self._start :], self._skips)[len(before) :]
