"""The text of a node of the tree, for people: who speaks, and the words without the chat template's markup.

    <|im_start|> u s e r \\n W h a t ?  <|im_end|> \\n <|im_start|> a s s i s t a n t     ->  user: What?  assistant:

Concept. Only tokens tell markup from text: the special ones are no letters that anybody typed, and what looks like them
within a text stays. A special token that names a role (``<|user|>``, ``[INST]``), or a word behind one that is a role
and fills its line, begins a turn; other special tokens are left out. A node may begin within a role's name, so the
token before it counts. Negative ids, of media, have no text.

Threads: any. Bounded: the labels of the last trees are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from ..models.tokenizer import Tokenizer
from ..viz.words import clip, one_line, text_columns

_KEPT = 2048  # labels
_ROLES = {name: name for name in ("system", "developer", "user", "assistant", "tool")}
_ROLES |= {"model": "assistant", "inst": "user", "ipython": "tool", "function": "tool"}
_HEADER = re.compile(rf"\s*({'|'.join(_ROLES)})[ \t]*(?:\r?\n|$)", re.IGNORECASE)


class Turn(NamedTuple):
    """``role``: "" where it began before the node, or where there is none. ``text``: one printable line."""

    role: str
    text: str


Label = Callable[[int, tuple[int, ...]], tuple[Turn, ...]]  # the token before a node, or -1, and the node's first ones


def labels(tokenizer: Tokenizer, columns: int) -> Label:
    """The reader of nodes; ``columns``: of a terminal, that the texts of a label may fill, all of them together."""
    special = tokenizer.special_tokens.texts

    @lru_cache(maxsize=_KEPT)
    def label(before: int, head: tuple[int, ...]) -> tuple[Turn, ...]:
        turns: list[Turn] = []
        for role, ids in _parts(before, head, special):
            text = tokenizer.decode(ids) if ids else ""
            if role is None:  # behind a special token that names none
                named = _HEADER.match(text)
                if named is not None:
                    role, text = _ROLES[named[1].lower()], text[named.end() :]
            _join(turns, role or "", one_line(text))
        return tuple(_clipped(turns, columns))

    return label


def _parts(before: int, head: tuple[int, ...], special: dict[int, str]) -> Iterator[tuple[str | None, list[int]]]:
    """The text between special tokens, with the role that the one before it names; None: it names none."""
    role = _role_of(special[before]) if before in special else ""
    ids: list[int] = []
    for token in head:
        if token in special:
            yield role, ids
            role, ids = _role_of(special[token]), []
        elif token >= 0:
            ids.append(token)
    yield role, ids


def _role_of(text: str) -> str | None:
    """Of a special token's text; None: none. One that ends a turn, such as ``[/INST]``, begins the assistant's."""
    word = "".join(character for character in text if character.isalpha()).lower()
    if "/" in text:
        return "assistant" if word == "inst" else None
    return _ROLES.get(word)


def _join(turns: list[Turn], role: str, text: str) -> None:
    """Behind the turn before where it begins no other."""
    if role:
        turns.append(Turn(role, text))
    elif text and turns:
        last = turns.pop()
        turns.append(Turn(last.role, f"{last.text} {text}".strip()))
    elif text:
        turns.append(Turn("", text))


def _clipped(turns: list[Turn], columns: int) -> Iterator[Turn]:
    for turn in turns:
        if columns <= 0:
            return
        yield Turn(turn.role, clip(turn.text, columns))
        columns -= text_columns(turn.text) + 1
