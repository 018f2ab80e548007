"""Whether a place in text that is being written is quoted: between fences, or between backquotes on one line.

A call that a model quotes is shown, and not meant to be made. A fence is a line that begins with three or more
backquotes or tildes, and ends with a line that has as many or more and nothing else; one that does not end runs to the
end of the text (spec.commonmark.org/0.31.2, fenced code blocks), however far it is indented.

Threads: belongs to one reader.
"""

from __future__ import annotations

import re
from typing import Literal

_SIGN = re.compile(r"\n|`+|~~~+")


class Quotes:
    """Fed with all text in front of the place, in any pieces."""

    def __init__(self) -> None:
        self._fence = ""  # the signs that opened it
        self._ending = False  # the line has what ends it, and nothing else so far
        self._inline = ""
        self._fresh = True  # nothing but white space so far on this line
        self._tail = ""  # signs of which more may come

    def feed(self, text: str) -> None:
        """Text that comes next."""
        text = self._tail + text
        whole = text.rstrip("`~")
        self._tail = text[len(whole) :]
        self._take(whole)

    def around(self) -> Literal["fence", "line", ""]:
        """The sign that quotes the text behind it, whose first character is none of the signs; "" if nothing does."""
        tail, self._tail = self._tail, ""
        self._take(tail)
        if self._fence:
            return "fence"
        return "line" if self._inline else ""

    def _take(self, text: str) -> None:
        at = 0
        for found in _SIGN.finditer(text):
            self._between(text[at : found.start()])
            self._sign(found[0])
            at = found.end()
        self._between(text[at:])

    def _between(self, text: str) -> None:
        if text.strip():
            self._fresh = self._ending = False

    def _sign(self, sign: str) -> None:
        if sign == "\n":
            self._fence = "" if self._ending else self._fence
            self._fresh, self._ending, self._inline = True, False, ""
            return
        if self._fence:
            self._ending = self._fresh and sign.startswith(self._fence)
        elif self._fresh and len(sign) >= 3:
            self._fence = sign
        elif sign[0] == "`":
            self._inline = "" if self._inline == sign else self._inline or sign
        self._fresh = False
