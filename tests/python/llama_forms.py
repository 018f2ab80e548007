"""Files that both kvtrie and llama.cpp load, for tests/campaign/llama_cpp.py and test_llama_cpp.py.

They are those of checkpoint_variants.GGUF and of gguf_sweep.BASES. Where llama.cpp takes for granted what a file could
say otherwise, the file says that: :data:`CHANGES`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

import kvtrie as kv
from bounds import Bound
from checkpoint_variants import GGUF
from config_sweep import Case, build, save
from gguf_files import checkpoint, rewrite
from gguf_files import write as write_base
from gguf_models import gguf_file
from gguf_sweep import BASES
from kvtrie.models.weights import to_float32

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
    "granitehybrid-dense": {"mamba_proj_bias": False},  # llama.cpp reads none
    "nemotron_h_moe": {"layers_block_type": ["linear_attention", "moe", "full_attention", "moe"], "use_bias": False},
}
# Beside the keys of a form: llama.cpp does not load these files without them.
BESIDE: dict[str, dict[str, Any]] = {"ernie4_5-moe": {"interleave_moe_layer_step": 1}}
# Of checkpoints that are made for it: llama.cpp has value heads as large as key heads, the goldens have others.
_EVERY_SECOND = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
MADE: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3next": ("qwen3_next", {**_EVERY_SECOND, "mlp_only_layers": []}),
    "qwen35": ("qwen3_5_text", _EVERY_SECOND),
    "qwen35moe": ("qwen3_5_moe_text", _EVERY_SECOND),
}
# Keys that are rewritten: llama.cpp reads a pattern of windows as a number only, where the file has a list.
REWRITTEN: dict[str, dict[str, int]] = {
    "gemma3": {"attention.sliding_window_pattern": 3},
    "exaone4-windows": {"attention.sliding_window_pattern": 4},
}
LEFT_OUT = {
    **dict.fromkeys(
        ("gemma3n", "gemma3n-uncapped"),
        "llama.cpp has 20 layers with cells of their own, and divides the variance of gates by one less than there are:"
        " with 22 layers, of which 10 keep a twentieth of 8,192 gates, logits are 4e-2 apart, of 48 gates 0.8",
    ),
    "deepseek2/softmax": "llama.cpp chooses groups of experts by their two best, DeepSeek-V2 by the best;"
    " deepseek2-lite has no groups",
    "kimi-linear-ranked": "llama.cpp reads no rank of queries in this architecture",
    "granitehybrid/partly": "llama.cpp rotates pairs of the whole head, of which checkpoints rotate those of a half",
}
NAMES = [name for name in (*BASES, *GGUF) if name not in LEFT_OUT]


def text(rows: int) -> Any:
    """int64 [rows]."""
    return np.random.default_rng(3).integers(2, 60, rows)


def architecture(name: str) -> str:
    return name if name in BASES else GGUF[name].architecture


def family(name: str) -> str:
    return checkpoint(BASES[name][0])[0].model_type if name in BASES else GGUF[name].family


def bound(name: str) -> float:
    return (GELU if name.startswith("gemma") else SAME).value


def write(name: str, folder: Path) -> Path:
    """The file in ``folder``."""
    if name in MADE:
        path = write_base(*_made(*MADE[name], folder), folder / "model.gguf")
    elif name in BASES:
        golden, changes = BASES[name]
        path = write_base(*checkpoint(golden, **changes), folder / "model.gguf")
    else:
        form = GGUF[name]
        form = form._replace(changes={**form.changes, **CHANGES.get(name, {})})
        path = gguf_file(form, folder, **BESIDE.get(name, {}))[0]
    return rewrite(path, lambda values, _: _rewritten(name, values)) if name in REWRITTEN else path


def _made(family: str, changes: dict[str, Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """Configuration and weights of a random checkpoint."""
    case = Case(family, changes)
    save(build(case), case.file(), folder)
    model = kv.models._FAMILIES[family]
    config = model.parse_config(case.file())
    sources = model.adapt(config, kv.models.weights.open_folder(folder))
    shapes = model.tensor_shapes(config)
    return config, {each: to_float32(sources[each].read(), sources[each].dtype) for each in shapes}


def _rewritten(name: str, values: dict[str, Any]) -> None:
    for key, value in REWRITTEN[name].items():
        values[f"{architecture(name)}.{key}"] = ([gguf.GGUFValueType.UINT32], value)


def ours(path: Path, tokens: Any) -> Any:
    """Logits of all rows, float32 [rows, vocab]."""
    model = kv.models.load(path, dtype="float32")
    cache = kv.PrefixCache(model.caches(capacity=len(tokens) + 8, dtype="float32", warm_up=False))
    with cache, cache.begin(tokens.tolist()) as session:
        return np.concatenate([np.array(model(step, all_rows=True)) for step in session.prefill(chunk=len(tokens))])
