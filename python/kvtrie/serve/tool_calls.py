"""Tool calls within a model's text: how its family writes them, found from its chat template, and read while it writes.

Concept. A syntax (``syntax_of``) has openings, such as ``<tool_call>``, and a body that is read by a cursor. A reader
holds text back from an opening on until the cursor says that it is a call of a known tool, that it can be none, or that
more has to come. Text that is no call goes out unchanged. White space between calls, behind the last one and before one
that begins the answer belongs to the calls, and so does one line break before the first: templates write it. Quoted
calls (quotes.py) are text.

    syntax = syntax_of(tokenizer.chat_template)      None: no form of calls that is known here
    reader = syntax.reader(names)                    names, or a mapping of them to their parameters' JSON schemas
    text = reader.feed(piece) ... + reader.finish()
    reader.calls                                     those that are complete

A cursor's decision stands whatever follows: the output does not depend on how the text was cut.

Text that is fed must still have ``syntax.marks``: where they are special tokens, decoding must not skip them.
Arguments are the model's own JSON text where it wrote JSON, so that a template which says them again says the same.

Threads: a syntax is read-only; a reader belongs to one answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..thinking.marks import begun
from .quotes import Quotes
from .tool_cursor import Cursor, More, Names, No, Scanned, ToolCall, skipped
from .tool_forms import FORMS, Form

__all__ = ["ToolCall", "ToolReader", "ToolSyntax", "syntax_of"]


@dataclass(frozen=True)
class ToolSyntax:
    """How calls are written. ``marks``: see above."""

    form: Form

    @property
    def marks(self) -> tuple[str, ...]:
        return self.form.marks

    def reader(self, names: Collection[str]) -> ToolReader:
        """A reader of one answer that may call these."""
        return ToolReader(self.form, names if isinstance(names, Mapping) else dict.fromkeys(names))


def syntax_of(template: str | None) -> ToolSyntax | None:
    """The syntax that a chat template shows; None where there is none, or none of those that are known here."""
    if template is None:
        return None
    return next((ToolSyntax(form) for shown, form in FORMS if shown(template)), None)


class ToolReader:
    """See above."""

    def __init__(self, form: Form, names: Names) -> None:
        self.calls: list[ToolCall] = []
        self._form, self._names = form, names
        self._openings = re.compile("|".join(map(re.escape, form.openings)))
        self._held = ""
        self._fed: list[str] = []  # what follows it, of which nothing can be said yet
        self._blank = False  # `_held` is white space, which may belong to a call
        self._scanned: Scanned = {}  # of `_held`
        self._awaits = ""  # nothing is decided before one of these characters comes; "": any may decide
        self._place = "start"  # or "behind" a call, or "within" text
        self._quotes = Quotes()  # has what went out, but for calls

    def feed(self, text: str) -> str:
        """The text that is certainly no part of a call, by now."""
        self._fed.append(text)
        if self._awaits and not any(character in text for character in self._awaits):
            return ""
        if self._blank and skipped(text, 0) == len(text):
            return ""
        return self._read(final=False)

    def finish(self) -> str:
        """The text that was held back and is no call: nothing more comes."""
        return self._read(final=True)

    def _read(self, final: bool) -> str:
        self._held += "".join(self._fed)
        self._fed.clear()
        said, at, self._awaits, self._blank = "", 0, "", False
        seen = 0
        while (opening := self._opening(at)) >= 0:
            lead = self._lead(at, opening)
            self._quotes.feed(self._held[seen:opening])
            seen = opening
            cursor = Cursor(self._held, opening, final, self._scanned)
            try:
                quoted = self._quotes.around()
                if quoted == "fence":
                    raise No
                calls = self._form.body(cursor, self._names)
            except More as more:
                self._awaits = more.awaits
                return said + self._say(at, lead)
            except No:
                said += self._held[at : opening + 1]
                self._place, at = "within", opening + 1
                continue
            if quoted:  # and all of it, whatever lines it has
                said += self._held[at : cursor.at]
                self._place, at = "within", cursor.at
                continue
            said += self._held[at:lead]
            self.calls += calls
            self._place, at = "behind", cursor.at
            seen = at
        end = len(self._held) - self._kept(at, final)
        self._quotes.feed(self._held[seen:end])
        return said + self._say(at, end)

    def _opening(self, at: int) -> int:
        if self._form.bare and self._place == "start":
            first = skipped(self._held, at)
            if self._held[first : first + 1] == "{":
                return first
        found = self._openings.search(self._held, at)
        return found.start() if found else -1

    def _lead(self, at: int, opening: int) -> int:
        """Where the white space begins that belongs to the call at ``opening``."""
        if self._place != "within" and skipped(self._held, at) >= opening:
            return at
        return opening - 1 if self._held[at:opening].endswith("\n") else opening

    def _say(self, at: int, end: int) -> str:
        said, self._held = self._held[at:end], self._held[end:]
        if end:
            self._scanned.clear()
        if said:
            self._place = "within"
        return said

    def _kept(self, at: int, final: bool) -> int:
        """Characters at the end that may belong to a call; there is no opening from ``at`` on."""
        rest = self._held[at:]
        if final:
            return len(rest) if self._place == "behind" and not rest.strip() else 0
        kept = begun(rest, self._form.openings)
        stable = rest[: len(rest) - kept]
        if self._place != "within" and skipped(stable, 0) == len(stable):
            self._blank = not kept
            return len(rest)
        return kept + stable.endswith("\n")
