"""Mixtures of experts: the operations against numpy, and models whose routes are chosen on device or host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import SMALL_SUMS, close
from kvtrie.models import moe
from random_models import VOCAB, random_model

pytestmark = pytest.mark.usefixtures("nothing_left_over")

SEED = 20251123


def normal(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def routes_of(scores: Any, k: int, weighting: str) -> tuple[Any, Any]:
    """In float64."""
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(scores.astype(np.float64), chosen, axis=1)
    if weighting == "sigmoid":
        return chosen, 1 / (1 + np.exp(-best))
    among = scores.astype(np.float64) if weighting == "softmax" else best
    most = among.max(axis=1, keepdims=True)
    return chosen, np.exp(best - most) / np.exp(among - most).sum(axis=1, keepdims=True)


@pytest.mark.parametrize("weighting", ["sigmoid", "softmax", "normed"])
def test_routes_are_the_largest_scores_and_the_lower_index_on_a_tie(weighting: str) -> None:
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    for rows, experts, k in ((1, 1, 1), (2, 4, 3), (9, 60, 8)):
        scores = np.round(normal(random, rows, experts), 1)  # with equals
        chosen, factors = kv.ops.route(scores, k, weighting)
        expected = routes_of(scores, k, weighting)
        assert np.array_equal(np.asarray(chosen), expected[0])
        close(factors, expected[1], SMALL_SUMS)


def shares_of(scores: Any, weighting: str) -> Any:
    """In float64: sigmoids, or parts of the softmax."""
    exact = scores.astype(np.float64)
    if weighting.startswith("sigmoid"):
        return 1 / (1 + np.exp(-exact))
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def ranked_routes_of(
    scores: Any, k: int, weighting: str, bias: Any, groups: int, kept: int, summed: int
) -> tuple[Any, Any]:
    """The k best by share and bias, of the groups whose ``summed`` best add up to most; factors of shares alone."""
    shares = shares_of(scores, weighting)
    ranks = (shares + bias).reshape(len(scores), groups, -1)
    if kept < groups:
        sums = np.sort(ranks, axis=2)[:, :, -summed:].sum(axis=2)
        dropped = np.argsort(-sums, axis=1, kind="stable")[:, kept:]
        np.put_along_axis(ranks, dropped[:, :, None], -np.inf, axis=1)
    chosen = np.argsort(-ranks.reshape(scores.shape), axis=1, kind="stable")[:, :k]
    factors = np.take_along_axis(shares, chosen, axis=1)
    return chosen, factors / factors.sum(axis=1, keepdims=True) if weighting.endswith("normed") else factors


@pytest.mark.parametrize("weighting", ["sigmoid", "softmax", "normed", "sigmoid_normed"])
def test_a_bias_and_groups_choose_and_leave_factors_alone(weighting: str) -> None:
    print(f"seed {SEED}")
    random = np.random.default_rng(SEED)
    for rows, experts, k, groups, kept, summed in (
        (1, 4, 2, 1, 1, 2),
        (9, 24, 5, 4, 2, 2),
        (9, 24, 5, 4, 2, 1),
        (3, 64, 8, 8, 8, 2),
    ):
        scores, bias = normal(random, rows, experts), normal(random, experts) / 2
        chosen, factors = kv.ops.route(scores, k, weighting, bias, groups, kept, summed)
        expected = ranked_routes_of(scores, k, weighting, bias, groups, kept, summed)
        assert np.array_equal(np.asarray(chosen), expected[0])
        close(factors, expected[1], SMALL_SUMS)


def test_scaled_rows_and_their_sums() -> None:
    random = np.random.default_rng(SEED)
    x, many, factors = normal(random, 3, 37), normal(random, 3, 2, 37), normal(random, 3, 2)
    assert np.array_equal(np.asarray(kv.ops.scale_rows(x, factors)), x[:, None] * factors[:, :, None])
    exact = many.astype(np.float64)
    close(kv.ops.weighted_sum(many, factors), (exact * factors[:, :, None]).sum(axis=1), SMALL_SUMS, each=True)
    close(kv.ops.weighted_sum(many), exact.sum(axis=1), SMALL_SUMS, each=True)


def packed_sets(random: np.random.Generator, out: int, width: int, count: int) -> tuple[Any, Any]:
    weights = [kv.ops.pack(normal(random, out, width)) for _ in range(count)]
    pairs = [kv.ops.pack_pair(normal(random, out, width), normal(random, out, width)) for _ in range(count)]
    sets = kv.ops.PackedSet(weights[0], count), kv.ops.PackedSet(pairs[0], count)
    for index in range(count):
        sets[0].put(index, weights[index])
        sets[1].put(index, pairs[index])
    return sets


def test_sets_tell_what_they_hold() -> None:
    weights, pairs = packed_sets(np.random.default_rng(SEED), 70, 44, 3)
    assert (len(weights), weights.shape, weights.dtype) == (3, (70, 44), "float32")
    assert weights.nbytes == 3 * weights[0].nbytes and isinstance(pairs[2], kv.ops.PackedPair)
    assert "PackedSet" in repr(weights)
    assert len(list(weights)) == 3


def test_routed_products_are_those_of_the_chosen_weights() -> None:
    if not kv.ops.can_route():
        pytest.skip("products are not routed on this device")
    random = np.random.default_rng(SEED)
    weights, pairs = packed_sets(random, 70, 44, 3)
    x, chosen = normal(random, 2, 44), np.array([[2, 0], [1, 1]], np.int32)
    got, gated = (np.asarray(kv.ops.matmul_routed(x, each, chosen)) for each in (weights, pairs))
    for row, choice in np.ndindex(2, 2):
        expert = int(chosen[row, choice])
        assert np.array_equal(got[row, choice], np.asarray(kv.ops.matmul(x[row], weights[expert])))
        assert np.array_equal(gated[row, choice], np.asarray(kv.ops.matmul_gated(x[row], pairs[expert])))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda w, p: kv.ops.PackedSet(w, 0), "count"),
        (lambda w, p: kv.ops.PackedSet(3, 1), "like"),
        (lambda w, p: kv.ops.PackedSet(w, 2).put(0, p), "pair"),
        (lambda w, p: kv.ops.PackedSet(w, 2).put(2, w), "index"),
        (lambda w, p: kv.ops.PackedSet(w, 2).put(0, "w"), "weight"),
        (lambda w, p: kv.ops.route([[1.0, 2.0]], 3, "normed"), "k: got 3"),
        (lambda w, p: kv.ops.route([[1.0, 2.0]], 1, "best"), "weighting"),
        (lambda w, p: kv.ops.route([1.0, 2.0], 1, "normed"), "scores"),
        (lambda w, p: kv.ops.scale_rows([[1.0]], [[1.0], [2.0]]), "factors"),
        (lambda w, p: kv.ops.weighted_sum([[[1.0]]], [[1.0, 2.0]]), "factors"),
        (lambda w, p: kv.ops.matmul_routed([[1.0] * 3], w, [[0]]), "weights"),
        (lambda w, p: kv.ops.matmul_routed([[1.0] * 4], kv.ops.PackedSet(w, 1), np.zeros((1, 1), np.int32)), "x"),
        (lambda w, p: kv.ops.matmul_routed([[1.0] * 3], kv.ops.PackedSet(w, 1), [[0.5]]), "chosen"),
    ],
)
def test_wrong_arguments_name_the_argument(call: Any, name: str) -> None:
    weight = kv.ops.pack(np.ones((4, 3), np.float32))
    pair = kv.ops.pack_pair(np.ones((4, 3), np.float32), np.ones((4, 3), np.float32))
    with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=name):
        call(weight, pair)


def test_an_index_outside_a_set_is_an_index_error() -> None:
    weights = kv.ops.PackedSet(kv.ops.pack(np.ones((4, 3), np.float32)), 2)
    with pytest.raises(IndexError, match="allowed 0 to 1"):
        weights[2]


# ---- models ----------------------------------------------------------------------------------------------------------


def logits_of(model: Any, prompts: list[list[int]]) -> Any:
    """Of a token behind each prompt, all in one step."""
    cache = kv.PrefixCache(model.caches(512))
    sessions = [cache.begin(prompt) for prompt in prompts]
    for session in sessions:
        for step in session.prefill():
            model(step)
        session.append(3)
    return np.asarray(model(cache.batch(sessions) if len(sessions) > 1 else sessions[0].decode()))


@pytest.mark.parametrize("changes", [{}, {"norm_topk_prob": False}])
def test_few_rows_and_many_are_routed_alike(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether rows are routed on the device or gathered on the host changes no bit."""
    prompts = [[(7 * row + column) % VOCAB for column in range(5)] for row in range(6)]
    device = random_model("experts", **changes)
    got = [logits_of(device, prompts), *(logits_of(device, [prompt]) for prompt in prompts)]
    monkeypatch.setattr(moe, "routed_rows", lambda experts, k: 0)
    host = random_model("experts", **changes)
    expected = logits_of(host, prompts)
    assert np.array_equal(got[0], expected)
    for row, alone in enumerate(got[1:]):
        assert np.array_equal(alone[0], expected[row])


def test_experts_that_do_not_fit_into_one_buffer_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits_of(random_model("experts"), [[1, 2, 3]])
    monkeypatch.setattr(moe.ExpertSets, "like", classmethod(lambda *_: None))
    assert np.array_equal(logits_of(random_model("experts"), [[1, 2, 3]]), expected)


def test_rows_are_routed_while_few_share_an_expert() -> None:
    assert [moe.routed_rows(experts, k) for experts, k in ((4, 2), (32, 4), (512, 10), (16, 1), (1, 1))] == [
        3,
        8,
        8,
        8,
        1,
    ]
