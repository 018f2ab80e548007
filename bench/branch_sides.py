"""The sides of bench_branch: one conversation of a length in each system, and what its user calls on it.

All hold the same state: 8 layers, 4 K/V heads of 64, float16, that is 8 KiB a token. Each operation prepares outside
the clock, times one call, puts things back, and gives the seconds. ``moved`` is the K/V bytes that one call copies.
"""

from __future__ import annotations

import copy
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from peers import gguf_file, hugging_face, llama

LAYERS, KV_HEADS, DIM = 8, 4, 64
TOKEN_BYTES = LAYERS * 2 * KV_HEADS * DIM * 2
OPERATIONS = ("branch", "rewind", "switch", "resume")
BLOCK = 512  # tokens


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of a call, and what it gave."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def prompt(length: int, seed: int) -> np.ndarray:
    """Token ids, int32."""
    return np.random.default_rng(seed).integers(0, 32000, length, dtype=np.int32)


class Ours:
    """kvtrie: two live conversations that share nothing, and a published one to come back to."""

    name = "kvtrie"

    def __init__(self, length: int, conversations: int = 2) -> None:
        self.length = length
        capacity = conversations * (length + 512) + 512
        self.device = kv.Device()
        self.cache = kv.PrefixCache(kv.caches.CausalCache(range(LAYERS), KV_HEADS, DIM, capacity), host_bytes=0)
        self.tokens = prompt(length, length)
        self.session = self._filled(self.tokens)
        self.other = self._filled(prompt(length, length + 1)) if conversations > 1 else None

    def _filled(self, tokens: np.ndarray) -> Any:
        session = self.cache.begin(tokens)
        for step in session.prefill(chunk=BLOCK):
            put(step, len(step.tokens))
        return session

    def branch(self) -> float:
        """A second session at the same place."""
        seconds, twin = timed(self.session.branch)
        twin.close()
        return seconds

    def rewind(self) -> float:
        """Back to the middle, on a branch."""
        twin = self.session.branch()
        seconds, _ = timed(lambda: twin.rewind(self.length // 2))
        twin.close()
        return seconds

    def switch(self) -> float:
        """Claiming a decode step on the conversation that did not run last."""
        self.session, self.other = self.other, self.session
        self.session.append(1)
        seconds, _ = timed(self.session.decode)
        self.session.rewind(self.length)
        return seconds

    def resume(self) -> float:
        """``begin`` on tokens whose state is published and on the device: finding it is part of it."""
        seconds, twin = timed(lambda: self.cache.begin(self.tokens))
        assert twin.reused == self.length - 1
        twin.close()
        return seconds

    def bytes_moved(self) -> int:
        """K/V bytes the device has copied so far."""
        return int(self.device.memory()["kv_bytes_moved"])

    def branches(self, count: int) -> None:
        """``count`` branches that each go on by a token of their own, all kept."""
        self.kept = [self.session.branch() for _ in range(count)]
        for token, twin in enumerate(self.kept):
            twin.append(token)
            put(twin.decode(), 1)

    def close(self) -> None:
        """Free everything."""
        self.cache.close()


def put(step: Any, rows: int) -> None:
    """What a model does to the cache in a step: random K and V."""
    values = np.random.default_rng(rows).standard_normal((2, rows, KV_HEADS, DIM)).astype(np.float16)
    for layer in range(LAYERS):
        step.put(layer, values[0], values[1])


class LlamaCpp:
    """llama.cpp, unified K/V buffer: sequence 0 is the conversation; another is parked as bytes in host memory.

    Nothing of 64k tokens is prefilled: one block is computed, then copied to each place and shifted there through the
    public calls; the first decode rotates the keys. The model is made for the purpose, hidden size 64, with the K/V
    shape of the other sides, on which alone these calls depend.
    """

    name = "llama.cpp"

    def __init__(self, length: int, sequences: int = 2, cells: int | None = None) -> None:
        self.length = length
        self.model = llama.Model(narrow_model())
        self.context = self.model.context(tokens=cells or length + 2 * BLOCK, sequences=sequences)
        self._fill(length)
        self.bytes = self.context.state_bytes(0)
        self.parked = self.context.save_state(0) if sequences == 2 else np.empty(0, np.uint8)
        self.spare = np.ones_like(self.parked)  # memory used before: the best case of saving

    def _fill(self, length: int) -> None:
        self.context.prefill(0, prompt(BLOCK, 0) % self.model.vocab_size)
        block = self.context.save_state(0)
        for position in range(BLOCK, length, BLOCK):
            self.context.load_state(1, block)
            self.context.shift(1, position)
            self.context.copy(1, 0)
            self.context.remove(1)
        self.context.decode([(0, length, [1])])
        self.context.remove(0, length)
        assert self.context.length(0) == length

    def branch(self) -> float:
        """``llama_memory_seq_cp`` into a free sequence."""
        seconds, _ = timed(lambda: self.context.copy(0, 1))
        self.context.remove(1)
        return seconds

    def rewind(self) -> float:
        """``llama_memory_seq_rm`` of the second half, on a branch."""
        self.context.copy(0, 1)
        seconds, _ = timed(lambda: self.context.remove(1, self.length // 2))
        self.context.remove(1)
        return seconds

    def switch(self) -> float:
        """One conversation out (``state_seq_get_data``), another in (``state_seq_set_data``)."""

        def both() -> None:
            self.context.save_state(0, into=self.spare)
            self.context.load_state(0, self.parked)

        seconds, _ = timed(both)
        self.parked, self.spare = self.spare, self.parked
        return seconds

    def resume(self) -> float:
        """A parked conversation comes back into an empty sequence."""
        self.context.remove(0)
        return timed(lambda: self.context.load_state(0, self.parked))[0]

    def moved(self, operation: str) -> int:
        """From the size of the state; ``seq_cp`` and ``seq_rm`` touch labels only."""
        return {"switch": 2 * self.bytes, "resume": self.bytes}.get(operation, 0)

    def branches(self, count: int) -> None:
        """Sequences that share the cells of the first (``seq_cp``)."""
        for sequence in range(1, count + 1):
            self.context.copy(0, sequence)
        self._go_on(count)

    def copies(self, count: int) -> None:
        """Sequences whose state was brought in as bytes, as a server's slots are filled from its cache."""
        state = self.context.save_state(0)
        for sequence in range(1, count + 1):
            self.context.load_state(sequence, state)
        self._go_on(count)

    def _go_on(self, count: int) -> None:
        self.context.decode([(sequence, self.length, [sequence]) for sequence in range(1, count + 1)])
        self.context.synchronize()

    def close(self) -> None:
        """Free everything."""
        self.context.close()
        self.model.close()


def narrow_model() -> Path:
    """A llama of hidden size 64 with the K/V shape of the other sides, as GGUF; made once a process."""
    file = Path(_folder.name) / "narrow.gguf"
    if file.exists():
        return file
    raw = {
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": KV_HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": DIM,
        "max_position_embeddings": 1 << 18,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }
    config = kv.models.Llama.parse_config(raw)
    random = np.random.default_rng(3)
    weights = {
        name: (random.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float16 if len(shape) == 2 else "f4")
        for name, shape in kv.models.Llama.tensor_shapes(config).items()
    }
    return gguf_file.write(config, weights, file)


_folder = tempfile.TemporaryDirectory(prefix="kvtrie-bench-")


class HuggingFace:
    """transformers: a ``DynamicCache`` for each conversation. See peers/hugging_face.py for what its users do."""

    name = "transformers"

    def __init__(self, length: int) -> None:
        self.length = length
        self.cache = hugging_face.random_cache(LAYERS, KV_HEADS, DIM, length)
        self.other = hugging_face.random_cache(LAYERS, KV_HEADS, DIM, 1)
        self.kept: list[Any] = []

    def branch(self) -> float:
        """A deep copy."""
        return timed(lambda: copy.deepcopy(self.cache))[0]

    def rewind(self) -> float:
        """``crop``: the tensors become views of what they were; no memory is given back."""
        whole = hugging_face.tensors(self.cache)
        seconds, _ = timed(lambda: self.cache.crop(-(self.length // 2)))
        hugging_face.put_back(self.cache, whole)
        return seconds

    def switch(self) -> float:
        """Naming another object; the two share no memory, whatever their prefixes."""

        def swap() -> None:
            self.cache, self.other = self.other, self.cache

        seconds, _ = timed(swap)
        swap()
        return seconds

    def resume(self) -> float:
        """Going on from a kept prompt without spoiling it: a deep copy. Nothing finds it by its tokens."""
        return self.branch()

    def moved(self, operation: str) -> int:
        """From the size of the cache."""
        return hugging_face.nbytes(self.cache) if operation in ("branch", "resume") else 0

    def branches(self, count: int) -> None:
        """Deep copies that each go on by a token."""
        self.kept = [copy.deepcopy(self.cache) for _ in range(count)]
        for twin in self.kept:
            hugging_face.append(twin, 1)

    def close(self) -> None:
        """Free everything."""
        self.kept.clear()
        del self.cache
