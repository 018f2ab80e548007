"""The drafter "suffix": what followed the same last tokens anywhere in the namespace, and nowhere else.

The index itself is tried against looking through all paths in C++ (trie_suffix_index_test.cpp, oracle_prefix_cache).
"""

from __future__ import annotations

from typing import Any

import pytest

import kvtrie as kv
from fakes import CodingModel, compute, make_cache, run
from kinds_fakes import image, make
from kvtrie._drafting import Costs
from random_models import VOCAB, random_model
from test_draft import COUNT, VARIED, prompt

pytestmark = pytest.mark.usefixtures("nothing_left_over")

SAID = [*range(10, 30)]
ELSEWHERE = [1, 2, 3, *SAID[4:12]]  # another path, with a piece of it


def suffix(session: Any, most: int = 8) -> list[int]:
    return [int(token) for token in session.continuation(most, suffix=True)]


def test_what_followed_on_another_path(model: CodingModel) -> None:
    cache = make_cache()
    run(cache, SAID, model)
    with cache.begin(ELSEWHERE) as session:
        assert session.continuation(8).tolist() == []
        assert suffix(session) == SAID[12:20]
        assert suffix(session, 3) == SAID[12:15]
        assert suffix(session, 0) == []
        compute(session, model)
        assert suffix(session) == SAID[12:20]
        session.append([15, 16, 17])  # recorded is enough
        assert suffix(session) == SAID[8:16]
        session.append(99)
        assert suffix(session) == []
        assert cache.check() == []
    with cache.begin(ELSEWHERE, use=False) as session:
        assert suffix(session) == []


def test_its_own_text_counts_too(model: CodingModel) -> None:
    cache = make_cache()
    with cache.begin([5, 6, 7, 8, 9, 1, 5, 6, 7]) as session:
        compute(session, model)
        assert suffix(session, 3) == [8, 9, 1]


def test_it_costs_nothing_where_nobody_asks(model: CodingModel) -> None:
    cache = make_cache()
    run(cache, SAID, model)
    assert (cache.stats()["suffix_tokens"], cache.stats()["suffix_bytes"]) == (0, 0)
    with cache.begin(ELSEWHERE) as session:
        session.continuation(8)
        assert cache.stats()["suffix_bytes"] == 0
        suffix(session)  # reads what is there
        stats = cache.stats()
        assert stats["suffix_tokens"] == stats["tokens"] == len(SAID)
        assert 0 < stats["suffix_bytes"] < 1 << 20  # for a million tokens it takes 28 MB, as they come


@pytest.mark.soak
def test_a_look_reads_a_piece_of_what_was_there(model: CodingModel) -> None:
    """At most 2^14 tokens and nodes, so that no other call waits for the whole tree; what comes meanwhile is known."""
    cache = make_cache(capacity=40_000)
    for first in range(3):
        run(cache, [1000 + first, *range(2000, 13_000)], model)
    assert cache.stats()["tokens"] == 33_003
    seen = 0
    with cache.begin([5, 6, 7, 8, 9, 1, 5, 6, 7]) as session:
        looks = 0
        while cache.stats()["suffix_tokens"] < cache.stats()["tokens"]:
            suffix(session, 1)
            known = cache.stats()["suffix_tokens"]
            assert 0 < known - seen <= 1 << 14
            seen, looks = known, looks + 1
            if looks == 1:
                compute(session, model)
                assert suffix(session, 3) == [8, 9, 1]
                seen = cache.stats()["suffix_tokens"]
        assert looks <= 4
    assert cache.check() == []


def test_it_forgets_what_leaves_the_tree(model: CodingModel) -> None:
    cache = make_cache(suffix_index_tokens=1000)
    run(cache, SAID, model)
    with cache.begin(ELSEWHERE) as session:
        assert suffix(session) == SAID[12:20]
        cache.evict(SAID)
        assert cache.stats()["suffix_tokens"] == cache.stats()["tokens"] == 0
        assert suffix(session) == []
        run(cache, SAID, model)
        assert suffix(session) == SAID[12:20]
    assert cache.check() == []


def test_what_is_in_lower_tiers_is_known(model: CodingModel) -> None:
    cache = make_cache(host_bytes="1MiB", suffix_index_tokens=1000)
    run(cache, SAID, model)
    cache.page_out(SAID)
    with cache.begin(ELSEWHERE) as session:
        assert suffix(session) == SAID[12:20]


def test_its_room_is_what_it_was_given(model: CodingModel) -> None:
    cache = make_cache(capacity=256, suffix_index_tokens=32)
    assert 0 < cache.stats()["suffix_bytes"] < 40 * 32 + 1000
    for first in range(0, 200, 50):
        run(cache, range(first, first + 40), model)
    stats = cache.stats()
    assert 0 < stats["suffix_bytes"] < 40 * 32 + 1000
    assert stats["suffix_tokens"] <= 32 < stats["tokens"]
    with cache.begin([7, *range(185, 188)]) as session:
        assert suffix(session, 2) == [188, 189]  # the latest
    with cache.begin([7, *range(10, 14)]) as session:
        assert suffix(session, 2) == []  # the oldest


def test_other_namespaces_are_never_drafted_from(model: CodingModel) -> None:
    cache = make_cache()
    run(cache, SAID, model, namespace="a")
    run(cache, [1, 2, 50], model, namespace="b")
    with cache.begin(ELSEWHERE, namespace="b") as session:
        assert suffix(session) == []
        assert cache.stats()["suffix_tokens"] == len(SAID) + 3
    with cache.begin(ELSEWHERE, namespace="a") as session:
        assert suffix(session) == SAID[12:20]


def test_media_are_never_proposed() -> None:
    cache, model = make("dense")
    run(cache, [1, 2, 3, 4, *image("a cat", 3), 5, 6], model)
    with cache.begin([9, 1, 2, 3]) as session:
        assert suffix(session) == [4]
        session.append(4)
        assert suffix(session) == []
    with cache.begin([9, 9, *image("a cat", 3)]) as session:
        assert suffix(session) == [5, 6]


def test_without_room_it_is_refused_by_name(model: CodingModel) -> None:
    allowed = r"^\[session.continuation\] suffix: got true, allowed false in a cache with suffix_index_tokens of 0$"
    cache = make_cache(suffix_index_tokens=0)
    with cache.begin(SAID) as session, pytest.raises(kv.errors.NotSupportedError, match=allowed):
        suffix(session)
    real = random_model("dense")
    refusing = kv.PrefixCache(real.caches(capacity=128), suffix_index_tokens=0)
    with refusing.begin(SAID) as session, pytest.raises(kv.errors.NotSupportedError, match=allowed):
        list(kv.generate(real, session, 8, draft="suffix", ignore_eos=True))
    for wrong in (-1, (1 << 30) + 1):
        with pytest.raises(kv.errors.ArgumentError, match=r"^\[PrefixCache\] suffix_index_tokens: got"):
            make_cache(suffix_index_tokens=wrong)
    for odd in (1.5, "many"):
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"^\[PrefixCache\] suffix_index_tokens: got"):
            make_cache(suffix_index_tokens=odd)


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_the_answer_is_that_without_drafts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind another beginning, where only the suffix knows how it goes on: what is forced is drafted and right."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: [min(most, 7) for most in limits])
    model = random_model(kind)
    script = prompt(5, COUNT + 10)

    def forced(start: int) -> Any:
        def processor(tokens: Any, row: Any) -> Any:
            row[script[10 + len(tokens) - start]] += 1e9
            return row

        return processor

    with kv.PrefixCache(model.caches(capacity=1024, dtype="float32")) as cache:
        run(cache, [*prompt(1), *script], model)
        for seed, names in ((2, "suffix"), (3, ["suffix", "tree", "prompt"])):
            text = [*prompt(seed), *script[:10]]
            for options in ({"logits_processors": forced(len(text))}, VARIED):
                answers = []
                for draft in (None, names):
                    with cache.begin(text, publish=False) as session:
                        made = kv.generate(model, session, COUNT, draft=draft, **{"ignore_eos": True, **options})
                        answers.append(list(made))
                assert answers[0] == answers[1]
                if "logits_processors" in options:
                    assert answers[1] == script[10:]
                    assert made.accepted == made.proposed > COUNT / 2
                assert all(0 <= token < VOCAB for token in answers[1])
        assert cache.check() == []
