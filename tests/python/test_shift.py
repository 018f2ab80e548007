"""Context shift: how much goes, where the keys go, when it is refused, and who notices.

The arithmetic is the table of the systems that had it first; what attention sees afterwards is compared with numpy.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

import kvtrie as kv
from bounds import ATTENTION, close
from fakes import compute, run, state_of
from kinds_fakes import image, make, words
from rope_model import RopeModel, attention, rotate

pytestmark = pytest.mark.usefixtures("nothing_left_over")

ROPE: dict[str, Any] = {"base": 10000.0}


# ---- arithmetic ------------------------------------------------------------------------------------------------------

TABLE = [
    # limit, keep, tokens, dropped
    (2048, 5, 2048, 1021),
    (2048, 2047, 2048, 1),
    (2048, 0, 2048, 1024),
    (2048, 5, 5000, 3973),
    (2048, 2047, 5000, 2953),
    (2048, 5, 512, 0),
    (2048, 5, 1027, 0),
    (2048, 5, 1028, 1),
    (1, 0, 1, 1),
    (2, 1, 2, 1),
]
GROUPS: list[tuple[int, int, int, list[tuple[int, int]], int]] = [
    (2048, 5, 2048, [(1024, 1536)], 1531),
    (2048, 5, 2048, [(10, 522)], 1021),
    (32, 0, 32, [(0, 10), (10, 20), (20, 30), (30, 32)], 20),
    (32, 0, 32, [(4, 14), (8, 18), (14, 24)], 24),
    (32, 0, 32, [(16, 32)], 16),
    (32, 0, 32, [(15, 17)], 17),
    (32, 0, 32, [(15, 16)], 16),
]


def shifted(
    limit: Optional[int], keep: int, count: int, atomic: list[tuple[int, int]]
) -> tuple[Any, list[int], list[int]]:
    """(result, tokens before, tokens after) of a shift of `count` computed tokens; the contents do not matter here."""
    cache, model = make("dense", 2 * max(count, limit or 0), device="null", rope=ROPE, spans=atomic)
    text = words(1, count)
    with cache.begin(text, atomic=atomic) as session:
        compute(session, model, 4096)
        result = session.shift(keep) if limit is None else session.shift(keep, limit=limit)
        after = session.tokens.tolist()
        assert session.length == session.recorded == len(after)
        assert cache.check() == []
    assert cache.check() == []
    return result, text, after


@pytest.mark.parametrize(("limit", "keep", "count", "dropped"), TABLE)
def test_how_much_is_dropped(limit: int, keep: int, count: int, dropped: int) -> None:
    result, text, after = shifted(limit, keep, count, [])
    assert result is None
    assert after == text[:keep] + text[keep + dropped :]


@pytest.mark.parametrize(("limit", "keep", "count", "groups", "dropped"), GROUPS)
def test_groups_are_never_cut(limit: int, keep: int, count: int, groups: list[tuple[int, int]], dropped: int) -> None:
    result, text, after = shifted(limit, keep, count, groups)
    assert result is None
    assert after == text[:keep] + text[keep + dropped :]


def test_the_limit_is_what_is_recorded() -> None:
    result, text, after = shifted(None, 4, 40, [])
    assert result is None
    assert after == text[:4] + text[22:]


def test_an_image_goes_as_a_whole() -> None:
    cache, model = make("dense", 128, device="null", rope=ROPE)
    text = [*words(1, 15), *image("goes", 10), *words(2, 15)]
    with cache.begin(text) as session:
        compute(session, model)
        assert session.shift(0) is None
        assert session.tokens.tolist() == text[25:]
    text = [*words(1, 30), *image("stays", 8), *words(2, 2)]
    with cache.begin(text) as session:
        compute(session, model)
        assert session.shift(0) is None
        assert session.tokens.tolist() == text[20:]
        assert [length for length in range(21) if not session.can_rewind(length)] == [*range(11, 18)]  # it moved along
        session.append(5)
        model(session.decode())
    assert cache.check() == []


@pytest.mark.parametrize(("keep", "limit"), [(-1, None), (40, None), (41, None), (32, 32), (3, 0), (3, -1)])
def test_wrong_numbers_are_refused(keep: int, limit: Optional[int]) -> None:
    cache, model = make("dense", 128, rope=ROPE)
    with cache.begin(words(1, 40)) as session:
        compute(session, model)
        before = state_of(cache)
        with pytest.raises(kv.errors.ArgumentError, match=r"keep|limit"):
            session.shift(keep, limit=limit)
        assert (session.length, state_of(cache)) == (40, before)
        for wrong in ("3", 2.5, None):
            with pytest.raises(kv.errors.ArgumentTypeError, match="keep"):
                session.shift(wrong)
    with pytest.raises(kv.errors.ClosedError):
        session.shift(3)


def test_what_is_kept_is_not_cut_inside_a_span() -> None:
    cache, model = make("dense", 128, rope=ROPE)
    with cache.begin([*words(1, 8), *image("kept", 6), *words(2, 20)]) as session:
        compute(session, model)
        for keep in range(9, 14):
            with pytest.raises(kv.errors.ArgumentError, match="keep"):
                session.shift(keep)
        assert session.length == 34
        assert session.shift(14) is None


# ---- what attention sees ---------------------------------------------------------------------------------------------


ROPES = [
    [{"base": 10000.0}],
    [{"base": 10000.0, "interleaved": True}],
    [{"base": 500000.0, "dims": 8}],
    [{"base": 10000.0}, {"base": 300.0, "dims": 4}, {"base": 1e6, "interleaved": True}],
]


@pytest.mark.parametrize("ropes", ROPES, ids=["half", "interleaved", "partial", "by layer"])
def test_attention_after_a_shift_is_that_of_positions_counted_anew(place: Any, ropes: list[dict[str, Any]]) -> None:
    """With shared cells, which are copied, and own ones, which are rotated where they are."""
    layers = kv.caches.CausalCache(3, 2, 16, 256, v_head_dim=6, dtype="float32", rope=ropes, device=place)
    cache, model = kv.PrefixCache(layers, host_bytes=0), RopeModel(3, 16, 6, ropes)
    text = words(1, 60)
    with cache.begin(text, publish=False) as own, cache.begin(text) as shared:
        for session in (own, shared):
            compute(session, model, 16)
            for round_ in range(3):
                assert session.shift(4) is None
                assert session.length == len(session.tokens)
                session.append(words(round_, 3))
                model(session.decode())
                session.append(7)
                model(session.decode())
        model_tokens = own.tokens.tolist()
        assert model_tokens == shared.tokens.tolist()
        assert cache.check() == []
    assert run(cache, text, model).reused == 59
    assert cache.check() == []


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_shift_leaves_latents_alone(place: Any, interleaved: bool) -> None:
    """What rotates stands at the front of a key; the rest is the value of the same row."""
    ropes = [{"base": 10000.0, "dims": 6, "interleaved": interleaved}]
    layers = kv.caches.CausalCache(2, 2, 16, 256, latent_dim=10, dtype="float32", rope=ropes, device=place)
    assert (layers.v_head_dim, layers.latent_dim) == (0, 10)
    cache, model = kv.PrefixCache(layers, host_bytes=0), RopeModel(2, 16, 0, ropes, latent=10)
    text = words(1, 60)
    with cache.begin(text, publish=False) as own, cache.begin(text) as shared:
        for session in (own, shared):
            compute(session, model, 16)
            for round_ in range(3):
                assert session.shift(4) is None
                session.append(words(round_, 3))
                model(session.decode())
    assert run(cache, text, model).reused == 59
    assert cache.check() == []


@pytest.mark.parametrize("memory", [None, 40])
def test_a_shift_with_a_window_that_stays_complete(place: Any, memory: Optional[int]) -> None:
    """Where the window lies behind the drop it moves with the rest, and later queries see all of it."""
    full = kv.caches.CausalCache([0], 2, 16, 256, v_head_dim=6, dtype="float32", rope=ROPE, device=place)
    sliding = kv.caches.CausalCache(
        [1, 2], 2, 16, 256, v_head_dim=6, dtype="float32", window=8, memory=memory, rope=ROPE, device=place
    )
    cache, model = kv.PrefixCache([full, sliding], host_bytes=0), RopeModel(3, 16, 6, [ROPE], window=8)
    text = words(1, 60)
    with cache.begin(text) as session:
        compute(session, model, 16)
        for round_ in range(4):
            assert session.shift(4) is None
            session.append(words(round_, 3))
            model(session.decode())
            session.append(7)
            model(session.decode())
    assert run(cache, text, model).reused == 59
    assert cache.check() == []


# ---- where it is impossible ------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "recurrent": ("hybrid", {"rope": ROPE}),
    "only recurrent": ("recurrent alone", {}),
    "chunks": ("chunk", {"rope": ROPE, "chunk": 16}),
    "no rope": ("dense", {}),
    "dynamic": (
        "dense",
        {"rope": {"base": 1e4, "scaling": {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}}},
    ),
    "all": ("all", {"rope": ROPE, "chunk": 16, "window": 16}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_reprocess_names_the_tokens_and_changes_nothing(name: str) -> None:
    kind, options = REFUSED[name]
    cache, model = make(kind, 256, **options)
    text = words(1, 60)
    with cache.begin(text) as session:
        compute(session, model, 16)
        before = state_of(cache)
        answer = session.shift(4)
        assert isinstance(answer, kv.results.Reprocess)
        assert answer.tokens.dtype == np.int32
        assert answer.tokens.tolist() == text[:4] + text[32:]
        assert (session.length, session.tokens.tolist(), state_of(cache)) == (60, text, before)
        session.append(5)
        model(session.decode())  # checks all that it sees
        assert session.shift(4, limit=128) is None  # nothing to do is no refusal
    assert run(cache, text, model).reused == 59
    again = run(cache, answer.tokens, model)
    assert again.matched == 4
    assert cache.check() == []


def test_an_incomplete_window_refuses() -> None:
    """A drop inside the window would pull in keys that are gone."""
    cache, model = make("window", 256, window=16, rope=ROPE)
    text = words(1, 60)
    with cache.begin(text) as session:
        compute(session, model, 16)
        before = state_of(cache)
        answer = session.shift(50, limit=60)
        assert isinstance(answer, kv.results.Reprocess)
        assert answer.tokens.tolist() == text[:50] + text[55:]
        assert (session.tokens.tolist(), state_of(cache)) == (text, before)
        session.append(5)
        model(session.decode())
    assert run(cache, text, model).reused == 59
    assert cache.check() == []


def test_what_is_not_computed_yet_is_named_too() -> None:
    """A prompt longer than the limit: what would go is not there, so nothing can move."""
    cache, model = make("dense", 256, rope=ROPE)
    text = words(1, 100)
    with cache.begin(text) as session:
        steps = session.prefill(chunk=20)
        model(next(steps))
        answer = session.shift(4, limit=64)
        assert isinstance(answer, kv.results.Reprocess)
        assert answer.tokens.tolist() == text[:4] + text[4 + 66 :]
        assert (session.length, session.recorded) == (20, 100)
        compute(session, model)
    assert cache.check() == []


def test_recorded_tokens_move_along() -> None:
    """What is recorded behind the end of the drop is computed where it now is."""
    ropes = [ROPE]
    layers = kv.caches.CausalCache(1, 2, 16, 256, v_head_dim=6, dtype="float32", rope=ROPE, device="host")
    cache, model = kv.PrefixCache(layers, host_bytes=0), RopeModel(1, 16, 6, ropes)
    text = words(1, 60)
    with cache.begin(text[:50]) as session:
        compute(session, model, 16)
        session.append(text[50:])
        assert session.shift(4) is None
        assert session.tokens.tolist() == text[:4] + text[32:]
        assert (session.length, session.recorded) == (22, 32)
        compute(session, model, 4)
        assert session.length == 32
    assert cache.check() == []


# ---- who notices -----------------------------------------------------------------------------------------------------


def stored(cache: kv.PrefixCache, text: list[int]) -> tuple[bytes, ...]:
    """The bytes of K and V of `text` as another session reads them."""
    with cache.begin([*text, 7], publish=False) as session:
        assert session.reused == len(text)
        step = session.decode()
        zeros = np.zeros((1, 2, 16)), np.zeros((1, 2, 6))
        step.put(0, *zeros)
        return tuple(np.asarray(part)[: len(text)].tobytes() for part in step.get(0)[:2])


def test_others_keep_the_original_byte_for_byte(place: Any) -> None:
    """Live sessions on the same path, branches made before, and later prompts."""
    layers = kv.caches.CausalCache(1, 2, 16, 256, v_head_dim=6, dtype="float32", rope=ROPE, device=place)
    cache, model = kv.PrefixCache(layers, host_bytes=0), RopeModel(1, 16, 6, [ROPE])
    text = words(1, 60)
    with cache.begin(text) as session, cache.begin([*text[:50], 3]) as other:
        compute(session, model)
        compute(other, model)
        twin = session.branch()
        before = stored(cache, text)
        nodes = [(node.start, node.end) for node in cache.nodes()]
        assert session.shift(4) is None
        assert stored(cache, text) == before
        session.append(9)
        model(session.decode())
        for each in (twin, other):
            each.append(8)
            model(each.decode())
        assert stored(cache, text) == before
        twin.close()
        assert {start for start, _ in nodes} <= {node.start for node in cache.nodes()}
    assert stored(cache, text) == before
    assert cache.check() == []


def test_the_session_and_its_branches_are_private_from_then_on() -> None:
    layers = kv.caches.CausalCache(1, 2, 16, 256, v_head_dim=6, dtype="float32", rope=ROPE, device="host")
    cache, model = kv.PrefixCache(layers, host_bytes=0), RopeModel(1, 16, 6, [ROPE])
    text = words(1, 60)
    with cache.begin(text) as session:
        compute(session, model)
        assert session.shift(4) is None
        tokens = cache.stats()["tokens"]
        branch = session.branch()
        for each in (session, branch):
            each.append(words(2, 5))
            model(each.decode())
            with pytest.raises(kv.errors.NotSupportedError):
                each.checkpoint()
        shifted_text = session.tokens.tolist()
        assert cache.stats()["tokens"] == tokens == 60
        assert cache.plan(shifted_text).matched == 4
        branch.rewind(10)
        branch.append(4)
        model(branch.decode())
        branch.rewind(2)
        branch.append([3, 3])
        model(branch.decode())
        branch.close()
    assert cache.stats()["tokens"] == 60
    assert cache.plan(shifted_text).matched == 4
    with cache.begin(shifted_text) as fresh:  # the same tokens, computed: shared with nobody who shifted
        assert fresh.reused == 4
        compute(fresh, model)
    assert cache.check() == []


def test_a_shift_needs_no_room(place: Any) -> None:
    """Cells that others hold stay theirs, and are the shifted conversation's, too: nothing is copied."""
    layers = kv.caches.CausalCache(1, 2, 16, 62, v_head_dim=6, dtype="float32", rope=ROPE, device=place)
    cache, model = kv.PrefixCache(layers, host_bytes=0, growth=0), RopeModel(1, 16, 6, [ROPE])
    text = words(1, 60)
    with cache.begin(text) as session, cache.begin(text) as other:
        compute(session, model)
        compute(other, model)
        free = layers.free_cells
        assert free == 2
        assert session.shift(4) is None
        assert layers.free_cells == free
        for each in (session, other):
            each.append(5)
            model(each.decode())
        session.append([6, 7])
        with pytest.raises(kv.errors.CacheFullError):
            next(session.prefill())
        session.rewind(session.length)
        assert cache.check() == []
    run(cache, words(3, 5), model)
    assert cache.check() == []


class Written:
    """One layer's rows as a cache stored them once: what attention reads after each shift, in float64."""

    def __init__(self, session: Any, dim: int) -> None:
        self.session, self.dim = session, dim
        self.rows: list[tuple[Any, Any, int]] = []  # K and V as stored, and the position at which that was
        self.random = np.random.default_rng(6)

    def numbers(self, count: int, heads: int) -> Any:
        return self.random.standard_normal((count, heads, self.dim)).astype(np.float32)

    def rotated(self, x: Any, positions: Any) -> Any:
        return rotate(x, positions, self.dim, ROPE["base"], False)

    def write(self, step: Any) -> None:
        """All rows of a step; the last one's attention is compared."""
        positions = np.asarray(step.positions)
        count = len(positions)
        q, k, v = self.numbers(count, 4), self.numbers(count, 2), self.numbers(count, 2)
        q, k = self.rotated(q, positions), self.rotated(k, positions)
        out = np.asarray(step.attend(0, q, k, v))
        kept = [np.asarray(part)[-count:].astype(np.float32) for part in self.session.kv(0)]
        self.rows += zip(*kept, positions.tolist())
        moves = np.arange(len(self.rows)) - [each[2] for each in self.rows]
        keys = self.rotated(np.stack([each[0] for each in self.rows]), moves)
        close(out[-1], attention(q[-1], keys, np.stack([each[1] for each in self.rows])), ATTENTION, each=True)


def work_of(place: Any) -> list[int]:
    return [] if place == "host" else [place.memory()[each] for each in ("kv_bytes_moved", "copy_bytes", "launches")]


@pytest.mark.parametrize("dtype", ["float32", "float16", "q8_0", "q4h"])
def test_a_hundred_shifts_move_no_byte_and_lose_nothing(place: Any, dtype: str) -> None:
    layers = kv.caches.CausalCache(1, 2, 64, 64, dtype=dtype, rope=ROPE, device=place)
    cache = kv.PrefixCache(layers, host_bytes=0)
    with cache.begin(words(1, 48)) as session:
        written = Written(session, 64)
        written.write(session.decode())
        for round_ in range(100):
            length, keep = session.length, (4, 0, 30)[round_ % 3]
            before = (
                [] if place == "host" else [layers.device.memory()[each] for each in ("kv_bytes_moved", "launches")]
            )
            assert session.shift(keep, limit=length) is None
            if place != "host":
                assert before == [layers.device.memory()[each] for each in ("kv_bytes_moved", "launches")]
            del written.rows[keep : keep + length - session.length]
            session.append(words(round_, length - session.length))
            written.write(session.decode())
        assert cache.check() == []
    assert cache.check() == []


def test_a_conversation_that_fills_the_pool_can_shift(place: Any) -> None:
    """Nobody else needs what it leaves behind."""
    layers = kv.caches.CausalCache(1, 2, 16, 60, v_head_dim=6, dtype="float32", rope=ROPE, device=place)
    cache, model = kv.PrefixCache(layers, host_bytes=0), RopeModel(1, 16, 6, [ROPE])
    with cache.begin(words(1, 60)) as session:
        compute(session, model)
        assert session.shift(4) is None
        session.append(words(2, 20))
        compute(session, model)
        assert cache.check() == []


def test_the_kinds_that_can_and_cannot_shift() -> None:
    """Every kind with a RoPE of its own: what the answer is, and what is left."""
    answers = {}
    for kind in ("dense", "window", "chunk", "hybrid", "window alone", "recurrent alone"):
        cache, model = make(kind, 256, window=16, chunk=16, rope=ROPE)
        with cache.begin(words(1, 60)) as session:
            compute(session, model)
            answers[kind] = session.shift(4, limit=60)
        assert cache.check() == []
    impossible = {kind for kind, answer in answers.items() if isinstance(answer, kv.results.Reprocess)}
    assert impossible == {"chunk", "hybrid", "recurrent alone"}
    assert {kind for kind, answer in answers.items() if answer is None} == {"dense", "window", "window alone"}
