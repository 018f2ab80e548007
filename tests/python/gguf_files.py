"""Small GGUF files for the tests: checkpoints of the goldens and random models, written with the ``gguf`` package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

import kvtrie as kv

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from peers import gguf_file

GOLDENS = Path(__file__).parent / "goldens"
Kind = gguf.GGMLQuantizationType


def no_tokenizer(writer: Any) -> None:
    """The keys of a file without a vocabulary."""
    writer.add_tokenizer_model("none")


def write(config: Any, weights: Mapping[str, Any], path: Path, dtype: str = "f32", **options: Any) -> Path:
    """``dtype``: of the matrices; the rest is float32, as converters have it."""
    return gguf_file.write(config, weights, path, dtype, **{"tokenizer": no_tokenizer, **options})


def checkpoint(name: str, **changes: Any) -> tuple[Any, dict[str, Any]]:
    """Configuration and float32 weights of a golden checkpoint; ``changes`` go into its ``config.json``."""
    folder = GOLDENS / name
    raw = {**kv.models.weights.read_json(folder / "config.json"), **changes}
    family = kv.models._family(raw, name)
    config = family.parse_config(raw)
    sources = family.adapt(config, kv.models.weights.open_folder(folder))
    wanted = family.tensor_shapes(config)
    return config, {key: kv.models.weights.to_float32(sources[key].read(), sources[key].dtype) for key in wanted}


def rewrite(path: Path, change: Any) -> Path:
    """The file again after ``change(values, tensors)``: dicts of the reader's fields and (array, kind) by name."""
    reader = gguf.GGUFReader(path)
    values = {key: (field.types, field.contents()) for key, field in reader.fields.items() if "." in key[1:]}
    values = {key: value for key, value in values.items() if not key.startswith("GGUF.")}
    tensors = {tensor.name: (np.array(tensor.data), tensor.tensor_type) for tensor in reader.tensors}
    architecture = str(values.pop("general.architecture")[1])
    change(values, tensors)
    writer = gguf.GGUFWriter(path, architecture)
    for key, (types, value) in values.items():
        writer.add_key_value(key, value, types[0], types[1] if len(types) > 1 else None)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: Any, rows: int, columns: int, seed: int) -> Any:
    """uint8 [rows, bytes of a row]: random blocks whose numbers are finite and below 4, whatever their layout."""
    random = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    wanted, found = rows * columns // block, np.empty((0, size), np.uint8)
    while len(found) < wanted:
        blocks = random.integers(0, 256, (4 * wanted, size), np.uint8)
        with np.errstate(all="ignore"):
            numbers = gguf.quants.dequantize(blocks, kind)
            good = np.isfinite(numbers).all(axis=1) & (np.abs(numbers).max(axis=1) < 4)
        found = np.concatenate([found, blocks[good & (np.abs(numbers).max(axis=1) > 1e-3)]])
    return found[:wanted].reshape(rows, -1)
