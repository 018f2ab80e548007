"""A checkpoint's tensors as a model keeps them on its device: rounded, packed, counted and digested.

Threads: one thread fills a table, while a model is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import kvtrie as kv

from .linear import Gated, GatedParts, Linear
from .weights import Array, Progress, WeightSource, to_float16, to_float32


class WeightTable:
    """Takes checkpoint tensors to the device one by one, and digests what it took.

    ``dtype``: "float32", "float16", "q8_0" or "stored". "q8_0" is for packed matrices, experts' and a tied head's too;
    what is looked up (the embedding) and what steers (``quantise=False``: routers, gates of a few outputs) is float16
    then. "stored" keeps each matrix as its file does: blocks of Q8_0 as q8_0, to the same numbers, F16 as float16, F32
    and BF16 as float32; other blocks as float16, which moves the numbers they stand for by up to 2^-11 of each. What is
    looked up and what steers is float16 at least. Matrices that are multiplied as one get the widest of their types.
    Sizes in bytes.
    """

    def __init__(
        self, sources: Mapping[str, WeightSource], device: Any, dtype: str, progress: Progress | None = None
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.nbytes = 0
        self._sources = sources
        self._progress = progress
        self.kept: dict[str, str] = {}  # by matrix: its type on the device
        self._digests: dict[str, bytes] = {}
        self._total = sum(source.nbytes for source in sources.values())
        self._done = 0

    def vector(self, name: str, change: Callable[[Array], Array] | None = None) -> Any:
        """A norm weight or bias, float32; ``change`` is applied to it before the upload."""
        values: Array = to_float32(self._read(name), self._sources[name].dtype)
        return self._upload(values if change is None else np.ascontiguousarray(change(values), np.float32))

    def constant(self, values: Any) -> Any:
        """Numbers that are in no checkpoint, float32."""
        return self._upload(np.ascontiguousarray(values, np.float32))

    def optional_vector(self, name: str, present: bool) -> Any | None:
        return self.vector(name) if present else None

    def linear(self, name: str, bias: bool = False, quantise: bool = True) -> Linear:
        """``name``.weight, packed where that is faster, and ``name``.bias."""
        kept = self._type_of([name], quantise)
        plain = self._upload(self._matrix(f"{name}.weight", kept))
        with self._naming(name):
            weight = self.pack(plain, quantise=kept == "q8_0")
        return Linear(weight, self.optional_vector(f"{name}.bias", bias))

    def linears(self, name: str, rows: Sequence[Array], bias: bool = False, quantise: bool = True) -> list[Linear]:
        """Several maps stored as one: ``rows[i]`` are the outputs of the i-th, in its order."""
        kept = self._type_of([name], quantise)
        weight = self._matrix(f"{name}.weight", kept)
        shift: Array | None = None
        if bias:
            shift = to_float32(self._read(f"{name}.bias"), self._sources[f"{name}.bias"].dtype)
        with self._naming(name):
            packed = [self.pack(self._upload(weight[part]), quantise=kept == "q8_0") for part in rows]
        return [Linear(part, None if shift is None else self._upload(shift[own])) for part, own in zip(packed, rows)]

    def joined(self, names: Sequence[str], bias: bool = False) -> Linear:
        """Several maps of one input as one: their outputs one after the other."""
        kept = self._type_of(names)
        plain = self._upload(np.concatenate([self._matrix(f"{name}.weight", kept) for name in names]))
        with self._naming(" or ".join(names)):
            weight = self.pack(plain, quantise=kept == "q8_0")
        if not bias:
            return Linear(weight)
        shifts = [to_float32(self._read(f"{name}.bias"), self._sources[f"{name}.bias"].dtype) for name in names]
        return Linear(weight, self._upload(np.concatenate(shifts)))

    def gated(self, gate: str, up: str, activation: str = "silu", bias: bool = False) -> Gated | GatedParts:
        """The first half of a gated MLP; ``activation``: "silu" or "gelu"."""
        if bias or not self.packs:
            return GatedParts(self.linear(gate, bias), self.linear(up, bias), activation)
        kept = self._type_of([gate, up])
        plain = [self._upload(self._matrix(f"{name}.weight", kept)) for name in (gate, up)]
        with self._naming(f"{gate} or {up}"):
            pair = kv.ops.pack_pair(plain[0], plain[1], "q8_0" if kept == "q8_0" else None)
        self.nbytes += pair.nbytes - sum(each.nbytes for each in plain)
        return Gated(pair, activation)

    def table(self, name: str) -> Any:
        """A matrix in its plain layout, in the storage dtype; float16 for q8_0, which is a packed one."""
        return self._upload(self._matrix(name, self._type_of([name.removesuffix(".weight")], False)))

    def tied(self, name: str, table: Any) -> Linear:
        """The head that is the embedding ``name``, which stays in use as ``table``."""
        kept = self._type_of([name.removesuffix(".weight")]) if self.packs else "as the table"
        if self.dtype == "stored" and kept == "q8_0":  # the table is rounded, the file's own blocks are not
            return Linear(self.pack(self._upload(self._matrix(name, kept)), quantise=True))
        return Linear(self.pack(table, keep=True, quantise=kept == "q8_0"))

    def pack(self, plain: Any, keep: bool = False, quantise: bool = True) -> Any:
        """``plain`` laid out for this device's matmul. ``keep``: the plain one stays in use beside it.

        ``quantise``: whether it becomes q8_0 where there is such a type. The packed kernels are the default backend
        except on GPUs: there it is CLBlast, which takes float32 only.
        """
        if not self.packs:
            return plain
        packed = kv.ops.pack(plain, "q8_0" if quantise and self.dtype in ("q8_0", "stored") else None)
        self.nbytes += packed.nbytes - (0 if keep else plain.nbytes)
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
        source = self._sources[name]
        if source.blocks is None:
            stored = values = source.read()
        else:
            stored = source.blocks.rows(0, source.shape[0])
            values = source.blocks.dequantise(stored)
        if name not in self._digests:
            self._digests[name] = hashlib.sha256(np.ascontiguousarray(stored).reshape(-1).view(np.uint8).data).digest()
            self._done += source.nbytes
        if self._progress is not None:
            self._progress(self._done, self._total)
        return values

    def _type_of(self, names: Sequence[str], quantise: bool = True) -> str:
        """What the matrices ``names``, multiplied as one, are kept as."""
        kept = self.dtype
        if self.dtype == "stored":
            kept = max((_stored_type(self._sources[f"{name}.weight"].stored) for name in names), key=_WIDTHS.index)
        if kept == "q8_0" and not quantise:
            kept = "float16"
        self.kept.update(dict.fromkeys(names, kept))
        return kept

    def _matrix(self, name: str, kept: str) -> Array:
        """The numbers to upload: for q8_0 those of the file, which are rounded once, when they are packed."""
        values, stored = self._read(name), self._sources[name].dtype
        if kept == "float32" or (kept == "q8_0" and stored != "F16"):
            return to_float32(values, stored)
        return to_float16(values, stored, name, self.dtype)

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        """Says whose numbers they are that cannot be packed."""
        try:
            yield
        except kv.ArgumentError as error:
            raise kv.ArgumentError(f"[models] dtype {self.dtype!r} cannot hold {name}: {error}") from error

    def _upload(self, values: Array) -> Any:
        tensor = kv.tensor(values, device=self.device)
        self.nbytes += tensor.nbytes
        return tensor


_WIDTHS = ("q8_0", "float16", "float32")


def _stored_type(stored: str) -> str:
    """What "stored" makes of an element type or a kind of blocks."""
    return {"Q8_0": "q8_0", "F32": "float32", "BF16": "float32"}.get(stored, "float16")
