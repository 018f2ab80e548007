"""The process that a helper starts (helper.py): attention first, then everything, at the lowest priority."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from .._core import CausalCache, Device, tensor
from ..prefix_cache import PrefixCache
from .config import ModelConfig
from .families import FAMILIES
from .helper import SMALL, first_of, told_config
from .weights import Array, WeightSource

_PATIENCE = 60.0  # seconds that a helper waits for the first step


def _listen(went_on: threading.Event) -> None:
    """Ends the process when the pipe is closed."""
    while os.read(0, 1):
        went_on.set()
    os._exit(0)


def main() -> None:
    """The helper: its arguments are what it is told and the marker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["KVTRIE_HELPER"] = "0"  # its own model has none
    went_on = threading.Event()
    threading.Thread(target=_listen, args=(went_on,), daemon=True).start()
    told, done = json.loads(sys.argv[2]), Path(sys.argv[3])
    device, config = Device(told["device"]), told_config(told["config"])
    if not first_of(done).exists():
        _attention(device, config, told["kv"])
        first_of(done).touch(mode=0o600)
    os.write(1, b"a")
    if not went_on.wait(_PATIENCE):
        return
    os.nice(19)
    with open(f"{done}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _everything(device, config, told)
            done.touch(mode=0o600)


def _attention(device: Device, config: ModelConfig, dtype: str) -> None:
    """One row stored and attended."""
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    pool = CausalCache([0], kv_heads, dim, SMALL, dtype=dtype, device=device)
    with PrefixCache([pool], host_bytes=0) as cache:
        step = cache.batch([cache.begin([0], publish=False)])
        qkv = np.zeros((1, (heads + 2 * kv_heads) * dim), np.float32)
        np.asarray(step.attend_qkv(0, tensor(qkv, device=device)))


def _zeros(name: str, shape: tuple[int, ...], kind: str) -> WeightSource:
    """A tensor of zeros as a file stores it."""
    if kind not in ("F32", "F16", "BF16"):
        from .gguf.weights import zero_blocks  # half a second

        return zero_blocks(name, shape, kind)
    dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[kind]

    def rows(begin: int, end: int) -> Array:
        return np.zeros((end - begin, *shape[1:]), dtype)

    return WeightSource(name, kind, shape, math.prod(shape) * np.dtype(dtype).itemsize, "zeros", rows)


def _everything(device: Device, config: ModelConfig, told: dict[str, Any]) -> None:
    family = FAMILIES[config.model_type]
    stored, shapes = told.get("stored", {}), family.tensor_shapes(config)
    sources = {name: _zeros(name, shape, stored.get(name, "F32")) for name, shape in shapes.items()}
    kept = {"dtype": told["weights"], "precision": told["precision"]}
    family(config, sources, device=device, **kept).warm_up(told["kv"])
    os.write(1, b"e")
    device._save_programs()
