"""Arguments that nobody should give: by name, made anew for each call."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np

import kvtrie as kv


class Hostile(Exception):
    """What methods of hostile objects raise."""


class HostileExit(BaseException):
    """The same, of a kind that no call may stop, as a KeyboardInterrupt is."""


def _raise(*_: Any, **__: Any) -> NoReturn:
    raise Hostile("\ud800 no")


def _leave(*_: Any, **__: Any) -> NoReturn:
    raise HostileExit


def _object(**methods: Any) -> Any:
    """An instance of a class of its own with these special methods."""
    return type("Hostility", (), {f"__{name}__": method for name, method in methods.items()})()


class LyingList(list):  # type: ignore[type-arg]
    """A list whose length lies."""

    def __len__(self) -> int:
        return 1 << 40


def _numbers() -> Iterator[tuple[str, Callable[[], Any]]]:
    for value in (
        0,
        1,
        -1,
        3,
        7,
        2**15,
        2**24,
        2**31 - 1,
        2**31,
        2**32,
        2**53,
        2**63 - 1,
        2**63,
        2**64,
        -(2**31),
        -(2**63),
        10**40,
    ):
        yield f"int {value}", lambda value=value: value
    for number in (0.0, -0.0, 0.5, 1.0, -1.5, 1e-320, 1e39, 1e308, math.inf, -math.inf, math.nan):
        yield f"float {number}", lambda number=number: number
    for name in ("int8", "int64", "uint64", "float16", "float64", "longdouble", "complex128", "bool"):
        yield f"numpy scalar {name}", lambda name=name: np.dtype(name).type(1)
    yield "bool True", lambda: True
    yield "bool False", lambda: False
    yield "complex", lambda: 1j


def _texts() -> Iterator[tuple[str, Callable[[], Any]]]:
    for text in (
        "",
        "text",
        "\0",
        "a\0b",
        "\ud800",
        "a" * 100_000,
        "{{",
        "%999999999d",
        "../..",
        "1",
        "nan",
        "10**9",
        "\U0001f600" * 40,
    ):
        yield f"text {text[:12]!a}", lambda text=text: text
    for data in (b"", b"bytes", b"\xff\xfe\0", b"a" * 4096):
        yield f"bytes {data[:8]!r}", lambda data=data: data
    yield "bytearray", lambda: bytearray(b"\0\1\2\3")
    yield "memoryview", lambda: memoryview(b"\0\1\2\3")[::2]


def _deep(kind: type) -> Any:
    value: Any = kind()
    for _ in range(5000):
        value = [value] if kind is list else {"a": value}
    return value


def _circle() -> Any:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _containers() -> Iterator[tuple[str, Callable[[], Any]]]:
    plain = (
        None,
        [],
        (),
        {},
        set(),
        [[]],
        [None],
        [1.5],
        ["a"],
        [b"a"],
        [-1],
        [2**31],
        [2**70],
        [True],
        [math.nan],
        [1, 2, 3],
        [0, 1, 2, 3, 4, 5, 6, 7] * 50,
        (1, [2, 3]),
        {"a": 1},
        {1: 2},
        {"role": "user"},
        [{"role": "user"}],
        [{"role": 1, "content": 2}],
        [{"role": "user", "content": ["text"]}],
        [{}],
        [("a", 1)],
        {0: "a"},
        [[1], [2, 3]],
        [[1, 2], [3, 4]],
        [(0, 1)],
        [(1, 0)],
        [(-5, 3)],
        [(0, 2**40)],
        range(0),
        range(5),
        range(10**12),
        range(2**62),
        frozenset([1]),
        NotImplemented,
        Ellipsis,
        slice(None),
        slice(0, 10**30),
        slice("a"),
        slice(3, 1),
        slice(0, 4, 2),
    )
    for number, value in enumerate(plain):
        yield f"plain {number} {ascii(value)[:30]}", lambda value=value: value
    yield "deep list", lambda: _deep(list)
    yield "deep dict", lambda: _deep(dict)
    yield "circle", _circle
    yield "generator", lambda: (i for i in (1, 2, 3))
    yield "generator that raises", lambda: (_raise() for _ in (1,))
    yield "list iterator", lambda: iter([1, 2, 3])
    yield "lying list", lambda: LyingList([1, 2])
    yield "changing list", _changing
    yield "dict of surrogates", lambda: {"\ud800": "\ud800"}


def _changing() -> Any:
    made: list[Any] = [1, 2, 3]

    def clear(_: Any) -> int:
        made.clear()
        return 1

    made[0] = _object(index=clear)
    return made


DTYPES = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "longdouble",
    "complex64",
    "object",
    "U5",
    "S5",
    "V4",
    "datetime64[s]",
    "timedelta64[s]",
    ">i4",
    ">f4",
    ">i8",
    ">f2",
)


def _arrays() -> Iterator[tuple[str, Callable[[], Any]]]:
    for dtype in DTYPES:
        for shape in ((3,), (2, 4), ()):
            yield f"array {dtype} {shape}", lambda dtype=dtype, shape=shape: np.zeros(shape, dtype)
    yield "array of a structure", lambda: np.zeros(3, [("a", "i4"), ("b", "f4")])
    for shape in ((0,), (0, 4), (4, 0), (1,) * 9, (3, 2, 4), (1, 3, 2, 4), (5000,)):
        yield f"array float32 {shape}", lambda shape=shape: np.ones(shape, np.float32)
    wide = np.arange(48, dtype=np.float32).reshape(6, 2, 4)
    yield "array strided", lambda: wide[::2]
    yield "array reversed", lambda: wide[::-1, :, ::-1]
    yield "array transposed", lambda: wide.T
    yield "array Fortran", lambda: np.asfortranarray(wide)
    yield "array unaligned", lambda: np.frombuffer(b"\0" * 25, np.uint8)[1:].view(np.int32)
    yield "array read-only", lambda: _read_only()
    yield "array of a million million", lambda: np.broadcast_to(np.float32(1), (1 << 40,))
    yield "integers of a million million", lambda: np.broadcast_to(np.int32(1), (1 << 40,))
    yield "array NaN", lambda: np.full((3, 2, 4), np.nan, np.float32)
    yield "array 1e300", lambda: np.full(3, 1e300)
    yield "array negative", lambda: np.array([3, -1, 2])
    yield "array object mixed", lambda: np.array([1, "a", None, 2.5], object)
    yield "array object raising", lambda: np.array([_object(index=_raise, float=_raise)], object)
    yield "masked array", lambda: np.ma.masked_array([1, 2, 3], [True, False, False])  # type: ignore[no-untyped-call]
    yield "dtype", lambda: np.dtype("float32")
    yield "dtype of a structure", lambda: np.dtype([("a", "i4")])
    yield "scalar type", lambda: np.float32


def _read_only() -> Any:
    made = np.zeros((3, 2, 4), np.float32)
    made.flags.writeable = False
    return made


def _objects() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "object", object
    yield "class", lambda: int
    yield "module", lambda: sys
    yield "lambda", lambda: lambda *_, **__: None
    yield "lambda of 1", lambda: lambda *_, **__: 1
    yield "lambda of text", lambda: lambda *_, **__: "\ud800"
    yield "function that raises", lambda: _raise
    yield "function that leaves", lambda: _leave
    lies: dict[str, Any] = {
        "index": "a",
        "len": -1,
        "iter": 5,
        "float": "a",
        "array": 5,
        "fspath": 5,
        "call": None,
        "bool": 7,
        "str": 3,
        "repr": 3,
        "hash": "a",
        "dlpack": 1,
        "getitem": None,
        "next": None,
        "array_interface": 5,
        "int": "a",
        "enter": 1,
        "buffer": 1,
        "length_hint": -5,
    }
    for name, lie in lies.items():
        yield f"lies in {name}", lambda name=name, lie=lie: _object(**{name: lambda *_, **__: lie})
        yield f"raises in {name}", lambda name=name: _object(**{name: _raise})
    for name in ("index", "len", "iter", "float", "array", "fspath", "repr", "getitem", "getattr"):
        yield f"leaves in {name}", lambda name=name: _object(**{name: _leave})
    yield "raises in getattr", lambda: _object(getattr=_raise)
    yield "raises everywhere", lambda: _object(**dict.fromkeys(lies, _raise), getattr=_raise, eq=_raise)
    yield "endless sequence", lambda: _object(len=lambda _: 3, getitem=lambda *_: 1)
    yield "short sequence", lambda: _object(len=lambda _: 5, getitem=lambda _, at: [1, 2][at])
    yield "sequence of 2**62", lambda: _object(len=lambda _: 1 << 62, getitem=lambda *_: 1)
    yield "long repr", lambda: _object(repr=lambda _: "\u20ac" * 59 + "x\n" * 9)
    yield "surrogate repr", lambda: _object(repr=lambda _: "\ud800" * 99)
    yield "path of bytes", lambda: _object(fspath=lambda _: b"/tmp/\xff")


def _of_ours() -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "host tensor", lambda: kv.tensor(np.ones((3, 2, 4), np.float32), device="host")
    yield "device tensor", lambda: kv.tensor(np.ones((3, 2, 4), np.float32))
    yield "int tensor", lambda: kv.tensor([1, 2, 3], device="host")
    yield "empty tensor", lambda: kv.tensor(np.zeros((0, 4), np.float32), device="host")
    yield "float16 tensor", lambda: kv.tensor([1.0, 2.0], "float16")
    yield "device", kv.Device
    yield "cache", lambda: kv.caches.CausalCache(2, 2, 4, 16, dtype="float32", device="host")
    yield "prefix cache", lambda: kv.PrefixCache(kv.caches.CausalCache(2, 2, 4, 16, dtype="float32", device="host"))
    yield "closed session", _closed_session
    yield "dropped step", _dropped_step
    yield "never made", lambda: kv.Session.__new__(kv.Session)
    yield "tensor never made", lambda: kv.Tensor.__new__(kv.Tensor)


def _closed_session() -> Any:
    session = kv.PrefixCache(kv.caches.CausalCache(2, 2, 4, 16, device="host")).begin([1])
    session.close()
    return session


def _dropped_step() -> Any:
    session = kv.PrefixCache(kv.caches.CausalCache(2, 2, 4, 16, device="host")).begin([1, 2])
    step = session.decode()
    session.append(3)
    return step


HOSTILE: dict[str, Callable[[], Any]] = dict(
    [*_numbers(), *_texts(), *_containers(), *_arrays(), *_objects(), *_of_ours()]
)
