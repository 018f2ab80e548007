"""The PrefixCache that fits a transformers model, and sessions that are transformers' caches."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import torch
from transformers import PreTrainedModel
from typing_extensions import Self

from .. import _core
from .._arguments import cell_formats, refusal, shown, text, whole
from .._live import Live
from ..errors import ArgumentError, ClosedError, NotSupportedError
from ..prefix_cache import Bytes, Keys, PrefixCache
from ..stores import Store
from . import forward
from .cells import Cells
from .copying import Copying
from .identity import fingerprint, named
from .inputs import Inputs
from .layout import Layout, layout_of
from .past import Past
from .place import Form
from .states import States

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_FORMS: Mapping[str, Callable[[], Form]] = {"copy": Copying, "cells": Cells}


class Cache(Live):
    """The state of a transformers model, kept by token: in memory, and below it wherever a ``PrefixCache`` keeps it.

    ``model``: a causal language model on its device, in eval mode. ``memory``: bytes for K, V and states, or a text
    such as "1GiB"; ``capacity`` (tokens) and ``slots`` (states of linear layers) say it instead, each. ``dtype`` of K
    and V: None is float16 for a model in float16, else float32, which loses nothing. ``form``: "copy" gives the model
    ordinary tensors, so that every attention works; "cells" makes its attention read the cells where they are, on a
    CPU, and copies nothing. ``fingerprint``: a name for the numbers of the weights, for ``disk`` and ``store``; the
    adapters that are applied and all else that counts are added to it. None computes :func:`kvtrie.hf.fingerprint`
    where one of them is given. ``device``: where the cells are; None: the best OpenCL device, "host": plain memory.
    ``host_bytes``, ``disk``, ``disk_bytes``, ``store``, ``policy``, ``checkpoint_every``, ``ttl`` and ``keys``: as for
    ``kvtrie.PrefixCache``.

    While it is open, ``forward`` of the decoder and of the model around it are replaced; calls that are given no
    session of this cache run as before. Any thread may begin sessions. Raises ``NotSupportedError`` for layers that
    keep something else than K, V and states and for heads that answer from one row of many (classification), and
    ``ArgumentError`` where ``memory`` is too little.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        memory: int | str = "1GiB",
        capacity: int | None = None,
        slots: int | None = None,
        dtype: str | tuple[str, str] | None = None,
        form: str = "copy",
        device: _core.Place = None,
        fingerprint: str | None = None,
        host_bytes: Bytes = "auto",
        disk: str | os.PathLike[str] | None = None,
        disk_bytes: Bytes = None,
        store: str | Store | None = None,
        policy: str = "lru",
        checkpoint_every: int | None = None,
        ttl: float | None = None,
        keys: Keys = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module) or not hasattr(model, "get_decoder"):
            raise refusal(model, "hf.Cache", "model", "a causal language model of transformers")
        if form not in _FORMS:
            raise ArgumentError(f"[hf.Cache] form: got {shown(form)}, allowed {' or '.join(map(repr, _FORMS))}")
        self._open = False
        self._model = model
        self.decoder: torch.nn.Module = model.get_decoder()
        self._head = _head_of(model, self.decoder)
        self.layout: Layout = layout_of(model, self.decoder)
        self.form: Form = _FORMS[form]()
        self.form.allow(self)
        weights = model.get_input_embeddings().weight
        self.dtype: torch.dtype = weights.dtype
        self.device: torch.device = weights.device
        plain = "float16" if self.dtype is torch.float16 else "float32"
        kept = plain if dtype is None else cell_formats(dtype, "hf.Cache", "dtype")
        caches = self.layout.caches(_bytes(memory), capacity, slots, kept, device)
        self.longest: int = min(
            (each.capacity for each in caches if isinstance(each, _core.CausalCache)), default=1 << 30
        )
        self.prefix_cache: PrefixCache = PrefixCache(
            caches,
            fingerprint=_identity(model, fingerprint, disk is not None or store is not None),
            host_bytes=host_bytes,
            disk=disk,
            disk_bytes=disk_bytes,
            store=store,
            policy=policy,
            checkpoint_every=checkpoint_every,
            ttl=ttl,
            keys=keys,
        )
        """The tree itself: ``plan``, ``explain``, ``pin``, ``stats``, ``tree``, ``save`` and the rest."""
        user = object()
        self._give_back = weakref.finalize(self, _give_back, model, self.decoder, self._head, self.form, user)
        self._give_back.atexit = False
        try:
            forward.install(self.decoder, user)
            if self._head is not None:
                forward.install(self._head, user, forward.Head)
            self.form.attach(model, user)
            content = disk is not None or store is not None
            self.states: States = States(model, self.decoder, self.layout, content=content)
        except BaseException:
            self.close()
            raise
        self._open = True

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return not self._open or self.prefix_cache.closed

    @property
    def model(self) -> torch.nn.Module:
        """The model that it was made for."""
        return self._model

    def session(
        self,
        input_ids: torch.Tensor | Sequence[int] | None = None,
        attention_mask: torch.Tensor | None = None,
        *,
        namespace: str = "default",
    ) -> Past:
        """A transformers cache for one call of ``generate`` or many, with all that is known of its prompt.

        Without ``input_ids`` the prompt is looked up in the first forward pass; with them, [tokens] or
        [batch, tokens], it is looked up now, and ``past.reused`` and ``past.remaining`` say what was found.
        ``attention_mask``: 0 for padding, on the left only. Nothing is shared between namespaces.
        """
        if self.closed:
            raise ClosedError("[hf.session] the cache is closed")
        past = Past(self, text(namespace, "hf.session", "namespace"))
        if input_ids is not None:
            past.expect(*_prompts(input_ids, attention_mask))
        elif attention_mask is not None:
            raise ArgumentError("[hf.session] attention_mask: given without input_ids")
        return past

    def stale(self) -> bool:
        """Whether the model computes something else now than when the cache was made: what was known then is not
        reused, and is again once the model is back in that state. docs/transformers.md says what is looked at."""
        return self.states.current(thorough=True) is not self.states.base

    def close(self) -> None:
        """Closes the PrefixCache, and gives the model its own ``forward`` back. Called again, it does what is left of a
        call that was interrupted; in a forked process it does nothing."""
        self._open = False
        hooks = self._give_back.peek()
        if hooks is not None:
            _give_back(*hooks[2])
            self._give_back.detach()
        if hasattr(self, "states"):
            self.states.close()
        self.prefix_cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = repr(self.prefix_cache) if self._open else "closed"
        return f"<kvtrie.hf.Cache of {type(self._model).__name__}, {self.form.name}: {state}>"


def _give_back(
    model: torch.nn.Module,
    decoder: torch.nn.Module,
    head: torch.nn.Module | None,
    form: Form,
    user: object,
) -> None:
    """Also for a cache that nobody has any more."""
    form.detach(model, user)
    forward.remove(decoder, user)
    if head is not None:
        forward.remove(head, user)


def _identity(model: torch.nn.Module, given: str | None, needed: bool) -> str:
    if given is not None:
        return named(model, text(given, "hf.Cache", "fingerprint"))
    return fingerprint(model) if needed else ""


def _head_of(model: torch.nn.Module, decoder: torch.nn.Module) -> torch.nn.Module | None:
    """The model around the decoder, whose ``forward`` is given labels and such; None where the decoder is all of it."""
    around = (module for module in model.modules() if isinstance(module, PreTrainedModel))
    head = next(around, decoder)
    if head is decoder:
        return None
    if not head.can_generate():
        raise NotSupportedError(
            f"[hf.Cache] model: got {type(head).__name__}, allowed a causal language model, whose head answers for "
            f"each token from its own row"
        )
    return head


def _bytes(value: int | str) -> int:
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB)?\s*", value, re.IGNORECASE)
        if found is None:
            raise ArgumentError(f"[hf.Cache] memory: got {value!r}, allowed bytes or a text such as '512MiB'")
        return int(float(found[1]) * _UNITS[(found[2] or "").upper()])
    return whole(value, "hf.Cache", "memory", 1)


def _prompts(input_ids: torch.Tensor | Sequence[int], mask: torch.Tensor | None) -> tuple[list[list[int]], int]:
    """Token ids of each row without padding, and the columns of the batch."""
    ids = torch.as_tensor(input_ids)
    ids = ids.unsqueeze(0) if ids.ndim == 1 else ids
    if ids.ndim != 2 or ids.numel() == 0 or ids.is_floating_point():
        raise ArgumentError(
            f"[hf.session] input_ids: got {list(ids.shape)} {ids.dtype}, allowed integers [tokens] or [batch, tokens]"
        )
    inputs = Inputs({"input_ids": ids, "attention_mask": mask})
    found = [inputs.real(row) for row in range(len(ids))]
    rows = [row for row in found if row]
    if len(rows) != len(found):
        raise ArgumentError("[hf.session] attention_mask: got padding elsewhere, allowed on the left of each row")
    return rows, int(ids.shape[1])
