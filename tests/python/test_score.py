"""Scores of continuations: against a forward pass of everything at once, whatever the cache knew before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGPROBS, close
from kvtrie.sampling import log_softmax
from random_models import random_model
from reference_llama import random_llama, reference_logits
from serving import TINY

SEED = 11
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
CONTINUATIONS = [[5], [5, 3, 5, 8], [5, 3, 5, 8, 9, 7], [9, 3], [2, 3, 8, 4, 6, 2, 6]]


@pytest.fixture(scope="module")
def network() -> Any:
    return random_llama(SEED)


@pytest.fixture(scope="module")
def model(network: Any) -> Any:
    return kv.models.from_weights(*network)


@pytest.fixture(scope="module")
def tiny() -> Any:
    return kv.models.load(TINY)


def make_cache(model: Any, capacity: int = 256) -> Any:
    return kv.PrefixCache(model.caches(capacity=capacity, dtype="float32"))


def naive(model: Any, prompt: list[int], continuation: list[int]) -> tuple[list[float], bool]:
    """All of it computed at once, in a cache that knows nothing."""
    cache = make_cache(model)
    with cache.begin([*prompt, *continuation]) as session:
        rows = np.asarray(model(next(iter(session.prefill(chunk=512))), all_rows=True), np.float32)
    cache.close()
    table = [log_softmax(row) for row in rows[len(prompt) - 1 : -1]]
    logprobs = [float(row[token]) for row, token in zip(table, continuation)]
    return logprobs, all(int(row.argmax()) == token for row, token in zip(table, continuation))


def require_naive(
    scores: list[kv.results.Score], model: Any, prompt: list[int], continuations: list[list[int]]
) -> None:
    assert [score.tokens for score in scores] == continuations
    for score in scores:
        logprobs, greedy = naive(model, prompt, score.tokens)
        close(score.logprobs, logprobs, LOGPROBS, each=True)
        assert score.greedy is greedy
        close(score.logprob, sum(logprobs), LOGPROBS, each=True)


@pytest.mark.parametrize(("max_sessions", "chunk"), [(8, 512), (2, 3), (1, 1), (3, 512)])
def test_scores_are_those_of_a_forward_pass(model: Any, max_sessions: int, chunk: int) -> None:
    cache = make_cache(model)
    for _ in range(2):  # the second time all of it is known
        scores = kv.score(model, PROMPT, CONTINUATIONS, cache=cache, max_sessions=max_sessions, chunk=chunk)
        require_naive(scores, model, PROMPT, CONTINUATIONS)
    assert cache.stats()["sessions"] == 0 and cache.check() == []
    cache.close()


def test_scores_are_those_of_the_reference(network: Any, model: Any) -> None:
    cache = make_cache(model)
    score = kv.score(model, PROMPT, [CONTINUATIONS[-1]], cache=cache)[0]
    rows = reference_logits(*network, PROMPT + CONTINUATIONS[-1])[len(PROMPT) - 1 : -1]
    expected = [log_softmax(row)[token] for row, token in zip(rows, CONTINUATIONS[-1])]
    close(score.logprobs, expected, LOGPROBS, each=True)
    cache.close()


@pytest.mark.parametrize("kind", ["window", "hybrid"])
def test_every_kind_of_model_scores(kind: str) -> None:
    model = random_model(kind)
    cache = make_cache(model)
    for _ in range(2):
        require_naive(kv.score(model, PROMPT, CONTINUATIONS, cache=cache), model, PROMPT, CONTINUATIONS)
    cache.close()


def test_what_is_written_at_temperature_0_is_greedy(model: Any) -> None:
    cache = make_cache(model)
    with cache.begin(PROMPT) as session:
        written = list(kv.generate(model, session, 6, ignore_eos=True))
    other = [*written[:-1], (written[-1] + 1) % model.config.vocab_size]
    assert [score.greedy for score in kv.score(model, PROMPT, [written, other], cache=cache)] == [True, False]
    cache.close()


def test_the_prompt_is_computed_once(model: Any) -> None:
    """And a continuation of one token costs nothing."""
    cache = make_cache(model)
    kv.score(model, PROMPT, [[token] for token in range(50)], cache=cache)
    assert cache.stats()["computed_tokens"] == len(PROMPT)
    kv.score(model, [*PROMPT, 7], CONTINUATIONS, cache=cache)
    assert cache.stats()["computed_tokens"] == len(PROMPT) + 1 + sum(len(each) - 1 for each in CONTINUATIONS)
    cache.close()


def test_they_are_scored_in_turn_where_there_is_little_room(model: Any) -> None:
    cache = make_cache(model, len(PROMPT) + 6)
    require_naive(kv.score(model, PROMPT, CONTINUATIONS, cache=cache), model, PROMPT, CONTINUATIONS)
    with pytest.raises(kv.errors.ArgumentError, match="cells"):
        kv.score(model, PROMPT, [CONTINUATIONS[-1] * 2], cache=cache)
    with cache.begin(PROMPT[:1]), cache.begin([9, *PROMPT[:2]]) as other:
        other.append(1)
        for step in other.prefill():
            model(step)
        with pytest.raises(kv.errors.CacheFullError):
            kv.score(model, PROMPT, CONTINUATIONS, cache=cache)
    assert cache.stats()["sessions"] == 0
    cache.close()


def test_texts(tiny: Any) -> None:
    prompt, text = "A server is better when", " it is asked often."
    scores = kv.score(tiny, prompt, [text, "!"])
    assert scores[0].tokens == tiny.tokenizer.encode(prompt + text)[len(tiny.tokenizer.encode(prompt)) :]
    by_ids = kv.score(tiny, tiny.tokenizer.encode(prompt), [scores[0].tokens, text])
    for each in by_ids:
        close(each.logprobs, scores[0].logprobs, LOGPROBS, each=True)


def test_a_text_that_merges_with_the_prompt_is_encoded_by_itself(tiny: Any) -> None:
    tokenizer = tiny.tokenizer
    texts = [tokenizer.decode([token]) for token in range(tiny.config.vocab_size)]
    word = next(text for text in texts if len(text) > 4 and text.isalpha() and len(tokenizer.encode(text)) == 1)
    assert kv.score(tiny, word[:-2], [word[-2:]])[0].tokens == tokenizer.encode(word[-2:], False)


@pytest.mark.parametrize("wrong", ["text", [[]], [[1, -2]], [[10**6]], [3.5], None, [[1, 10**6]]])
def test_wrong_continuations_are_refused_by_name(model: Any, wrong: Any) -> None:
    cache = make_cache(model)
    with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=r"^\[score\]"):
        kv.score(model, PROMPT, wrong, cache=cache)
    assert cache.stats()["sessions"] == 0
    cache.close()


def test_no_continuations(model: Any) -> None:
    cache = make_cache(model)
    assert kv.score(model, PROMPT, [], cache=cache) == []
    cache.close()
