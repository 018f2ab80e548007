"""An answer that its caller drives: :class:`Generation`, from ``kv.generate``, ``model.chat`` and ``Batch.add``.

Nothing is computed before it is asked for, and nothing ahead. The same holds for ``async for`` (awaited.py). What an
exception leaves behind is in _decoding.py: the next read goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import cast, overload

from . import _core
from ._answer import Answer
from ._decoding import Decoding
from ._handing import Item
from .awaited import BothWays

__all__ = ["Generation"]


class Generation(BothWays[Item], Answer[Item]):
    """One answer, made as it is asked for: an iterator over its tokens, or over its text in whole characters.

    ``Generation[int]`` gives token ids: from ``kv.generate``, ``kv.generate_batch`` and ``Batch.add``.
    ``Generation[str]`` gives text without its stop text and without special tokens: from ``model.chat`` and
    ``model.complete``.

    An exception, such as KeyboardInterrupt, ends nothing: the next read continues, with what would have come without
    it. ``close`` ends it, and so does leaving a ``with`` block. ``async for`` gives the same, computed in a thread,
    ``await`` all that is left of the tokens, or all of the text, and ``async with`` closes it. A task that is cancelled
    ends nothing: the next one goes on. For many at a time see :class:`kvtrie.Batcher`.
    """

    def __init__(self, decoding: Decoding, of_text: bool = False) -> None:
        super().__init__()
        self._decoding = decoding
        self._of_text = of_text

    @property
    def _told(self) -> Decoding:
        return self._decoding

    @property
    def session(self) -> _core.Session | None:
        """The one that it goes on in; None while it waits for its place in a batch, and where it lost it."""
        return self._decoding.session

    @property
    def seconds_to_first(self) -> float | None:
        """From asking for the first token to having it: what the prompt took; None before."""
        return self._decoding.seconds_to_first

    @property
    def finish_reason(self) -> str | None:
        """ "stop" (an end token, a stop token or a stop text), "length" (``max_tokens``), "closed", also
        where its text was not read to the end; None: unfinished."""
        if self._of_text and self._decoding.closing and not self._decoding.stopper.ended:
            return "closed"
        return self._decoding.finish_reason

    @property
    def text_so_far(self) -> str:
        """The text of the tokens by now, in whole characters, without stop text and special tokens."""
        return "".join(self._decoding.stopper.pieces) if self._of_text else super().text_so_far

    @property
    def text(self) -> str:
        """The whole answer: it is run to its end."""
        for _ in self:
            pass
        return self.text_so_far

    @property
    def message(self) -> dict[str, str]:
        """The whole answer as a message, for the next turn: it is run to its end."""
        return {"role": "assistant", "content": self.text}

    def close(self) -> None:
        """Closes the session where this made it; what there is stays. Nothing more comes."""
        self._decoding.close()

    def _leave(self) -> None:
        self.close()

    @overload
    def __await__(self: Generation[int]) -> Generator[object, None, list[int]]: ...
    @overload
    def __await__(self: Generation[str]) -> Generator[object, None, str]: ...
    def __await__(self) -> Generator[object, None, list[int] | str]:
        return self._rest().__await__()

    async def _rest(self) -> list[int] | str:
        items = [item async for item in self]
        return self.text_so_far if self._of_text else cast("list[int]", items)

    def __str__(self) -> str:
        return self.text if self._of_text else repr(self)

    # --- one more item ----------------------------------------------------------------------------------------------

    @property
    def _items(self) -> Sequence[Item]:
        return cast("Sequence[Item]", self._decoding.stopper.pieces if self._of_text else self._decoding.tokens)

    @property
    def _over(self) -> bool:
        ended = self._decoding.finish_reason is not None
        return ended and (not self._of_text or self._decoding.closing or self._decoding.stopper.ended)

    def _make(self) -> bool:
        if self._over:
            return False
        if self._decoding.advance(self._left):
            return True
        if self._of_text:
            self._decoding.stopper.read(self._decoding.tokens, ended=True)  # text that was held back
        return self._of_text

    def _left(self) -> bool:
        """Whether the task that waited is gone."""
        return self._apart is not None and self._apart.left
