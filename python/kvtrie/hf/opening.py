"""Sessions for the rows of a batch, and how many columns of it need not be computed.

In a batch all rows compute the same columns, the last ones. So each row reuses what it can only up to where the row
that knows least begins to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import _core
from ..errors import CacheFullError
from .row import Row

if TYPE_CHECKING:
    from .place import Shared
    from .states import State


def open_rows(
    cache: Shared, prompts: Sequence[Sequence[int]], width: int, state: State, namespace: str, least: int
) -> tuple[list[Row], int]:
    """A row for each prompt, at the length that it reuses, and the columns of the batch that all of them reuse, which
    leaves the last ``least`` to compute. ``namespace``: of the tree, for this state of the model."""
    opener = _Opener(cache, state, namespace)
    rows: list[Row] = []
    try:
        for at, prompt in enumerate(prompts):
            same = next((i for i in range(at) if prompts[i] == prompt), None)
            rows.append(opener.row(prompt, width - len(prompt)) if same is None else rows[same].branch())
        computed = max(least, *(width - row.pad - row.length for row in rows))
        while True:
            for at, row in enumerate(rows):
                rows[at] = opener.shortened(row, prompts[at], max(0, width - row.pad - computed))
            least = max(width - row.pad - row.length for row in rows)
            if least <= computed or computed >= width:
                return rows, max(0, width - computed)
            computed = least
    except BaseException:
        for row in rows:
            row.close()
        raise


class _Opener:
    def __init__(self, cache: Shared, state: State, namespace: str) -> None:
        self._cache = cache
        self._state = state
        self._namespace = namespace

    def row(self, prompt: Sequence[int], pad: int) -> Row:
        if self._state.why is not None:
            return Row(None, (), pad, self._state.why)
        if pad and self._cache.layout.states:
            return Row(None, (), pad, "padding, which the states of linear layers take in")
        if len(prompt) > self._cache.longest:
            return Row(None, (), pad, f"a prompt of {len(prompt)} tokens in a cache for {self._cache.longest}")
        return self._begun(prompt, prompt, pad)

    def shortened(self, row: Row, prompt: Sequence[int], length: int) -> Row:
        """The row where it reuses ``length`` tokens, or what it can below."""
        if row.length <= length or row.session is None:
            return row
        session = row.session
        if session.can_rewind(length):
            session.rewind(length)
            session.append(list(prompt[length:]))
            del row.tokens[length:]
            return row
        row.close()
        return self._begun(prompt[: length + 1], prompt, row.pad)

    def _begun(self, known: Sequence[int], prompt: Sequence[int], pad: int) -> Row:
        try:
            session: _core.Session = self._cache.prefix_cache.begin(list(known), self._namespace)
        except CacheFullError as error:
            return Row(None, (), pad, str(error))
        if len(known) < len(prompt):
            session.append(list(prompt[len(known) :]))
        return Row(session, prompt[: session.length], pad)
