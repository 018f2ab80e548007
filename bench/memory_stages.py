"""One process that comes to life step by step and says what memory each step took: the child of bench_memory.py.

    python memory_stages.py FILE CELLS PROMPT    JSON: [{"stage", "mib", "known_mib"}, ...], then {"parts": {...}}

``mib``: what the process has after the step. ``known_mib``: what of the step is the bytes of weights, or of cells,
by our own count.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

import process_memory


def main() -> None:
    """Each step in the order in which a server takes them; the module is imported as one of them."""
    file, cells, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rows: list[dict[str, Any]] = []

    def say(stage: str, known: int = 0) -> None:
        gc.collect()
        total = sum(process_memory.of(os.getpid()).values())
        rows.append({"stage": stage, "mib": total, "known_mib": known / 2**20})

    say("interpreter")
    import numpy as np

    say("numpy")
    import kvtrie as kv

    say("kvtrie")
    kv.Device()
    say("device")
    tokenizer = kv.models.load_tokenizer(file)
    assert tokenizer is not None
    say("tokenizer")
    del tokenizer
    model = kv.models.load(file)
    say("model", model.nbytes)
    caches = model.caches(capacity=cells)
    say("cells", sum(each.nbytes for each in caches))
    cache = kv.PrefixCache(caches, host_bytes=0)
    from kvtrie.quality import shipped_text

    prompt = model.tokenizer.encode(shipped_text())[:length]
    with cache.begin(prompt) as session:
        for step in session.prefill():
            logits = model(step)
        np.asarray(logits)
        say("prompt")
    print(json.dumps({"rows": rows, "parts": process_memory.of(os.getpid()), "tokens": len(prompt)}))


if __name__ == "__main__":
    main()
