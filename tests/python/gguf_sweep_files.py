"""The files that gguf_sweep.py changes: of each form one small model, and what it computes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np

import config_sweep
import gguf_models
import kvtrie as kv
from checkpoint_variants import GGUF
from gguf_files import GOLDENS, Kind, checkpoint, rewrite, write
from test_models import all_logits

TOKENS = np.load(GOLDENS / "tokens.npy")
Typed = tuple[Any, Any, Any]  # a value, its type, and of a list the type of its entries

# The checkpoint that stands for each architecture, and what of its configuration a file cannot say.
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama-gqa-tied", {}),
    "qwen2": ("qwen2-tied-sharded", {}),
    "qwen3": ("qwen3-norms", {}),
    "gemma3": ("gemma3-window-softcap", {"query_pre_attn_scalar": 12}),
    "qwen3next": ("qwen3-next-experts", {}),
    "qwen35": ("qwen3-5-dense", {}),
    "qwen35moe": ("qwen3-5-experts", {}),
}
# The same of forms for which a checkpoint is made; what a file cannot say is what families take for granted.
_VOCAB = {"vocab_size": 128}
_LENGTHS = {**_VOCAB, "original_max_position_embeddings": 80, "max_position_embeddings": 96}  # above TOKENS
_FURTHER = {
    **{name: {**_VOCAB, "vocab_size_per_layer_input": 128} for name in GGUF if name.startswith("gemma")},
    **dict.fromkeys(("phi3-long", "phi3-attention"), _LENGTHS),
}
FORMS = {name: form._replace(changes={**form.changes, **_FURTHER.get(name, _VOCAB)}) for name, form in GGUF.items()}


class Base(NamedTuple):
    """A file that is changed. ``logits``: of :data:`TOKENS`. ``weights``: by the names of a checkpoint, and those that
    only the file has, of layers that read others' cells. ``raw``: of the checkpoint, if one was made."""

    values: dict[str, Typed]
    arrays: dict[str, Any]
    weights: dict[str, Any]
    config: Any
    logits: Any
    raw: dict[str, Any]


def architecture_of(name: str) -> str:
    """What ``general.architecture`` says in the file of this name."""
    return FORMS[name].architecture if name in FORMS else name


@functools.cache
def base(name: str) -> Base:
    values: dict[str, Typed] = {}
    arrays: dict[str, Any] = {}

    def take(found: Mapping[str, tuple[Any, Any]], tensors: Mapping[str, tuple[Any, Any]]) -> None:
        for key, (types, value) in found.items():
            values[key] = (value, types[0], types[1] if len(types) > 1 else None)
        arrays.update({key: array for key, (array, _) in tensors.items()})

    with tempfile.TemporaryDirectory() as folder:
        weights, raw, path = _written_base(name, Path(folder))
        rewrite(path, take)
        parts = kv.models.gguf.read(path)
        model = kv.models.load(path, dtype="float32")
    return Base(values, arrays, weights, parts.config, all_logits(model, TOKENS, len(TOKENS)), raw)


def _written_base(name: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any], Path]:
    """Weights by the names of a checkpoint, its configuration, and a file of them."""
    path = folder / "base.gguf"
    if name in BASES:
        golden, changes = BASES[name]
        config, weights = checkpoint(golden, **changes)
        return weights, {}, write(config, weights, path)
    form = FORMS[name]
    case = config_sweep.Case(form.family, form.changes)
    config_sweep.save(config_sweep.build(case), case.file(), folder)
    family = kv.models._FAMILIES[form.family]
    config = family.parse_config(case.file())
    stored = kv.models.weights.open_folder(folder)
    sources = family.adapt(config, stored)
    weights = {name: _numbers(sources[name]) for name in family.tensor_shapes(config)}
    path = gguf_models.write(form.architecture, config, weights, path, **form.keys(config))
    return {**{name: _numbers(source) for name, source in stored.items()}, **_unread(config)}, case.file(), path


def _numbers(source: Any) -> Any:
    return kv.models.weights.to_float32(source.read(), source.dtype)


def _unread(config: Any) -> dict[str, Any]:
    """Of layers that read others' cells, as gguf_models.py writes them."""
    found = {}
    for layer, source in enumerate(getattr(config, "sources", ())):
        if source is not None:
            heads, size = config.heads_of(layer)
            start = f"model.layers.{layer}.self_attn."
            found |= {f"{start}{part}_proj.weight": np.ones((heads * size, config.hidden_size)) for part in "kv"}
            found[f"{start}k_norm.weight"] = np.ones(size)
    return {name: each.astype(np.float32) for name, each in found.items()}


def save(architecture: str, values: Mapping[str, Typed | None], arrays: Mapping[str, Any], path: Path) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, typed in values.items():
        if typed is not None:
            writer.add_key_value(key, *typed[:2], sub_type=typed[2])
    for name, array in arrays.items():
        writer.add_tensor(name, array, raw_dtype=Kind.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
