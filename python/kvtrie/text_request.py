"""The text of one request of a batcher: whole characters as they come, for threads and for coroutines.

    answer = batcher.chat([{"role": "user", "content": "What is a cache?"}])
    async for piece in answer:  # or `for`, in any thread
        print(piece, end="")

It ends as its request does (request.py), and keeps no text of its own: whoever reads it makes the text anew from the
tokens, so that several may, from the first one on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Optional

import numpy as np
import numpy.typing as npt

from ._arguments import refusal
from ._closing import AsyncClosing
from ._core import PrefixCache
from ._handing import HandingBoth
from ._protocols import StepModel, chat_model
from .errors import BusyError
from .replies import has_answers
from .request import Request
from .sampling import TokenLogprob
from .stopping import Stopper

if TYPE_CHECKING:
    from typing_extensions import Self

    from .models.tokenizer import TextReading

__all__ = ["TextRequest", "chat_prompt"]


class TextRequest(AsyncClosing):
    """The text of one answer as it comes; from ``Batcher.chat`` and ``Batcher.complete``.

    Iterating gives text in whole characters, without its stop text and special tokens, and raises the request's error
    at the end, if it has one. ``await`` and ``result()`` give all of it.
    """

    def __init__(self, request: Request, stopper: Callable[[], Stopper]) -> None:
        self._request = request
        self._stopper = stopper

    @property
    def request(self) -> Request:
        """Its tokens."""
        return self._request

    @property
    def tokens(self) -> list[int]:
        """Those that are there by now, with what ended it."""
        return self._request.tokens

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """One for each of ``tokens``, where ``logprobs`` was given."""
        return self._request.logprobs

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self._request.prompt_tokens

    @property
    def reused(self) -> int:
        """Tokens of the prompt that were not computed for this; 0 until its first token is there."""
        return self._request.reused

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length", "cancelled" or "failed"; None: unfinished."""
        return self._request.finish_reason

    @property
    def error(self) -> BaseException | None:
        """What it failed with."""
        return self._request.error

    @property
    def stopped_by(self) -> int | str | None:
        """The token or the text that ended it."""
        return self._request.stopped_by

    @property
    def text_so_far(self) -> str:
        """What there is by now."""
        ended = self._request.finish_reason is not None
        return self._stopper().text_of(self._request.tokens, ended)

    @property
    def message(self) -> dict[str, str]:
        """The answer as a message, for the next turn. ``kv.BusyError`` before it has ended."""
        if self._request.finish_reason is None:
            raise BusyError("[message] the request has not ended, allowed once it has")
        return {"role": "assistant", "content": self.text_so_far}

    def cancel(self) -> None:
        """Ends it before the next step; what was computed stays in the cache. Nothing when it has ended."""
        self._request.cancel()

    async def aclose(self) -> None:
        """Cancels it, and waits until it has ended: it is in no step then, and has no session."""
        await self._request.aclose()

    def result(self, timeout: float | None = None) -> str:
        """All text, once there is no more. ``kv.BusyError`` after ``timeout`` seconds; it goes on meanwhile."""
        return self._stopper().text_of(self._request.result(timeout))

    def __iter__(self) -> Iterator[str]:
        return _Pieces(self._request, self._stopper())

    def __aiter__(self) -> AsyncIterator[str]:
        return _Pieces(self._request, self._stopper())

    def __await__(self) -> Generator[object, None, str]:
        return self._whole().__await__()

    async def _whole(self) -> str:
        return self._stopper().text_of(await self._request)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        where: Optional[TracebackType],
    ) -> None:
        self.cancel()

    def __repr__(self) -> str:
        state = self.finish_reason or "unfinished"
        return f"<kvtrie.TextRequest {len(self.tokens)} tokens of an answer to {self.prompt_tokens}, {state}>"


class _Pieces(HandingBoth[str]):
    """A reader."""

    def __init__(self, request: Request, stopper: Stopper) -> None:
        self._request = request
        self._stopper = stopper

    @property
    def _items(self) -> list[str]:
        return self._stopper.pieces

    def _make(self) -> bool:
        seen = self._read()
        if seen is not None and not self._has_more:
            self._request._stream.wait(seen)
        return seen is not None or self._has_more

    async def _make_async(self) -> bool:
        seen = self._read()
        if seen is not None and not self._has_more:
            await self._request._after(seen)
        return seen is not None or self._has_more

    def _read(self) -> int | None:
        """Reads the tokens that there are by now: how many; None where no more come. Raises the request's error behind
        its last piece."""
        stream = self._request._stream
        over = stream.ended  # first: its tokens are all there then
        seen = len(stream.tokens)
        self._stopper.read(stream.tokens, ended=over and self._request.error is None)
        if over and not self._has_more:
            self._request._raise()
        return None if over else seen


def chat_prompt(
    model: StepModel,
    cache: PrefixCache,
    messages: Sequence[Mapping[str, object]],
    tools: Sequence[object] | None,
    template: Mapping[str, object] | None,
    namespace: str,
    special_tokens: TextReading,
) -> npt.NDArray[np.int32]:
    """The prompt of a chat, its answers in the tokens that the cache knows them by."""
    if not hasattr(model, "chat_tokens"):
        raise refusal(model, "chat", "model", "one of kv.models, or another one with chat_tokens and token_texts")
    chat = chat_model(model)
    if special_tokens == "letters":  # models of others need not know of it
        ids = chat.chat_tokens(messages, tools=tools, template=template)
    else:
        ids = chat.chat_tokens(messages, tools=tools, template=template, special_tokens=special_tokens)
    prompt = np.asarray(ids, np.int32)
    texts = chat.token_texts if has_answers(messages) else None
    return prompt if texts is None or not len(prompt) else cache.match_text(prompt, texts, namespace)
