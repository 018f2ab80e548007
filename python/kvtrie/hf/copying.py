"""Form "copy": the history as ordinary tensors, read from the cells once, and new rows written back after each pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Union

import numpy as np
import numpy.typing as npt
import torch
from transformers import cache_utils as hf

from .. import _core
from ..errors import Error
from . import layers
from .growing import spare_rows
from .layout import Attention, State
from .row import Row

if TYPE_CHECKING:
    from .place import Conversation, Place, Shared
    from .states import State as ModelState

Array = npt.NDArray[np.float32]
Rows = npt.NDArray[Union[np.float32, np.float16]]


class Copying:
    """Stateless: what a conversation has is in its layers and rows."""

    name = "copy"

    def allow(self, cache: Shared) -> None:
        """Any model will do."""

    def attach(self, model: torch.nn.Module, user: object) -> None:
        """Nothing of the model is changed."""

    def detach(self, model: torch.nn.Module, user: object) -> None:
        """See ``attach``."""

    def make_layers(self, past: Conversation, state: ModelState) -> list[hf.CacheLayerMixin]:  # noqa: ARG002 (a form's)
        return [layers.make_layer(like) for like in state.like]

    def objection(self, past: Conversation) -> None:
        """Any pass will do."""

    def copied(self, held: list[hf.CacheLayerMixin], past: Conversation) -> list[hf.CacheLayerMixin]:  # noqa: ARG002 (a form's)
        return [layers.copied(layer) for layer in held]

    def mark(self, held: list[hf.CacheLayerMixin]) -> list[object]:
        return [layers.mark(layer) for layer in held]

    def go_back(self, held: list[hf.CacheLayerMixin], marked: list[object]) -> None:
        for layer, each in zip(held, marked):
            layers.go_back(layer, each)

    def taken(self, place: Place, indices: list[int]) -> list[hf.CacheLayerMixin]:
        """Layers of their own for the rows ``indices``."""
        chosen = torch.tensor(indices)
        made = [layers.copied(layer) for layer in place.layers]
        for layer in made:
            layer.reorder_cache(chosen)
        return made

    def cropped(self, place: Place, tokens_to_remove: int) -> list[hf.CacheLayerMixin]:
        """Layers of their own that end earlier; ``tokens_to_remove`` is 0 or less."""
        made = [layers.copied(layer) for layer in place.layers]
        for layer in made:
            layer.crop(tokens_to_remove)
        return made

    def expect(self, past: Conversation, ids: list[list[int]]) -> None:
        """Tells the sessions which tokens come next."""
        for row, own in zip(past.rows, ids):
            row.record(own)

    def compute(self, past: Conversation, ids: list[list[int]], run: Callable[[], object]) -> object:
        """One pass, and what it computed goes to the sessions. If a session objects, the pass counts all the same."""
        output = run()
        for at, (row, own) in enumerate(zip(past.rows, ids)):
            if row.session is None:
                continue
            try:
                self._write(past, at, row, len(own))
            except Error as error:
                row.forget(str(error))
        return output

    def _write(self, past: Conversation, at: int, row: Row, count: int) -> None:
        layout = past.cache.layout
        for step in row.steps(row.length + count):
            first = int(step.positions[0]) - row.length - count  # from the end of the pass
            last = first + len(step.tokens)
            for about in layout.attention:
                parts = layers.fresh_rows(past.layers[about.layer], about)
                keys, values = (None if each is None else _rows(each, at, first, last) for each in parts)
                step.put(about.number, keys, values, heads_first=True)
            for state in layout.states:
                self._put_state(step, past.layers[state.layer], state, at)

    def _put_state(self, step: _core.Step, layer: hf.CacheLayerMixin, about: State, at: int) -> None:
        times = len(step.boundaries()[0]) + 1  # any boundary is the end: passes are cut at the others
        conv, recurrent = layer.conv_states[about.index], layer.recurrent_states[about.index]
        kernel, channels, heads, rows, columns = about.shape
        own = None
        if about.conv is not None:
            own = np.zeros((kernel, channels), np.float32)
            tail = _array(conv[at]).T[-kernel:]
            own[kernel - len(tail) :] = tail
            own = np.repeat(own[None], times, axis=0)
        delta = None
        if about.recurrent is not None:
            delta = np.repeat(_array(recurrent[at]).reshape(1, heads, rows, columns), times, axis=0)
        step.put_states(about.number, own, delta)

    # ---- what is known already ---------------------------------------------------------------------------------------

    def fill(self, cache: Shared, place: Place, width: int) -> None:
        """Reads what the rows reuse of ``width`` columns into the layers of ``place``, which are new."""
        for about, pair in histories(cache.layout.attention, place, width):
            keys, values = (torch.from_numpy(each).to(cache.device, about.dtype) for each in pair)
            layers.fill_attention(place.layers[about.layer], about, keys, values, place.columns)
        if cache.layout.states:
            self._fill_states(cache, place)

    def _fill_states(self, cache: Shared, place: Place) -> None:
        steps = [row.session.decode() for row in place.rows if row.session is not None]
        for about in cache.layout.states:
            pairs = [step.states(about.number) for step in steps]
            conv = recurrent = None
            if about.conv is not None:
                conv = torch.from_numpy(np.concatenate([np.asarray(pair[0]) for pair in pairs]).transpose(0, 2, 1))
            if about.recurrent is not None:
                joined = np.concatenate([np.asarray(pair[1]) for pair in pairs])
                recurrent = torch.from_numpy(joined.reshape(len(steps), *about.recurrent))
            layers.fill_state(
                place.layers[about.layer],
                about,
                None if conv is None else conv.contiguous().to(cache.device, about.conv_dtype),
                None if recurrent is None else recurrent.to(cache.device, about.dtype),
            )


def histories(
    attention: Sequence[Attention], place: Place, width: int
) -> Iterator[tuple[Attention, tuple[Rows, Rows]]]:
    """The state that each attention layer has at first. One row without padding is read as it is stored, many layers in
    one call, and with room for what is left of ``width`` columns where the layer has all of the history."""
    columns = place.columns
    whole = len(place.rows) == 1 and place.rows[0].pad == 0
    together: dict[tuple[int, int], list[Attention]] = {}  # by the first position that they keep, and spare rows
    for about in attention:
        if whole and about.chunk is None:
            start = columns - layers.kept_columns(about, columns)
            grows = about.reach is None and not about.is_index
            spare = spare_rows(columns, width - columns) if grows else 0
            together.setdefault((start, spare), []).append(about)
        else:
            yield about, history(place, about)
    for (start, spare), group in together.items():
        session = place.rows[0].session
        assert session is not None
        found = session._kv_with_spare(start, columns, [about.number for about in group], spare)
        for about in group:
            keys, values = found.pop(about.number)
            yield about, (keys[None], values[None])


def history(place: Place, about: Attention) -> tuple[Array, Array]:
    """K and V [batch, kv_heads, n, dim] of the last n columns, which the layer keeps; zeros where nobody looks."""
    kept = layers.kept_columns(about, place.columns)
    shape = (len(place.rows), about.heads, kept)
    keys, values = np.zeros((*shape, about.k_dim), np.float32), np.zeros((*shape, about.v_dim), np.float32)
    for at, row in enumerate(place.rows):
        start = max(0, place.columns - kept - row.pad)
        if about.chunk is not None:
            start = max(start, row.length // about.chunk * about.chunk)
        if row.length > start:
            column = start + row.pad - (place.columns - kept)
            keys[at, :, column:], values[at, :, column:] = _read(row, about, start)
    return keys, values


def _read(row: Row, about: Attention, start: int) -> tuple[Array, Array]:
    """K and V [kv_heads, n, dim] of the row's tokens from ``start`` on. REQUIRES: it has a session."""
    assert row.session is not None
    keys, values = row.session.kv(about.number, start, row.length, heads_first=True)
    return np.asarray(keys, np.float32), np.asarray(values, np.float32)


def _array(tensor: torch.Tensor) -> Array:
    made: Array = tensor.detach().to("cpu", torch.float32).numpy()
    return made


def _rows(tensor: torch.Tensor, at: int, first: int, last: int) -> Array:
    """[heads, rows, dim] of one row of the batch, counted from its end."""
    end = tensor.shape[2]
    return _array(tensor[at, :, end + first : end + last])
