"""Tensors of a GGUF file as weight sources: rows of blocks as they lie in the file, and the numbers they stand for.

Reads are at checked offsets and not through a mapping, as for safetensors: a file that shrinks meanwhile is an error,
and not the end of the process.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import gguf
import numpy as np

from ...errors import FormatError
from ..weights import STORED, Array, Blocks, WeightSource, to_float32
from .reader import Kind, Tensor

_PLAIN = {Kind.F32: "F32", Kind.F16: "F16", Kind.BF16: "BF16"}
_AT_ONCE = 2**21  # numbers that are dequantised at once: what numpy makes of them on the way stays small


@functools.lru_cache
def kinds() -> tuple[str, ...]:
    """The names of the types that can be read: what ``gguf.quants`` dequantises."""
    return tuple(kind.name for kind in Kind if _dequantises(kind))


def _dequantises(kind: Kind) -> bool:
    if kind in _PLAIN:
        return True
    try:
        with np.errstate(all="ignore"):
            gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True


def source(tensor: Tensor, name: str) -> WeightSource:
    """The whole tensor. Raises ``kv.errors.FormatError`` for a type that nobody dequantises."""
    allowed = [kind.name for kind in _PLAIN] if len(tensor.shape) == 1 else kinds()
    if tensor.kind.name not in allowed:
        raise FormatError(
            f"[models.load] {tensor.path}: {tensor.name}: type: got {tensor.kind.name}, allowed {', '.join(allowed)}"
        )
    origin = str(tensor.path)
    if tensor.kind in _PLAIN:
        stored = _PLAIN[tensor.kind]
        plain = _reader(tensor, STORED[stored])
        return WeightSource(name, stored, tensor.shape, tensor.nbytes, origin, plain)
    raw = _reader(tensor, np.dtype(np.uint8))
    blocks = Blocks(tensor.kind.name, raw, functools.partial(_dequantise, tensor.kind))
    return WeightSource(name, "F32", tensor.shape, tensor.nbytes, origin, blocks.numbers, blocks)


def zero_blocks(name: str, shape: tuple[int, ...], kind: str) -> WeightSource:
    """A matrix of blocks whose bytes are zero, as a file of it would be read. REQUIRES: whole blocks."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    row = shape[-1] // block * size

    def rows(begin: int, end: int) -> Array:
        return np.zeros((end - begin, *shape[1:-1], row), np.uint8)

    blocks = Blocks(kind, rows, functools.partial(_dequantise, gguf.GGMLQuantizationType[kind]))
    return WeightSource(name, "F32", shape, math.prod(shape[:-1]) * row, "zeros", blocks.numbers, blocks)


def rows_of(whole: WeightSource, name: str, begin: int, shape: tuple[int, ...]) -> WeightSource:
    """A tensor of its own from consecutive rows: the matrix ``shape`` that begins at row ``begin``."""
    return _of_rows(whole, name, shape, lambda read: lambda first, last: read(begin + first, begin + last))


def reordered(whole: WeightSource, order: Array) -> WeightSource:
    """The same rows in another order: row i is ``order[i]`` of the file."""

    def taking(read: Callable[[int, int], Array]) -> Callable[[int, int], Array]:
        return lambda first, last: read(0, len(order))[order[first:last]]

    return _of_rows(whole, whole.name, whole.shape, taking)


def reordered_columns(whole: WeightSource, order: Array, width: int) -> WeightSource:
    """The same columns in another order, ``width`` beside each other: group i of them is ``order[i]`` of the file.

    They stay blocks where a group is whole ones, or the order is the file's.
    """
    if np.array_equal(order, np.arange(len(order))):
        return whole

    def taking(read: Callable[[int, int], Array]) -> Callable[[int, int], Array]:
        def rows(first: int, last: int) -> Array:
            found = read(first, last)
            return found.reshape(len(found), len(order), -1)[:, order].reshape(found.shape)

        return rows

    blocks = whole.blocks
    if blocks is not None and width % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[blocks.kind]][0] == 0:
        return _of_rows(whole, whole.name, whole.shape, taking)
    return replace(whole, rows=taking(whole.rows), blocks=None)


def joined(parts: Sequence[WeightSource]) -> WeightSource:
    """One matrix after the other, as one: of their dtype where they have the same, without blocks."""
    first = parts[0]
    same = all(part.dtype == first.dtype for part in parts)

    def read(begin: int, end: int) -> Array:
        each = [part.read() if same else to_float32(part.read(), part.dtype) for part in parts]
        return np.concatenate(each)[begin:end]

    rows, nbytes = sum(part.shape[0] for part in parts), sum(part.nbytes for part in parts)
    dtype = first.dtype if same else "F32"
    return replace(first, dtype=dtype, shape=(rows, *first.shape[1:]), nbytes=nbytes, rows=read, blocks=None)


def moved(whole: WeightSource, shape: tuple[int, ...], move: Callable[[Array], Array]) -> WeightSource:
    """The same numbers in other places, of the same dtype, in ``shape``. There are no blocks of these."""

    def read(begin: int, end: int) -> Array:
        return np.ascontiguousarray(move(whole.read())).reshape(shape)[begin:end]

    return replace(whole, shape=shape, rows=read, blocks=None)


def changed(whole: WeightSource, shape: tuple[int, ...], change: Callable[[Array], Array]) -> WeightSource:
    """The numbers after ``change``, float32 in ``shape``. There are no blocks of these."""

    def read(begin: int, end: int) -> Array:
        values = np.ascontiguousarray(change(to_float32(whole.read(), whole.dtype)), np.float32)
        return values.reshape(shape)[begin:end]

    return replace(whole, dtype="F32", shape=shape, rows=read, blocks=None)


def _of_rows(
    whole: WeightSource,
    name: str,
    shape: tuple[int, ...],
    way: Callable[[Callable[[int, int], Array]], Callable[[int, int], Array]],
) -> WeightSource:
    nbytes = whole.nbytes * math.prod(shape) // max(math.prod(whole.shape), 1)
    blocks = None if whole.blocks is None else replace(whole.blocks, rows=way(whole.blocks.rows))
    rows = way(whole.rows) if blocks is None else blocks.numbers
    return replace(whole, name=name, shape=shape, nbytes=nbytes, rows=rows, blocks=blocks)


def _dequantise(kind: Kind, raw: Array) -> Array:
    """uint8 [..., bytes of a row] -> float32 [..., columns]."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    columns = raw.shape[-1] // size * block
    rows = raw.reshape(-1, raw.shape[-1])
    numbers = np.empty((len(rows), columns), np.float32)
    step = max(_AT_ONCE // columns, 1)
    with np.errstate(all="ignore"):  # what is not finite is seen where it matters: when it is rounded or packed
        for begin in range(0, len(rows), step):
            numbers[begin : begin + step] = gguf.quants.dequantize(rows[begin : begin + step], kind)
    return numbers.reshape(*raw.shape[:-1], columns)


def _reader(tensor: Tensor, dtype: np.dtype[Any]) -> Callable[[int, int], Array]:
    """Reads from the slowest axis: elements of ``dtype``, bytes for blocks."""
    inner = (*tensor.shape[1:-1], tensor.row_bytes // dtype.itemsize) if len(tensor.shape) > 1 else ()
    each = math.prod(inner)

    def read(begin: int, end: int) -> Array:
        count = (end - begin) * each
        try:
            values = np.fromfile(tensor.path, dtype, count, offset=tensor.begin + begin * each * dtype.itemsize)
        except OSError as error:
            raise FormatError(f"[models.load] {tensor.path}: cannot be read: {error}") from error
        if values.size != count:
            raise FormatError(
                f"[models.load] {tensor.path}: {tensor.name}: ended early: got {values.size} elements, expected {count}"
            )
        shaped: Array = values.reshape(end - begin, *inner)
        return shaped

    return read
