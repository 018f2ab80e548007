"""The child of bench_startup: from a fresh interpreter to the first token, in one system; prints seconds as JSON.

    python first_token.py kvtrie|llama.cpp|transformers MODEL TOKENS     MODEL: a folder or a GGUF file; TOKENS: 1,2,3

Nothing is imported before the clock runs but what reads it. Greedy; the token comes with the times, as a check.
"""

from __future__ import annotations

import sys
import time

phases: dict[str, float] = {}
_last = time.perf_counter()


def mark(phase: str) -> None:
    """The phase ends here."""
    global _last
    now = time.perf_counter()
    phases[phase] = now - _last
    _last = now


def kvtrie(path: str, prompt: list[int]) -> int:
    """Import, device, weights and tokenizer, caches, prefill, sampling."""
    import kvtrie as kv

    mark("import")
    device = kv.Device()
    mark("device")
    model = kv.models.load(path, device, "float16")
    mark("load")
    cache = kv.PrefixCache(model.caches(capacity=4096), fingerprint=model.fingerprint)
    mark("caches")
    with cache.begin(prompt) as session:
        for step in session.prefill():
            logits = model(step)
        device.finish()
        mark("prefill")
        token = next(kv.generate(model, session, max_tokens=2, logits=logits))
        mark("sample")
        return int(token)


def llama_cpp(path: str, prompt: list[int]) -> int:
    """Import and library, weights, context, prefill, argmax."""
    import numpy as np

    from peers import llama

    llama.api()
    mark("import")
    model = llama.Model(path)
    mark("load")
    context = model.context(tokens=4096)
    mark("caches")
    context.prefill(0, prompt)
    logits = context.logits()
    mark("prefill")
    token = int(np.argmax(logits[-1]))
    mark("sample")
    return token


def transformers(path: str, prompt: list[int]) -> int:
    """Import, weights, prefill with a cache, argmax."""
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    mark("import")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16)
    model.eval()
    mark("load")
    cache = DynamicCache(config=model.config)
    mark("caches")
    with torch.inference_mode():
        logits = model(torch.tensor([prompt]), past_key_values=cache, use_cache=True).logits
        mark("prefill")
        token = int(logits[0, -1].argmax())
    mark("sample")
    return token


if __name__ == "__main__":
    system, model_path, tokens = sys.argv[1:]
    run = {"kvtrie": kvtrie, "llama.cpp": llama_cpp, "transformers": transformers}[system]
    first = run(model_path, [int(token) for token in tokens.split(",")])

    import json

    print(json.dumps({"token": first, "phases": phases}))
