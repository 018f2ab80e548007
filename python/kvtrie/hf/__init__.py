"""K and V of any Hugging Face causal model, kept in a :class:`kvtrie.PrefixCache`: ``pip install 'kvtrie[hf]'``, then

    cache = kv.hf.Cache(model, memory="1GiB")  # model: an AutoModelForCausalLM
    model.generate(input_ids, cache=cache.session())

Tokens that any earlier call, branch, process or day computed are not computed again.

    layout.py    which layers the model has, and what they keep: by a forward pass over one token
    identity.py  a fingerprint of all that K and V depend on beside the tokens
    walk.py      the same written down by one walk over the modules, and whether another would find the same
    naming.py    a text for whatever hangs on a module
    adapters.py  which adapters of peft a layer applies
    tensors.py   which numbers a tensor holds
    states.py    the states that a model has been in: adapters switched, flags set
    cache.py     Cache: the PrefixCache that fits the model
    past.py      Past, a transformers ``Cache`` over one session for each row of a batch
    standing.py  what it has, and the turns of calls on it
    place.py     where it stands, as one value, and how a pass that was interrupted is undone
    inputs.py    what a forward pass is given: tokens, padding, positions; and whether K and V follow from the tokens
    row.py       one row's tokens and its session: steps, rewinding, branches
    layers.py    layers that hold ordinary tensors (form "copy")
    growing.py   K and V that grow in place
    cells.py     layers without tensors, and an attention function that reads the cells (form "cells")
    forward.py   stands before ``forward`` of the decoder and its head, and hands what they are given to the Past
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cache import Cache as Cache
    from .identity import fingerprint as fingerprint
    from .past import Past as Past

__all__ = ["Cache", "Past", "fingerprint"]

_HOMES = {"Cache": "cache", "Past": "past", "fingerprint": "identity"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ..errors import NotSupportedError

    try:
        found: object = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
        return found
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "transformers"):
            raise
        raise NotSupportedError(f"[hf] needs {error.name}: pip install 'kvtrie[hf]'") from error


def __dir__() -> list[str]:
    return sorted(__all__)
