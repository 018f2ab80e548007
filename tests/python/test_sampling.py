"""The choice of the next token: every parameter against what its definition says, and what stays on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGPROBS, PENALTIES, close
from reference_llama import random_llama

VOCAB = 50
ROW = np.random.default_rng(5).standard_normal(VOCAB).astype(np.float32) * 2
TOKENS = np.array([3, 7, 7, 9, 3, 4], np.int32)


def choose(row: Any = ROW, position: int = 6, generated: int = 3, tokens: Any = TOKENS, **parameters: Any) -> kv.Choice:
    sampler = kv.Sampler(kv.Sampling(**parameters), VOCAB)
    return sampler(np.asarray(row, np.float32).reshape(1, -1), position, lambda: tokens, generated)


def drawn(count: int = 400, **parameters: Any) -> set[int]:
    """The tokens that come up in ``count`` draws at different positions."""
    parameters = {"temperature": 1.0, "seed": 1, **parameters}
    return {choose(position=position, **parameters).token for position in range(count)}


def softmax(row: Any) -> Any:
    p = np.exp(row.astype(np.float64) - row.max())
    return p / p.sum()


def seen_by(**parameters: Any) -> Any:
    """The logits that reach a processor, which comes after penalties and bias."""
    seen = []
    choose(logits_processors=[lambda _, row: seen.append(row.copy())], **parameters)
    return seen[0]


def test_the_likeliest_by_default() -> None:
    assert choose().token == int(ROW.argmax())
    assert kv.Sampling().on_device


def test_repetition_penalty_divides_what_stands_in_the_text() -> None:
    wanted = ROW.copy()
    for token in (3, 4, 7, 9):
        wanted[token] = wanted[token] / 1.5 if wanted[token] > 0 else wanted[token] * 1.5
    assert {bool(ROW[token] > 0) for token in (3, 4, 7, 9)} == {True, False}, "both signs are to be tried"
    close(seen_by(repetition_penalty=1.5), wanted, PENALTIES, each=True)


def test_presence_and_frequency_count_what_was_generated() -> None:
    wanted = ROW.copy()
    wanted[[9, 3, 4]] -= 0.5 + 0.25
    close(seen_by(presence_penalty=0.5, frequency_penalty=0.25), wanted, PENALTIES, each=True)
    wanted = ROW.copy()
    wanted[[3, 7]] -= 0.5 + 2 * 0.25
    wanted[[9, 4]] -= 0.5 + 0.25
    close(seen_by(presence_penalty=0.5, frequency_penalty=0.25, generated=6), wanted, PENALTIES, each=True)
    np.testing.assert_array_equal(seen_by(presence_penalty=0.5, generated=0), ROW)


def test_logit_bias_adds_and_forbids() -> None:
    best, other = int(ROW.argmax()), int(ROW.argmin())
    assert choose(logit_bias={other: 100.0}).token == other
    assert choose(logit_bias={best: float("-inf")}).token == int(np.argsort(ROW)[-2])
    assert best not in drawn(logit_bias={best: float("-inf")})


def test_min_p_keeps_what_is_nearly_as_probable() -> None:
    p = softmax(ROW / 0.8)
    allowed = set(np.flatnonzero(p >= 0.3 * p.max()).tolist())
    assert 1 < len(allowed) < VOCAB // 2
    assert drawn(min_p=0.3, temperature=0.8) == allowed
    assert drawn(min_p=1.0) == {int(ROW.argmax())}


def test_typical_p_keeps_the_expected_surprise() -> None:
    p = softmax(ROW)
    surprise = -np.log(p)
    order = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), 0.4)) + 1
    assert 1 < count < VOCAB // 2
    assert drawn(1500, typical_p=0.4) <= set(order[:count].tolist())
    assert len(drawn(1500, typical_p=0.4)) > 1


def test_typical_p_beside_tokens_that_are_forbidden() -> None:
    best = int(ROW.argmax())
    assert best not in drawn(typical_p=0.9, logit_bias={best: float("-inf")})


def test_filters_do_nothing_at_temperature_zero() -> None:
    assert choose(min_p=0.9, typical_p=0.1).token == int(ROW.argmax())


def test_filters_and_top_k_meet() -> None:
    p = softmax(ROW)
    allowed = [int(token) for token in np.argsort(-p) if p[token] >= 0.2 * p.max()]
    assert len(allowed) > 2
    assert drawn(min_p=0.2, top_k=2) == set(allowed[:2])


def test_what_the_host_does_not_change_is_drawn_alike() -> None:
    """The draw is one code: asking for log-probabilities, or for a processor that changes nothing, changes nothing."""
    for position in range(50):
        parameters: dict[str, Any] = {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "seed": 4, "position": position}
        plain = choose(**parameters).token
        assert choose(logprobs=3, **parameters).token == plain
        assert choose(logits_processors=lambda _tokens, _row: None, **parameters).token == plain


def test_the_device_penalises_as_the_host_does() -> None:
    """A processor that changes nothing brings the row to the host; the tokens are the same."""
    rng = np.random.default_rng(12)
    for position in range(60):
        parameters: dict[str, Any] = {
            "temperature": float(rng.choice([0.0, 0.7, 1.5])),
            "top_k": int(rng.integers(0, 9)),
            "top_p": float(rng.choice([1.0, 0.8])),
            "min_p": float(rng.choice([0.0, 0.05])),
            "repetition_penalty": float(rng.choice([1.0, 1.4])),
            "presence_penalty": float(rng.choice([0.0, 0.6])),
            "frequency_penalty": float(rng.choice([0.0, -0.3])),
            "logit_bias": {int(token): float(rng.normal()) for token in rng.integers(0, VOCAB, rng.integers(0, 4))},
        }
        given: dict[str, Any] = {"seed": 9, "position": position, "tokens": rng.integers(-2, VOCAB, 30, np.int32)}
        assert kv.Sampling(**parameters).on_device
        on_host = choose(logits_processors=lambda _tokens, _row: None, **parameters, **given)
        assert choose(**parameters, **given).token == on_host.token, parameters


def test_logits_without_a_finite_one_are_an_error() -> None:
    for row in (ROW * np.nan, ROW * 0 - np.inf):
        for parameters in ({"temperature": 1.0}, {"logit_bias": {1: 2.0}}):
            with pytest.raises(kv.errors.ArgumentError, match="finite"):
                choose(row, **parameters)


def test_logprobs_are_the_models_own() -> None:
    reference = np.log(softmax(ROW))
    choice = choose(logprobs=4, logit_bias={int(ROW.argmin()): 100.0})
    assert choice.logprob is not None and choice.token == choice.logprob.token == int(ROW.argmin())
    close(choice.logprob.logprob, reference[choice.token], LOGPROBS, each=True)
    order = np.argsort(-reference)[:4]
    assert [token for token, _ in choice.logprob.top] == order.tolist()
    close([value for _, value in choice.logprob.top], reference[order], LOGPROBS, each=True)
    none = choose(logprobs=0).logprob
    assert none is not None and none.top == []
    assert choose().logprob is None


def test_processors_run_in_turn_with_all_tokens() -> None:
    seen: list[Any] = []

    def only_even(tokens: Any, row: Any) -> Any:
        seen.append(tokens.tolist())
        row[1::2] = -np.inf

    def less_of_the_best(_tokens: Any, row: Any) -> Any:
        changed = row.copy()
        changed[row.argmax()] -= 100
        return changed

    even = np.argsort(-ROW[::2]) * 2
    assert choose(logits_processors=[only_even]).token == even[0]
    assert choose(logits_processors=[only_even, less_of_the_best]).token == even[1]
    assert seen == [TOKENS.tolist()] * 2


def test_a_processor_that_forbids_all_is_an_error() -> None:
    with pytest.raises(kv.errors.ArgumentError, match="finite"):
        choose(logits_processors=[lambda _tokens, row: row * 0 - np.inf])
    with pytest.raises(kv.errors.ArgumentError, match="finite"):
        choose(logits_processors=[lambda _tokens, row: row * np.nan])
    with pytest.raises(kv.errors.ArgumentError, match="shape"):
        choose(logits_processors=[lambda _tokens, row: row[:5]])


WRONG = [
    ({"min_p": -0.1}, ValueError, "min_p"),
    ({"min_p": float("nan")}, ValueError, "min_p"),
    ({"typical_p": 0.0}, ValueError, "typical_p"),
    ({"repetition_penalty": 0.0}, ValueError, "repetition_penalty"),
    ({"repetition_penalty": "much"}, TypeError, "repetition_penalty"),
    ({"presence_penalty": float("inf")}, ValueError, "presence_penalty"),
    ({"frequency_penalty": True}, TypeError, "frequency_penalty"),
    ({"logit_bias": [1]}, TypeError, "logit_bias"),
    ({"logit_bias": {1.5: 0.0}}, TypeError, "logit_bias"),
    ({"logit_bias": {-1: 0.0}}, ValueError, "logit_bias"),
    ({"logit_bias": {VOCAB: 0.0}}, ValueError, "logit_bias"),
    ({"logit_bias": {1: float("nan")}}, ValueError, "logit_bias"),
    ({"logits_processors": [1]}, TypeError, "logits_processors"),
    ({"logprobs": -1}, ValueError, "logprobs"),
    ({"logprobs": 10**9}, ValueError, "logprobs"),
]


@pytest.mark.parametrize(("parameters", "kind", "named"), WRONG)
def test_wrong_parameters_are_named(parameters: dict[str, Any], kind: type[Exception], named: str) -> None:
    with pytest.raises(kind, match=named):
        choose(**parameters)


def test_plain_sampling_reads_one_token_of_the_device(device: Any) -> None:
    """No row of logits comes to the host, unless something needs it."""
    model = kv.models.from_weights(*random_llama(11))
    row_bytes = 4 * model.config.vocab_size
    cache = kv.PrefixCache(model.caches(capacity=64, dtype="float32"))

    def downloaded(**parameters: Any) -> int:
        with cache.begin([3, 1, 4]) as session:
            tokens = iter(kv.generate(model, session, 8, ignore_eos=True, seed=1, **parameters))
            for _ in range(4):  # a recorded step is compared once, row by row
                next(tokens)
            before = device.memory()["download_bytes"]
            next(tokens)
            return int(device.memory()["download_bytes"] - before)

    assert 0 < downloaded(temperature=0.9, top_k=5, top_p=0.9) < row_bytes
    assert 0 < downloaded() < row_bytes
    assert 0 < downloaded(temperature=0.9, min_p=0.1, repetition_penalty=1.2, presence_penalty=0.5) < row_bytes
    assert 0 < downloaded(frequency_penalty=0.1, logit_bias={3: 1.0}) < row_bytes
    assert downloaded(temperature=0.9, typical_p=0.9) >= row_bytes
    assert downloaded(logits_processors=lambda _tokens, _row: None) >= row_bytes
    cache.close()
