"""Values of settings that only families with recurrent states have, for config_sweep.py."""

from __future__ import annotations

from typing import Any

RECURRENT_VALUES: dict[str, list[Any]] = {
    "full_attn_idxs": [None, [], [0, 2]],
    "conv_L_cache": [1, 2, 4],
    "conv_bias": [True, False],
    "norm_eps": [1e-3, 0.1],
    "tie_embedding": [True, False, None],
    "block_ff_dim": [24, None],
    "block_auto_adjust_ff_dim": [True, False],
    "block_ffn_dim_multiplier": [None, 0.5, 2],
    "block_multiple_of": [8, 100],
    "num_dense_layers": [0, 2, 5],
    "use_expert_bias": [True, False],
}
