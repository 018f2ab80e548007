"""K and V that grow in place: transformers' own layers copy the whole history in every pass, for a token as for many.

    memory   | history, shown to attention         | rows of this pass | spare |
             0                                     n               n + rows   Room.rows

Invariant: a row that was shown once is never written to again, so whatever shares the tensors may go on reading them.
Spare rows count only while the layer has the very tensors that were shown last: cutting, reordering or replacing them
ends that, and a copy of the layer, which may go on in another thread, has none. Units: rows, one for each token.
"""

from __future__ import annotations

import torch
from transformers import cache_utils as hf

Pair = tuple[torch.Tensor, torch.Tensor]

_SPARE = 256  # rows at least


class Recording:
    """Mixed into a transformers layer: ``update`` also remembers its arguments."""

    fresh: Pair | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Pair:
        self.fresh = (key_states.detach(), value_states.detach())
        pair: Pair = super().update(key_states, value_states, *args, **kwargs)  # type: ignore[misc]
        return pair


class Room:
    """Memory of K and V [batch, heads, rows, dim] with rows to spare, and the two tensors that show what is filled."""

    def __init__(self, memory: Pair, count: int) -> None:
        self.rows = _rows(memory[0])
        self._memory = memory
        self.shown = self._show(count)

    @classmethod
    def copied(cls, shown: Pair, more: Pair) -> Room:
        """One with what is ``shown``, and room for ``more`` behind it."""
        count = _rows(shown[0])
        rows = count + spare_rows(count, _rows(more[0]))
        keys, values = (each.new_empty((*each.shape[:2], rows, each.shape[3])) for each in more)
        room = cls((keys, values), count)
        if count:
            for part, old in zip(room.shown, shown):
                part.copy_(old)
        return room

    def takes(self, layer: hf.CacheLayerMixin, more: Pair) -> bool:
        """Whether the layer still shows what was filled last, and ``more`` may be written behind it."""
        return (
            layer.keys is self.shown[0]
            and layer.values is self.shown[1]
            and _rows(self.shown[0]) + _rows(more[0]) <= self.rows
            and (torch.is_inference_mode_enabled() or not self._memory[0].is_inference())
        )

    def append(self, more: Pair) -> Pair:
        first = _rows(self.shown[0])
        self.shown = self._show(first + _rows(more[0]))
        for part, new in zip(self.shown, more):
            part[:, :, first:].copy_(new)
        return self.shown

    def _show(self, count: int) -> Pair:
        keys, values = (each[:, :, :count] for each in self._memory)
        return keys, values


def spare_rows(count: int, more: int) -> int:
    """Rows behind ``count`` where ``more`` are about to come. Untouched ones take no physical memory on a CPU."""
    return more + max(_SPARE, count // 4)


def _rows(tensor: torch.Tensor) -> int:
    return tensor.shape[2] if tensor.ndim == 4 else 0  # a layer's first tensors are empty, of one dimension


class Growing(Recording):
    """Mixed into a layer of all of the history: a pass writes its own rows, and copies none before them."""

    room: Room | None = None
    is_initialized: bool

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Pair:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)  # type: ignore[attr-defined]
        shown: Pair = (self.keys, self.values)  # type: ignore[has-type]
        more = (key_states, value_states)
        if not _fit(shown, more):
            self.room = None
            return super().update(key_states, value_states, *args, **kwargs)
        self.fresh = more
        if self.room is None or not self.room.takes(self, more):
            self.room = Room.copied(shown, more)
        self.keys, self.values = self.room.append(more)
        return self.keys, self.values

    def fill(self, memory: Pair, count: int) -> None:
        """The first ``count`` rows of ``memory``, with the others to append to. Nobody else may write to it."""
        self.room = Room(memory, count)
        self.keys, self.values = self.room.shown

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self.room = None
        super().reorder_cache(beam_idx)  # type: ignore[misc]

    def reset(self) -> None:
        self.room = None
        super().reset()  # type: ignore[misc]


def _fit(shown: Pair, more: Pair) -> bool:
    """Whether rows may be copied behind others: no gradients to keep, and nothing that would have to be converted."""
    return all(
        not (new.requires_grad or old.requires_grad)
        and new.ndim == 4
        and (old.dtype, old.device) == (new.dtype, new.device)
        and (_rows(old) == 0 or (old.shape[:2], old.shape[3]) == (new.shape[:2], new.shape[3]))
        for old, new in zip(shown, more)
    )
