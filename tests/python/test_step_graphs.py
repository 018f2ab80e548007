"""Replayed steps are the steps that the model computes: the same logits and the same state, bit by bit."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from circles import CIRCLE
from random_models import VOCAB, random_model

SEED = 20251122
STEPS = 100 if CIRCLE == "test" else 300


@pytest.fixture(scope="module", autouse=True)
def _on_cpu(device: Any) -> None:
    if device.kind != "cpu":
        pytest.skip("steps are replayed on CPU devices")


def bits(logits: Any) -> bytes:
    return np.asarray(logits).tobytes()


def never() -> Any:
    raise AssertionError("a recorded step is not launched")


def caches_of(model: Any, **options: Any) -> Any:
    return kv.PrefixCache(model.caches(2048, **options), host_bytes="64 MiB")


class Twins:
    """The same conversations on two caches: one model replays, the other launches. `check` after every step."""

    def __init__(self, kind: str) -> None:
        self.models = [random_model(kind), random_model(kind)]
        self.models[1].replays = False
        self.caches = [caches_of(model) for model in self.models]
        self.sessions: list[list[Any]] = []  # pairs
        self.shifts = 0  # that dropped something

    def compute(self, chosen: list[int], tokens: list[int]) -> None:
        for index, token in zip(chosen, tokens):
            for session in self.sessions[index]:
                session.append(token)
        self.decode(chosen)

    def decode(self, chosen: list[int]) -> None:
        got = []
        for side, (model, cache) in enumerate(zip(self.models, self.caches)):
            sessions = [self.sessions[index][side] for index in chosen]
            step = sessions[0].decode() if len(sessions) == 1 else cache.batch(sessions)
            got.append(bits(model(step)))
            assert step.complete
        assert got[0] == got[1]
        self.check()

    def begin(self, prompt: list[int]) -> None:
        pair = [cache.begin(prompt) for cache in self.caches]
        assert pair[0].reused == pair[1].reused
        for model, session in zip(self.models, pair):
            for step in session.prefill(chunk=40):
                model(step)
        self.sessions.append(pair)

    def compute_again(self, index: int) -> None:
        """The last token, whose row some caches have already."""
        for session in self.sessions[index]:
            session.recompute()
        self.decode([index])

    def check(self) -> None:
        for cache in self.caches:
            assert cache.check() == []


def random_step(twins: Twins, random: np.random.Generator, shifts: bool = True) -> None:
    """One thing that conversations do. ``shifts``: also drop what is in the middle."""
    count = len(twins.sessions)
    act = random.integers(0, 11)
    if count == 0 or (act == 0 and count < 9):
        shared = [int(token) for token in np.random.default_rng(1).integers(0, VOCAB, 30)]
        twins.begin(shared + [int(token) for token in random.integers(0, VOCAB, random.integers(1, 60))])
    elif act == 1 and count < 9:
        twins.sessions.append([session.branch() for session in twins.sessions[random.integers(0, count)]])
    elif act == 2:
        pair = twins.sessions[random.integers(0, count)]
        length = int(random.integers(max(1, pair[0].length - 8), pair[0].length + 1))
        if pair[0].can_rewind(length):
            for session in pair:
                session.rewind(length)
    elif act == 3 and count > 1:
        for session in twins.sessions.pop(int(random.integers(0, count))):
            session.close()
    elif act == 4:
        for cache in twins.caches:
            with contextlib.suppress(kv.errors.CacheFullError):  # nothing but what live sessions hold
                cache.page_out(nbytes=1)
    elif act == 5 and shifts:
        pair = twins.sessions[random.integers(0, count)]
        keep, limit = int(random.integers(0, 6)), int(random.integers(8, 64))
        before = pair[0].recorded
        shifted = [session.shift(keep, limit=limit) is None for session in pair]
        assert shifted[0] == shifted[1] and pair[0].recorded == pair[1].recorded
        twins.shifts += pair[0].recorded < before
    else:
        rows = int(random.integers(1, count + 1))
        chosen = [int(index) for index in random.permutation(count)[:rows]]
        twins.compute(chosen, [int(token) for token in random.integers(0, VOCAB, rows)])


CHOOSING = ("indexed", "shared index", "blocks", "ngrams")


@pytest.mark.parametrize("kind", ["dense", "window", "hybrid", "experts", "chunks", "growing", *CHOOSING])
def test_replayed_steps_have_the_bits_of_computed_ones(kind: str) -> None:
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    twins = Twins(kind)
    chooses = kind in CHOOSING  # among copies, where keys have moved: not replayed
    for number in range(STEPS):
        random_step(twins, random, not chooses or number > STEPS * 3 // 4)
        if number % 12 == 0:
            twins.compute_again(number % len(twins.sessions))
    stats = twins.models[0].graphs.stats
    assert stats["replays"] > STEPS // (6 if chooses else 4) and stats["graphs"] >= 3, stats
    assert twins.models[1].graphs.stats["replays"] == 0
    never = kind in ("hybrid", "experts", "blocks", "ngrams", "chunks")  # states and chunks cannot be shifted
    assert (twins.shifts > 0) == (not never)


GROWING: list[tuple[str, dict[str, int], int]] = [  # kind, changes, tokens before the first step
    ("indexed", {"index_topk": 20}, 5),
    ("shared index", {"index_topk": 20}, 5),
    ("indexed", {"index_topk": 600}, 500),  # what is chosen is cut into splits
    ("blocks", {"indexer_budget": 12}, 2),  # not even one whole block
    ("blocks", {"indexer_budget": 12, "indexer_compress_ratio": 1}, 5),
    ("ngrams", {"indexer_budget": 12}, 1),  # whose n-grams reach before the first token
]


@pytest.mark.parametrize(("kind", "changes", "tokens"), GROWING)
def test_steps_grow_beyond_what_is_chosen(kind: str, changes: dict[str, int], tokens: int, device: Any) -> None:
    """One recorded step serves all later ones: before as many keys are there as are chosen, and after that."""
    models = [random_model(kind, **changes) for _ in range(2)]
    models[1].replays = False
    caches = [caches_of(model) for model in models]
    sessions = [cache.begin([(3 * i) % VOCAB for i in range(tokens)]) for cache in caches]
    for model, session in zip(models, sessions):
        for step in session.prefill():
            model(step)
    for number in range(2 * changes.get("indexer_budget", 20) if tokens < 100 else 120):
        got = []
        for model, session in zip(models, sessions):
            session.append(int(number * number) % VOCAB)
            step = session.decode()
            before = device.memory()["launches"]
            got.append(bits(model(step)))
            assert model.replays is False or number < 1 or device.memory()["launches"] == before + 1
        assert got[0] == got[1], number
    assert models[0].graphs.stats["graphs"] == 1 and models[0].graphs.stats["refusals"] == 0


def test_later_steps_of_as_many_rows_are_one_launch(device: Any) -> None:
    model = random_model("dense")
    cache = caches_of(model)
    session = cache.begin([1, 2, 3])
    list(kv.generate(model, session, 3, ignore_eos=True))
    graphs = model.graphs.stats
    assert graphs["graphs"] == 1 and graphs["launches"] > 10
    step = session.decode()
    before = device.memory()["launches"]
    model(step)
    assert device.memory()["launches"] == before + 1
    model.replays = False
    session.append(5)
    step = session.decode()
    before = device.memory()["launches"]
    model(step)
    assert device.memory()["launches"] == before + graphs["launches"]


def shifted(model: Any, cache: Any, prompt: list[int], times: int) -> Any:
    """A session whose keys stand at ``times`` distances from where they were stored."""
    session = cache.begin(prompt, publish=False)
    for time in range(times + 1):
        for step in session.prefill():
            model(step)
        if time < times:
            assert session.shift(2, limit=len(prompt)) is None
            session.append([(7 * time + i) % VOCAB for i in range(len(prompt) - session.recorded + 1)])
    return session


@pytest.mark.parametrize("first", ["moved", "not moved"])
def test_steps_that_see_moved_keys_are_one_launch(device: Any, first: str) -> None:
    """Recorded before a shift or after it: any number of distances, of some sessions of a batch and not of others."""
    model = random_model("dense")
    cache = caches_of(model)
    prompt = list(range(40))
    sessions = [shifted(model, cache, [n, *prompt], times) for n, times in enumerate((0, 1, 3, 12))]
    order = ((1, 2), (0, 1), (3, 0), (3, 2), (0, 0)) if first == "moved" else ((0, 0), (0, 1), (1, 2), (3, 0), (3, 2))
    spare = shifted(model, cache, [50, *prompt], 0)
    recorded = {False: False, True: False}
    for a, b in order:
        pair = [sessions[a], spare if a == b else sessions[b]]
        moves = a + b > 0
        for _ in range(3):
            branches = [each.branch() for each in pair]
            for each in (*pair, *branches):
                each.append(11)
            step = cache.batch(pair)
            before = device.memory()["launches"]
            replayed = bits(model(step))
            launched = device.memory()["launches"] - before
            assert not recorded[moves] or launched == 1, (a, b, launched)
            recorded[moves] = True
            recorded[True] = recorded[True] or not moves  # a step without moved keys proves both
            model.replays = False
            assert bits(model(cache.batch(branches))) == replayed
            model.replays = True
            for each in branches:
                each.close()
    assert recorded == {False: True, True: True}
    assert model.graphs.stats["refusals"] == 0, model.graphs.stats
    assert cache.check() == []


def test_logits_of_earlier_steps_stay(device: Any) -> None:
    model = random_model("dense")
    with caches_of(model).begin([1, 2, 3]) as session:
        for step in session.prefill():
            model(step)
        kept = []
        for token in range(12):
            session.append(token)
            logits = model(session.decode())
            kept.append((logits, bits(logits)))
        assert all(bits(logits) == before for logits, before in kept)
        assert len({before for _, before in kept}) == len(kept)


def test_graphs_end_with_their_cache_or_their_model(nothing_left_over: None, device: Any) -> None:
    model = random_model("dense")
    for _ in range(2):
        cache = caches_of(model)
        list(kv.generate(model, cache.begin([1, 2, 3]), 4, ignore_eos=True))
        assert model.graphs.stats["graphs"] == 1
        del cache
        gc.collect()
        assert model.graphs.stats["graphs"] == 0 and model.graphs.stats["nbytes"] == 0
    other = random_model("window")
    cache = caches_of(other)
    list(kv.generate(other, cache.begin([1, 2, 3]), 4, ignore_eos=True))
    del other


def test_a_model_that_fails_in_the_middle_leaves_nothing_recorded() -> None:
    model = random_model("dense")
    session = caches_of(model).begin([1, 2, 3])
    for step in session.prefill():
        model(step)
    session.append(4)
    layer = model._layers[1]
    model._layers[1] = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        model(session.decode())
    model._layers[1] = layer
    for token in (4, 5):
        model(session.decode())
        session.append(token)
    assert model.graphs.stats["graphs"] == 1 and model.graphs.stats["replays"] == 1


def test_wrong_steps_are_refused_and_stay_open() -> None:
    model = random_model("dense")
    session = caches_of(model).begin([1, 2, 3])
    list(kv.generate(model, session, 3, ignore_eos=True))
    session.append(VOCAB)
    step = session.decode()
    with pytest.raises(kv.errors.ArgumentError, match="token id 97"):
        model(step)
    assert not step.complete
    session.rewind(session.length)
    session.append(3)
    step = session.decode()
    width = (4 + 2 + 2) * 16
    step.attend_qkv(0, np.zeros((1, width), np.float32))
    with pytest.raises(kv.errors.ArgumentError, match="1 layers were put"):
        model.graphs.compute(step, never)
    session.rewind(session.length)
    with pytest.raises(kv.errors.ClosedError, match="dropped"):
        model.graphs.compute(step, never)
    session.append(3)
    with pytest.raises(kv.errors.ArgumentTypeError, match="launch"):
        model.graphs.compute(caches_of(model).begin([1]).decode(), lambda: 1)
    assert model.graphs.compute(session.decode(), never).shape == (1, VOCAB)


class Looking:
    """A model that looks up rows of a table by tokens and by what ``ids`` says of a step."""

    def __init__(self, ids: Callable[[Any], list[Any]]) -> None:
        random = np.random.default_rng(3)
        self.table, self.other = (kv.tensor(random.standard_normal((VOCAB, 16), np.float32)) for _ in range(2))
        self.ids, self.graphs = ids, kv.ops.StepGraphs()
        self.cache = kv.PrefixCache([kv.caches.CausalCache([0], 1, 16, 64, dtype="float32")])

    def __call__(self, step: Any) -> Any:
        ids = self.ids(step)
        return self.graphs.compute(step, lambda: self.launch(step, ids), ids)

    def launch(self, step: Any, ids: list[Any]) -> Any:
        x = kv.ops.embedding(self.table, step.tokens)
        for each in ids:
            x = kv.ops.add(x, kv.ops.embedding(self.other, each))
        return step.attend_qkv(0, kv.ops.concat([x, x, x], axis=1))


def test_further_inputs_come_with_each_step(device: Any) -> None:
    """As many as were recorded; a step of which two are alike is computed, and records nothing for good."""
    model = Looking(lambda step: [(step.tokens * 7 + 1) % VOCAB, (step.tokens * 5 + 2) % VOCAB])
    plain = Looking(model.ids)
    sessions = [each.cache.begin([16]) for each in (model, plain)]  # 7 * 16 + 1 is 16, in a table of 97 rows
    for number, token in enumerate([16, *range(3, 23)]):
        for session in sessions if number else ():
            session.append(token)
        step, other = (session.decode() for session in sessions)
        wanted = bits(plain.launch(other, plain.ids(other)))
        before = device.memory()["launches"]
        assert bits(model(step)) == wanted
        assert number < 2 or device.memory()["launches"] == before + 1, model.graphs.stats
        assert number > 0 or "like others" in model.graphs.stats["reason"]
    assert model.graphs.stats["refusals"] == 1 and model.graphs.stats["replays"] == 19
    model.ids = lambda step: [step.tokens + 1]
    sessions[0].append(9)
    step = sessions[0].decode()
    with pytest.raises(kv.errors.ArgumentError, match="further inputs: got others than recorded, allowed 2"):
        model(step)
    assert not step.complete
    with pytest.raises(kv.errors.ArgumentTypeError, match="further"):
        model.graphs.compute(step, never, [object()])
    with pytest.raises(kv.errors.ArgumentTypeError, match="further"):
        model.graphs.compute(step, never, 3)
    model.ids = lambda step: [np.int32([VOCAB]), step.tokens]  # behind the table
    assert np.isnan(np.asarray(model(step))).all() and step.complete


def test_models_whose_steps_cannot_be_replayed_compute_as_ever() -> None:
    model = random_model("dense")
    finish = model.finish
    model.finish = lambda logits: kv.ops.softmax(finish(logits))
    session = caches_of(model).begin([1, 2, 3])
    assert len(list(kv.generate(model, session, 20, ignore_eos=True))) == 20
    stats = model.graphs.stats
    assert stats["graphs"] == 0 and 1 <= stats["refusals"] < 16, stats
    assert "softmax" in stats["reason"]


def test_several_threads_replay_one_model() -> None:
    model = random_model("dense")
    cache = caches_of(model)
    wanted = []
    for start in range(6):
        model.replays = False
        with cache.begin([start, 1, 2], publish=False) as session:
            wanted.append(list(kv.generate(model, session, 40, ignore_eos=True)))
    model.replays = True
    got: dict[int, list[int]] = {}

    def talk(start: int) -> None:
        with cache.begin([start, 1, 2], publish=False) as session:
            got[start] = list(kv.generate(model, session, 40, ignore_eos=True))

    threads = [threading.Thread(target=talk, args=(start,)) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [got[start] for start in range(6)] == wanted
    assert model.graphs.stats["replays"] > 200
    assert cache.check() == []


def test_steps_of_more_rows_are_computed() -> None:
    model = random_model("dense")
    cache = caches_of(model)
    sessions = [cache.begin([index, 1]) for index in range(9)]
    for _ in range(3):
        step = cache.batch(sessions)
        model(step)
        for session in sessions:
            session.append(7)
    assert model.graphs.stats["graphs"] == 0
