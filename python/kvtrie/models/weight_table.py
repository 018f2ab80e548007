"""A checkpoint's tensors as a model keeps them on its device: rounded, packed, counted and digested.

Threads: one thread fills a table, while a model is built.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from .. import ops
from .._core import Device, Tensor, tensor
from ..errors import ArgumentError, FormatError
from .exact_blocks import EXACT
from .linear import Activation, Gated, GatedParts, Linear, Matrix, Weight, as_parts
from .weights import Array, Progress, WeightSource, to_bfloat16, to_float16, to_float32

PRECISIONS = ("auto", "exact", "fast")  # of products of blocks


class WeightTable:
    """Takes checkpoint tensors to the device one by one, and digests what it took.

    ``dtype``: "float32", "float16", "bfloat16", a kind of blocks ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0") or "stored".
    Blocks are for packed matrices and experts; the head is q8_0 then, and so is an embedding that is the head. What is
    looked up otherwise and what steers (``quantise=False``: routers, gates of a few outputs) is float16. "stored" keeps
    each matrix as its file does: blocks as they are, or as others that hold the same numbers (exact_blocks.py), F16 as
    float16, BF16 as bfloat16, F32 as float32; other blocks as float16, which moves the numbers they stand for by up to
    2^-11 of each. What steers has 16 bits at least. ``precision``: of products, as for ``kv.ops.pack``. Sizes in bytes.
    """

    def __init__(
        self,
        sources: Mapping[str, WeightSource],
        device: Device,
        dtype: str,
        progress: Progress | None = None,
        precision: str = "auto",
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.precision = precision
        self.nbytes: int = 0
        self._sources = sources
        self._progress = progress
        self.kept: dict[str, str] = {}  # by matrix: its type on the device
        self.losses: dict[str, float] = {}  # by tensor that was quantised here: root of mean square error / mean square
        self._digests: dict[str, bytes] = {}
        self._room: int = device.capabilities["max_alloc_bytes"]
        self._total = sum(source.nbytes for source in sources.values())
        self._done = 0

    def vector(self, name: str, change: Callable[[Array], Array] | None = None) -> Tensor:
        """A norm weight or bias, float32; ``change`` is applied to it before the upload."""
        values: Array = to_float32(self._read(name), self._sources[name].dtype)
        return self._upload(values if change is None else np.ascontiguousarray(change(values), np.float32))

    def number(self, name: str) -> float:
        """The only number of a tensor. Raises ``kv.errors.FormatError`` where it is not finite."""
        value = float(to_float32(self._read(name), self._sources[name].dtype).reshape(()))
        if not math.isfinite(value):
            raise FormatError(f"[models] {self._sources[name].origin}: {name}: got {value}, allowed a finite number")
        return value

    def constant(self, values: Array) -> Tensor:
        """Numbers that are in no checkpoint, float32."""
        return self._upload(np.ascontiguousarray(values, np.float32))

    def optional_vector(self, name: str, present: bool) -> Tensor | None:
        return self.vector(name) if present else None

    def linear(self, name: str, bias: bool = False, quantise: bool = True) -> Linear:
        """``name``.weight, packed where that is faster, and ``name``.bias."""
        return Linear(self._packed([name], self._type_of(name, quantise)), self.optional_vector(f"{name}.bias", bias))

    def linears(self, name: str, rows: Sequence[Array], bias: bool = False, quantise: bool = True) -> list[Linear]:
        """Several maps stored as one: ``rows[i]`` are the outputs of the i-th, in its order."""
        kept = self._type_of(name, quantise)
        weight = self._matrix(f"{name}.weight", kept)
        shift: Array | None = None
        if bias:
            shift = to_float32(self._read(f"{name}.bias"), self._sources[f"{name}.bias"].dtype)
        with self._naming(name):
            packed = [self._pack(weight[part], kept) for part in rows]
        return [Linear(part, None if shift is None else self._upload(shift[own])) for part, own in zip(packed, rows)]

    def heads(self, name: str, count: int, sizes: tuple[int, int]) -> tuple[list[Linear], list[Linear]]:
        """Two maps for each of ``count`` heads that are stored as one, head by head, with ``sizes`` outputs.

        The first of each is turned round: it takes ``sizes[0]`` numbers. Of blocks, which run along what goes in, its
        numbers are kept as float16.
        """
        kept = self._type_of(name)
        weight = self._matrix(f"{name}.weight", kept)
        numbers, turned = weight, kept
        if weight.dtype == np.uint8:
            numbers, turned = to_float16(self._read(f"{name}.weight"), "F32", name, self.dtype), "float16"
        firsts, seconds, each = [], [], sum(sizes)
        with self._naming(name):
            for begin in range(0, count * each, each):
                middle = begin + sizes[0]
                firsts.append(Linear(self._pack(np.ascontiguousarray(numbers[begin:middle].T), turned)))
                seconds.append(Linear(self._pack(np.ascontiguousarray(weight[middle : begin + each]), kept)))
        return firsts, seconds

    def joined(self, names: Sequence[str], bias: bool = False) -> Linear:
        """Several maps of one input as one: their outputs one after the other. One launch for neighbours kept alike."""
        alike = [(kept, list(group)) for kept, group in itertools.groupby(names, self._type_of)]
        parts = [self._packed(group, kept) for kept, group in alike]
        weight = parts[0] if len(parts) == 1 else tuple(part for each in parts for part in as_parts(each))
        if not bias:
            return Linear(weight)
        shifts = [to_float32(self._read(f"{name}.bias"), self._sources[f"{name}.bias"].dtype) for name in names]
        return Linear(weight, self._upload(np.concatenate(shifts)))

    def gated(self, gate: str, up: str, activation: Activation = "silu", bias: bool = False) -> Gated | GatedParts:
        """The first half of a gated MLP."""
        kept = self._type_of(gate)
        if bias or not isinstance(activation, str) or not self.packs or kept != self._type_of(up):
            return GatedParts(self.linear(gate, bias), self.linear(up, bias), activation)
        with self._naming(f"{gate} or {up}"):
            first, second = (self._matrix(f"{name}.weight", kept) for name in (gate, up))
            if len(self._pieces(first)) > 1 or 2 * _in_buffer(first) > self._room:
                return GatedParts(self.linear(gate), self.linear(up), activation)
            if first.dtype == np.uint8:
                pair = ops.pack_pair_blocks(first, second, kept, device=self.device, precision=self.precision)
            else:
                on_device = [self._plain(each) for each in (first, second)]
                rounded = "q8_0" if kept == "q8_0" else None
                pair = ops.pack_pair(on_device[0], on_device[1], rounded, precision=self.precision)
        self.nbytes += pair.nbytes
        return Gated(pair, activation)

    def table(self, name: str, is_head: bool = False) -> Weight:
        """A matrix whose rows are looked up, packed if it is blocks. ``is_head``: it is multiplied, too (``tied``).

        A tuple of parts, rows one after the other, where it does not fit into one buffer.
        """
        matrix = name.removesuffix(".weight")
        # In q8_0 only what the file has in such blocks: rounding shows more in what is looked up.
        in_head = is_head and self.dtype in BLOCKS.values()
        in_head = in_head and (self.dtype != "q8_0" or self._sources[name].stored == "Q8_0")
        kept = self._type_of(matrix, blocks=self.dtype == "stored" or in_head)
        if kept in BLOCKS.values():
            return self._packed([matrix], kept)
        rows = self._matrix(name, kept)
        return _one_or_all([self._upload(part) for part in self._pieces(rows)])

    def tied(self, table: Weight) -> Linear:
        """The head that is the embedding, which stays in use as ``table``."""
        parts = as_parts(table)
        if isinstance(parts[0], ops.PackedWeight) or (not self.packs and len(parts) == 1):
            return Linear(table)
        rounded = "q8_0" if self.dtype == "q8_0" else None
        packed = [ops.pack(part, rounded, precision=self.precision) for part in parts]
        self.nbytes += sum(part.nbytes for part in packed)
        return Linear(_one_or_all(packed))

    def _packed(self, names: Sequence[str], kept: str) -> Weight:
        """Weights of one input laid out for this device's matmul, one behind the other."""
        with self._naming(" or ".join(names)):
            matrices = [self._matrix(f"{name}.weight", kept) for name in names]
            return self._pack(matrices[0] if len(matrices) == 1 else np.concatenate(matrices), kept)

    def _pack(self, matrix: Array, kept: str) -> Weight:
        """The packed kernels are the default backend except on GPUs: there it is CLBlast, which takes float32 only.

        A tuple of packed parts where it does not fit into one buffer.
        """
        pieces = self._pieces(matrix)
        packed: list[Matrix] = []
        for piece in pieces:
            if piece.dtype == np.uint8:
                packed.append(ops.pack_blocks(piece, kept, device=self.device, precision=self.precision))
            else:
                plain = self._plain(piece)
                packs = self.packs or len(pieces) > 1
                rounded = "q8_0" if kept == "q8_0" else None
                packed.append(ops.pack(plain, rounded, precision=self.precision) if packs else plain)
        self.nbytes += sum(part.nbytes for part in packed)
        return _one_or_all(packed)

    def _pieces(self, matrix: Array) -> list[Array]:
        """``matrix`` in groups of rows that fit into a buffer each, as they are and packed: multiples of 64 rows."""
        rows = max(self._room * len(matrix) // max(_in_buffer(matrix), 1) // 64 * 64, 64)
        return [matrix[begin : begin + rows] for begin in range(0, len(matrix), rows)]

    def pack(self, plain: Tensor) -> Matrix:
        """A tensor laid out for this device's matmul, in its own type."""
        if not self.packs:
            return plain
        packed = ops.pack(plain, precision=self.precision)
        self.nbytes += packed.nbytes - plain.nbytes
        return packed

    @property
    def packs(self) -> bool:
        """Whether matrices are packed on this device."""
        return not (self.device.kind == "gpu" and self.dtype == "float32")

    def digest(self) -> bytes:
        """SHA-256 over name, stored type, shape and content digest of every tensor taken, in order of names."""
        total = hashlib.sha256()
        for name in sorted(self._digests):
            source = self._sources[name]
            total.update(f"{name}\0{source.stored}\0{list(source.shape)}\0".encode())
            total.update(self._digests[name])
        return total.digest()

    def _read(self, name: str) -> Array:
        """The elements, or the numbers that blocks stand for."""
        source, stored = self._sources[name], self._stored(name)
        return stored if source.blocks is None else source.blocks.dequantise(stored)

    def _stored(self, name: str) -> Array:
        """Elements or blocks as they are in the file."""
        source = self._sources[name]
        stored = source.read() if source.blocks is None else source.blocks.rows(0, source.shape[0])
        if name not in self._digests:
            self._digests[name] = hashlib.sha256(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data).digest()
            self._done += source.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return stored

    def _type_of(self, name: str, quantise: bool = True, blocks: bool = True) -> str:
        """The form in which the matrix ``name`` is kept. ``blocks``: whether it may be blocks."""
        source, kept = self._sources[f"{name}.weight"], self.dtype
        if kept == "stored":
            kept = _stored_type(source)
        elif kept in BLOCKS.values() and (name in _HEADS or source.shape[-1] % 32):
            kept = "q8_0"
        if kept in BLOCKS.values() and not (quantise and blocks):
            kept = "float16"
        self.kept[name] = kept
        return kept

    def _matrix(self, name: str, kept: str) -> Array:
        """Blocks uint8 [out, bytes], or the numbers to upload, bfloat16 as its bits in uint16: for q8_0 those of the
        file, rounded when packed."""
        source = self._sources[name]
        # Else q8_0 is made by the device, of blocks and of other numbers alike: both may be parts of one product.
        as_stored = self.dtype == "stored" or kept != "q8_0"
        if as_stored and source.blocks is not None and BLOCKS.get(source.stored) == kept:
            return np.ascontiguousarray(self._stored(name))
        exact = EXACT.get(source.stored)
        if as_stored and exact is not None and exact.kind == kept:
            return exact.make(np.ascontiguousarray(self._stored(name)), name)
        values, stored = self._read(name), source.dtype
        if kept in BLOCKS.values() and kept != "q8_0":
            return self._quantised(name, to_float32(values, stored), kept)
        if kept == "float32" or (kept == "q8_0" and stored != "F16"):
            return to_float32(values, stored)
        if kept == "bfloat16":
            return to_bfloat16(values, stored, name)
        return to_float16(values, stored, name, self.dtype)

    def _quantised(self, name: str, values: Array, kept: str) -> Array:
        """Blocks as the ``gguf`` package makes them; the error goes to ``losses``."""
        import gguf  # half a second

        if not np.isfinite(values).all():
            raise ArgumentError(f"got a number in {name} that is not finite, allowed finite ones in {kept}")
        kind = gguf.GGMLQuantizationType[kept.upper()]
        blocks: Array = gguf.quants.quantize(values, kind)
        error = gguf.quants.dequantize(blocks, kind) - values
        self.losses[name] = float(
            np.sqrt(np.mean(error * error, dtype=np.float64) / max(np.mean(values * values, dtype=np.float64), 1e-30))
        )
        return blocks

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Says whose numbers they are that cannot be packed."""
        try:
            yield
        except ArgumentError as error:
            raise ArgumentError(f"[models] dtype {self.dtype!r} cannot hold {name}: {error}") from error

    def _plain(self, values: Array) -> Tensor:
        """Numbers on the device; uint16 are bits of bfloat16."""
        return tensor(values, dtype="bfloat16" if values.dtype == np.uint16 else None, device=self.device)

    def _upload(self, values: Array) -> Tensor:
        uploaded = self._plain(values)
        self.nbytes += uploaded.nbytes
        return uploaded


def _one_or_all(parts: Sequence[Matrix]) -> Weight:
    return parts[0] if len(parts) == 1 else tuple(parts)


def _in_buffer(matrix: Array) -> int:
    """Bytes that it takes on the device before and after it is packed: blocks grow by less than a sixteenth."""
    return matrix.nbytes * 17 // 16 if matrix.dtype == np.uint8 else matrix.nbytes


# Kinds of blocks that kernels read as they are, by GGML's names.
BLOCKS = {
    kind: kind[:-1].lower() + kind[-1]
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "Q2_K")
}
_HEADS = ("lm_head", "mtp.lm_head", "model.embed_tokens")  # of which q8_0 is the least


def _stored_type(source: WeightSource) -> str:
    """The meaning of "stored" for an element type or a kind of blocks."""
    exact = {kind: each.kind for kind, each in EXACT.items()}
    return {**BLOCKS, **exact, "F32": "float32", "BF16": "bfloat16"}.get(source.stored, "float16")
