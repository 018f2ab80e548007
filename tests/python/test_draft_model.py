"""Small models that draft: the answer stays what it is, their caches stay in step, and nothing crosses namespaces.

``KindsModel`` (kinds_fakes.py) as the draft model checks each row that it reads: of the very tokens and namespace that
it says it is of. What it writes next follows from all tokens before, so that a naive twin writes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from kinds_fakes import History, image, make, words
from kvtrie._drafting import Costs
from random_models import VOCAB, random_model, random_weights

pytestmark = pytest.mark.usefixtures("nothing_left_over")

KINDS = ("dense", "window", "chunk", "window alone", "hybrid", "recurrent alone", "all")
SMALL: dict[str, Any] = {"capacity": 512, "window": 16, "chunk": 16, "spacing": 16}
COUNT = 40
VARIED: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "seed": 5}
TINY = Path(__file__).resolve().parents[2] / "examples" / "tiny"


def make_cache(model: Any, capacity: int = 512) -> kv.PrefixCache:
    return kv.PrefixCache(model.caches(capacity=capacity, dtype="float32"))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are as long as may be, whatever they cost."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: [min(most, 7) for most in limits])


class Mostly:
    """``model``, computed as ever, whose likeliest tokens are those of ``answer`` behind ``start`` others, but for one
    in ``wrong``."""

    def __init__(self, model: Any, answer: list[int], start: int, wrong: int) -> None:
        self.model, self.answer, self.start, self.wrong = model, answer, start, wrong
        self.calls = 0
        self.before: Callable[[int], None] = lambda _calls: None

    def __call__(self, step: Any) -> Any:
        self.calls += 1
        self.before(self.calls)
        logits = np.zeros_like(np.asarray(self.model(step)))
        at = int(np.asarray(step.positions)[-1]) + 1 - self.start
        token = self.answer[at] if 0 <= at < len(self.answer) else 0
        logits[0, (token + (at % self.wrong == 0)) % VOCAB] = 1
        return logits


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("small", ["dense", "window", "hybrid"])
@pytest.mark.parametrize("kind", ["dense", "window", "hybrid"])
def test_the_answer_is_that_without_drafts(kind: str, small: str) -> None:
    """Of every kind of model for every kind; one that is the model itself is right in all it drafts."""
    model, text = random_model(kind), words(1, 30)
    drafts = [random_model(small)] if kind == small else [random_model(small, seed=3), random_model(small, seed=4)]
    with make_cache(model) as cache:
        for options in ({}, {"temperature": 0.9, "seed": 5}, {"repetition_penalty": 1.3}):
            answer = list(kv.generate(model, cache.begin(text), COUNT, ignore_eos=True, **options))
            for each in drafts:
                with make_cache(each) as own, cache.begin(text, use=False, publish=False) as session:
                    draft = kv.DraftModel(each, own)
                    made = kv.generate(model, session, COUNT, ignore_eos=True, draft=draft, **options)
                    assert list(made) == answer
                    assert made.proposed > 0
                    assert made.accepted == made.proposed or kind != small or options
                    assert own.stats()["sessions"] == 0
                    assert own.check() == []
        assert cache.check() == []


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("wrong", [1, 2, 5, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_caches_of_every_kind_stay_in_step(kind: str, wrong: int) -> None:
    """However often drafts are wrong, in two namespaces: each row that the draft model reads is of its own prefix."""
    model, text = random_model("dense"), words(2, 30)
    own, kinds = make(kind, **SMALL)
    with make_cache(model) as cache, own:
        for namespace in ("alice", "bob"):
            answer = list(kv.generate(model, cache.begin(text, namespace), COUNT, **VARIED))
            draft = kv.DraftModel(Mostly(kinds, answer, len(text), wrong), own)
            with cache.begin(text, namespace, use=False, publish=False) as session:
                made = kv.generate(model, session, COUNT, **VARIED, draft=draft)
                assert list(made) == answer
            assert (made.accepted == made.proposed) == (wrong == 1000)
            assert (made.accepted > 0) == (wrong > 1)
            assert own.check() == []


def naive(namespace: str, tokens: list[int], most: int) -> list[int]:
    """What ``KindsModel`` writes behind ``tokens``, greedily, without any cache."""
    found: list[int] = []
    for _ in range(most):
        whole = [*tokens, *found]
        found.append(int(History(namespace, whole).codes[0, len(whole)] % VOCAB))
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_random_texts(kind: str) -> None:
    """Sessions of one cache that go on, go back and end, in two namespaces: drafts are those of the naive twin."""
    print("seed 41")
    random = np.random.default_rng(41)
    texts, _ = make("dense", **SMALL)
    own, kinds = make(kind, slots=32, **SMALL)
    draft = kv.DraftModel(kinds, own)
    with texts, own:
        twins: list[tuple[Any, Any]] = []
        for _ in range(120):
            if len(twins) < 3:
                namespace = str(random.choice(["alice", "bob"]))
                session = texts.begin(words(int(random.integers(3)), int(random.integers(1, 40))), namespace)
                twins.append((session, draft.drafter(kinds)))
            session, drafter = twins[int(random.integers(len(twins)))]
            tokens = session.tokens.tolist()
            most = int(random.integers(1, 8))
            found = drafter(session, most)
            assert found == naive(session.namespace, tokens, most)
            right = int(random.integers(most + 1))
            session.append([*found[:right], int(random.integers(3))])
            if random.random() < 0.2:
                session.rollback(int(random.integers(min(session.recorded, 30))))
            if random.random() < 0.1 or session.recorded > 90 or session.recorded == 0:
                twins.remove((session, drafter))
                drafter.close()
                session.close()
            assert own.check() == []
            assert own.stats()["sessions"] <= len(twins)
        for session, drafter in twins:
            drafter.close()
            drafter.close()
            assert drafter(session, 4) == []
            session.close()
        assert own.stats()["sessions"] == 0


@pytest.mark.usefixtures("eager")
def test_its_cache_is_shared_between_turns_and_answers() -> None:
    """The second turn, and another answer to the first, compute little more than what is new; nothing crosses."""
    model, text = random_model("dense"), words(3, 200)
    own, kinds = make("dense", **SMALL)
    draft = kv.DraftModel(kinds, own)
    with make_cache(model) as cache, own:
        rows = []
        for prompt in (text, text, [*text, *words(4, 20)]):
            before = kinds.rows
            with cache.begin(prompt, "alice") as session:
                list(kv.generate(model, session, 2 + 8, **VARIED, draft=draft))
            rows.append(kinds.rows - before)
        assert rows[0] >= 200
        assert max(rows[1:]) < 100
        assert own.plan(text, "alice").matched == 200
        assert own.plan(text, "bob").matched == own.plan(text).matched == 0


@pytest.mark.usefixtures("eager")
def test_what_is_not_to_be_kept_is_not_kept_by_its_drafts() -> None:
    model, text = random_model("dense"), words(5, 30)
    own, kinds = make("dense", **SMALL)
    with make_cache(model) as cache, own, cache.begin(text, publish=False) as session:
        assert not session.publishes
        made = kv.generate(model, session, COUNT, **VARIED, draft=kv.DraftModel(kinds, own))
        list(made)
        assert made.proposed > 0
        assert own.stats()["tokens"] == 0


@pytest.mark.usefixtures("eager")
def test_a_session_that_was_shifted_keeps_its_drafts_to_itself() -> None:
    model, text = random_model("dense"), words(6, 60)
    own, kinds = make("dense", **SMALL)
    drafter = kv.DraftModel(kinds, own).drafter(kinds)
    with make_cache(model) as cache, own, cache.begin(text) as session:
        list(kv.generate(model, session, 1, **VARIED))
        assert drafter(session, 3) == naive("default", session.tokens.tolist(), 3)
        known = own.stats()["tokens"]
        assert session.shift(4) is None
        assert drafter(session, 3) == naive("default", session.tokens.tolist(), 3)
        assert not session.publishes
        assert own.stats()["tokens"] == known
        drafter.close()


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_where_its_cache_is_full_it_rests(kind: str) -> None:
    """Of 64 cells, for a text of 50 to 90 tokens: drafts come as long as there is room, and then none."""
    model, text = random_model("dense"), words(7, 50)
    own, kinds = make(kind, growth=0, **{**SMALL, "capacity": 64})
    with make_cache(model) as cache, own:
        answer = list(kv.generate(model, cache.begin(text), COUNT, **VARIED))
        draft = kv.DraftModel(Mostly(kinds, answer, len(text), 1000), own)
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, **VARIED, draft=draft)
            assert list(made) == answer
        assert 0 < made.accepted < COUNT / 2
        assert own.stats()["sessions"] == 0
        assert own.check() == []


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_errors_of_the_draft_model_end_nothing(kind: str, error: type[BaseException]) -> None:
    """The read that met one raises it; the next goes on with what comes without it."""
    model, text = random_model("dense"), words(8, 30)
    own, kinds = make(kind, **SMALL)

    def fails(calls: int) -> None:
        if calls % 11 == 0:
            raise error("of the draft model")

    with make_cache(model) as cache, own:
        answer = list(kv.generate(model, cache.begin(text), COUNT, **VARIED))
        small = Mostly(kinds, answer, len(text), 3)
        small.before = fails
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, **VARIED, draft=kv.DraftModel(small, own))
            got: list[int] = []
            met = 0
            while made.finish_reason is None or len(got) < COUNT:
                try:
                    got.append(next(made))
                except error:
                    met += 1
                    assert session.tokens.tolist() == [*text, *made.tokens]
            assert got == answer
            assert met > 2
        assert own.stats()["sessions"] == 0
        assert own.check() == []


@pytest.mark.usefixtures("eager")
def test_a_cache_that_was_closed_is_named() -> None:
    model, text = random_model("dense"), words(9, 30)
    own, kinds = make("dense", **SMALL)
    with make_cache(model) as cache, cache.begin(text) as session:
        made = kv.generate(model, session, COUNT, **VARIED, draft=kv.DraftModel(kinds, own))
        first = next(made)
        own.close()
        with pytest.raises(kv.errors.ClosedError):
            list(made)
        assert session.tokens.tolist() == [*text, first]


@pytest.mark.usefixtures("eager")
def test_an_answer_that_is_closed_while_it_drafts_just_ends() -> None:
    """As another thread may do it; here its draft model does."""
    model, text = random_model("dense"), words(10, 30)
    own, kinds = make("dense", **SMALL)
    small = Mostly(kinds, [], 0, 1)
    with make_cache(model) as cache, own, cache.begin(text) as session:
        made = kv.generate(model, session, COUNT, **VARIED, draft=kv.DraftModel(small, own))
        first = next(made)
        small.before = lambda _calls: made.close()
        assert list(made)[:1] in ([], [made.tokens[-1]])
        assert made.finish_reason == "closed"
        assert made.tokens[0] == first
        assert own.stats()["sessions"] == 0


@pytest.mark.usefixtures("eager")
def test_it_drafts_nothing_for_texts_that_it_cannot_read() -> None:
    """With media, with tokens beyond its own, and longer than its context."""
    texts, kinds = make("dense", **SMALL)
    small = random_model("dense", max_position_embeddings=40)
    with texts, make_cache(small) as own:
        draft = kv.DraftModel(small, own)
        for text, most in (
            ([*words(1, 5), *image("a cat", 4), 3], 0),
            ([1, 2, VOCAB], 0),
            (words(1, 38), 2),
            (words(1, 40), 0),
            (words(1, 41), 0),
        ):
            drafter = draft.drafter(kinds)
            with texts.begin(text) as session:
                assert len(drafter(session, 7)) == most
            drafter.close()
        drafter = kv.DraftModel(small, own, context=12).drafter(kinds)
        with texts.begin(words(1, 10)) as session:
            assert len(drafter(session, 7)) == 2
        drafter.close()
        with pytest.raises(kv.errors.ArgumentError, match=r"\[DraftModel\] context: got 0"):
            kv.DraftModel(small, own, context=0)


# ---- what is given ---------------------------------------------------------------------------------------------------


def test_it_is_the_models_own_cache_unless_one_is_given() -> None:
    small = random_model("dense")
    draft = kv.DraftModel(small)
    assert (draft.model, draft.cache) == (small, small.prefix_cache)
    with make_cache(small) as own:
        assert kv.DraftModel(small, own).cache is own
    small.prefix_cache.close()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("small",), r"\[DraftModel\] model: got 'small'"),
        ((lambda step: step,), r"\[DraftModel\] model: got .* a cache beside it"),
        ((lambda step: step, 5), r"\[DraftModel\] cache: got 5"),
    ],
)
def test_what_is_no_draft_model_is_refused(arguments: Any, named: str) -> None:
    with pytest.raises(kv.errors.ArgumentTypeError, match=named):
        kv.DraftModel(*arguments)


def named_tokens(size: int, **changes: str) -> Any:
    """A model of ``size`` tokens whose tokenizer has VOCAB words, "w0", "w1" and so on, but for ``changes``."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    from kvtrie.models import Tokenizer as Own

    vocabulary = {changes.get(f"w{token}", f"w{token}"): token for token in range(VOCAB)}
    raw = Tokenizer(WordLevel(vocabulary, unk_token="w0"))
    return kv.models.from_weights(*random_weights("dense", vocab_size=size), dtype="float32", tokenizer=Own(raw))


def test_other_tokens_are_refused() -> None:
    """By their number where there are no texts of them; by their texts otherwise."""
    with make_cache(random_model("dense")) as own:
        draft = kv.DraftModel(random_model("dense", vocab_size=VOCAB + 1), own)
        for given in (draft, ["prompt", draft]):
            with pytest.raises(kv.errors.ArgumentError, match=r"\[generate\] draft: got a draft model of 98 tokens"):
                kv.generate(random_model("dense"), words(1, 3), draft=given)
        draft = kv.DraftModel(named_tokens(VOCAB, w3="other", w5="others"), own)
        with pytest.raises(kv.errors.ArgumentError, match=r"whose token 3 is 'other', allowed 'w3'"):
            kv.generate(named_tokens(VOCAB), words(1, 3), draft=draft)


@pytest.mark.usefixtures("eager")
def test_a_model_of_more_ids_with_the_same_tokens_drafts() -> None:
    """As large models of a series have them; what the other does not know is not proposed."""
    model, text = named_tokens(VOCAB), words(11, 30)
    with make_cache(model) as cache:
        answer = list(kv.generate(model, cache.begin(text), COUNT, ignore_eos=True))
        for size in (VOCAB + 31, 64):
            small = named_tokens(size)
            with make_cache(small) as own, cache.begin(text, use=False, publish=False) as session:
                made = kv.generate(model, session, COUNT, ignore_eos=True, draft=kv.DraftModel(small, own))
                assert list(made) == answer


@pytest.mark.usefixtures("eager")
def test_texts_and_chats_have_it_too() -> None:
    model, small = kv.models.load(TINY), kv.models.load(TINY)
    with kv.PrefixCache(model.caches(capacity=512)) as cache, kv.PrefixCache(small.caches(capacity=512)) as own:
        draft = kv.DraftModel(small, own)
        options: dict[str, Any] = {"max_tokens": 30, "cache": cache, "ignore_eos": True}
        plain = model.complete("Once upon a time", **options)
        made = model.complete("Once upon a time", draft=draft, **options)
        assert made.text == plain.text
        assert made.accepted == made.proposed > 10
        assert own.stats()["sessions"] == 0


def test_a_generation_that_is_dropped_gives_its_draft_session_back() -> None:
    model = random_model("dense")
    own, kinds = make("dense", **SMALL)
    with make_cache(model) as cache, own, cache.begin(words(12, 9)) as session:
        made = kv.generate(model, session, COUNT, **VARIED, draft=kv.DraftModel(kinds, own))
        for _ in range(3):
            next(made)
        assert own.stats()["sessions"] == 1
        del made
        assert own.stats()["sessions"] == 0


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_one_model_drafts_for_all_answers_of_a_batch(kind: str) -> None:
    model, small = random_model(kind), random_model(kind)
    texts = [words(seed, 20 + seed) for seed in (1, 2, 3)]
    with make_cache(model) as cache:
        plain = [list(kv.generate(model, cache.begin(text), COUNT, ignore_eos=True)) for text in texts]
    with make_cache(model) as cache, make_cache(small) as own:
        with kv.Batcher(model, cache, draft=kv.DraftModel(small, own)) as batcher:
            made = [batcher.submit(text, COUNT, ignore_eos=True) for text in texts]
            assert [each.result() for each in made] == plain
        assert cache.stats()["accepted_tokens"] > COUNT
        assert own.stats()["sessions"] == 0
        assert not own.check()
