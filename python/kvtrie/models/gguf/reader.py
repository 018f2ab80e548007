"""The header of a GGUF file, read with every length checked against what is left of the file before it is believed.

    "GGUF" | version | tensors | keys | key, type, value ... | name, dimensions, type, offset ... | padding | numbers

Types, block sizes and the arithmetic of blocks are those of the ``gguf`` package. Its ``GGUFReader`` is not used: it
trusts lengths, and makes numpy arrays of every token: the header of SmolLM2-135M costs it 3.6 s and 159 MiB where this
takes 0.1 s and 9 MiB (EPYC, Zen 3). Here time and memory are bounded by the file's own size.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ...errors import FormatError
from .kinds import other_format

try:
    import gguf
except ImportError as error:
    raise ImportError("GGUF files need the gguf package: pip install 'kvtrie[models]'") from error

Kind = gguf.GGMLQuantizationType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_HEADER = 2**29  # bytes; the largest vocabularies take 20 MB
_MOST_NAME = 2**16 - 1  # bytes of a key or a tensor's name
_MOST_DIMENSIONS = 4
_LEAST_KEY, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 4 + 8  # bytes that each takes at least

# GGUF's value types, by number: little-endian numpy types; 7, 8 and 9 are bool, string and array.
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_LENGTH = struct.Struct("<Q")


class Tensor(NamedTuple):
    """Where a tensor lies. ``shape``: the slowest axis first, as numpy has it (files have the fastest first)."""

    name: str
    kind: Any  # a gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    path: Path
    begin: int  # bytes from the start of the file
    nbytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: of the fastest axis."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return int(self.shape[-1] // block * size)


@dataclass(frozen=True)
class GgufFile:
    """The contents of a file, or of all parts of a split one: values by key, tensors by name.

    A value is an int, float, bool or str, a list of str, or a numpy array. Numbers of 32 bits come as the shortest
    decimal that rounds to them: 1e-05, not 9.999999747378752e-06.
    """

    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


def read_gguf(path: Path) -> GgufFile:
    """Raises ``kv.errors.FormatError`` naming the file and the key or tensor that is damaged."""
    first = _read_part(path)
    count = _whole_number(first, "split.count", 1)
    tensors = dict(first.tensors)
    for number, other in enumerate(_other_parts(path, count) if count > 1 else (), 1):
        part = _read_part(other)
        _check_part(part, number, count)
        twice = sorted(tensors.keys() & part.tensors.keys())
        if twice:
            raise FormatError(f"[models.load] {other}: tensor {twice[0]!r} is in another part of {path.name}, too")
        tensors.update(part.tensors)
    _check_part(first, 0, count)
    total = _whole_number(first, "split.tensors.count", len(tensors))
    if total != len(tensors):
        raise FormatError(
            f"[models.load] {path}: split.tensors.count: got {total}, allowed {len(tensors)}, all of them"
        )
    return GgufFile(path, first.values, tensors)


def _check_part(part: GgufFile, number: int, count: int) -> None:
    for key, allowed in (("split.no", number), ("split.count", count)):
        got = _whole_number(part, key, allowed)
        if got != allowed:
            raise FormatError(f"[models.load] {part.path}: {key}: got {got}, allowed {allowed}")


def _whole_number(file: GgufFile, key: str, default: int) -> int:
    value = file.values.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"[models.load] {file.path}: {key}: got {shown(value)}, allowed a whole number")
    return value


def _other_parts(path: Path, count: int) -> list[Path]:
    """The files beside NAME-00001-of-0000N.gguf."""
    named = re.fullmatch(r"(.+)-00001-of-(\d{5})\.gguf", path.name)
    if named is None or int(named[2]) != count:
        raise FormatError(
            f"[models.load] {path}: split.count: got {count}, allowed 1, or the first of that many files, named "
            f"...-00001-of-{count:05d}.gguf"
        )
    return [path.with_name(f"{named[1]}-{number:05d}-of-{named[2]}.gguf") for number in range(2, count + 1)]


def _read_part(path: Path) -> GgufFile:
    try:
        with path.open("rb") as file:
            return _Header(path, file).read()
    except FileNotFoundError:
        raise FormatError(f"[models.load] {path}: the file is missing") from None
    except OSError as error:
        raise FormatError(f"[models.load] {path}: cannot be read: {error}") from error


class _Header:
    """Reads one file from front to back. ``_at``: where it stands, in bytes."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._end = min(self._size, _MOST_HEADER)
        self._at = 0

    def read(self) -> GgufFile:
        if self._take(4, "the magic number") != _MAGIC:
            self._file.seek(0)
            raise self._error(f"got {other_format(self._file.read(512))}, allowed one that begins with GGUF")
        self._version()
        tensors = self._count("the number of tensors", _LEAST_TENSOR)
        keys = self._count("the number of keys", _LEAST_KEY)
        values: dict[str, Any] = {}
        for _ in range(keys):
            key = self._name("a key")
            if key in values:
                raise self._error(f"key {key!r} is there twice")
            values[key] = self._value(self._integer("I", key), key)
        entries = [self._entry() for _ in range(tensors)]
        return GgufFile(self._path, values, self._placed(entries, self._alignment(values)))

    def _version(self) -> None:
        version = self._integer("I", "the version")
        if version in _VERSIONS:
            return
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        got = f"{swapped}, big-endian" if swapped in _VERSIONS else str(version)
        raise self._error(f"version: got {got}, allowed {_VERSIONS[0]} or {_VERSIONS[1]}, little-endian")

    def _alignment(self, values: Mapping[str, Any]) -> int:
        alignment = values.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if isinstance(alignment, bool) or not isinstance(alignment, int) or alignment < 1 or alignment & alignment - 1:
            raise self._error(f"general.alignment: got {shown(alignment)}, allowed a power of two")
        return alignment

    def _placed(self, entries: list[tuple[str, Any, tuple[int, ...], int]], alignment: int) -> dict[str, Tensor]:
        """Tensors by name: aligned, inside the file, and none on top of another."""
        start = -(-self._at // alignment) * alignment
        tensors: dict[str, Tensor] = {}
        for name, kind, shape, offset in entries:
            if name in tensors:
                raise self._error(f"tensor {name!r} is there twice")
            block, size = gguf.GGML_QUANT_SIZES[kind]
            nbytes = math.prod(shape) // block * size
            if offset % alignment:
                raise self._error(f"{name}: offset: got {offset}, allowed multiples of {alignment}")
            if start + offset + nbytes > self._size:
                end = start + offset + nbytes
                raise self._error(f"{name}: {kind.name} {list(shape)} ends at byte {end}, the file at {self._size}")
            tensors[name] = Tensor(name, kind, shape, self._path, start + offset, nbytes)
        ordered = sorted(tensors.values(), key=lambda tensor: tensor.begin)
        for one, two in zip(ordered, ordered[1:]):
            if one.begin + one.nbytes > two.begin:
                raise self._error(f"{two.name}: begins at byte {two.begin}, inside {one.name}")
        return tensors

    def _entry(self) -> tuple[str, Any, tuple[int, ...], int]:
        """Name, type, shape and offset of a tensor."""
        name = self._name("a tensor's name")
        count = self._integer("I", name)
        if not 1 <= count <= _MOST_DIMENSIONS:
            raise self._error(f"{name}: dimensions: got {count}, allowed 1 to {_MOST_DIMENSIONS}")
        shape = tuple(self._integer("Q", name) for _ in range(count))[::-1]
        number, offset = self._integer("I", name), self._integer("Q", name)
        try:
            kind = Kind(number)
        except ValueError:
            known = ", ".join(each.name for each in Kind)
            raise self._error(f"{name}: type: got number {number}, allowed {known}") from None
        block = gguf.GGML_QUANT_SIZES[kind][0]
        if min(shape) < 1 or max(shape) >= 2**63 or shape[-1] % block:
            raise self._error(
                f"{name}: shape: got {list(shape)}, allowed at least 1 each, and multiples of {block} in the last axis"
            )
        return name, kind, shape, offset

    def _value(self, kind: int, key: str) -> Any:
        if kind == _ARRAY:
            return self._array(key)
        if kind == _STRING:
            return self._text(key)
        if kind == _BOOL:
            return self._take(1, key) != b"\0"
        if kind not in _NUMBERS:
            raise self._error(f"{key}: type: got number {kind}, allowed 0 to 12")
        dtype = np.dtype(_NUMBERS[kind])
        number = np.frombuffer(self._take(dtype.itemsize, key), dtype)[0]
        return float(str(number)) if dtype.itemsize == 4 and dtype.kind == "f" else number.item()

    def _array(self, key: str) -> Any:
        kind = self._integer("I", key)
        if kind == _STRING:
            count = self._count(key, 8)
            return [self._text(key) for _ in range(count)]
        if kind != _BOOL and kind not in _NUMBERS:
            raise self._error(f"{key}: type of the array: got number {kind}, allowed numbers, booleans and strings")
        dtype = np.dtype("u1" if kind == _BOOL else _NUMBERS[kind])
        numbers = np.frombuffer(self._take(self._count(key, dtype.itemsize) * dtype.itemsize, key), dtype)
        return numbers != 0 if kind == _BOOL else numbers

    def _name(self, what: str) -> str:
        name = self._text(what, _MOST_NAME)
        if not name:
            raise self._error(f"{what} is empty")
        return name

    def _text(self, what: str, most: int = _MOST_HEADER) -> str:
        length = _LENGTH.unpack(self._take(8, what))[0]
        if length > most:
            raise self._error(f"{what}: length: got {length}, allowed up to {most} bytes")
        try:
            return self._take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error(f"{what}: not UTF-8: {error}") from error

    def _count(self, what: str, least: int) -> int:
        """How many follow, of which each takes ``least`` bytes or more."""
        count, room = self._integer("Q", what), (self._end - self._at) // least
        if count > room:
            raise self._error(f"{what}: got {count}, allowed up to {room}, for which there is room")
        return count

    def _integer(self, code: str, what: str) -> int:
        size = 4 if code == "I" else 8
        return int.from_bytes(self._take(size, what), "little")

    def _take(self, count: int, what: str) -> bytes:
        if count > self._end - self._at:
            raise self._error(f"{what}: takes {count} bytes at byte {self._at}, the file or header ends at {self._end}")
        data = self._file.read(count)
        if len(data) != count:
            raise self._error(f"{what}: the file ended early, at byte {self._at + len(data)}")
        self._at += count
        return data

    def _error(self, message: str) -> FormatError:
        return FormatError(f"[models.load] {self._path}: {message}")


def shown(value: Any) -> str:
    """A value for a message, cut where it is long."""
    text = f"{len(value)} entries" if isinstance(value, (list, np.ndarray)) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
