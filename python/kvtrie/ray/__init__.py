"""With Ray: batches of prompts (Ray Data), and several replicas of a server as one (``kvtrie.ray.scale``, Ray Serve).

Batches with Ray Data: prompts that share prefixes go to actors side by side, each with a model and a cache.

    answers = kv.ray.generate(dataset, "path/to/checkpoint", prompt="question", max_tokens=64)
    answers.write_parquet("answers")

    dataset --> prompts.py   each prompt as tokens, and as a key that sorts as its tokens do     tasks
            --> a sort by that key, then blocks of ``batch_size`` rows in its order              Ray's
            --> workers.py   answers or scores a block in one cache (engine.py)                  actors
            --> a sort by the rows' first order, where it is asked for (batches.py)              Ray's

Both functions are lazy, as all of Ray Data is: nothing runs before the result is read. How blocks are kept, tried again
and written is Ray's. Needs the extra ``kvtrie[ray]``; importing this does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import scale as scale
    from .batches import generate as generate
    from .batches import score as score
    from .prompts import row_seed as row_seed

__all__ = ["generate", "row_seed", "scale", "score"]

_HOMES = {"generate": "batches", "score": "batches", "row_seed": "prompts"}

if not TYPE_CHECKING:  # to type checkers, a name that is not there is an error

    def __getattr__(name: str) -> object:
        """The object of a name, loaded when first used: batches need models, the policies of routing need nothing."""
        if name == "scale":
            return importlib.import_module(".scale", __name__)
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
