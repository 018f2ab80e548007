"""Weights of a checkpoint: where each tensor lies, and how its bytes become numpy arrays.

The ``safetensors`` library checks every file (header, offsets, no holes, file length) before anything is read. Values
are then read one tensor at a time at the checked offsets, because numpy has no bfloat16 and the library's numpy reader
refuses it: bfloat16 arrives as uint16 bit patterns, which tensors take as they are. Widening them to float32 is exact.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import round_to_bfloat16
from ..errors import ArgumentError, ArgumentTypeError, FormatError, IgnoredWarning, NotSupportedError

try:
    import safetensors
except ImportError as error:
    raise ImportError("kvtrie.models needs more packages: pip install 'kvtrie[models]'") from error

Array = npt.NDArray[Any]
Progress = Callable[[int, int], object]

# safetensors' names of the supported element types, and the numpy type their bytes are read as.
STORED: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
# Bytes are parts of blocks (mxfp4.py), whole numbers those of hashes (stored_ngrams.py).
_READ = {**STORED, "U8": np.dtype(np.uint8), "I64": np.dtype("<i8")}
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
ADAPTER = "adapter_model.safetensors"  # see adapter.py


@dataclass(frozen=True)
class Blocks:
    """A tensor as a file keeps it, quantised in blocks along the last axis.

    ``rows(begin, end)`` reads part of the first axis: uint8 [rows, ..., bytes of a row]. ``dequantise`` makes float32
    [rows, ..., columns] of them. ``kind`` is the name of their layout: ggml's, "Q4_1" or "Q6_K".
    """

    kind: str
    rows: Callable[[int, int], Array]
    dequantise: Callable[[Array], Array]

    def numbers(self, begin: int, end: int) -> Array:
        return self.dequantise(self.rows(begin, end))


@dataclass(frozen=True)
class WeightSource:
    """One tensor that can be read: ``read()`` gives its stored elements (bfloat16 as uint16) in ``shape``.

    ``rows(begin, end)`` reads only part of the first axis. Of a tensor with ``blocks`` both give the float32 numbers
    that those stand for, and ``dtype`` is "F32".
    """

    name: str
    dtype: str  # "F32", "F16" or "BF16"
    shape: tuple[int, ...]
    nbytes: int  # as stored
    origin: str  # the file it comes from, for messages
    rows: Callable[[int, int], Array]
    blocks: Blocks | None = None

    def read(self) -> Array:
        return self.rows(0, self.shape[0]) if self.shape else self.rows(0, 1).reshape(())

    def part(
        self, name: str, begin: int, end: int, shape: tuple[int, ...], change: Callable[[Array], Array]
    ) -> WeightSource:
        """A tensor of its own from the rows ``begin`` to ``end``: ``change`` brings them into ``shape``."""
        length = self.nbytes // max(math.prod(self.shape), 1) * math.prod(shape)

        def read(first: int, last: int) -> Array:
            whole = np.ascontiguousarray(change(self.rows(begin, end)))
            assert whole.shape == shape
            return whole[first:last]

        return WeightSource(name, self.dtype, shape, length, self.origin, read)

    @property
    def stored(self) -> str:
        """The type of the elements in the file."""
        return self.dtype if self.blocks is None else self.blocks.kind


def concatenated(name: str, parts: Sequence[WeightSource]) -> WeightSource:
    """One tensor of the rows of several of one type, which is read whole. Raises ``kv.errors.FormatError`` where they
    do not fit together."""
    first = parts[0]
    if any((each.dtype, each.shape[1:]) != (first.dtype, first.shape[1:]) for each in parts):
        shapes = ", ".join(f"{each.name}: {each.dtype} {list(each.shape)}" for each in parts)
        raise FormatError(f"[models] {first.origin}: got {shapes}, allowed one type, and one shape but for rows")
    shape = (sum(each.shape[0] for each in parts), *first.shape[1:])
    nbytes = sum(each.nbytes for each in parts)

    def rows(begin: int, end: int) -> Array:
        return np.concatenate([each.read() for each in parts])[begin:end]

    return WeightSource(name, first.dtype, shape, nbytes, first.origin, rows)


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object from ``path``; {} if it is absent and not required. Raises ``kv.errors.FormatError`` naming the
    file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not required:
            return {}
        raise FormatError(f"[models.load] {path}: the file is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"[models.load] {path}: cannot be read: {error}") from error
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"[models.load] {path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise FormatError(f"[models.load] {path}: got a JSON {type(value).__name__}, allowed an object")
    return value


def open_folder(folder: Path) -> dict[str, WeightSource]:
    """Every tensor of a checkpoint folder, from ``model.safetensors``, its shards, or one other safetensors file.

    Where both are there it is ``model.safetensors``, as for transformers; a warning tells if the index names others.
    """
    if (folder / _SINGLE).exists():
        _check_lone(folder)
    elif (folder / _INDEX).exists():
        return _open_shards(folder)
    others = (file for file in sorted(folder.glob("*.safetensors")) if file.name != ADAPTER)
    files = [folder / _SINGLE] if (folder / _SINGLE).exists() else list(others)
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise FormatError(f"[models.load] {folder}: {_SINGLE} or {_INDEX} is missing (safetensors files: {names})")
    return open_file(files[0])


def _check_lone(folder: Path) -> None:
    table = read_json(folder / _INDEX, required=False).get("weight_map")
    if isinstance(table, dict) and set(table.values()) != {_SINGLE}:
        warnings.warn(
            f"[models.load] {folder}: {_INDEX} has no effect beside {_SINGLE}, which is read, as by transformers",
            IgnoredWarning,
            stacklevel=2,
        )


def _open_shards(folder: Path) -> dict[str, WeightSource]:
    index = folder / _INDEX
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table:
        raise FormatError(f"[models.load] {index}: weight_map is missing or empty")
    shards: dict[str, dict[str, WeightSource]] = {}
    sources: dict[str, WeightSource] = {}
    for name, file in table.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise FormatError(f"[models.load] {index}: weight_map[{name!r}]: got {file!r}, allowed a plain file name")
        if file not in shards:
            shards[file] = open_file(folder / file)
        if name not in shards[file]:
            raise FormatError(f"[models.load] {folder / file}: tensor {name!r} is missing, {_INDEX} says it is there")
        sources[name] = shards[file][name]
    for file, found in shards.items():
        beyond = sorted(name for name in found if table.get(name) != file)
        if beyond:
            raise FormatError(f"[models.load] {folder / file}: tensor {beyond[0]!r} is there, {_INDEX} does not say so")
    return sources


def open_file(path: Path) -> dict[str, WeightSource]:
    try:
        with safetensors.safe_open(path, framework="numpy"):  # type: ignore[no-untyped-call, unused-ignore]
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise FormatError(f"[models.load] {path}: the file is missing") from None
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise FormatError(f"[models.load] {path}: truncated or damaged: {error}") from error
    sources = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        sources[name] = WeightSource(
            name,
            entry["dtype"],
            tuple(entry["shape"]),
            end - begin,
            str(path),
            _file_reader(path, entry["dtype"], tuple(entry["shape"]), 8 + length + begin),
        )
    return sources


def _file_reader(path: Path, dtype: str, shape: tuple[int, ...], offset: int) -> Callable[[int, int], Array]:
    width = math.prod(shape[1:])

    def read(begin: int, end: int) -> Array:
        count = (end - begin) * width
        try:
            start = offset + begin * width * _READ[dtype].itemsize
            values: Array = np.fromfile(path, _READ[dtype], count, offset=start)
        except OSError as error:
            raise FormatError(f"[models.load] {path}: cannot be read: {error}") from error
        if values.size != count:
            raise FormatError(f"[models.load] {path}: ended early: got {values.size} elements, expected {count}")
        shaped: Array = values.reshape((end - begin, *shape[1:]))
        return shaped

    return read


def from_arrays(arrays: Mapping[str, Any]) -> dict[str, WeightSource]:
    """Sources over arrays in memory: float32, float16, float64 (rounded to float32) or ml_dtypes' bfloat16; uint8 of
    quantised blocks."""
    return {name: _array_source(name, np.asarray(value)) for name, value in arrays.items()}


def _array_source(name: str, array: Array) -> WeightSource:
    if array.dtype.name == "bfloat16":
        code, stored = "BF16", np.ascontiguousarray(array).view(np.uint16)
    elif array.dtype == np.float16:
        code, stored = "F16", np.ascontiguousarray(array)
    elif array.dtype == np.uint8:
        code, stored = "U8", np.ascontiguousarray(array)
    elif array.dtype in (np.float32, np.float64):
        code, stored = "F32", np.ascontiguousarray(array, dtype=np.float32)
    else:
        raise ArgumentTypeError(
            f"[models] weights[{name!r}]: got {array.dtype}, allowed float32, float16, float64 or bfloat16, "
            "and uint8 of blocks"
        )
    return WeightSource(name, code, tuple(array.shape), stored.nbytes, "weights", _array_reader(stored))


def _array_reader(values: Array) -> Callable[[int, int], Array]:
    return lambda begin, end: np.atleast_1d(values)[begin:end]


# Where a checkpoint that also sees images keeps its text model, and the names that has alone.
_TEXT = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)


def text_sources(sources: Mapping[str, WeightSource]) -> dict[str, WeightSource]:
    """The tensors of the text model under the names it has alone; as they are where there are no other parts."""
    if not any(name.startswith(old) for name in sources for old, _ in _TEXT):
        return dict(sources)
    text: dict[str, WeightSource] = {}
    for name, source in sources.items():
        text[text_name(name)] = source
    return text


def text_name(name: str) -> str:
    """Of a tensor or module of a larger model: what it is called in the text model alone."""
    for old, new in _TEXT:
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def check_table(
    sources: Mapping[str, WeightSource], expected: Mapping[str, tuple[int, ...]], ignored: Callable[[str], bool]
) -> None:
    """Raises unless ``sources`` holds exactly ``expected`` in shape and type; names ``ignored`` accepts may stay."""
    for name, given in sources.items():
        if given.dtype not in STORED and name not in expected and not ignored(name):
            raise NotSupportedError(
                f"[models] {given.origin}: quantised weights: got {name} of type {given.dtype}, "
                f"allowed {', '.join(STORED)}"
            )
    for name, shape in expected.items():
        source = sources.get(name)
        if source is None:
            origin = next((s.origin for s in sources.values()), "weights")
            raise FormatError(f"[models] {origin}: tensor {name!r} is missing, expected shape {list(shape)}")
        if source.dtype not in STORED:
            raise NotSupportedError(
                f"[models] {source.origin}: {name}: got {source.dtype}, allowed {', '.join(STORED)}"
            )
        if source.shape != shape:
            raise FormatError(
                f"[models] {source.origin}: {name}: got shape {list(source.shape)}, expected {list(shape)}"
            )
    extra = sorted(name for name in sources if name not in expected and not ignored(name))
    if extra:
        shown = ", ".join(extra[:4]) + (", ..." if len(extra) > 4 else "")
        raise FormatError(
            f"[models] {sources[extra[0]].origin}: {len(extra)} tensors the model has no use for: {shown}"
        )


def to_float32(values: Array, dtype: str) -> npt.NDArray[np.float32]:
    """Stored elements as float32; exact for all three stored types."""
    if dtype == "BF16":
        bits: npt.NDArray[np.uint32] = values.astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return values.astype(np.float32, copy=False)


def to_float16(values: Array, dtype: str, name: str, wanted: str = "float16") -> npt.NDArray[np.float16]:
    """Stored elements rounded to float16. Raises ``kv.errors.ArgumentError`` when one lies outside float16's range.

    ``wanted``: what a caller asked for, of which that is a part.
    """
    if dtype == "F16":
        return values.astype(np.float16, copy=False)
    wide = to_float32(values, dtype)
    with np.errstate(over="ignore"):
        narrow = wide.astype(np.float16)
    if np.any(np.isinf(narrow) & np.isfinite(wide)):
        raise ArgumentError(
            f"[models] dtype {wanted!r} cannot hold {name}: got |value| up to {np.abs(wide).max():g}, allowed 65504; "
            "use dtype='float32'"
        )
    return narrow


def to_bfloat16(values: Array, dtype: str, name: str) -> npt.NDArray[np.uint16]:
    """The bits of bfloat16: those of the file, other elements rounded.

    Raises ``kv.errors.ArgumentError`` when one rounds to infinity.
    """
    return values if dtype == "BF16" else round_to_bfloat16(to_float32(values, dtype), "models", name)


_CONVOLUTION = 8  # numbers for each channel, at most


def default_dtype(sources: Mapping[str, WeightSource]) -> str:
    """ "stored" where a matrix is quantised, "float16" or "bfloat16" when every matrix is stored so, else "float32".

    Convolutions, of a few numbers for each channel, are float32 on the device in any case.
    """
    matrices = [source for source in sources.values() if len(source.shape) > 1 and source.shape[-1] > _CONVOLUTION]
    if any(source.blocks is not None for source in matrices):
        return "stored"
    kinds = {source.dtype for source in matrices}
    return {"F16": "float16", "BF16": "bfloat16"}.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32"


BYTES: dict[str, Any] = {"unit": "B", "unit_scale": True, "unit_divisor": 1024, "desc": "loading"}


def tqdm_progress(**bar_options: Any) -> tuple[Progress, Callable[[], None]]:
    """(progress callback, close) that draw a tqdm bar on stderr. ``bar_options``: tqdm's, ``BYTES`` if none."""
    from tqdm import tqdm

    bar = tqdm(**(bar_options or BYTES))

    def update(done: int, total: int | None) -> None:
        bar.total = total
        bar.update(done - bar.n)

    return update, bar.close
