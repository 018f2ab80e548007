"""Drafts in steps that answers share: each has the tokens, logprobs and bits that it has alone and without drafts,
whoever is beside it, however well anybody guesses, and however it ends.

The models have random weights, and 97 tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kvtrie._drafting import Costs
from processes import PATIENCE
from random_models import VOCAB, random_model
from test_draft import SAMPLINGS, VARIED, drafts_of, knowing, make_cache, prompt

pytestmark = pytest.mark.usefixtures("nothing_left_over")

COUNT = 30


@pytest.fixture(scope="module", params=["dense", "window", "hybrid", "experts"])
def model(request: pytest.FixtureRequest) -> Any:
    return random_model(request.param)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are as long as may be, whatever they cost."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: [min(most, 7) for most in limits])


class Asked:
    """An answer that is asked for: alone and without drafts it is ``tokens``, with ``logprobs``."""

    def __init__(self, model: Any, number: int, /, count: int = COUNT, length: int = 20, **options: Any) -> None:
        self.text, self.count, self.options = prompt(number, length), count, {"ignore_eos": True, **options}
        with make_cache(model) as cache, cache.begin(self.text) as session:
            made = kv.generate(model, session, count, **self.options)
            self.tokens, self.logprobs, self.finish_reason = list(made), made.logprobs, made.finish_reason

    def draft(self, name: str) -> Any:
        return drafts_of(self.tokens, len(self.text))[name]


def all_asked(model: Any) -> list[Asked]:
    return [
        Asked(model, at, length=9 + 7 * at, count=COUNT - 3 * at, **options)
        for at, options in enumerate(SAMPLINGS.values())
    ]


# ---- the same answers ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("max_sessions", "chunk"), [(8, 128), (3, 5), (2, 1)])
def test_each_has_what_it_has_alone(model: Any, max_sessions: int, chunk: int) -> None:
    """Every way to choose beside every way to guess; prompts beside those that decode."""
    asked = all_asked(model)
    names = list(drafts_of([], 0))
    for turn in range(len(names)):
        with make_cache(model) as cache, kv.Batch(model, cache, max_sessions=max_sessions, chunk=chunk) as batch:
            made = [
                batch.add(each.text, each.count, draft=each.draft(names[(at + turn) % len(names)]), **each.options)
                for at, each in enumerate(asked)
            ]
            while batch.step():
                pass
            for answer, each in zip(made, asked):
                assert (answer.tokens, answer.logprobs) == (each.tokens, each.logprobs)
                assert answer.finish_reason == each.finish_reason
            for at, answer in enumerate(made):
                if names[(at + turn) % len(names)] == "right":
                    assert answer.accepted == answer.proposed > 0
            stats = cache.stats()
            assert stats["proposed_tokens"] == sum(answer.proposed for answer in made) > 0
            assert stats["accepted_tokens"] == sum(answer.accepted for answer in made)
            assert cache.check() == []


@pytest.mark.usefixtures("eager")
def test_the_bits_are_those_without_drafts(model: Any) -> None:
    """Logits behind each answer, and K and V of every layer, on the CPU device."""
    asked = [Asked(model, seed, **VARIED) for seed in range(4)]

    def bits(names: list[str] | None) -> list[Any]:
        with make_cache(model) as cache, kv.Batch(model, cache) as batch:
            for at, each in enumerate(asked):
                draft = [] if names is None else each.draft(names[at])
                batch.add(each.text, each.count, draft=draft, **each.options)
            while batch.step():
                pass
            found = []
            for each in asked:
                with cache.begin([*each.text, *each.tokens], publish=False) as session:
                    rows = [np.asarray(part).tobytes() for pair in session.kv_all().values() for part in pair]
                    logits = [np.asarray(model(step), np.float32) for step in session.prefill()][-1]
                    found.append((rows, logits.tobytes()))
            return found

    plain = bits(None)
    assert bits(["right", "half right", "wrong", "mostly right"]) == plain
    assert bits(["nothing", "mostly right", "right", "prompt"]) == plain


@pytest.mark.usefixtures("eager")
def test_right_drafts_spare_steps() -> None:
    """Of four answers that are known, and of those beside them nobody loses one."""
    model = random_model("dense")
    asked = [Asked(model, seed, **VARIED) for seed in range(4)]
    steps = {}
    for name in ("nothing", "right"):
        with make_cache(model) as cache, kv.Batch(model, cache) as batch:
            for each in asked:
                batch.add(each.text, each.count, draft=each.draft(name), **each.options)
            while batch.step():
                pass
            steps[name] = cache.stats()["steps"]
    assert steps["nothing"] == COUNT
    assert steps["right"] == 1 + -(-(COUNT - 1) // 8)


@pytest.mark.usefixtures("eager")
def test_drafts_go_on_beside_a_prompt() -> None:
    """In the same steps: whoever decodes does not fall back while a long prompt is computed."""
    model = random_model("dense")
    asked, late = Asked(model, 1, **VARIED), Asked(model, 2, length=60, **VARIED)
    with make_cache(model) as cache, kv.Batch(model, cache, chunk=4) as batch:
        first = batch.add(asked.text, asked.count, draft=asked.draft("right"), **asked.options)
        while not first.tokens:
            batch.step()
        second = batch.add(late.text, late.count, **late.options)
        beside = 0
        while first.finish_reason is None:
            batch.step()
            beside += not second.tokens
        assert (beside, first.tokens) == (-(-(COUNT - 1) // 8), asked.tokens)
        while batch.step():
            pass
        assert second.tokens == late.tokens


def test_a_model_without_single_rows_has_no_drafts_beside_prompts() -> None:
    """And has them elsewhere. One that takes no all_rows is refused."""
    whole = random_model("dense")
    asked, late = Asked(whole, 1, **VARIED), Asked(whole, 2, length=60, **VARIED)

    def model(step: Any, all_rows: bool = False) -> Any:
        assert not all_rows or np.bincount(step.sequences).tolist() == (np.asarray(step.drafted) + 1).tolist()
        return whole(step, all_rows)

    with make_cache(whole) as cache, kv.Batch(model, cache, chunk=8) as batch:
        made = [batch.add(each.text, each.count, draft=each.draft("right"), **each.options) for each in (asked, late)]
        while batch.step():
            pass
        assert [answer.tokens for answer in made] == [asked.tokens, late.tokens]
        assert made[0].accepted > 0
        with pytest.raises(kv.errors.ArgumentError, match="all_rows"):
            kv.Batch(lambda step: whole(step), cache, draft="tree")


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("most", [1, 2, 3, 8, 9])
def test_each_ends_where_it_ends_without(most: int) -> None:
    """By its count, by a stop token inside what was drafted, and by its reader; the others go on."""
    model = random_model("dense")
    asked = [Asked(model, seed, **VARIED) for seed in range(3)]
    stop = asked[1].tokens[most]
    end = asked[1].tokens.index(stop) + 1
    with make_cache(model) as cache, kv.Batch(model, cache) as batch:
        by_count = batch.add(asked[0].text, most, draft=asked[0].draft("right"), **asked[0].options)
        by_stop = batch.add(asked[1].text, COUNT, stop, draft=asked[1].draft("right"), **asked[1].options)
        by_reader = batch.add(asked[2].text, COUNT, draft=asked[2].draft("right"), **asked[2].options)
        whole = batch.add(asked[0].text, COUNT, draft=asked[0].draft("mostly right"), **asked[0].options)
        while len(by_reader.tokens) < most:
            batch.step()
        by_reader.close()
        while batch.step():
            pass
        assert (by_count.tokens, by_count.finish_reason) == (asked[0].tokens[:most], "length")
        assert (by_stop.tokens, by_stop.finish_reason) == (asked[1].tokens[:end], "stop")
        assert by_reader.tokens == asked[2].tokens[: len(by_reader.tokens)]
        assert whole.tokens == asked[0].tokens
        assert cache.stats()["sessions"] == 0 and cache.check() == []


# ---- room ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("capacity", [33, 40, 64, 100])
def test_without_room_for_drafts_it_goes_on_without(capacity: int) -> None:
    """Drafts never cost anybody his place, nor the last cells of a cache that an answer fits into."""
    model = random_model("dense")
    asked = [Asked(model, seed, count=12, **VARIED) for seed in range(3)]
    with kv.PrefixCache(model.caches(capacity=capacity, dtype="float32")) as cache, kv.Batch(model, cache) as batch:
        made = [batch.add(each.text, each.count, draft=each.draft("right"), **each.options) for each in asked]
        while batch.step():
            pass
        assert [answer.tokens for answer in made] == [each.tokens for each in asked]
        assert cache.check() == []


@pytest.mark.usefixtures("eager")
def test_without_slots_for_states_it_goes_on_without() -> None:
    model = random_model("hybrid")
    asked = [Asked(model, seed, **VARIED) for seed in range(3)]
    caches = model.caches(capacity=1024, dtype="float32", slots=5)
    with kv.PrefixCache(caches) as cache, kv.Batch(model, cache) as batch:
        made = [batch.add(each.text, each.count, draft=each.draft("right"), **each.options) for each in asked]
        while batch.step():
            pass
        assert [answer.tokens for answer in made] == [each.tokens for each in asked]
        assert cache.check() == []


@pytest.mark.usefixtures("eager")
def test_an_answer_fills_its_cache_as_it_does_without() -> None:
    """To the last cell: drafts that would go beyond it are left out."""
    model = random_model("dense")
    text = prompt(1, 20)

    def filled(draft: Any) -> list[int]:
        with kv.PrefixCache(model.caches(capacity=32, dtype="float32")) as cache, cache.begin(text) as session:
            made = kv.generate(model, session, COUNT, **VARIED, draft=draft)
            with pytest.raises(kv.errors.ArgumentError, match=r"\[session.append\]"):
                list(made)
            return made.tokens

    plain = filled(None)
    assert len(plain) == 12
    assert filled(knowing([*plain, *range(COUNT)], len(text))) == plain


@pytest.mark.usefixtures("eager")
def test_an_answer_goes_as_far_as_its_model_does() -> None:
    """To the last position that RoPE allows: drafts beyond it would fail all that are in the step."""
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    model = random_model("dense", max_position_embeddings=32, rope_scaling=scaling)
    text, beside = prompt(1, 20), Asked(model, 2, count=20, length=9, **VARIED)

    def made(draft: Any) -> list[int]:
        with make_cache(model) as cache, kv.Batch(model, cache) as batch:
            answer = batch.add(text, COUNT, **VARIED, draft=draft)
            other = batch.add(beside.text, beside.count, draft=beside.draft("right"), **beside.options)
            with pytest.raises(kv.errors.NotSupportedError, match="position"):
                all(batch.step() for _ in range(COUNT))
            answer.close()
            while batch.step():
                pass
            assert other.tokens == beside.tokens
            return answer.tokens

    plain = made([])
    assert len(plain) == 13
    assert made(knowing([*plain, *range(COUNT)], len(text))) == plain


# ---- failures --------------------------------------------------------------------------------------------------------


def failing_at(turns: set[int]) -> Callable[[Any, Any], None]:
    """A logits processor that is interrupted in these of its calls."""
    calls = itertools.count()

    def processor(_tokens: Any, _row: Any) -> None:
        if next(calls) in turns:
            raise KeyboardInterrupt

    return processor


@pytest.mark.usefixtures("eager")
def test_an_interruption_loses_nothing() -> None:
    """Whoever is interrupted, in whichever row of a step."""
    model = random_model("dense")
    asked = [Asked(model, seed, **VARIED) for seed in range(3)]
    for first in range(12):
        with make_cache(model) as cache, kv.Batch(model, cache) as batch:
            interrupted = {**asked[1].options, "logits_processors": failing_at({first, first + 5, first + 11})}
            options = [asked[0].options, interrupted, asked[2].options]
            made = [
                batch.add(each.text, each.count, draft=each.draft("mostly right"), **own)
                for each, own in zip(asked, options)
            ]
            times, going = 0, True
            while going:
                try:
                    going = batch.step()
                except KeyboardInterrupt:
                    times += 1
            assert times == 3
            assert [answer.tokens for answer in made] == [each.tokens for each in asked]
            assert cache.check() == []


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("draft", "error"),
    [
        (lambda _tokens, _most: 1 // 0, ZeroDivisionError),
        (lambda _tokens, _most: [VOCAB], kv.errors.ArgumentError),
        (lambda _tokens, _most: [-1], kv.errors.ArgumentError),
        (lambda _tokens, _most: ["a"], kv.Error),
        (lambda _tokens, _most: 3, kv.Error),
    ],
)
def test_a_drafter_that_fails_ends_its_own_request(draft: Any, error: type[Exception]) -> None:
    model = random_model("dense")
    asked = [Asked(model, seed, **VARIED) for seed in range(3)]
    with make_cache(model) as cache:
        with kv.Batcher(model, cache) as batcher:
            wrong = batcher.submit(asked[0].text, COUNT, draft=draft, **asked[0].options)
            right = [batcher.submit(each.text, COUNT, draft=each.draft("right"), **each.options) for each in asked[1:]]
            with pytest.raises(error):
                wrong.result(PATIENCE)
            assert wrong.tokens == asked[0].tokens[: len(wrong.tokens)]
            assert [request.result(PATIENCE) for request in right] == [each.tokens for each in asked[1:]]
        assert cache.check() == []


@pytest.mark.usefixtures("eager")
def test_a_processor_that_fails_behind_drafts_ends_its_own_request() -> None:
    model = random_model("dense")
    asked = [Asked(model, seed, **VARIED) for seed in range(3)]

    def fails(tokens: Any, _row: Any) -> None:
        if len(tokens) == len(asked[0].text) + 9:
            raise ValueError("enough")

    with make_cache(model) as cache:
        with kv.Batcher(model, cache) as batcher:
            options = {**asked[0].options, "logits_processors": fails}
            wrong = batcher.submit(asked[0].text, COUNT, draft=asked[0].draft("right"), **options)
            right = [batcher.submit(each.text, COUNT, draft=each.draft("right"), **each.options) for each in asked[1:]]
            with pytest.raises(ValueError, match="enough"):
                wrong.result(PATIENCE)
            assert wrong.tokens == asked[0].tokens[:9]
            assert [request.result(PATIENCE) for request in right] == [each.tokens for each in asked[1:]]
        assert cache.stats()["sessions"] == 0 and cache.check() == []


# ---- a batcher -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_a_batcher_drafts_unless_a_request_says_otherwise() -> None:
    model = random_model("dense")
    asked = Asked(model, 1, **VARIED)
    with make_cache(model) as cache, kv.Batcher(model, cache, draft=["tree", "prompt"]) as batcher:
        for options in ({}, {}, {"draft": []}, {"draft": "tree"}, {"alone": True}):
            request = batcher.submit(asked.text, COUNT, **asked.options, **options)
            assert request.result(PATIENCE) == asked.tokens
            assert list(request) == asked.tokens
            if options == {"draft": "tree"}:
                assert request.accepted == request.proposed > COUNT / 2
            if options == {"draft": []}:
                assert request.proposed == 0
    for wrong in ("suffixes", 5, ["tree", 5]):
        with make_cache(model) as cache, pytest.raises(kv.Error, match=r"\[generate\] draft: got "):
            kv.Batcher(model, cache, draft=wrong)  # type: ignore[arg-type]  # it is refused


@pytest.mark.usefixtures("eager")
def test_log_probabilities_of_a_prompt_come_beside_drafts() -> None:
    model = random_model("dense")
    asked, told = Asked(model, 1, **VARIED), Asked(model, 2, length=50, **VARIED)
    found = []
    for draft in ([], None):
        with make_cache(model) as cache, kv.Batcher(model, cache, chunk=8, draft=asked.draft("right")) as batcher:
            first = batcher.submit(asked.text, COUNT, draft=draft, **asked.options)
            second = batcher.submit(told.text, COUNT, draft=[], prompt_logprobs=2, **told.options)
            assert [each.result(PATIENCE) for each in (first, second)] == [asked.tokens, told.tokens]
            found.append(second.prompt_logprobs)
    assert found[0] == found[1] and len(found[0]) == 49


@pytest.mark.usefixtures("eager")
def test_nothing_of_another_namespace_is_proposed() -> None:
    """Whoever says the same beside it, in the same steps, or said it before."""
    model = random_model("dense")
    asked = Asked(model, 1, **VARIED)
    with make_cache(model) as cache, kv.Batch(model, cache, draft="tree") as batch:

        def proposed(*namespaces: str) -> list[int]:
            made = [batch.add(asked.text, asked.count, namespace=name, **asked.options) for name in namespaces]
            while batch.step():
                pass
            assert {tuple(answer.tokens) for answer in made} == {tuple(asked.tokens)}
            return [answer.proposed for answer in made]

        assert proposed("alice", "bob") == [0, 0]
        again = proposed("carol", "alice")
        assert again[0] == 0 < again[1]
        again = proposed("bob", "dave")
        assert again[0] > 0 == again[1]
        assert cache.check() == []
