"""A model for servers that says what a script has, cut into the smallest tokens: agents' answers, calls and thoughts.

Its K and V name the namespace and the whole text before each row, as those of naming_model.py, so that a row which was
reused wrongly fails the step. ``rows``: those that were computed so far, counted by the model itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from naming_model import NamingModel

_NAME = re.compile(r"\[([a-z]+(?: \d+)*)\]")
_LOOK = 600  # tokens at the end of a prompt that are looked through for the name of what is asked


class ScriptedModel(NamingModel):
    """``answer_of``: what it says where the last name in brackets is this one. ``opening``: what an answer begins
    behind, the last words of every prompt. Each letter becomes a token of its own: whoever tokenizes an answer anew
    gets other tokens."""

    def __init__(self, real: Any, answer_of: Callable[[str], str], opening: str, check: bool = True) -> None:
        super().__init__(real, check)
        self._answer_of = answer_of
        self._opening = tuple(self.tokenizer.encode(opening, add_special_tokens=False, special_tokens="parse"))
        self._scripts: dict[int, list[int]] = {}  # by the lengths of prompts of one conversation

    @property
    def rows(self) -> int:
        return self._coding.rows

    def next_token(self, namespace: str, tokens: Sequence[int]) -> int:
        start = self._start(tokens)
        script = self._script(tokens, start)
        return script[min(len(tokens) - start, len(script) - 1)]

    def _start(self, tokens: Sequence[int]) -> int:
        """Of the answer: behind the last opening."""
        size = len(self._opening)
        for end in range(len(tokens), size - 1, -1):
            if tuple(tokens[end - size : end]) == self._opening:
                return end
        return len(tokens)

    def _script(self, tokens: Sequence[int], start: int) -> list[int]:
        key = hash(tuple(tokens[max(0, start - _LOOK) : start]))
        if key not in self._scripts:
            asked = self.tokenizer.decode(list(tokens[max(0, start - _LOOK) : start]), skip_special_tokens=False)
            names = _NAME.findall(asked)
            text = self._answer_of(names[-1] if names else "")
            self._scripts[key] = [*self._cut(text), int(self.end_tokens[0])]
        return self._scripts[key]

    def _cut(self, text: str) -> list[int]:
        tokens: list[int] = []
        for part in re.split(r"(<[^<>\s]+>)", text):
            special = self.tokenizer.special_id(part) if part else None
            if special is not None:
                tokens.append(special)
            else:
                for sign in part:
                    tokens += self.tokenizer.encode(sign, add_special_tokens=False)
        return tokens
