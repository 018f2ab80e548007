"""How turns become tokens: by the checkpoint's chat template, or as one plain text.

Answers keep the tokens that the model chose. A tokenizer need not cut the same text into the same tokens again, and
what was computed is known by its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import kvtrie as kv

from .conversation import Turn, messages_of
from .parts import AnswerParts

if TYPE_CHECKING:
    from kvtrie.models import Tokenizer
    from kvtrie.models.prompts import Rendered


@dataclass(frozen=True)
class Laid:
    """A text and its tokens. ``new``: how many of them, at the end, are the last question and its frame.

    After a context shift there are fewer tokens than the text has: its oldest part is gone from them.
    """

    text: str
    tokens: list[int]
    new: int = 0


class Layout:
    """``raw``: no template; questions and answers follow one another as one text. ``parts_behind``: those of an answer
    behind a text. ``variables``: of the template, in all prompts from then on."""

    def __init__(self, tokenizer: Tokenizer, parts_behind: Callable[[str], AnswerParts], raw: bool = False) -> None:
        self._tokenizer = tokenizer
        self._parts_behind = parts_behind
        self._raw = raw
        self.variables: Mapping[str, object] = {}
        self._said: dict[tuple[str, Turn], Laid] = {}

    def prompt(self, system: str, turns: Sequence[Turn], question: str) -> Laid:
        """Everything up to where the answer to ``question`` begins."""
        prompt = self._rendered(system, turns, question)
        said = self.said(system, turns)
        if said is not None and prompt.text.startswith(said.text):
            more = self._tokenizer.ids_of(prompt.rest(len(said.text)))
            return Laid(prompt.text, said.tokens + more, len(more))
        tokens = self._tokenizer.encode(prompt.text) if self._raw else self._tokenizer.ids_of(prompt)
        return Laid(prompt.text, tokens, len(tokens))

    def said(self, system: str, turns: Sequence[Turn]) -> Laid | None:
        """Everything up to the end of the last answer; None where its own tokens are not known."""
        missing = len(turns)
        while missing > 0 and (system, turns[missing - 1]) not in self._said:
            missing -= 1
        for count in range(missing, len(turns)):  # those that were read from a file
            turn = turns[count]
            if not turn.tokens or max(turn.tokens) >= self._tokenizer.vocab_size:
                continue
            prompt = self.prompt(system, turns[:count], turn.question)
            if self._is_answer(turn, prompt.text):
                ending = self._tokenizer.decode(turn.tokens)
                self._said[system, turn] = Laid(prompt.text + ending, prompt.tokens + list(turn.tokens))
        return self._said.get((system, turns[-1])) if turns else None

    def remember(self, system: str, turn: Turn, laid: Laid) -> None:
        """That a turn's answer ends there."""
        self._said[system, turn] = laid

    def forget(self) -> None:
        """Another conversation begins."""
        self._said.clear()

    def opening(self, system: str) -> int:
        """The tokens that every prompt begins with: what stays when the oldest half goes."""
        if self._raw:
            return len(self._tokenizer.encode(""))
        pair = [self.prompt(system, (), question).tokens for question in ("1", "a")]
        return next((n for n, (a, b) in enumerate(zip(*pair)) if a != b), 0)

    def _rendered(self, system: str, turns: Sequence[Turn], question: str) -> Rendered:
        """In a plain text, as it is typed, special tokens are parsed; in a question they are letters."""
        if self._raw:
            from kvtrie.models.prompts import Rendered

            return Rendered("".join(turn.question + turn.answer for turn in turns) + question)
        messages = [*messages_of(system, turns), {"role": "user", "content": question}]
        return self._tokenizer.rendered(messages, add_generation_prompt=True, variables=self.variables)

    def _is_answer(self, turn: Turn, prompt: str) -> bool:
        """Whether its tokens say it behind this prompt: files come from elsewhere."""
        parts = self._parts_behind(prompt)
        try:
            parts.read(turn.tokens, ended=True)
        except kv.Error:
            return False
        return (parts.of("reasoning"), parts.of("text")) == (turn.reasoning, turn.answer)
