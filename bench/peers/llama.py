"""llama.cpp as a peer: the library that llama-cpp-python ships, called through that package's own ctypes declarations.

Only the declarations are used (``llama_cpp.llama_cpp``), not the package's ``Llama`` class: that one copies the whole
context several times to save a state, which would flatter us. The package need not be installed; its sources and the
library built from them lie in build/peers (``./dev peers``).

    with Model(file) as model, model.context(tokens=4096, sequences=2) as context:
        context.prefill(0, prompt)                    # batches of 512 rows
        context.copy(0, 1)                            # branch
        context.decode([(0, length, [token]), (1, length, [other])])
        rows = context.logits()                       # float32 [2, vocab], valid until the next decode

Settings: as many threads as the machine has cores (PoCL uses as many), flash attention where llama.cpp chooses it
("auto", its own default), a K/V buffer that all sequences share ("unified": the one in which copies are metadata only),
weights from a mapping, no performance counters. Positions count from 0; a context refuses what does not fit with
:class:`LlamaError`. Not thread-safe: one context, one thread.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import sys
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from timing import lesser_level

PEERS = Path(__file__).resolve().parents[2] / "build" / "peers"
TYPES = {"float32": "GGML_TYPE_F32", "float16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0", "q4_0": "GGML_TYPE_Q4_0"}
LIBRARY = PEERS / "-".join(filter(None, ("llama", lesser_level()))) / "bin"
Part = tuple[int, int, Sequence[int]]  # sequence, position of its first token, tokens


class LlamaError(RuntimeError):
    """llama.cpp refused a call; the message holds its code or last log lines."""


def installed() -> bool:
    """Whether the library and the declarations are there."""
    return (LIBRARY / "libllama.so").exists() and _declarations() is not None


def _declarations() -> Path | None:
    """The folder of the package ``llama_cpp``."""
    found = sorted((PEERS / "sources" / "llama-cpp-python").glob("llama_cpp_python-*/llama_cpp"))
    return found[-1] if found else None


_log: list[str] = []


@functools.cache
def api() -> Any:
    """The module of ctypes declarations, without the package around it, which needs more packages to be imported."""
    folder = _declarations()
    if folder is None or not installed():
        raise ModuleNotFoundError(f"[llama] got no llama.cpp under {PEERS}, allowed after ./dev peers")
    os.environ["LLAMA_CPP_LIB_PATH"] = str(LIBRARY)
    package = types.ModuleType("llama_cpp")
    package.__path__ = [str(folder)]
    sys.modules.setdefault("llama_cpp", package)
    api: Any = importlib.import_module("llama_cpp.llama_cpp")
    api.llama_log_set(_listen(api), None)
    api.llama_backend_init()
    return api


@functools.cache
def _listen(api: Any) -> Any:
    """Keeps the last log lines for error messages instead of writing them to stderr."""

    def keep(_level: int, text: bytes, _data: Any) -> None:
        _log.append(text.decode(errors="replace").strip())
        del _log[:-8]

    return api.llama_log_callback(keep)


def _check(worked: Any, what: str) -> None:
    if not worked:
        raise LlamaError(f"[llama] {what}; the log ends: {' | '.join(_log)}")


def quantise(source: Path, target: Path, file_type: int, kind: int) -> None:
    """``llama-quantize --pure``: matrices of ``source`` as ggml's type ``kind``; ``file_type``: a ``llama_ftype``."""
    own = api()
    parameters = own.llama_model_quantize_default_params()
    parameters.ftype, parameters.pure, parameters.allow_requantize = file_type, True, True
    parameters.output_tensor_type = parameters.token_embedding_type = kind
    code = own.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(parameters))
    _check(code == 0, f"could not quantise {source}: code {code}")


class Model:
    """The weights of a GGUF file."""

    def __init__(self, gguf: str | os.PathLike[str]) -> None:
        self._api = api()
        parameters = self._api.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.handle: Any = self._api.llama_model_load_from_file(os.fspath(gguf).encode(), parameters)
        _check(self.handle, f"could not load {gguf}")
        self.vocab_size: int = self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self.handle))

    def context(self, **settings: Any) -> Context:
        """A :class:`Context` over these weights; its settings are described there."""
        return Context(self, **settings)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors, as in the file."""
        return int(self._api.llama_model_size(self.handle))

    def close(self) -> None:
        """Free the weights; its contexts must have been closed before."""
        if self.handle:
            self._api.llama_model_free(self.handle)
            self.handle = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Context:
    """K/V state for ``tokens`` cells in all and up to ``sequences`` sequences, and the forward pass over it."""

    def __init__(
        self,
        model: Model,
        *,
        tokens: int,
        sequences: int = 1,
        threads: int | None = None,
        kv_dtype: str = "float16",
        flash_attention: bool | None = None,
        unified: bool = True,
        swa_full: bool = False,
        batch: int = 512,
    ) -> None:
        """``kv_dtype``: of ``TYPES``, or two of them, "K/V"; blocks want flash attention. ``flash_attention``: None:
        llama.cpp chooses; ``batch``: rows of one computation (n_batch and n_ubatch)."""
        self.model, self.batch = model, batch
        self._api = api = model._api
        parameters = api.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = tokens, sequences
        parameters.n_batch = parameters.n_ubatch = batch
        parameters.n_threads = parameters.n_threads_batch = threads or os.cpu_count() or 1
        of_k, _, of_v = kv_dtype.partition("/")
        parameters.type_k, parameters.type_v = (getattr(api, TYPES[kept]) for kept in (of_k, of_v or of_k))
        parameters.flash_attn_type = -1 if flash_attention is None else int(flash_attention)
        parameters.kv_unified, parameters.swa_full, parameters.no_perf = unified, swa_full, True
        self.handle: Any = api.llama_init_from_model(model.handle, parameters)
        _check(self.handle, f"could not make a context of {tokens} tokens, {sequences} sequences")
        self._memory = api.llama_get_memory(self.handle)
        self._rows = _Rows(api, batch)
        self._outputs = 0

    @property
    def tokens(self) -> int:
        """Cells it has: ``tokens`` rounded up by llama.cpp."""
        return int(self._api.llama_n_ctx(self.handle))

    def decode(self, parts: Iterable[Part], logits: bool = True, every: bool = False) -> None:
        """Compute rows of several sequences in one pass, at most ``batch``; logits after each part's last row, or after
        ``every`` row."""
        batch, self._outputs = self._rows.fill(parts, logits, every)
        code = self._api.llama_decode(self.handle, batch)
        _check(code == 0, f"decode of {batch.n_tokens} rows got code {code}")

    def prefill(self, sequence: int, tokens: Sequence[int] | np.ndarray, position: int = 0) -> None:
        """Compute ``tokens`` from ``position`` on, ``batch`` rows at a time; logits after the last."""
        for begin in range(0, len(tokens), self.batch):
            end = min(begin + self.batch, len(tokens))
            self.decode([(sequence, position + begin, tokens[begin:end])], logits=end == len(tokens))

    def logits(self) -> np.ndarray:
        """float32 [parts or rows of the last decode, vocab]: a view that the next decode overwrites. Waits for it."""
        pointer = self._api.llama_get_logits(self.handle)
        return np.ctypeslib.as_array(pointer, (self._outputs, self.model.vocab_size))

    def synchronize(self) -> None:
        """Wait for the last decode."""
        self._api.llama_synchronize(self.handle)

    def copy(self, source: int, target: int, begin: int = 0, end: int = -1) -> None:
        """``llama_memory_seq_cp``: positions [begin, end) of ``source`` also belong to ``target``; -1: to the end."""
        self._api.llama_memory_seq_cp(self._memory, source, target, begin, end)

    def remove(self, sequence: int, begin: int = 0, end: int = -1) -> bool:
        """``llama_memory_seq_rm``: False when the model cannot give up a part."""
        return bool(self._api.llama_memory_seq_rm(self._memory, sequence, begin, end))

    def shift(self, sequence: int, by: int, begin: int = 0, end: int = -1) -> None:
        """``llama_memory_seq_add``: positions move by ``by``; K are rotated in the next decode."""
        self._api.llama_memory_seq_add(self._memory, sequence, begin, end, by)

    def length(self, sequence: int) -> int:
        """Highest position of a sequence, plus one."""
        return int(self._api.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def clear(self, data: bool = False) -> None:
        """``llama_memory_clear``: forget all sequences; ``data``: zero the buffers too."""
        self._api.llama_memory_clear(self._memory, data)

    def state_bytes(self, sequence: int) -> int:
        """Bytes that :meth:`save_state` needs."""
        return int(self._api.llama_state_seq_get_size(self.handle, sequence))

    def save_state(self, sequence: int, into: np.ndarray | None = None) -> np.ndarray:
        """``llama_state_seq_get_data``: a copy of a sequence's state, uint8; ``into``: memory to use again."""
        size = self.state_bytes(sequence)
        data = np.empty(size, np.uint8) if into is None else into[:size]
        got = self._api.llama_state_seq_get_data(self.handle, _bytes_of(data), size, sequence)
        _check(got == size, f"state of sequence {sequence}: got {got} of {size} bytes")
        return data

    def load_state(self, sequence: int, data: np.ndarray) -> None:
        """``llama_state_seq_set_data``: what the sequence held before is gone."""
        got = self._api.llama_state_seq_set_data(self.handle, _bytes_of(data), data.nbytes, sequence)
        _check(got == data.nbytes, f"sequence {sequence} took {got} of {data.nbytes} bytes of state")

    def close(self) -> None:
        """Free the context."""
        if self.handle:
            self._api.llama_free(self.handle)
            self.handle = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _bytes_of(data: np.ndarray) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class _Rows:
    """Memory of one ``llama_batch`` that is filled again and again: rows of one sequence each."""

    def __init__(self, api: Any, limit: int) -> None:
        self._token, self._position, self._sequence = (np.zeros(limit, np.int32) for _ in range(3))
        self._wanted = np.zeros(limit, np.int8)
        self._ones = np.ones(limit, np.int32)
        self._sequences = self._sequence.ctypes.data + 4 * np.arange(limit, dtype=np.uintp)
        self._batch = api.llama_batch()
        types_of = dict(api.llama_batch._fields_)
        for field, array in {
            "token": self._token,
            "pos": self._position,
            "n_seq_id": self._ones,
            "seq_id": self._sequences,
            "logits": self._wanted,
        }.items():
            setattr(self._batch, field, ctypes.cast(array.ctypes.data, types_of[field]))

    def fill(self, parts: Iterable[Part], logits: bool, every: bool) -> tuple[Any, int]:
        """The batch, and how many of its rows give logits."""
        begin = outputs = 0
        for sequence, position, tokens in parts:
            end = begin + len(tokens)
            if end > len(self._token):
                raise LlamaError(f"[decode] got {end} rows or more, allowed {len(self._token)}")
            self._token[begin:end] = tokens
            self._position[begin:end] = range(position, position + len(tokens))
            self._sequence[begin:end] = sequence
            self._wanted[begin:end] = logits and every
            self._wanted[end - 1] = logits
            outputs += int(self._wanted[begin:end].sum())
            begin = end
        self._batch.n_tokens = begin
        return self._batch, outputs
