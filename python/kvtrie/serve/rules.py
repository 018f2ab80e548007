"""Rules for a whole answer that are no JSON schema: a text that a pattern matches, a choice, a grammar.

    pattern     guided_regex, regex, structured_outputs.regex      in Rust's notation; the answer as a whole
    choice      guided_choice, structured_outputs.choice           one of several texts
    grammar     grammar, guided_grammar, ebnf, ...                 GBNF, as llama.cpp has it, or Lark's notation

All of them become grammars in Lark's notation, which grammar.py compiles. A pattern and a choice can stand beside the
calls of tools, as a schema can; a grammar has names of its own, and cannot.

GBNF is translated by a library, in Python; a text that is made for it may take long. So it is done in a process of its
own that has seconds and a limit on memory, as compiling is, and the last translations are remembered.

Threads: any.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .. import _child
from .grammar import LONGEST, elsewhere, require_library
from .wrong_fields import FieldError

_REMEMBERED = 32  # translations: each of ``n`` answers asks for one

Kind = Literal["pattern", "choice", "grammar"]

_TRANSLATION = """
from llguidance.gbnf_to_lark import any_to_lark
try:
    said = "passed " + any_to_lark(text)
except Exception as error:
    said = f"refused {error}"
"""


@dataclass(frozen=True)
class Rule:
    """``value``: the pattern, the texts to choose from, or the grammar. ``field``: what asked for it."""

    kind: Kind
    value: str | Sequence[str]
    field: str

    def lark(self) -> str:
        """A grammar with the rule "start". Raises ``FieldError`` for what is none, ``kv.errors.NotSupportedError``
        where no library reads it."""
        require_library()
        if self.kind == "grammar":
            assert isinstance(self.value, str)
            return _translated(self.value, self.field)
        return f"start: {self.expression()}\n"

    def expression(self) -> str:
        """Grammars that can stand in another one. Raises ``FieldError`` for a grammar."""
        if self.kind == "choice":
            return _choice(self.value, self.field)
        if self.kind == "pattern":
            assert isinstance(self.value, str)
            return _pattern(self.value, self.field)
        raise _wrong(self.field, "got one beside tools that may be called", "one of them")


def _choice(texts: Sequence[str], field: str) -> str:
    if not texts or not all(texts):
        raise _wrong(field, "got no text, or an empty one", "texts of 1 character or more")
    return " | ".join(json.dumps(text) for text in texts)


def _pattern(pattern: str, field: str) -> str:
    """Between slashes, which the pattern's own have to be told from."""
    parts: list[str] = []
    escaped = False
    for sign in pattern:
        ends = not escaped and sign == "/"
        parts.append("\\/" if ends else "\\n" if sign == "\n" and not escaped else sign)
        escaped = sign == "\\" and not escaped
    if escaped or not parts:
        raise _wrong(field, "got an empty pattern, or one that ends with a backslash", "a regular expression")
    return f"/{''.join(parts)}/"


@functools.lru_cache(maxsize=_REMEMBERED)
def _translated(grammar: str, field: str) -> str:
    if len(grammar) > LONGEST:
        raise _wrong(field, f"got {len(grammar)} characters", str(LONGEST))
    said = elsewhere(_TRANSLATION, grammar) if _child.possible() else _said_here(grammar)
    kind, _, rest = said.partition(" ")
    if kind != "passed":
        why = " ".join(rest.split())[:300] if kind == "refused" else "it takes more to read than a grammar needs"
        raise _wrong(field, f"got what is no grammar: {why}", "GBNF, or Lark's notation")
    return rest


def _said_here(grammar: str) -> str:
    """As ``_TRANSLATION`` has it, where there can be no other process."""
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        return "passed " + any_to_lark(grammar)
    except Exception as error:  # of a kind of its own for each error
        return f"refused {error}"


def _wrong(field: str, got: str, allowed: str) -> FieldError:
    return FieldError(f"[serve] {field}: {got}, allowed {allowed}", param=field)
