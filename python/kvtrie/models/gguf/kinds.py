"""Kinds of files that are no models: GGUF also holds adapters, projectors, importance matrices and vocabularies.

``general.type`` says it where a file has it; older files are known by their architecture, keys or tensors, and files of
other formats by their first bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from ...errors import FormatError

_KINDS = {
    "adapter": "a LoRA adapter, which changes a model that lies in a file of its own",
    "mmproj": "a projector (mmproj) of images or sound, without the model of texts that it belongs to",
    "imatrix": "an importance matrix (imatrix), statistics for whoever quantises a model",
    "controlvector": "a control vector, which is added to the layers of a model in a file of its own",
}
_BY_KEY = {"adapter.": "adapter", "clip.": "mmproj", "imatrix.": "imatrix", "controlvector.": "controlvector"}
_BY_ARCHITECTURE = {"clip": "mmproj", "mmproj": "mmproj", "imatrix": "imatrix", "controlvector": "controlvector"}
_ONLY_VOCABULARY = "a vocabulary alone, without the weights of a model"

# First bytes of other files (magic numbers of 32 bits lie in them backwards).
_MAGIC = {
    b"tjgg": "a model in the format before GGUF (ggjt)",
    b"fmgg": "a model in the format before GGUF (ggmf)",
    b"lmgg": "a model in the format before GGUF (ggml)",
    b"algg": "a LoRA adapter in the format before GGUF (ggla)",
    b"PK\x03\x04": "a zip archive, as torch saves weights",
}
_MOST_NAME = 256  # bytes of a tensor's name in an importance matrix


class Read(Protocol):
    """The part of a file before its weights: a ``GgufFile``."""

    @property
    def path(self) -> object: ...

    @property
    def values(self) -> Mapping[str, object]: ...

    @property
    def tensors(self) -> Mapping[str, object]: ...


def refuse_other_kinds(file: Read) -> None:
    """Raises ``kv.errors.FormatError`` saying what ``file`` is, unless it is a model."""
    stated = file.values.get("general.type", "model")
    kind = _kind(file.values, stated if isinstance(stated, str) else "")
    if kind is None and file.tensors and all(name.endswith((".lora_a", ".lora_b")) for name in file.tensors):
        kind = "adapter"
    what = _KINDS[kind] if kind is not None else _ONLY_VOCABULARY if _has_no_weights(file) else None
    said = isinstance(stated, str) and stated == "model"
    if what is None and said:
        return
    got = ", ".join(each for each in ("" if said else repr(stated)[:80], what) if each)
    raise FormatError(f"[models.load] {file.path}: {'' if said else 'general.type: '}got {got}; allowed a model")


def _kind(values: Mapping[str, object], stated: str) -> str | None:
    if stated in _KINDS:
        return stated
    found = _BY_ARCHITECTURE.get(str(values.get("general.architecture")))
    if found is not None or ("general.architecture" in values and stated == "model"):
        return found
    return next((kind for key in values for start, kind in _BY_KEY.items() if key.startswith(start)), None)


def _has_no_weights(file: Read) -> bool:
    return not file.tensors and "tokenizer.ggml.tokens" in file.values


def other_format(head: bytes) -> str:
    """The kind of a file that begins with ``head`` (some 512 bytes) and not with GGUF's magic number."""
    if head[:4] in _MAGIC:
        return _MAGIC[head[:4]]
    if head[8:9] == b"{":
        return "a safetensors file; kv.models.load takes the folder that it lies in"
    if _is_importance_matrix(head):
        return _KINDS["imatrix"]
    return "another kind of file"


def _is_importance_matrix(head: bytes) -> bool:
    """The form of 2024: the number of entries, then of each the length of a tensor's name, and the name."""
    entries, length = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4))
    name = head[8 : 8 + length]
    return 0 < entries < 2**20 and 0 < length <= _MOST_NAME and re.fullmatch(rb"[\w.-]+\.weight", name) is not None
