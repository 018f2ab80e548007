"""Drafts: whoever guesses, and however well, the answer is that without drafts, to the last bit; and nobody else's.

The models have random weights, and 97 tokens; "twice" drafts what is right, "wrong" what is not, others in between.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import kvtrie as kv
from kvtrie._draft_chance import Chance
from kvtrie._drafting import LONGER, MOST, MOST_STATES, SHORT, Costs, Drafting
from kvtrie._step_seconds import StepSeconds
from kvtrie.draft import PromptLookup
from random_models import VOCAB, random_model

pytestmark = pytest.mark.usefixtures("nothing_left_over")

COUNT = 40
VARIED: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "seed": 5}  # the likeliest tokens repeat themselves
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module", params=["dense", "window", "hybrid", "experts"])
def model(request: pytest.FixtureRequest) -> Any:
    return random_model(request.param)


def make_cache(model: Any) -> kv.PrefixCache:
    return kv.PrefixCache(model.caches(capacity=1024, dtype="float32"))


def prompt(seed: int, count: int = 30) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]


def knowing(answer: list[int], start: int, wrong_every: int = 0) -> Callable[[Any, int], list[int]]:
    """Drafts the answer to a prompt of ``start`` tokens, with a wrong token here and there."""

    def draft(tokens: Any, most: int) -> list[int]:
        at = len(tokens) - start
        return [
            (token + 1) % VOCAB if wrong_every and (at + i) % wrong_every == 0 else token
            for i, token in enumerate(answer[at : at + most])
        ]

    return draft


def drafts_of(answer: list[int], start: int) -> dict[str, Any]:
    return {
        "right": knowing(answer, start),
        "mostly right": knowing(answer, start, 5),
        "half right": knowing(answer, start, 2),
        "wrong": knowing(answer, start, 1),
        "prompt": "prompt",
        "both": ["tree", "prompt"],
        "nothing": lambda _tokens, _most: [],
    }


SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 0.9, "seed": 5, "top_k": 20, "top_p": 0.95},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "processor": {"temperature": 0.7, "seed": 3, "logits_processors": lambda _, row: row - (np.arange(VOCAB) % 7 == 0)},
    "typical": {"temperature": 0.8, "seed": 2, "typical_p": 0.9},
    "logprobs": {"logprobs": 3},
}


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are as long as may be, whatever they cost."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: [min(most, 7) for most in limits])


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_answer_is_that_without_drafts(model: Any, sampling: str) -> None:
    text, options = prompt(1), SAMPLINGS[sampling]
    with make_cache(model) as cache:
        with cache.begin(text) as session:
            plain = kv.generate(model, session, COUNT, ignore_eos=True, **options)
            answer = list(plain)
        for name, draft in drafts_of(answer, len(text)).items():
            with cache.begin(text, use=name == "both", publish=False) as session:
                drafted = kv.generate(model, session, COUNT, ignore_eos=True, draft=draft, **options)
                assert list(drafted) == answer, name
                assert drafted.logprobs == plain.logprobs, name
                assert session.tokens.tolist() == [*text, *answer]
                assert session.recorded - session.length == 1
                if name in ("right", "both"):
                    assert drafted.accepted == drafted.proposed > COUNT / 2
                if name == "wrong":
                    assert drafted.accepted == 0 < drafted.proposed
            assert cache.check() == []


@pytest.mark.usefixtures("eager")
def test_the_bits_are_those_without_drafts(model: Any) -> None:
    """Logits behind the answer, and K and V of every layer, on the CPU device."""

    def bits(draft: Any) -> tuple[list[int], bytes, list[bytes]]:
        with make_cache(model) as cache, cache.begin(prompt(2)) as session:
            answer = list(kv.generate(model, session, COUNT, **VARIED, draft=draft))
            logits = np.asarray(model(session.decode()), np.float32)
            rows = [np.asarray(part).tobytes() for pair in session.kv_all().values() for part in pair]
            return answer, logits.tobytes(), rows

    plain = bits(None)
    for draft in drafts_of(plain[0], 30).values():
        assert bits(draft) == plain


def test_long_drafts_change_no_bit(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as may be, which is longer each time, and with a wrong token here and there. Layers with states take a
    slot for each, and get no longer ones."""
    lengths: list[int] = []

    def longest(_self: Costs, _chances: list[Chance], limits: list[int], *_: object) -> list[int]:
        lengths.extend(limits)
        return limits

    monkeypatch.setattr(Costs, "shares", longest)
    count = 3 * MOST
    with make_cache(model) as cache:
        bits, answer = [], [0] * count
        for wrong_every in (0, 50, 19):  # the first draft is of other tokens
            with cache.begin(prompt(21), use=False, publish=False) as session:
                draft = knowing(answer, 30, wrong_every) if bits else None
                answer = list(kv.generate(model, session, count, **VARIED, draft=draft))
                rows = [np.asarray(part).tobytes() for pair in session.kv_all().values() for part in pair]
                bits.append((answer, np.asarray(model(session.decode()), np.float32).tobytes(), rows))
                has_states = session.has_states
        assert bits[0] == bits[1] == bits[2]
        with cache.begin(prompt(21), use=False, publish=False) as session:
            made = kv.generate(model, session, count, **VARIED, draft=knowing(answer, 30))
            assert list(made) == answer and made.accepted == made.proposed
        assert has_states == bool(cache.stats()["recurrent"])
        assert max(lengths) == (MOST_STATES if has_states else MOST)
        assert cache.check() == []


def test_the_second_answer_of_a_model_need_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its drafts are as long as they may be from the beginning, alone and in a batch, where the first one tried each
    number of rows first."""
    measure = StepSeconds.measured
    monkeypatch.setattr(StepSeconds, "measured", lambda self, rows, _seconds: measure(self, rows, 1 + 0.01 * rows))
    model, text, count = random_model("dense"), prompt(31), 200
    steps = [0]

    def counted(step: Any, all_rows: bool = False) -> Any:
        steps[0] += 1
        return model(step, all_rows=all_rows)

    def alone(cache: kv.PrefixCache, draft: Any) -> list[int]:
        with cache.begin(text, use=False, publish=False) as session:
            return list(kv.generate(counted, session, count, **VARIED, draft=draft))

    def batched(cache: kv.PrefixCache, draft: Any) -> list[int]:
        return kv.generate_batch(counted, [text], count, cache=cache, **VARIED, draft=draft)[0].tokens

    for way in (alone, batched):
        with make_cache(model) as cache:
            answer, taken = way(cache, None), []
            for _ in range(3):
                steps[0] = 0
                assert way(cache, knowing(answer, len(text))) == answer
                taken.append(steps[0])
        assert taken[0] > taken[2] and taken[1] >= taken[2] <= 7, (way.__name__, taken)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("most", [1, 2, 3, 8, 9])
def test_it_ends_where_it_ends_without(most: int) -> None:
    """By the count, by a stop token inside what was drafted, and by its reader."""
    model = random_model("dense")
    text = prompt(3)
    with make_cache(model) as cache:
        answer = list(kv.generate(model, cache.begin(text), COUNT, **VARIED))
        draft = knowing(answer, len(text))
        with cache.begin(text, use=False, publish=False) as session:
            assert list(kv.generate(model, session, most, **VARIED, draft=draft)) == answer[:most]
            assert session.recorded == len(text) + most
        stop = answer[most]
        end = answer.index(stop) + 1
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, stop=stop, **VARIED, draft=draft)
            assert (list(made), made.finish_reason) == (answer[:end], "stop")
            assert (session.recorded, session.length) == (len(text) + end, len(text) + end - 1)
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, **VARIED, draft=draft)
            for _ in range(most):
                next(made)
            made.close()
            assert session.tokens.tolist() == [*text, *made.tokens]
            assert made.tokens == answer[: len(made.tokens)]


@pytest.mark.usefixtures("eager")
def test_drafts_end_where_the_cache_ends() -> None:
    """Up to the last cell, and then the error that there is without drafts."""
    model, text = random_model("dense"), prompt(13)
    with kv.PrefixCache(model.caches(capacity=64, dtype="float32")) as cache:
        answers = []
        for draft in (None, lambda _tokens, most: [1] * most):
            with cache.begin(text, use=False, publish=False) as session:
                assert (session.room, cache.longest) == (34, 64)
                made = kv.generate(model, session, COUNT, **VARIED, draft=draft)
                with pytest.raises(kv.errors.ArgumentError, match="allowed 64"):
                    list(made)
                assert session.room == 0
                answers.append(made.tokens)
        assert answers[0] == answers[1]


@pytest.mark.usefixtures("eager")
def test_an_interruption_loses_nothing() -> None:
    """Of a processor that fails on some tokens: the next read goes on with what comes without it."""
    model = random_model("dense")
    text = prompt(4)
    fails = [False]

    def processor(tokens: Any, row: Logits) -> Logits:
        if len(tokens) % 5 == 0 and not fails[0]:
            fails[0] = True
            raise KeyboardInterrupt
        fails[0] = False
        return row

    with make_cache(model) as cache:
        answer = list(kv.generate(model, cache.begin(text), COUNT, **VARIED))
        with cache.begin(text, use=False) as session:
            made = kv.generate(
                model,
                session,
                COUNT,
                **VARIED,
                logits_processors=processor,
                draft=knowing(answer, len(text), 4),
            )
            got: list[int] = []
            while made.finish_reason is None or len(got) < COUNT:
                try:
                    got.append(next(made))
                except KeyboardInterrupt:
                    assert session.tokens.tolist() == [*text, *made.tokens]
            assert got == answer


@pytest.mark.usefixtures("eager")
def test_texts_end_where_they_end_without() -> None:
    """Stop texts inside what was drafted, wherever they begin and end among its tokens."""
    model = kv.models.load(Path(__file__).resolve().parents[2] / "examples" / "tiny")
    with kv.PrefixCache(model.caches(capacity=2048)) as cache:
        options: dict[str, Any] = {"max_tokens": 60, "cache": cache}
        whole = model.complete("Once upon a time", **options).text
        assert len(whole) > 60
        for stop in (None, *(whole[at : at + 4] for at in range(3, 60, 7))):
            plain = model.complete("Once upon a time", stop=stop, **options)
            text = plain.text
            for draft in ("tree", ["prompt", "tree"]):
                drafted = model.complete("Once upon a time", stop=stop, draft=draft, **options)
                assert (drafted.text, drafted.tokens) == (text, plain.tokens)
                assert drafted.finish_reason == plain.finish_reason
                assert drafted.session is not None
                assert draft != "tree" or drafted.accepted > 0 or len(plain.tokens) < 3
        assert cache.check() == []


def test_other_namespaces_are_never_drafted_from() -> None:
    """The same words under another name: not a token is proposed, and none is read."""
    model = random_model("dense")
    text = prompt(5)
    with make_cache(model) as cache:
        for namespace, known in (("alice", 0), ("bob", 0), ("alice", COUNT - 1)):
            with cache.begin(text, namespace=namespace) as session:
                assert len(session.continuation(1000)) == known
                made = kv.generate(model, session, COUNT, **VARIED, draft="tree")
                list(made)
                assert (made.proposed > 0) == (known > 0)
            if namespace == "bob":
                cache.evict(namespace="bob", tokens=text)


def test_a_continuation_is_what_was_used_last() -> None:
    model = random_model("dense")
    text = prompt(6)
    with make_cache(model) as cache:
        for more in ([1, 2, 3, 4], [1, 2, 9, 9, 9]):
            with cache.begin([*text, *more]) as session:
                for step in session.prefill():
                    model(step)
        with cache.begin([*text, 1]) as session:
            assert session.continuation(8).tolist() == [2, 9, 9, 9]
            assert session.continuation(2).tolist() == [2, 9]
            session.append([2, 3])
            assert session.continuation(8).tolist() == [4]
            session.append(7)
            assert session.continuation(8).tolist() == []
        with cache.begin(text, use=False, publish=False) as session:
            assert session.continuation(8).tolist() == []


# ---- looked up in the text -------------------------------------------------------------------------------------------


def naive_lookup(text: list[int], most: int, least: int) -> list[int]:
    """Every earlier place, the longest match up to 64 tokens, the latest of them."""
    best, longest = None, least
    for place in range(1, len(text)):
        length = 0
        while length < min(place, 64) and text[place - 1 - length] == text[len(text) - 1 - length]:
            length += 1
        if length >= longest:
            best, longest = place, length
    more: list[int] = []
    while best is not None and len(more) < most:
        whole = [*text, *more]
        more.append(whole[best + len(more)])
    return more


def test_prompt_lookup_finds_the_longest_place() -> None:
    print("seed 40")
    random = np.random.default_rng(40)
    for least in (1, 2, 3):
        for letters in (2, 3, 12):
            lookup, text = PromptLookup(least), []
            for _ in range(60):
                text += random.integers(0, letters, random.integers(1, 4)).tolist()
                if random.random() < 0.1:
                    del text[int(random.integers(len(text))) :]
                    text.append(0)
                found = lookup(np.asarray(text, np.int32), 6)
                wanted = naive_lookup(text, 6, least)
                if letters == 12:  # so few places that all are compared
                    assert found == wanted
                assert bool(found) == bool(wanted)
                if found:
                    assert any(
                        found == (text[at:] + found)[:6] and text[at - least : at] == text[len(text) - least :]
                        for at in range(least, len(text))
                    )


def test_no_image_is_drafted() -> None:
    assert PromptLookup(1)(np.asarray([1, 2, -5, -5, 3, 1], np.int32), 4) == [2]


# ---- how long --------------------------------------------------------------------------------------------------------


def drafted_lengths(
    right: Callable[[int], int], seconds: Callable[[int], float], tokens: int, price: float = 0.0, longest: int = MOST
) -> tuple[float, float]:
    """Seconds of an answer of so many ``tokens`` with drafts, and without; ``right`` of so many drafted.

    ``seconds`` of a step of so many rows; ``price``: seconds that each draft takes its drafter; ``longest``: drafts
    of a step, at most.
    """
    spent, made = 0.0, 0

    def drafter(_session: Any, most: int) -> list[int]:
        nonlocal spent
        spent += price * most
        return [0] * most

    drafting = Drafting([drafter], clock=lambda: spent)
    while made < tokens:
        began = spent
        count = len(drafting.drafts(None, longest))  # type: ignore[arg-type]  # the drafter does not look
        spent += seconds(count + 1)
        if count:
            drafting.verified([[0] * count], 0, right(count))
        drafting.stepped(count + 1, spent - began)
        made += 1 + (right(count) if count else 0)
    return spent, made * seconds(1)


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.25, 1.0])
def test_drafts_that_are_never_right_cost_next_to_nothing(slope: float) -> None:
    """At 97 % of the pace over 200 tokens where a row more costs up to a quarter of a step, whatever was guessed."""
    spent, plain = drafted_lengths(lambda _: 0, lambda rows: 1 + slope * (rows - 1), 200)
    assert plain / spent >= (0.97 if slope <= 0.25 else 0.9)


def test_drafts_that_are_right_get_long() -> None:
    spent, plain = drafted_lengths(lambda count: count, lambda rows: 1 + 0.1 * (rows - 1), 400)
    assert plain / spent > 4  # 16 tokens in the time of 2.5


def test_drafts_get_longer_while_all_are_right() -> None:
    """By as many as one is longer, up to the longest; a wrong token takes them back to what it lay within."""
    drafting = Drafting([lambda _session, most: [0] * most])
    long = 10 * MOST
    assert drafting.limit(long) == SHORT
    for drafted, right, limit in (
        (SHORT - 1, SHORT - 1, SHORT),  # not as many as there might be
        (SHORT, SHORT, SHORT + LONGER),
        (SHORT, SHORT, SHORT + LONGER),
        (SHORT + LONGER, SHORT + LONGER, SHORT + 2 * LONGER),
        (3, 3, SHORT + 2 * LONGER),
        (SHORT + 2 * LONGER, SHORT + 2 * LONGER, MOST),
        (MOST, MOST, MOST),
        (MOST, SHORT + LONGER, SHORT + 2 * LONGER),
        (SHORT + 2 * LONGER, SHORT, SHORT + LONGER),
        (SHORT + LONGER, 2, SHORT),
    ):
        drafting.verified([[0] * drafted], 0, right)
        assert (drafting.limit(long), drafting.limit(9)) == (limit, 9), (drafted, right)
    drafting.verified([[0] * SHORT], 0, SHORT)
    drafting.refused()
    assert [drafting.limit(long) for _ in range(17)] == [0] * 16 + [SHORT]


@pytest.mark.parametrize("dear", [1.0, 2.0, 4.0])
def test_long_drafts_that_do_not_pay_are_hardly_tried(dear: float) -> None:
    """Where rows behind the 16th take ``dear`` times as long as those before, an answer that is known from end to end
    takes hardly longer than with short drafts only, and less where they pay."""

    def seconds(rows: int) -> float:
        return 1 + 0.2 * (min(rows, 16) - 1 + dear * max(rows - 16, 0))

    spent, plain = drafted_lengths(lambda count: count, seconds, 800)
    short, _ = drafted_lengths(lambda count: count, seconds, 800, longest=SHORT)
    assert spent <= 1.15 * short
    assert dear > 1 or plain / spent > 4.5 > plain / short


@pytest.mark.parametrize("right", [lambda _: 0, lambda count: count // 2, lambda count: count])
@pytest.mark.parametrize("price", [0.5, 1.0, 4.0])
def test_drafters_that_take_too_long_are_not_asked(price: float, right: Callable[[int], int]) -> None:
    """At 80 % of the pace over 300 tokens where a draft takes its drafter up to four steps, also if it is right."""
    spent, plain = drafted_lengths(right, lambda rows: 1 + 0.25 * (rows - 1), 300, price)
    assert plain / spent >= 0.8


def test_cheap_drafters_are_asked_for_more() -> None:
    spent = [drafted_lengths(lambda count: count, lambda rows: 1 + 0.05 * (rows - 1), 300, each) for each in (0, 0.1)]
    assert 2 * spent[0][0] < spent[1][0] * 2 < spent[1][1]


def test_the_price_of_drafts_decides_how_many_there_are() -> None:
    """A drafter that takes a tenth of a step for each of its tokens, and is right three times out of four."""
    costs = Costs()
    for _ in range(3):
        costs.steps.measured(1, 1.0)
        costs.steps.measured(16, 1.0)
    dear, free = (costs.shares([Chance(75, 25)], [15], 1, 1, [price])[0] for price in (0.1, 0.0))
    assert 0 < dear < free


def test_costs_lie_on_lines_through_what_was_measured() -> None:
    costs = Costs()
    assert costs.steps.of(1) == 1.0
    for rows, seconds in ((1, 9.0), (1, 2.0), (4, 9.0), (4, 3.0), (4, 3.0), (4, 8.0), (4, 3.0)):
        costs.steps.measured(rows, seconds)
    assert costs.steps.of(4) == pytest.approx(3.0)
    assert costs.steps.of(2) == pytest.approx(2 + 1 / 3)
    assert costs.steps.of(8) == pytest.approx(2 + 7 / 3)
