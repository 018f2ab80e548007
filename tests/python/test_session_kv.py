"""Reading K and V of a session: whose rows they are after anything that may have happened, and what is refused.

What the caches store names its history (kinds_fakes.py), so every row that is read can be checked alone.
"""

from __future__ import annotations

import os
import random
import threading
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import ROTATION, close
from circles import CIRCLE
from fakes import CodingModel, compute, expected_k, make_cache, prefix_codes, state_of
from kinds_fakes import History, floor_of, keys_of, make, values_of, words

pytestmark = pytest.mark.usefixtures("nothing_left_over")

KINDS = ("dense", "window", "chunk", "hybrid", "all")
SMALL: dict[str, Any] = {"window": 8, "chunk": 8, "spacing": 16}


def attention_of(model: Any) -> dict[int, Any]:
    return {layer: cache for layer, cache in model.layers if isinstance(cache, kv.caches.CausalCache)}


def check_rows(model: Any, session: Any, layer: int, k: Any, v: Any, start: int, heads_first: bool = False) -> None:
    """Every row is the one of its position in this session's own history."""
    cache = attention_of(model)[layer]
    history = History(session.namespace, session.tokens)
    count = k.shape[1 if heads_first else 0]
    rows = history.rows(np.arange(start, start + count), layer)
    wanted_k, wanted_v = (
        keys_of(rows, cache.kv_heads, cache.head_dim),
        values_of(rows, cache.kv_heads, cache.v_head_dim),
    )
    if heads_first:
        wanted_k, wanted_v = wanted_k.transpose(1, 0, 2), wanted_v.transpose(1, 0, 2)
    np.testing.assert_array_equal(k, wanted_k, f"layer {layer} from {start}")
    np.testing.assert_array_equal(v, wanted_v, f"layer {layer} from {start}")


def check_session(model: Any, session: Any, chance: random.Random) -> None:
    """All that it holds, then a range of it; the next query's rows are among what it holds."""
    everything = session.kv_all()
    assert list(everything) == sorted(attention_of(model))
    for layer, (k, v) in everything.items():
        start = session.length - len(k)
        assert start <= floor_of(attention_of(model)[layer], session.length)
        check_rows(model, session, layer, k, v, start)
        begin = chance.randint(start, session.length)
        end = chance.randint(begin, session.length)
        heads_first = chance.random() < 0.5
        part = session.kv(layer, begin, end, heads_first=heads_first)
        assert part[0].shape[1 if heads_first else 0] == end - begin
        check_rows(model, session, layer, *part, begin, heads_first)
    some = [layer for layer in everything if chance.random() < 0.5]
    chance.shuffle(some)
    chosen = session.kv_all(layers=some)
    assert list(chosen) == some
    for layer, pair in chosen.items():
        check_rows(model, session, layer, *pair, session.length - len(pair[0]))


class Driver:
    """Random conversations on one cache; every move is followed by reads."""

    def __init__(self, kind: str, seed: int, device: Any) -> None:
        self.chance = random.Random(seed)
        self.cache, self.model = make(kind, 160, window_capacity=120, host_bytes="1MiB", device=device, **SMALL)
        self.sessions: list[Any] = []
        self.texts = [words(seed, 40), words(seed, 25) + words(seed + 1, 15), words(seed + 2, 30)]

    def begin(self) -> None:
        if len(self.sessions) == 3:
            self.sessions.pop(self.chance.randrange(3)).close()
        text = self.chance.choice(self.texts)
        tokens = text[: self.chance.randint(2, len(text))] + words(self.chance.randrange(3), self.chance.randrange(3))
        self.sessions.append(self.cache.begin(tokens, reuse_all=self.chance.random() < 0.5))

    def step(self, session: Any) -> None:
        if session.length < session.recorded:
            self.model(next(iter(session.prefill(self.chance.randint(1, 12)))))

    def open_step(self, session: Any) -> None:
        if session.length < session.recorded:
            step = session.decode()
            check_session(self.model, session, self.chance)
            assert not step.dropped and not step.complete
            if self.chance.random() < 0.5:
                self.model(step)

    def append(self, session: Any) -> None:
        session.append(words(self.chance.randrange(3), self.chance.randint(1, 3)))

    def branch(self, session: Any) -> None:
        if len(self.sessions) < 3:
            self.sessions.append(session.branch())

    def rewind(self, session: Any) -> None:
        length = self.chance.randint(0, session.recorded)
        if session.can_rewind(length):
            session.rewind(length)

    def move(self) -> None:
        moves = [self.step, self.step, self.open_step, self.append, self.branch, self.rewind]
        if not self.sessions or self.chance.random() < 0.25:
            self.begin()
        elif self.chance.random() < 0.3:
            text = self.chance.choice(self.texts)
            self.chance.choice([self.cache.page_out, self.cache.restore, self.cache.evict])(text)
        else:
            self.chance.choice(moves)(self.chance.choice(self.sessions))

    def run(self, moves: int) -> None:
        for _ in range(moves):
            try:
                self.move()
            except kv.errors.CacheFullError:
                self.sessions.pop(0).close()
            for session in self.sessions:
                check_session(self.model, session, self.chance)
        assert self.cache.check() == []
        self.cache.close()


@pytest.mark.parametrize("place", ["host", None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(1 if CIRCLE == "test" else 2))
def test_rows_are_those_of_the_session_whatever_happened(kind: str, place: Any, seed: int) -> None:
    print(f"seed {100 * seed + 7}")
    Driver(kind, 100 * seed + 7, place).run(25 if CIRCLE == "test" else 60)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tier", ["device", "host"])
def test_reused_rows_can_be_read_before_any_step(kind: str, tier: str) -> None:
    cache, model = make(kind, 256, host_bytes="1MiB", **SMALL)
    text = words(3, 40)
    with cache.begin(text) as first:
        compute(first, model)
    if tier == "host":
        cache.page_out(text)
    with cache.begin(text, reuse_all=True) as session:
        assert (session.reused, session.tier) == (40, tier)
        check_session(model, session, random.Random(1))
        assert session.length == 40


def test_neither_an_open_step_nor_recorded_tokens_are_touched() -> None:
    cache, model = make_cache(), CodingModel()
    with cache.begin(range(20)) as session:
        steps = session.prefill(chunk=12)
        model(next(steps))
        step = next(steps)
        step.put(0, *[np.zeros((8, 2, 4), np.float32)] * 2)
        k, _ = session.kv(0)
        np.testing.assert_array_equal(k, expected_k(prefix_codes("default", range(12)), 0))
        with pytest.raises(
            kv.errors.ArgumentError, match=r"stop: got 13, allowed 0 to 12, of which layer 0 holds rows"
        ):
            session.kv(0, 0, 13)
        assert not step.dropped
        step.put(1, *[np.zeros((8, 2, 4), np.float32)] * 2)
        assert session.length == 20
        assert not session.kv(0, 12)[0].any()


def test_a_window_is_read_from_where_it_holds_rows() -> None:
    cache, model = make("window", 256, **SMALL)
    with cache.begin(words(4, 30)) as session:
        compute(session, model)
        assert len(session.kv(3)[0]) == 30
        k, v = session.kv(0)
        assert 7 <= len(k) < 30  # the query at 30 sees seven rows besides its own
        first = 30 - len(k)
        check_rows(model, session, 0, k, v, first)
        with pytest.raises(
            kv.errors.ArgumentError, match=rf"start: got 0, allowed {first} to 30, of which layer 0 holds rows"
        ):
            session.kv(0, 0)
        with pytest.raises(kv.errors.ArgumentError, match=rf"stop: got 1, allowed {first} to 30"):
            session.kv(0, stop=1)
        with pytest.raises(kv.errors.ArgumentError, match="start: got 0"):
            session.kv_all(0)


REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((5,), {}, kv.errors.ArgumentError, "layer: got 5, allowed the 1 attention layers of the caches, 3 to 3"),
    ((0,), {}, kv.errors.ArgumentError, "layer: got 0, allowed the 1 attention layers"),  # a recurrent one
    ((3, -1), {}, kv.errors.ArgumentError, "start: got -1, allowed 0 to 9"),
    ((3, 10), {}, kv.errors.ArgumentError, "start: got 10, allowed 0 to 9"),
    ((3, 5, 4), {}, kv.errors.ArgumentError, "start: got 5, allowed 0 to 4"),
    ((3, 0, 10), {}, kv.errors.ArgumentError, "stop: got 10, allowed 0 to 9"),
    ((3, 1 << 40), {}, kv.errors.ArgumentError, "start: got 1099511627776"),
    ((3, 1.0), {}, kv.errors.ArgumentTypeError, "start: got 1.0"),
    (("3",), {}, kv.errors.ArgumentTypeError, "layer: got '3'"),
    ((3,), {"heads_first": 1}, kv.errors.ArgumentTypeError, "heads_first: got 1"),
]


@pytest.mark.parametrize(("arguments", "keywords", "error", "text"), REFUSED)
def test_what_is_refused_changes_nothing(
    arguments: tuple[Any, ...], keywords: dict[str, Any], error: type[Exception], text: str
) -> None:
    cache, model = make("hybrid", 64, **SMALL)
    with cache.begin(words(5, 9)) as session:
        compute(session, model)
        before = state_of(cache)
        with pytest.raises(error) as raised:
            session.kv(*arguments, **keywords)
        assert str(raised.value).startswith("[session.kv] ")
        assert text in str(raised.value)
        assert state_of(cache) == before


def test_closed_sessions_caches_and_caches_without_bytes_are_refused() -> None:
    cache, model = make_cache(), CodingModel()
    session = cache.begin(range(5))
    compute(session, model)
    twin = session.branch()
    session.close()
    for call in (session.kv_all, lambda: session.kv(0)):
        with pytest.raises(kv.errors.ClosedError, match="the session is closed"):
            call()
    cache.close()
    with pytest.raises(kv.errors.ClosedError):
        twin.kv(0)
    nothing, blind = make("dense", 64, device="null")
    with nothing.begin(words(1, 5)) as session:
        compute(session, blind)
        with pytest.raises(kv.errors.NotSupportedError, match="keeps no K and V"):
            session.kv(0)


@pytest.mark.parametrize("place", ["host", None])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_arrays_are_copies_of_the_caches_dtype_that_outlive_everything(place: Any, dtype: str) -> None:
    caches = kv.caches.CausalCache([4], 2, 8, 32, v_head_dim=3, dtype=dtype, device=place)
    cache = kv.PrefixCache(caches)
    session = cache.begin(range(6))
    step = session.decode()
    k, v = (np.random.default_rng(1).standard_normal((6, 2, dim), np.float32) for dim in (8, 3))
    step.put(4, k, v)
    first, second = session.kv(4), session.kv_all()[4]
    assert all(part.dtype == dtype and part.flags.writeable and part.flags.c_contiguous for part in first)
    first[0][:] = 7  # nobody else's
    np.testing.assert_array_equal(session.kv(4)[0], k.astype(dtype))
    session.rewind(0)
    cache.evict(range(6))
    cache.close()
    del session, cache, caches, step
    np.testing.assert_array_equal(second[0], k.astype(dtype))
    np.testing.assert_array_equal(second[1], v.astype(dtype))


@pytest.mark.parametrize("place", ["host", None])
def test_rows_with_memory_behind_them_are_the_same_rows(place: Any) -> None:
    caches = [
        kv.caches.CausalCache([0, 1], 2, 8, 64, v_head_dim=3, device=place),
        kv.caches.CausalCache([2], 2, 8, 64, window=6, device=place),
    ]
    with kv.PrefixCache(caches) as cache, cache.begin(range(9)) as session:
        step = session.decode()
        random = np.random.default_rng(2)
        for layer, v_dim in ((0, 3), (1, 3), (2, 8)):
            step.put(layer, *(random.standard_normal((9, 2, dim), np.float32) for dim in (8, v_dim)))
        for start, stop, layers in ((0, 9, [0, 1]), (4, 8, [2, 0]), (None, None, [2]), (9, 9, [1])):
            plain = session.kv_all(start, stop, layers=layers, heads_first=True)
            roomy = session._kv_with_spare(start, stop, layers, 5)
            assert list(roomy) == layers
            for layer in layers:
                for part, memory in zip(plain[layer], roomy[layer]):
                    count = part.shape[1]
                    assert memory.shape == (2, count + 5, part.shape[2])
                    assert memory.flags.writeable and memory.flags.c_contiguous
                    np.testing.assert_array_equal(memory[:, :count], part)
        with pytest.raises(kv.errors.ArgumentError, match="spare: got -1"):
            session._kv_with_spare(0, 9, [0], -1)


def test_nothing_computed_gives_no_rows() -> None:
    cache, _ = make("all", 64, **SMALL)
    with cache.begin(words(1, 5)) as session:
        for layer, (k, v) in session.kv_all().items():
            assert k.shape == (0, 1, 4) and v.shape == (0, 1, 3), layer
        assert session.kv(2, 0, 0, heads_first=True)[0].shape == (1, 0, 4)


@pytest.mark.parametrize("place", ["host", None])
def test_caches_without_values_give_none(place: Any) -> None:
    cache = kv.PrefixCache(kv.caches.CausalCache(1, 2, 4, 16, v_head_dim=0, dtype="float32", device=place))
    with cache.begin(range(3)) as session:
        session.decode().put(0, np.ones((3, 2, 4), np.float32), np.ones((3, 2, 0), np.float32))
        k, v = session.kv(0, heads_first=True)
        assert k.all() and k.shape == (2, 3, 4) and v.shape == (2, 3, 0)


@pytest.mark.parametrize("place", ["host", None])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_put_and_get_take_and_give_heads_first(place: Any, dtype: str) -> None:
    def fresh() -> Any:
        return kv.PrefixCache(kv.caches.CausalCache(1, 3, 4, 96, v_head_dim=5, dtype=dtype, device=place))

    random_rows = np.random.default_rng(2)
    k, v = (random_rows.standard_normal((70, 3, dim), np.float32) for dim in (4, 5))
    plain, turned = fresh(), fresh()
    with plain.begin(range(70)) as a, turned.begin(range(70)) as b:
        for begin in range(0, 70, 33):  # steps of 33, 33 and 4 rows
            part = slice(begin, begin + 33)
            one, other = next(iter(a.prefill(33))), next(iter(b.prefill(33)))
            one.put(0, k[part], v[part])
            other.put(0, k[part].transpose(1, 0, 2), v[part].transpose(1, 0, 2), heads_first=True)
            wanted, got = one.get(0), other.get(0, heads_first=True)
            for i in range(2):
                np.testing.assert_array_equal(wanted[i].numpy(), got[i].numpy().transpose(1, 0, 2))
            np.testing.assert_array_equal(wanted[2].numpy(), got[2].numpy())
        np.testing.assert_array_equal(a.kv(0)[1], b.kv(0)[1])
        b.append(1)
        step = b.decode()
        with pytest.raises(kv.errors.ArgumentError, match=r"k: got shape \[1, 3, 4\], allowed \[3, 1, 4\]"):
            step.put(0, k[:1], v[:1], heads_first=True)


def test_shifted_rows_are_the_rotated_ones() -> None:
    base, dim, count, keep = 10000.0, 8, 40, 4
    caches = kv.caches.CausalCache(1, 2, dim, 128, dtype="float32", rope={"base": base})
    cache = kv.PrefixCache(caches)
    k = np.random.default_rng(3).standard_normal((count, 2, dim), np.float32)
    with cache.begin(range(count)) as session:
        session.decode().put(0, k, 2 * k)
        assert session.shift(keep) is None
        dropped = count - session.length
        angles = -dropped * base ** (-np.arange(dim // 2) / (dim // 2))
        a, b = k[keep + dropped :, :, : dim // 2], k[keep + dropped :, :, dim // 2 :]
        turned = np.concatenate([a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1)
        got_k, got_v = session.kv(0)
        close(got_k, np.concatenate([k[:keep], turned]), ROTATION, each=True)
        np.testing.assert_array_equal(got_v, 2 * np.concatenate([k[:keep], k[keep + dropped :]]))


@pytest.mark.parametrize("kind", ["dense", "window"])
def test_threads_read_while_another_one_computes_and_closes(kind: str) -> None:
    cache, model = make(kind, 512, device=None, window=8)
    session = cache.begin(words(6, 120))
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                for layer, (k, v) in session.kv_all(heads_first=True).items():
                    end = len(k[0]) if layer == 3 else None
                    if end is not None:
                        check_rows(model, session, layer, k, v, 0, heads_first=True)
        except kv.errors.ClosedError:
            pass
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for step in session.prefill(chunk=3):
        model(step)
    session.close()
    stop.set()
    for reader in readers:
        reader.join()
    assert not failures
    assert cache.check() == []


def test_arrays_may_end_in_a_forked_process() -> None:
    cache, model = make_cache(), CodingModel()
    with cache.begin(range(20)) as session:
        compute(session, model)
        arrays = session.kv_all()
        child = os.fork()
        if child == 0:
            arrays.clear()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        np.testing.assert_array_equal(arrays[1][0], expected_k(prefix_codes("default", range(20)), 1))
