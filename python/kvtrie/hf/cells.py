"""Form "cells": no tensors at all. Layers store what they are given, and attention reads the cells where they are.

``update`` of a layer puts K and V into the open step and gives its arguments back; the attention function that runs
next ignores them and asks the step. Both find the step by thread: a pass runs on one. Where no such pass runs, as in a
call without a session, attention is what the model had before.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers import cache_utils as hf
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from .. import _core
from .._locks import make_lock
from ..errors import Error, InternalError, NotRestorableError, NotSupportedError
from .row import Row

if TYPE_CHECKING:
    from .place import Conversation, Place, Shared
    from .states import State

_USERS = "_kvtrie_users"  # an attribute of a model: a set of objects, one for each open cache
_NAMES = {"sdpa": "kvtrie", "eager": "kvtrie_eager"}  # by what runs without a session
_attaching = make_lock()  # a finalizer may detach in the middle of it


class _Active(threading.local):
    """The pass that this thread is in, which its frame holds: none that an exception left is found."""

    held: weakref.ref[_Pass] | None = None

    @property
    def run(self) -> _Pass | None:
        held = self.held
        return None if held is None else held()


class _Pass:
    """Open steps, one for each row of the batch that has tokens in this pass. ``first``: their first columns in it."""

    def __init__(self, steps: list[_core.Step | None], first: list[int]) -> None:
        self._rows = [(at, step, start) for at, (step, start) in enumerate(zip(steps, first)) if step is not None]
        self.stored: set[int] = set()
        self.attended: set[int] = set()

    def put(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        for at, step, start in self._rows:
            step.put(layer, _float(keys[at, :, start:]), _float(values[at, :, start:]), heads_first=True)
        self.stored.add(layer)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        scale: float | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """[batch, tokens, heads, dim] for a query [batch, heads, tokens, dim]; zeros for padding."""
        found: torch.Tensor | None = None
        for at, step, start in self._rows:
            own = _float(query[at, :, start:].transpose(0, 1))
            out = torch.from_dlpack(step.attend(layer, own, scale=scale, softcap=softcap, sinks=sinks))
            if len(query) == 1 and start == 0:
                found = out.unsqueeze(0)
                break
            if found is None:
                found = torch.zeros((len(query), query.shape[2], *out.shape[1:]))
            found[at, start:] = out
        self.attended.add(layer)
        assert found is not None
        return found.to(query.dtype)


_active = _Active()


def _float(tensor: torch.Tensor) -> npt.NDArray[np.float32]:
    made: npt.NDArray[np.float32] = tensor.detach().to(torch.float32).numpy()
    return made


class CellLayer(hf.CacheLayerMixin):
    """The place of one layer in a transformers cache; ``past`` has its length."""

    is_croppable = True

    def __init__(self, past: Conversation, number: int) -> None:
        super().__init__()
        self._past = weakref.ref(past)
        self._number = number
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """There is nothing to make."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *args: object,  # noqa: ARG002 (transformers')
        **kwargs: object,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        now = _active.run
        if now is None:
            raise NotSupportedError("[hf] update: got one outside a forward pass of the model, allowed inside")
        now.put(self._number, key_states, value_states)
        return key_states, value_states

    def get_seq_length(self) -> int:
        past = self._past()
        return 0 if past is None else past.columns

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1


class Cells:
    """Stateless: what a conversation has is in its rows."""

    name = "cells"

    def allow(self, cache: Shared) -> None:
        model, layout = cache.model, cache.layout
        where = f"[hf.Cache] form: got 'cells' for {type(model).__name__}, allowed"
        if layout.states or layout.shared:
            raise NotSupportedError(
                f"{where} for models whose layers all have attention and K and V of their own: 'copy'"
            )
        if any(about.is_index for about in layout.attention):
            raise NotSupportedError(f"{where} for models that attend to all keys, not to those of an index: 'copy'")
        if getattr(cache.decoder.config, "kv_lora_rank", None):
            raise NotSupportedError(f"{where} for models that attend to what they cache, not to keys of it: 'copy'")
        if not getattr(model, "_supports_attention_backend", False):
            raise NotSupportedError(f"{where} for models whose attention can be replaced: 'copy'")
        if model.get_input_embeddings().weight.device.type != "cpu":
            raise NotSupportedError(f"{where} on a CPU: 'copy'")

    def attach(self, model: torch.nn.Module, user: object) -> None:
        """Registers the attention function, and makes it the model's, for as long as any ``user`` has it."""
        with _attaching:
            for fallback, name in _NAMES.items():
                AttentionInterface.register(name, _attend_or(fallback))
                AttentionMaskInterface.register(name, _mask_or(fallback))
            users: set[object] = model.__dict__.setdefault(_USERS, set())
            users.add(user)
            now = model.config._attn_implementation
            if now not in _NAMES.values():
                model._kvtrie_attention = now  # before it is replaced
                model.set_attn_implementation(_NAMES.get(now, _NAMES["sdpa"]))

    def detach(self, model: torch.nn.Module, user: object) -> None:
        """The last user's gives the model back the attention that it had. Called again, it does nothing."""
        with _attaching:
            users: set[object] = model.__dict__.get(_USERS, set())
            users.discard(user)
            if not users and model.config._attn_implementation in _NAMES.values():
                model.set_attn_implementation(model._kvtrie_attention)

    def make_layers(self, past: Conversation, state: State) -> list[hf.CacheLayerMixin]:
        kept = {about.number for about in past.cache.layout.attention}
        return [CellLayer(past, layer) if layer in kept else hf.DummyLayer() for layer in range(len(state.like))]

    def objection(self, past: Conversation) -> str | None:
        """Why a pass has to have tensors, or None."""
        if not attends(past.cache):
            return "form 'cells' with another attention implementation than when the cache was made"
        return None

    def copied(self, held: list[hf.CacheLayerMixin], past: Conversation) -> list[hf.CacheLayerMixin]:  # noqa: ARG002 (a form's)
        return self.make_layers(past, past.state)

    def mark(self, held: list[hf.CacheLayerMixin]) -> list[object]:  # noqa: ARG002 (a form's)
        """A pass that fails leaves no step: there is nothing to undo."""
        return []

    def go_back(self, held: list[hf.CacheLayerMixin], marked: object) -> None:
        """See ``mark``."""

    def taken(self, place: Place, indices: list[int]) -> list[hf.CacheLayerMixin]:  # noqa: ARG002 (a form's)
        """Rows are all there is."""
        return place.layers

    def cropped(self, place: Place, tokens_to_remove: int) -> list[hf.CacheLayerMixin]:
        for row in place.rows:
            length = max(0, place.columns + tokens_to_remove - row.pad)
            if row.session is not None and not row.session.can_rewind(length):
                raise NotRestorableError(f"[hf] crop: got {length} tokens to go back to, whose window is gone")
        return place.layers

    def fill(self, cache: Shared, place: Place, width: int) -> None:
        """The cells are where they are."""

    def expect(self, past: Conversation, ids: list[list[int]]) -> None:
        """Steps are made with the tokens of a pass, not ahead of it."""

    def compute(self, past: Conversation, ids: list[list[int]], run: Callable[[], object]) -> object:
        """One pass. Where there is no room for its tokens, the session goes on with tensors, and keeps nothing."""
        try:
            steps = [_step(row, own) for row, own in zip(past.rows, ids)]
        except Error as error:
            past.fall_back(str(error))
            return past.form.compute(past, ids, run)
        width = max(map(len, ids))
        now = _Pass(steps, [width - len(own) for own in ids])
        try:
            _active.held = weakref.ref(now)
            output = run()
        finally:
            _active.held = None
        if now.stored != now.attended or not all(step is None or step.complete for step in steps):
            raise InternalError(
                "[hf] form 'cells': a layer of this model did not attend through transformers' interface"
            )
        return output


def attends(cache: Shared) -> bool:
    """Whether the decoder's attention is still the function of this file."""
    return cache.decoder.config._attn_implementation in _NAMES.values()


def _step(row: Row, ids: list[int]) -> _core.Step | None:
    """A step over exactly these tokens. REQUIRES: the row has a session."""
    session = row.session
    assert session is not None
    if not ids:
        return None
    end = row.length + len(ids)
    if session.length < row.length:
        raise NotRestorableError(f"[hf] a session stands at {session.length}, its row at {row.length}")
    if session.length != row.length or session.recorded < end or session.tokens[row.length :].tolist() != ids:
        if session.recorded > row.length:
            session.rewind(row.length)
        session.append(ids)
    return session.decode()


def _attend_or(fallback: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor | None]]:
    def attend(
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **kwargs: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attention over the cells of the pass that this thread is in, else what the model had before."""
        now = _active.run
        if now is not None and module.layer_idx in now.stored:
            _refuse(query, kwargs)
            sinks = None if s_aux is None else s_aux.detach().float()
            return now.attend(module.layer_idx, query, scaling, softcap, sinks), None
        if fallback == "eager":
            own = sys.modules[type(module).__module__].eager_attention_forward
        else:
            own = sdpa_attention_forward
        given = {name: value for name, value in (("softcap", softcap), ("s_aux", s_aux)) if value is not None}
        pair: tuple[torch.Tensor, torch.Tensor | None] = own(
            module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **given, **kwargs
        )
        return pair

    return attend


def _refuse(query: torch.Tensor, options: dict[str, object]) -> None:
    if torch.is_grad_enabled() and query.requires_grad:
        raise NotSupportedError("[hf] form 'cells': got a pass with gradients, allowed inside torch.no_grad()")
    if options.get("position_bias") is not None:
        raise NotSupportedError("[hf] form 'cells': got a position_bias, allowed attention without one: form 'copy'")
    if options.get("output_attentions"):
        raise NotSupportedError("[hf] form 'cells': got output_attentions, allowed in form 'copy' only")


def _mask_or(fallback: str) -> Callable[..., torch.Tensor | None]:
    def mask(*args: object, **kwargs: object) -> torch.Tensor | None:
        """None where the cells say what each query sees."""
        if _active.run is not None:
            return None
        made: torch.Tensor | None = (eager_mask if fallback == "eager" else sdpa_mask)(*args, **kwargs)
        return made

    return mask
