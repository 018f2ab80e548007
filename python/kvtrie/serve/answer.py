"""One answer as it comes: tokens of a batcher's request, as text, reasoning and tool calls.

    tokens -> whole characters -> up to the stop text -> reasoning | text with tool calls -> text, calls

Text that may be the beginning of a stop text or of a call is held back until it is certain.
Threads: the event loop's only. Leaving it early (``cancel``, a cancelled task) ends the request at the next step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Optional

from ..errors import ClosedError
from ..models.prompts import OwnText
from ..models.token_bytes import TokenBytes
from ..models.tokenizer import Tokenizer
from ..request import Request
from ..sampling import RankedLogprob, TokenLogprob
from ..stopping import TextUntil
from ..thinking.reasoning import AnswerReader
from .journal import Entry, Journal, beginning_text
from .predictions import Prediction
from .replays import Replays
from .tool_calls import ToolCall, ToolReader


@dataclass
class Piece:
    """The text that became certain with ``tokens``. ``calls``: with their ids. ``offsets``: where each token that has
    ``logprobs`` begins, in characters of the answer; ``first``: they are the first of a text."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, ToolCall]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    first: bool = False


@dataclass(frozen=True)
class Reading:
    """How tokens of one answer become pieces. ``silent``: token ids that are no text; ``stops``: texts that end it;
    ``begins``: it is a text of its own, and does not go on with the prompt's. ``most_calls``: it ends with so many.
    ``warm``: the prompt is computed, and the one token behind it is nobody's."""

    tokenizer: Tokenizer
    silent: frozenset[int]
    stops: Sequence[str] = ()
    tools: Optional[ToolReader] = None
    reasoning: Optional[AnswerReader] = None
    each_token: bool = False
    begins: bool = True
    most_calls: int | None = None
    warm: bool = False


class Answer:
    """Iterated once. After its end ``finish_reason`` is "stop", "length" or "tool_calls".

    Where it was left or raised it is "cancelled" or "failed". It raises the request's own error, and
    ``kv.errors.ClosedError`` where the server closes.
    """

    def __init__(
        self,
        request: Request[int],
        reading: Reading,
        entry: Entry,
        journal: Journal,
        replays: Replays,
        predicted: Prediction | None = None,
    ) -> None:
        self._request = request
        self._predicted = predicted
        self._reading = reading
        self._entry, self._journal, self._replays = entry, journal, replays
        self._stream = reading.tokenizer.stream(skip_special_tokens=False, begins=reading.begins)
        self._until = TextUntil(reading.stops)
        self._sampled: list[str] = []
        self._length = 0  # characters in it
        self._marks: list[tuple[int, int]] = []  # special tokens in it
        self._count = 0  # tokens that were read
        self._told = 0  # calls that were handed out
        self._began = time.perf_counter()
        self.calls: dict[str, ToolCall] = {}
        self.stopped_by: str | None = None

    @property
    def finish_reason(self) -> str | None:
        """None: unfinished."""
        return None if self._entry.running else self._entry.outcome

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._request.prompt_tokens

    @property
    def reused(self) -> int:
        """Of them, those that were known."""
        return self._request.reused

    @property
    def prompt_logprobs(self) -> list[RankedLogprob]:
        """Of each token of the prompt but the first, where they were asked for, once it has ended."""
        return self._request.prompt_logprobs

    @property
    def tokens(self) -> list[int]:
        """The tokens chosen so far, with the reason for the end."""
        return [] if self._reading.warm else self._request.tokens

    @property
    def generated(self) -> int:
        """Tokens that were chosen so far, with what ended it."""
        return len(self.tokens)

    @property
    def uncomputed(self) -> int:
        """Tokens of the prompt that are still to be computed, as far as is known."""
        return self._request.uncomputed

    @property
    def drafted(self) -> tuple[int, int]:
        """Tokens that were guessed and checked, and those of them that were right."""
        return self._request.proposed, self._request.accepted

    @property
    def predicted(self) -> tuple[int, int] | None:
        """Tokens of the prediction that the answer has, and that it does not have; None: there was no prediction."""
        return None if self._predicted is None else self._predicted.counts(self.tokens)

    @property
    def token_bytes(self) -> TokenBytes:
        """The texts of single tokens."""
        return self._reading.tokenizer.token_bytes

    @property
    def seconds(self) -> tuple[float, float]:
        """The seconds of the first token, and of all others."""
        first = self._entry.seconds_to_first or 0.0
        return first, max(0.0, time.perf_counter() - self._began - first)

    def cancel(self) -> None:
        """Ends it before the next step; what was computed stays in the cache."""
        self._request.cancel()
        self._settle("cancelled")

    async def __aiter__(self) -> AsyncIterator[Piece]:
        try:
            async for token in self._request:
                if self._entry.seconds_to_first is None:
                    self._entry.seconds_to_first = time.perf_counter() - self._began
                piece = None if self._reading.warm else self._piece(token)
                if piece is not None:
                    yield piece
                if self._has_all_calls:
                    self._request.cancel()
                    self._settle_at_end()
                    return
            if self._request.finish_reason == "cancelled":  # not by this: the batcher was closed
                raise ClosedError("[serve] the server is closing")
            last = self._end()
            if last is not None:
                yield last
        except GeneratorExit:
            self.cancel()
            raise
        except BaseException as error:
            self._request.cancel()
            left = self._request.error is None and isinstance(error, (asyncio.CancelledError, ClosedError))
            self._settle("cancelled" if left else "failed")
            raise

    # --- tokens to pieces -------------------------------------------------------------------------------------------

    def _piece(self, token: int) -> Piece | None:
        piece = Piece(tokens=[token], logprobs=self._request.logprobs[self._count : self._count + 1])
        piece.offsets = [self._length] * len(piece.logprobs)
        piece.first = self._reading.begins and self._count == 0
        self._count += 1
        if token not in self._reading.silent:
            self._take(self._stream.feed(token), piece)
            self._mark(token)
        said = piece.text or piece.reasoning or piece.calls or piece.logprobs
        return piece if said or self._reading.each_token else None

    def _take(self, text: str, piece: Piece) -> None:
        """Text of the model, in order."""
        self._sampled.append(text)
        self._length += len(text)
        self._split(self._until.feed(text), piece)

    def _mark(self, token: int) -> None:
        """Remembers where the text ends with a special token."""
        text = self._reading.tokenizer.special_tokens.texts.get(token)
        if text is not None and self._sampled[-1].endswith(text):
            self._marks.append((self._length - len(text), self._length))

    def _split(self, text: str, piece: Piece) -> None:
        if self._reading.reasoning is None:
            return self._find_calls(text, piece)
        for kind, part in self._reading.reasoning.feed(text):
            if kind == "reasoning":
                piece.reasoning += part
            else:
                self._find_calls(part, piece)

    def _find_calls(self, text: str, piece: Piece) -> None:
        tools = self._reading.tools
        if self._has_all_calls:
            return
        piece.text += text if tools is None else tools.feed(text)
        if tools is not None:
            self._hand_out(tools, piece)

    @property
    def _has_all_calls(self) -> bool:
        return self._reading.most_calls is not None and len(self.calls) >= self._reading.most_calls

    def _hand_out(self, tools: ToolReader, piece: Piece) -> None:
        for call in tools.calls[self._told : self._reading.most_calls]:
            made = self._replays.new_id()
            self.calls[made] = call
            piece.calls.append((made, call))
        self._told = len(self.calls)

    def _end(self) -> Piece | None:
        if self._reading.warm:
            self._settle("length")
            return None
        piece = Piece()
        if self._until.found is None:
            self._take(self._stream.finish(), piece)
        if self._until.found is None:
            self._split(self._until.finish(), piece)
        if self._reading.reasoning is not None:
            for kind, part in self._reading.reasoning.finish():
                if kind == "reasoning":
                    piece.reasoning += part
                else:
                    self._find_calls(part, piece)
        if self._reading.tools is not None:
            piece.text += self._reading.tools.finish()
            self._hand_out(self._reading.tools, piece)
        self._settle_at_end()
        return piece if piece.text or piece.reasoning or piece.calls else None

    # --- its end ----------------------------------------------------------------------------------------------------

    def _settle_at_end(self) -> None:
        reason = self._request.finish_reason or "stop"
        self.stopped_by = self._until.found
        if self.calls:
            self._replays.keep(
                self._entry.namespace,
                OwnText.of("".join(self._sampled), self._marks),
                {made: (call.name, call.arguments) for made, call in self.calls.items()},
            )
        self._settle("tool_calls" if self.calls and reason == "stop" else reason)

    def _settle(self, outcome: str) -> None:
        if self._entry.running:
            self._entry.why = self._entry.why or beginning_text(self._request)
            self._journal.end(self._entry, outcome, self.reused, self.generated)
