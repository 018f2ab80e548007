"""The parts of an answer that all kinds show: the public side of a :class:`Decoding` (_decoding.py).

    Generation   read as its tokens are made, by its caller
    Request      read as a batcher's thread publishes them

Items are token ids or pieces of text in whole characters, as the answer was asked for. Either kind has its tokens and
its text: ``tokens`` and ``text_so_far``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol

from ._closing import AsyncClosing
from ._decoding import Beginning, Decoding
from ._handing import Item
from ._values import Reason
from .sampling import TokenLogprob

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Answer"]


class Told(Protocol):
    """As much of a decoding as its readers know."""

    tokens: list[int]
    logprobs: list[TokenLogprob]

    @property
    def reused(self) -> int: ...

    @property
    def finish_reason(self) -> str | None: ...


class Answer(AsyncClosing, Generic[Item]):
    """The base of both."""

    _decoding: Decoding
    _of_text: bool  # whether its items are pieces of text

    @property
    def _told(self) -> Told:
        raise NotImplementedError

    def _leave(self) -> None:
        """Called at the end of a ``with`` block."""
        raise NotImplementedError

    @property
    def tokens(self) -> list[int]:
        """Token ids that are there by now, with what ended it."""
        return list(self._told.tokens)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """One for each of ``tokens``, where ``logprobs`` was given."""
        return list(self._told.logprobs)

    @property
    def text_so_far(self) -> str:
        """The text of the tokens by now, in whole characters, without stop text and special tokens."""
        told = self._told
        ended = told.finish_reason is not None  # first: its tokens are all there then
        return self._decoding.stopper.for_text().text_of(told.tokens, ended)

    @property
    def proposed(self) -> int:
        """Tokens that were drafted and checked; 0 without ``draft``."""
        drafting = self._decoding.drafting
        return 0 if drafting is None else drafting.proposed

    @property
    def accepted(self) -> int:
        """Those of ``proposed`` that were right."""
        drafting = self._decoding.drafting
        return 0 if drafting is None else drafting.accepted

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._decoding.prompt_tokens

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not computed for this; of a request 0 until its first token is there."""
        return self._told.reused

    @property
    def beginning(self) -> Beginning | None:
        """The part of the prompt that the cache had when its computation began; None: it has not begun."""
        return self._decoding.beginning

    @property
    def reason(self) -> Reason:
        """Why not more was reused: a str, empty when nothing was left out, and until it has begun."""
        beginning = self._decoding.beginning
        return Reason("none", "") if beginning is None else beginning.reason

    @property
    def finish_reason(self) -> str | None:
        """The reason of its end; None: unfinished."""
        return self._told.finish_reason

    @property
    def stopped_by(self) -> int | str | None:
        """The token or the text that ended it."""
        return self._decoding.stopper.matched if self._told.finish_reason is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def __repr__(self) -> str:
        state = self.finish_reason or "unfinished"
        counts = f"{len(self._told.tokens)} tokens of an answer to {self.prompt_tokens}"
        return f"<kvtrie.{type(self).__name__} {counts}, {state}, {self.reused} reused>"
