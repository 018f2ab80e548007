"""Files that both kvtrie and llama.cpp load, for tests/campaign/llama_cpp.py and test_llama_cpp.py.

They are those of checkpoint_variants.GGUF and of gguf_sweep.BASES. Where llama.cpp takes for granted what a file could
say otherwise, the file says that: :data:`CHANGES`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from bounds import Bound
from checkpoint_variants import GGUF
from gguf_files import checkpoint
from gguf_files import write as write_base
from gguf_models import gguf_file
from gguf_sweep import BASES

SAME = Bound("LLAMA_CPP", 5e-4, "float32 on both sides, summed and rounded in other orders")
GELU = Bound(
    "LLAMA_CPP_GELU", 5e-2, "the same where llama.cpp looks GELU up in a table of float16, by what was rounded to it"
)

_YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
CHANGES: dict[str, dict[str, Any]] = {
    "phi3-long": {"sliding_window": None, "original_max_position_embeddings": 512, "max_position_embeddings": 2048},
    "phi3-attention": {
        "sliding_window": None,
        "original_max_position_embeddings": 512,
        "max_position_embeddings": 2048,
    },
    # llama.cpp turns index keys by a matrix of Hadamard's of 64 numbers at a time.
    **{key: {"index_head_dim": 64} for key in ("deepseek32", "glm-dsa", "glm-dsa-types", "glm-dsa-later")},
    "dots1": {"num_key_value_heads": 4, "attention_bias": False},
    "olmo2/windows": {
        "num_hidden_layers": 4,
        "layer_types": None,
        "rope_parameters": {
            "full_attention": _YARN,
            "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        },
    },
    "nemotron_h_moe": {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "use_bias": False},
}
# Beside the keys of a form: llama.cpp does not load these files without them.
BESIDE: dict[str, dict[str, Any]] = {"ernie4_5-moe": {"interleave_moe_layer_step": 1}}
LEFT_OUT = {
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), "llama.cpp has value heads as large as key heads"),
    "gemma3": "llama.cpp reads a pattern of windows as a number only, and the file has a list",
    **dict.fromkeys(
        ("gemma3n", "gemma3n-uncapped"),
        "llama.cpp has 20 layers with cells of their own, and divides the variance of gates by one less than there are:"
        " with 22 layers, of which 10 keep a twentieth of 8,192 gates, logits are 4e-2 apart, of 48 gates 0.8",
    ),
    "deepseek2-shares": "llama.cpp chooses groups of experts by their two best, DeepSeek-V2 by the best",
    "kimi-linear-ranked": "llama.cpp reads no rank of queries in this architecture",
    "granitehybrid/partly": "llama.cpp rotates pairs of the whole head, of which checkpoints rotate those of a half",
    "granitehybrid-dense": "llama.cpp reads no biases of recurrent layers' projections",
}
NAMES = [name for name in (*BASES, *GGUF) if name not in LEFT_OUT]


def text(rows: int) -> Any:
    """int64 [rows]."""
    return np.random.default_rng(3).integers(2, 60, rows)


def family(name: str) -> str:
    return checkpoint(BASES[name][0])[0].model_type if name in BASES else GGUF[name].family


def bound(name: str) -> float:
    return (GELU if name.startswith("gemma") else SAME).value


def write(name: str, folder: Path) -> Path:
    """The file in ``folder``."""
    if name in BASES:
        golden, changes = BASES[name]
        return write_base(*checkpoint(golden, **changes), folder / "model.gguf")
    form = GGUF[name]
    return gguf_file(form._replace(changes={**form.changes, **CHANGES.get(name, {})}), folder, **BESIDE.get(name, {}))[
        0
    ]


def ours(path: Path, tokens: Any) -> Any:
    """Logits of all rows, float32 [rows, vocab]."""
    model = kv.models.load(path, dtype="float32")
    cache = kv.PrefixCache(model.caches(capacity=len(tokens) + 8, dtype="float32", warm_up=False))
    with cache, cache.begin(tokens.tolist()) as session:
        return np.concatenate([np.array(model(step, all_rows=True)) for step in session.prefill(chunk=len(tokens))])
