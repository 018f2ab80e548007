"""Host arrays for tensors: whatever a caller gives becomes one contiguous numpy array of a dtype that tensors have.

Called by the C++ bindings for everything that is not already such an array. Errors name the public call (`where`), its
argument (`name`), the value and what is allowed.
"""

from __future__ import annotations

import array as array_module
from collections.abc import Sequence
from typing import Any, Optional, Protocol, cast

import numpy as np
import numpy.typing as npt

from ._arguments import MOST_ITEMS, converting
from ._core import _from_dlpack
from .errors import ArgumentError, ArgumentTypeError

Array = npt.NDArray[Any]

_SOURCES = "an array (buffer protocol, __array__ or __dlpack__) or nested sequences of numbers"
_HOST_DEVICES = (1, 3, 11)  # of DLPack: the host, and its memory that CUDA or ROCm has pinned
_FLOATS = {"float32": np.float32, "float16": np.float16}
_INTEGERS = {"int32": np.int32, "uint32": np.uint32}
_ALLOWED = "float32, float16, bfloat16, int32 or uint32"


class _ShowsMemory(Protocol):
    def __dlpack_device__(self) -> tuple[int, int]: ...


def as_array(value: Any, where: str, name: str) -> Array:
    """`value` as a numpy array, not copied where that can be avoided."""
    array, bits = _shown(value, where, name)
    if bits:
        raise ArgumentTypeError(f"[{where}] {name}: got an array of bfloat16, allowed another dtype")
    return array


def in_place(value: object, where: str, name: str) -> Array:
    """`value`'s own memory as a numpy array, bfloat16 as its bits in uint16."""
    return _shown(value, where, name)[0]


def _shown(value: object, where: str, name: str) -> tuple[Array, bool]:
    """(array, whether it has the bits of bfloat16), not copied where that can be avoided."""
    if isinstance(value, np.ndarray):
        return value, False
    with converting(value, where, name, _SOURCES):
        kind = type(value)
        if hasattr(kind, "__dlpack__"):
            place = _place_of(cast("_ShowsMemory", value))
            if place in _HOST_DEVICES:
                return _from_dlpack(_plain(value), where, name)
            if not hasattr(kind, "__array__"):
                raise ArgumentTypeError(
                    f"[{where}] {name}: got memory of DLPack device type {place}, allowed the host's (1, 3 or 11)"
                )
        return np.asarray(_within_its_length(value, where, name)), False


def _place_of(value: _ShowsMemory) -> Optional[int]:
    """The type of device in DLPack's numbers; None where it shows no memory."""
    try:
        return int(value.__dlpack_device__()[0])
    except BufferError:
        return None


def _plain(value: object) -> object:
    """A torch tensor without its graph, and with signs that were only noted carried out; anything else as it is.

    DLPack says nothing of either: torch refuses the first and forgets the second.
    """
    for method in ("detach", "resolve_conj", "resolve_neg"):
        if hasattr(type(value), method):
            value = getattr(value, method)()
    return value


def _within_its_length(value: object, where: str, name: str) -> object:
    """The items of a sequence as a list of as many as its length says: numpy would ask until there are no more."""
    kind = type(value)
    sized = hasattr(kind, "__len__") and hasattr(kind, "__getitem__")
    if not sized or isinstance(value, (list, tuple, str, bytes, bytearray, memoryview, array_module.array)):
        return value
    if any(hasattr(kind, each) for each in ("__array__", "__array_interface__", "__array_struct__", "__buffer__")):
        return value
    items = cast("Sequence[object]", value)
    count = len(items)
    if count > MOST_ITEMS:
        raise ArgumentError(f"[{where}] {name}: got {count} items, allowed {MOST_ITEMS}")
    return [items[index] for index in range(count)] if not isinstance(value, dict) else value


def prepare(value: Any, wanted: Optional[str], where: str, name: str) -> tuple[Array, str]:
    """(contiguous array, name of the dtype) for a tensor of dtype `wanted`, or the nearest one that tensors have.

    bfloat16 is given back as its bits in uint16, and taken as such when `wanted` says so. Floats are rounded to the
    nearest even; a finite number that would become infinite and an integer that does not fit are refused.
    """
    array, is_bits = _shown(value, where, name)
    with converting(value, where, name, "an array of numbers"):
        return _prepared(array, is_bits, wanted, where, name)


def _prepared(array: Array, is_bits: bool, wanted: Optional[str], where: str, name: str) -> tuple[Array, str]:
    source = "bfloat16" if is_bits else array.dtype.name
    if wanted is None:
        wanted = "bfloat16" if is_bits else _natural(array, where, name)
    if source == "bfloat16":
        bits = array if is_bits else array.view(np.uint16)
        if wanted == "bfloat16":
            return _one_piece(bits), wanted
        array = widen_bfloat16(bits)
    elif wanted == "bfloat16" and source == "uint16":
        return _one_piece(array), wanted
    if wanted in _INTEGERS:
        return _integers(array, wanted, where, name), wanted
    if array.dtype.kind not in "fiu":
        raise ArgumentTypeError(f"[{where}] {name}: got an array of {array.dtype}, allowed numbers")
    if wanted == "bfloat16":
        return round_to_bfloat16(_floats(array, "float32", where, name), where, name), wanted
    return _floats(array, wanted, where, name), wanted


def _natural(array: Array, where: str, name: str) -> str:
    kind = array.dtype.kind
    if array.dtype.name == "bfloat16":
        return "bfloat16"
    if kind == "f":
        return "float16" if array.dtype.itemsize == 2 else "float32"
    if kind == "i" or (kind == "u" and array.dtype.itemsize == 1):
        return "int32"
    if kind == "u" and array.dtype.itemsize >= 4:
        return "uint32"
    hint = ", and uint16 with dtype='bfloat16'" if array.dtype.name == "uint16" else ""
    raise ArgumentTypeError(f"[{where}] {name}: got an array of {array.dtype}, allowed {_ALLOWED}{hint}")


def _one_piece(array: Array) -> Array:
    result: Array = np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")
    return result


def _floats(array: Array, wanted: str, where: str, name: str) -> Array:
    with np.errstate(over="ignore"):
        result: Array = np.asarray(array, dtype=_FLOATS[wanted], order="C")
    wider = array.dtype.kind in "iu" or array.dtype.itemsize > result.dtype.itemsize
    if wider:
        lost = np.isinf(result) & np.isfinite(array)
        if lost.any():
            _refuse_first(array, lost, f"up to {np.finfo(_FLOATS[wanted]).max} in {wanted}", where, name)
    return result


def round_to_bfloat16(array: Array, where: str, name: str) -> Array:
    """The bits of float32 values rounded to nearest even, in uint16; raises where one is too large."""
    bits = array.view(np.uint32)
    up = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    rounded: Array = np.where(np.isnan(array), (bits >> np.uint32(16)) | np.uint32(0x40), up).astype(np.uint16)
    lost = ((rounded & 0x7FFF) == 0x7F80) & np.isfinite(array)
    if lost.any():
        _refuse_first(array, lost, "up to 3.39e+38 in bfloat16", where, name)
    return rounded


def _integers(array: Array, wanted: str, where: str, name: str) -> Array:
    if array.dtype.kind not in "iu":
        raise ArgumentTypeError(f"[{where}] {name}: got an array of {array.dtype}, allowed integers for {wanted}")
    limits = np.iinfo(_INTEGERS[wanted])
    lost = (array < limits.min) | (array > limits.max)
    if lost.any():
        _refuse_first(array, lost, f"{limits.min} to {limits.max} in {wanted}", where, name)
    result: Array = np.asarray(array, dtype=_INTEGERS[wanted], order="C")
    return result


def _refuse_first(array: Array, lost: Array, allowed: str, where: str, name: str) -> None:
    at = tuple(int(index) for index in np.unravel_index(np.argmax(lost), np.shape(lost)))
    raise ArgumentError(f"[{where}] {name}{list(at) if at else ''}: got {array[at]}, allowed {allowed}")


def widen_bfloat16(bits: Array) -> Array:
    """float32 values of bfloat16 bits in uint16; exact."""
    values: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values
