"""Batches with Ray Data: prompts that share prefixes go to actors side by side, each with a model and a cache.

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

from .batches import generate, score
from .prompts import row_seed

__all__ = ["generate", "row_seed", "score"]
