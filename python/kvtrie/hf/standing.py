"""The state of a session of transformers, who may ask for it when, and the turns that calls on it take.

Threads: one call at a time; a second one is refused. Signals: the lock of a turn is taken and given back by ``with``
alone, between which and its block Python runs no handler. A question between two calls is answered with the place where
the last one left the session: a change that an exception left without its end is undone first.
"""

from __future__ import annotations

import sys
import threading

import torch
from transformers import cache_utils as hf
from typing_extensions import Self

from .._live import Live
from ..errors import BusyError, ClosedError
from .inputs import Inputs, text_of_generate
from .place import Form, Place, Shared, returned
from .row import Row
from .states import State


class Standing(Live, hf.Cache):
    """A transformers cache that stands at a place; what moves it on is in past.py."""

    is_compileable = False

    def __init__(self, cache: Shared, namespace: str) -> None:
        self.cache = cache
        self._namespace = namespace
        self._lock = threading.Lock()  # held by the call that is under way
        self._closed = False
        self._place = self._new(cache.states.current())
        super().__init__(layers=self._place.layers)

    @property
    def remaining(self) -> torch.Tensor:
        """Token ids [batch, n] of the prompt given to ``session`` that are still to be computed."""
        place = self._now
        width = place.width - place.columns
        rest = [ids[-width:] if width else [] for ids in place.prompts or ()]
        return torch.tensor([[0] * (width - len(ids)) + ids for ids in rest], dtype=torch.long)

    @property
    def tokens(self) -> list[list[int]]:
        """Token ids of each row that are computed, without padding."""
        place = self._now
        return [row.tokens[: max(0, place.columns - row.pad)] for row in place.rows]

    @property
    def columns(self) -> int:
        """Columns that are computed."""
        return self._now.columns

    @property
    def reused(self) -> int:
        """Columns that were not computed here, since they were known."""
        return self._now.reused

    @property
    def state(self) -> State:
        """The state of the model that K and V are of."""
        return self._now.state

    @property
    def form(self) -> Form:
        """Where its K and V are: in tensors (``"copy"``) or in cells of the cache (``"cells"``)."""
        return self._now.form

    @property
    def rows(self) -> tuple[Row, ...]:
        """One for each sequence of the batch."""
        return self._now.rows

    @property
    def layers(self) -> list[hf.CacheLayerMixin]:
        """As transformers has them."""
        return self._now.layers

    @layers.setter
    def layers(self, value: list[hf.CacheLayerMixin]) -> None:
        self._place = self._place._replace(layers=value)

    @property
    def namespace(self) -> str:
        """Where ``cache.prefix_cache`` has what the session knows: the one given to ``session``, or, after the model
        has changed since the cache was made, one that belongs to its state."""
        return self.state.namespace(self._namespace)

    @property
    def why(self) -> list[str | None]:
        """For each row, why what it computes is kept no longer, or None."""
        return [row.why for row in self.rows]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that are computed; none for ``generate`` with a text that does not go on from what is computed."""
        columns = int(super().get_seq_length(layer_idx))
        text = text_of_generate(self, sys._getframe(1)) if columns and self._place.rows else None
        return columns if text is None or self._goes_on_to(text) else 0

    def close(self) -> None:
        """Gives its sessions back; what was computed stays in the tree. Without this, the last reference does it."""
        self._closed = True
        for row in self.rows:
            row.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvtrie.hf.Past {len(self.rows)} rows, {self.columns} columns{', closed' if self._closed else ''}>"

    def _turn(self, name: str) -> threading.Lock:
        """The turn that a call holds: ``with self._turn(...)``, in which no signal comes between taking it and the
        block."""
        if self._closed:
            raise ClosedError(f"[hf] {name}: the session is closed")
        if self._lock.locked():
            raise BusyError(f"[hf] {name}: another call on this session is under way")
        return self._lock

    @property
    def _now(self) -> Place:
        """Where the session stands, for who asks within a call as between two."""
        if self._place.back is not None and not self._lock.locked():
            with self._lock:
                self._recover()
        return self._place

    def _recover(self) -> None:
        """Undoes what an exception left without its end. REQUIRES: a turn."""
        self._place = place = returned(self._place)
        for row in place.rows:
            row.cut(place.columns)
            if self._closed:
                row.close()

    def _new(self, state: State) -> Place:
        form = self.cache.form
        return Place(state, form, form.make_layers(self, state))

    def _clear(self) -> None:
        place = self._place
        self._place = self._new(place.state)
        for row in place.rows:
            row.close()

    def _goes_on_to(self, text: Inputs) -> bool:
        """Whether ``text``, all of it, begins with what the session has, and has more."""
        place, (batch, width) = self._place, text.size
        times, odd = divmod(batch, len(place.rows))
        if odd or width <= place.columns:
            return False
        rows = [row for row in place.rows for _ in range(times)]
        return all(
            ids is not None and width - len(ids) == row.pad and ids[: row.length] == row.tokens
            for ids, row in zip(map(text.real, range(batch)), rows)
        )
