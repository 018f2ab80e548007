"""Arrays of every dtype, stride and byte order, as callers may have them, for begin, append, put and attend.

What is right is worked out with numpy and Python's integers: an array means its values, however they lie in memory.
"""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import kvtrie as kv
from circles import CIRCLE
from fakes import DIM, KV_HEADS, LAYERS, make_cache

CAPACITY = 64
ROWS = 3  # of a step
LARGEST_TOKEN = 2**31 - 1

DTYPES = st.one_of(
    hnp.integer_dtypes(endianness="?"),
    hnp.unsigned_integer_dtypes(endianness="?"),
    hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    st.sampled_from(["?", "<c8", ">c16", "<M8[s]", ">m8[D]", "<U3", "S2", "O", "V4"]).map(np.dtype),
    st.just(np.dtype([("a", "<i4"), ("b", "<f4")])),
)


@st.composite
def laid_out(draw: st.DrawFn, array: Any) -> Any:
    """The same values in other memory: reversed, with gaps, by columns, unaligned, read-only, lists."""
    how = draw(st.integers(0, 7))
    plain = array.dtype.kind in "iuf"
    if how == 1 and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if how == 2 and array.ndim:
        return np.repeat(array, 3, axis=0)[::3]
    if how == 3:
        return np.asfortranarray(array)
    if how == 4 and plain and array.size:
        room = np.zeros(array.nbytes + 1, np.uint8)
        moved = np.frombuffer(room.data, array.dtype, array.size, offset=1).reshape(array.shape)
        moved[...] = array
        return moved
    if how == 5:
        array = array.copy()
        array.flags.writeable = False
    if how == 6 and plain and array.dtype.isnative and array.size:
        return memoryview(np.ascontiguousarray(array))
    if how == 7 and plain:
        return array.tolist()
    return array


@st.composite
def arrays(
    draw: st.DrawFn, dtypes: st.SearchStrategy[Any], shapes: st.SearchStrategy[tuple[int, ...]], most: int
) -> Any:
    """``most``: of an integer or a float; 0: any that its dtype has."""
    dtype = draw(dtypes)
    shape = draw(shapes)
    if dtype.kind not in "iufcb":
        return np.zeros(shape, dtype)
    elements = None
    if most and dtype.kind in "iu":
        elements = st.integers(0, most)
    elif most and dtype.kind == "f":
        elements = st.integers(-most, most).map(float)
    return draw(laid_out(draw(hnp.arrays(dtype, shape, elements=elements))))


INTEGERS = st.one_of(hnp.integer_dtypes(endianness="?"), hnp.unsigned_integer_dtypes(endianness="?"))
FLOATS = hnp.floating_dtypes(endianness="?", sizes=(16, 32, 64))
SHAPE = (ROWS, KV_HEADS, DIM)
OTHER_SHAPES = [(ROWS, DIM, KV_HEADS), (2, KV_HEADS, DIM), (0, KV_HEADS, DIM), (24,), ()]
# What is taken comes as often as all the rest, else little of what comes behind it would be reached.
TOKENS = st.one_of(
    arrays(INTEGERS, st.tuples(st.integers(1, 9)), 50),
    arrays(INTEGERS, st.one_of(st.tuples(st.integers(0, 9)), hnp.array_shapes(min_dims=0, max_dims=3, max_side=4)), 0),
    arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=2, max_side=4), 50),
)
VALUES = st.one_of(
    arrays(FLOATS, st.just(SHAPE), 2000),
    arrays(FLOATS, st.just(SHAPE), 0),
    arrays(DTYPES, st.sampled_from([SHAPE, *OTHER_SHAPES]), 0),
)


@functools.cache
def world() -> Any:
    return make_cache(CAPACITY)


def is_token_list(given: Any) -> bool:
    array = np.asarray(given)
    if isinstance(given, list) and not given:
        return True
    return array.ndim == 1 and array.dtype.kind in "iu" and all(0 <= token <= LARGEST_TOKEN for token in array.tolist())


def expect_refusal(error: kv.Error, may_be: bool, begins: str) -> None:
    assert may_be, f"refused: {error}"
    assert re.match(begins, str(error)), error


def check_tokens(tokens: Any, more: Any) -> None:
    cache = world()
    right = is_token_list(tokens) and len(tokens) > 0
    try:
        session = cache.begin(tokens)
    except kv.Error as error:
        return expect_refusal(error, not right, r"\[begin\] ")
    with session:
        assert right, f"taken: {tokens!r}"
        expected = np.asarray(tokens).tolist()
        assert session.tokens.tolist() == expected
        one = np.ndim(more) == 0 and np.asarray(more).dtype.kind in "iu"  # a token alone, of Python or numpy
        try:
            session.append(more)
        except kv.Error as error:
            expect_refusal(error, not is_token_list(more), r"\[(session\.)?append\] ")
        else:
            assert one or is_token_list(more), f"taken: {more!r}"
            expected += np.asarray(more).reshape(-1).tolist()
        assert session.tokens.tolist() == expected
    assert not cache.check()


def in_float32(value: Any) -> Any:
    """What a float32 cache keeps of an array; None where it has to refuse it."""
    array = np.asarray(value)
    if array.shape != SHAPE or array.dtype.kind != "f":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        kept = array.astype(np.float32)
    return None if (np.isinf(kept) & np.isfinite(array)).any() else kept


def check_rows(k: Any, v: Any, q: Any) -> None:
    cache = world()
    kept = [in_float32(k), in_float32(v)]
    with cache.begin([1, 2, 3], use=False, publish=False) as session:
        step = next(iter(session.prefill()))
        try:
            for layer in range(LAYERS):
                step.put(layer, k, v)
        except kv.Error as error:
            mixed = (np.asarray(k).itemsize == 2) != (np.asarray(v).itemsize == 2)  # K and V come in one dtype
            may_be = mixed or any(each is None for each in kept)
            return expect_refusal(error, may_be, r"\[(\w+\.)?put(_rows)?\] [kv]\b")
        assert all(each is not None for each in kept), "rows that have no meaning were taken"
        for got, wanted in zip(step.get(0)[:2], kept):
            np.testing.assert_array_equal(np.asarray(got)[-ROWS:], wanted)
        check_attention(step, q)


def check_attention(step: Any, q: Any) -> None:
    wanted = in_float32(q)
    try:
        out = step.attend(0, q)
    except kv.Error as error:
        return expect_refusal(error, wanted is None, r"\[(\w+\.)?attend(_spans)?\] ")
    assert wanted is not None or np.asarray(q).ndim == 3, "queries that have no meaning were taken"
    if wanted is not None:
        np.testing.assert_array_equal(np.asarray(out), np.asarray(step.attend(0, wanted)))


# Of which the fuzzer of these inputs plays as many as it is given time for.
@settings(
    max_examples=100 if CIRCLE == "test" else 500,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def any_arrays(data: st.DataObject) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of comparisons and casts
        if data.draw(st.booleans()):
            check_tokens(data.draw(TOKENS), data.draw(TOKENS))
        else:
            check_rows(data.draw(VALUES), data.draw(VALUES), data.draw(VALUES))


def play(data: bytes) -> None:
    """The examples that these bytes choose."""
    any_arrays.hypothesis.fuzz_one_input(data)
