"""Several generations in one step: the tokens of each are those it has alone, whoever joins, leaves or has to wait."""

from __future__ import annotations

from typing import Any

import pytest

import kvtrie as kv
from reference_llama import random_llama

COMMON = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9]
PROMPTS = [[*COMMON, 1], [*COMMON, 2, 3], [7, 7], [*COMMON[:6], 11, 12, 13], [8]]
SAMPLING: list[dict[str, Any]] = [
    {},
    {"temperature": 1.2, "seed": 3},
    {"temperature": 0.9, "seed": 4, "min_p": 0.02},
    {"repetition_penalty": 1.3},
    {},
]
COUNT = 12


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.from_weights(*random_llama(11))


@pytest.fixture(scope="module")
def alone(model: Any) -> list[list[int]]:
    return answers_alone(model)


def make_cache(model: Any, capacity: int = 256) -> kv.PrefixCache:
    return kv.PrefixCache(model.caches(capacity=capacity, dtype="float32"), fingerprint=model.fingerprint)


def answers_alone(model: Any) -> list[list[int]]:
    """What each prompt is continued with by itself."""
    made = []
    for prompt, sampling in zip(PROMPTS, SAMPLING):
        with make_cache(model, 64) as cache, cache.begin(prompt) as session:
            made.append(list(kv.generate(model, session, COUNT, ignore_eos=True, **sampling)))
    return made


def add_all(batch: kv.Batch) -> list[kv.Generation[int]]:
    return [batch.add(prompt, COUNT, ignore_eos=True, **sampling) for prompt, sampling in zip(PROMPTS, SAMPLING)]


@pytest.mark.parametrize(("max_sessions", "chunk"), [(8, 128), (2, 3), (1, 128), (3, 1)])
def test_each_has_the_tokens_it_has_alone(model: Any, alone: Any, max_sessions: int, chunk: int) -> None:
    cache = make_cache(model)
    with kv.Batch(model, cache, max_sessions=max_sessions, chunk=chunk) as batch:
        answers = add_all(batch)
        while batch.step():
            assert cache.stats()["sessions"] <= max_sessions
        assert len(batch) == 0 and not batch.step()
    assert [answer.tokens for answer in answers] == alone
    assert {answer.finish_reason for answer in answers} == {"length"}
    assert cache.stats()["sessions"] == 0 and cache.check() == []
    cache.close()


def test_a_step_is_for_all(model: Any) -> None:
    """As many steps as the longest takes, not as all of them take together."""
    cache = make_cache(model)
    kv.generate_batch(model, PROMPTS, COUNT, cache=cache, ignore_eos=True)
    assert cache.stats()["steps"] == COUNT
    cache.close()


def test_one_read_chooses_for_all(model: Any, device: Any) -> None:
    """Whatever their parameters are: not one for each, and no row of logits."""
    cache = make_cache(model)
    with kv.Batch(model, cache) as batch:
        add_all(batch)
        for _ in range(5):  # a recorded step is compared once, row by row
            batch.step()
        before = device.memory()["download_bytes"]
        batch.step()
        assert device.memory()["download_bytes"] - before == 4 * len(PROMPTS)
    cache.close()


def test_what_forbids_every_token_fails_alone(model: Any, alone: Any) -> None:
    nothing = dict.fromkeys(range(model.config.vocab_size), float("-inf"))
    cache = make_cache(model)
    with kv.Batcher(model, cache) as batcher:
        wrong = batcher.submit(PROMPTS[0], COUNT, logit_bias=nothing)
        right = [
            batcher.submit(prompt, COUNT, ignore_eos=True, **sampling) for prompt, sampling in zip(PROMPTS, SAMPLING)
        ]
        with pytest.raises(kv.errors.ArgumentError, match="finite"):
            list(wrong)
        assert [list(request) for request in right] == alone
    cache.close()


def test_they_join_and_leave_between_steps(model: Any, alone: Any) -> None:
    cache = make_cache(model)
    batch = kv.Batch(model, cache)
    first = batch.add(PROMPTS[0], COUNT, ignore_eos=True)
    gone = batch.add(PROMPTS[2], COUNT, ignore_eos=True)
    for _ in range(3):
        batch.step()
    gone.close()
    late = batch.add(PROMPTS[4], COUNT, ignore_eos=True)
    while batch.step():
        pass
    assert (first.tokens, late.tokens, len(gone.tokens)) == (alone[0], alone[4], 3)
    assert cache.stats()["sessions"] == 0
    cache.close()


def test_who_does_not_fit_waits_and_loses_nothing(model: Any, alone: Any) -> None:
    cache = make_cache(model, 64)  # of the 5 x (2 to 17 + 12) tokens that all want
    answers = []
    with kv.Batch(model, cache) as batch:
        answers = add_all(batch)
        while batch.step():
            pass
    assert [answer.tokens for answer in answers] == alone
    cache.close()


def test_an_exception_ends_nothing(model: Any, alone: Any) -> None:
    calls = 0

    def fail_once(_tokens: Any, _row: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise RuntimeError("once")

    cache = make_cache(model)
    batch = kv.Batch(model, cache)
    answers = [batch.add(PROMPTS[0], COUNT, ignore_eos=True, logits_processors=fail_once)]
    answers.append(batch.add(PROMPTS[4], COUNT, ignore_eos=True))
    failures = 0
    while len(batch):
        try:
            batch.step()
        except RuntimeError:
            failures += 1
    assert failures == 1
    assert [answer.tokens for answer in answers] == [alone[0], alone[4]]
    cache.close()


WRONG_PROMPTS: list[tuple[Any, str]] = [
    ([], "prompt: got 0 tokens"),
    ([[1, 2]], "prompt: got 2 tokens of rank 2"),
    ([[1], [2, 3]], "prompt: got lists in a list"),
    ([1.5, 2.0], "prompt: got float64, allowed a text or integers"),
    (["a"], "prompt: got <U1"),
    ([True], "prompt: got bool"),
    ([1, 2**31], r"prompt\[1\]: got 2147483648, allowed -2147483648 to 2147483647"),
]


def test_wrong_prompts_are_refused_and_stop_nobody(model: Any, alone: Any) -> None:
    cache = make_cache(model, 32)
    batch = kv.Batch(model, cache)
    for wrong, message in WRONG_PROMPTS:
        with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=message):
            batch.add(wrong)
        with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=message):
            kv.generate(model, wrong)
    with pytest.raises(kv.errors.ArgumentTypeError, match="temprature"):
        batch.add([1], temprature=1)
    with pytest.raises(kv.errors.NotSupportedError, match="tokenizer"):
        batch.add("text")
    long = batch.add([1] * 100)
    good = batch.add(PROMPTS[4], COUNT, ignore_eos=True)
    with pytest.raises(kv.errors.ArgumentError, match="100"):
        batch.step()
    while batch.step():
        pass
    assert (long.tokens, good.tokens) == ([], alone[4])
    cache.close()
