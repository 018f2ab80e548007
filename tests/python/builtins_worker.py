"""The child of test_builtins: builds programs of every file in kernels/ from source; prints what the library logged.

Where KVTRIE_CACHE_DIR cannot be used, no program comes from there.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np

import kvtrie as kv
from collected import collect
from random_models import random_model


def zeros(*shape: int) -> Any:
    return kv.tensor(np.zeros(shape, np.float32))


def attend() -> None:
    """Heads that the fast kernels take, in each dtype, and others."""
    for heads, kv_heads, dim, dtype in ((6, 2, 32, "float16"), (8, 1, 64, "float32"), (2, 1, 10, "float16")):
        kv.ops.warm_up(heads, kv_heads, dim, dtype=dtype)
    for pair in (("q8_0", "q4h"), ("q4h", "q8_0")):
        kv.ops.warm_up(2, 1, 32, dtype=pair)


def multiply() -> None:
    for dtype, activation in (("float32", "gelu"), ("float16", "silu"), ("bfloat16", "silu"), ("q8_0", "silu")):
        kv.ops.warm_up(2, 1, 16, dtype="float32", weight_dtype=dtype, activation=activation)
    for dtype in ("q4_0", "q5_1", "q5_K", "q6_K", "q2_K"):
        kv.ops.warm_up(2, 1, 16, dtype="float32", weight_dtype=dtype)
    kv.ops.matmul(zeros(2, 16), zeros(16, 16))
    kv.ops.embedding(kv.ops.pack(zeros(64, 32), "q8_0"), [0, 1])


def one_by_one() -> None:
    x, one = zeros(2, 20), zeros(20)
    kv.ops.layer_norm(x, one, None, 1e-5)
    kv.ops.softmax(x)
    kv.ops.l2_norm(x, 1e-5)
    for unary in (kv.ops.silu, kv.ops.sigmoid, kv.ops.softplus, kv.ops.relu_squared):
        unary(x)
    kv.ops.clamp(x, -1.0, 1.0)
    for binary in (kv.ops.mul, kv.ops.silu_mul, kv.ops.gelu_mul):
        binary(x, x)
    x.astype("bfloat16").astype("float16")


def recur() -> None:
    kv.ops.causal_conv1d(zeros(3, 20), zeros(20, 4))
    kv.ops.gated_delta(zeros(3, 2, 16), zeros(3, 2, 16), zeros(3, 2, 16), zeros(3, 2), zeros(3, 2))
    kv.ops.ssd(zeros(3, 2, 16), zeros(3, 2), zeros(2), zeros(3, 2, 16), zeros(3, 2, 16), zeros(2))


def choose() -> None:
    """Keys of whole vectors of 4 in each dtype, and others."""
    for dim, dtype in ((8, "float32"), (8, "float16"), (8, "bfloat16"), (10, "float16")):
        keys = zeros(5, 1, dim).astype(dtype)
        kv.ops.choose_keys(zeros(2, 3, dim), keys, zeros(2, 3), zeros(2, 5), 2)
    kv.ops.attend_chosen(zeros(2, 3, 8), zeros(5, 1, 8), np.zeros((2, 2), np.int32), 4)


def replay() -> None:
    model = random_model("dense")
    model.warm_up()


def main() -> None:
    said = collect(logging.INFO)
    attend()
    multiply()
    one_by_one()
    recur()
    choose()
    replay()
    programs = kv.Device().memory()["programs"]
    print(json.dumps({"programs": programs, "said": [text for text in said if "program cache" in text]}))


if __name__ == "__main__":
    main()
