#!/usr/bin/env python3
"""llama.cpp's logits of every row of one text, float32: llama_logits.py FILE.gguf TOKENS.npy INTO.npy

A process of its own for llama_cpp.py: what llama.cpp does not expect ends it. K and V in float32, no flash attention.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from peers import llama


def main() -> None:
    path, tokens, into = map(Path, sys.argv[1:])
    text = np.load(tokens)
    settings = {"threads": 1, "kv_dtype": "float32", "flash_attention": False, "swa_full": True}
    with llama.Model(path) as model, model.context(tokens=len(text), **settings) as context:
        context.decode([(0, 0, text)], every=True)
        np.save(into, context.logits())


if __name__ == "__main__":
    main()
