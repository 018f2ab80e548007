"""Makes tests/python/goldens: tiny random checkpoints and the logits that Hugging Face transformers computes for them.

    pip install torch transformers safetensors
    python tests/python/make_goldens.py

Each folder holds a loadable checkpoint and ``logits.npy`` [tokens, vocab], float32, computed on the CPU after upcasting
the weights to float32, with eager attention; ``tokens.npy`` [tokens] is common to all. Seeds are fixed, so the same
versions write the same files; ``versions.json`` names them. Tests read the files and need neither of the two. Models
that are not dense have make_goldens_kinds.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from reference_llama import random_llama, reference_logits

FOLDER = Path(__file__).parent / "goldens"
TOKENS = 72
VOCAB = 128

# name -> (arguments of random_llama, stored type, shards). Original contexts lie well inside the tokens, so that every
# branch of a scaling is taken.
CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "llama-gqa-tied": ({"tied": True}, "float32", 1),
    "llama3-scaled-bias": (
        {
            "attention_bias": True,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
            "max_position_embeddings": 256,
        },
        "float16",
        1,
    ),
    "llama-linear-mlp-bias": (
        {
            "mlp_bias": True,
            "kv_heads": 4,
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "max_position_embeddings": 128,
        },
        "float16",
        1,
    ),
    "llama-yarn-head-dim": (
        {
            "head_dim": 32,
            "heads": 2,
            "kv_heads": 1,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
            "max_position_embeddings": 128,
        },
        "bfloat16",
        1,
    ),
    "llama-dynamic": (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 96},
        "float16",
        1,
    ),
    "qwen2-bias": ({"family": "qwen2", "rope_theta": 1000000.0, "rms_norm_eps": 1e-6}, "bfloat16", 1),
    "qwen2-tied-sharded": ({"family": "qwen2", "tied": True, "kv_heads": 1}, "float16", 2),
    "qwen3-norms": ({"family": "qwen3", "head_dim": 32, "rope_theta": 1000000.0}, "bfloat16", 2),
    "qwen3-bias-tied": ({"family": "qwen3", "tied": True, "attention_bias": True, "head_dim": 16}, "float16", 1),
}


def main() -> None:
    import torch
    import transformers

    FOLDER.mkdir(exist_ok=True)
    tokens = np.random.default_rng(20).integers(0, VOCAB, TOKENS).astype(np.int32)
    np.save(FOLDER / "tokens.npy", tokens)
    for seed, (name, (arguments, dtype, shards)) in enumerate(CASES.items()):
        config, weights = random_llama(seed, vocab=VOCAB, intermediate=96, **arguments)
        folder = FOLDER / name
        shutil.rmtree(folder, ignore_errors=True)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**config), attn_implementation="eager"
        ).to(getattr(torch, dtype))
        rounded = {key: torch.from_numpy(value).to(getattr(torch, dtype)) for key, value in weights.items()}
        report = model.load_state_dict(rounded, strict=False)
        tied = {"lm_head.weight"} if config["tie_word_embeddings"] else set()
        if set(report.missing_keys) - tied or report.unexpected_keys:
            raise SystemExit(f"{name}: transformers does not take these weights: {report}")
        model.tie_weights()
        size = sum(value.numel() * value.element_size() for value in rounded.values())
        model.save_pretrained(folder, max_shard_size=size // shards + 1 if shards > 1 else "1GB")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()
        np.save(folder / "logits.npy", logits.astype(np.float32))
        widened = {key: value.float().numpy() for key, value in rounded.items()}
        own = reference_logits(config, widened, tokens)
        files = sorted(file.name for file in folder.iterdir())
        print(f"{name:24} reference differs by {np.abs(own - logits).max() / np.abs(logits).max():.1e}  {files}")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (FOLDER / "versions.json").write_text(json.dumps(versions) + "\n", encoding="utf-8")
    print(f"{sum(file.stat().st_size for file in FOLDER.rglob('*') if file.is_file()) / 2**20:.2f} MiB")


if __name__ == "__main__":
    main()
