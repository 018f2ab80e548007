"""Attention over chosen keys: scores, choices and sums of numpy, whoever else is in the step, and refusals.

The twin is written from kv.ops.choose_keys and attend_chosen. Small whole numbers have exact sums, so they tie, and who
wins a tie can be compared; where numbers are random, the choice is compared as a choice from float64 scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import REFERENCE, close

TYPES = ("float32", "float16", "bfloat16")


def scores_of(q: Any, k: Any, weights: Any, mask: Any) -> Any:
    dots = np.einsum("rhd,nd->rhn", q.astype(np.float64), k[:, 0].astype(np.float64))
    scores = np.einsum("rh,rhn->rn", weights.astype(np.float64), np.maximum(dots, 0))
    return np.where(np.isneginf(mask), -np.inf, scores)


def best(scores: Any, count: int) -> Any:
    """[rows, count]: the earlier of a tie, ascending, -1 behind the last."""
    out = np.full((len(scores), count), -1, np.int32)
    for row, own in enumerate(scores):
        order = [i for i in np.argsort(-own, kind="stable") if own[i] > -np.inf][:count]
        out[row, : len(order)] = sorted(order)
    return out


def attended(q: Any, k: Any, chosen: Any, v_dim: int, scale: float) -> Any:
    out = np.zeros((*q.shape[:2], v_dim))
    for row, keys in enumerate(chosen):
        own = k[keys[keys >= 0], 0].astype(np.float64)
        if len(own):
            x = q[row].astype(np.float64) @ own.T * scale
            e = np.exp(x - x.max(1, keepdims=True))
            out[row] = e / e.sum(1, keepdims=True) @ own[:, -v_dim:]
    return out


def drawn(random: Any, whole: bool) -> tuple[Any, ...]:
    """q, k, weights and mask of random sizes; hidden keys are NaN. ``whole``: numbers that tie."""
    rows, heads, dim, n = (int(random.integers(1, most)) for most in (6, 5, 40, 200))
    sizes = ((rows, heads, dim), (n, 1, dim), (rows, heads))
    q, k, weights = (
        (random.integers(-2, 3, size) if whole else random.standard_normal(size)).astype(np.float32) for size in sizes
    )
    mask = np.where(random.random((rows, n)) < random.random((rows, 1)), 0, -np.inf).astype(np.float32)
    k[np.isneginf(mask).all(0)] = np.nan
    return q, k, weights, mask


@pytest.mark.parametrize("seed", range(12))
def test_ties_go_to_the_earlier_key(seed: int) -> None:
    random = np.random.default_rng(seed)
    q, k, weights, mask = drawn(random, whole=True)
    for count in (1, 1 + len(k) // 3, len(k), len(k) + 5):
        got = np.asarray(kv.ops.choose_keys(q, kv.tensor(k).astype(TYPES[seed % 3]), weights, mask, count))
        np.testing.assert_array_equal(got, best(scores_of(q, k, weights, mask), min(count, len(k))))


@pytest.mark.parametrize("seed", range(6))
def test_chosen_keys_are_attended_to(seed: int) -> None:
    random = np.random.default_rng(seed)
    q, k, weights, mask = drawn(random, whole=False)
    kept = kv.tensor(k).astype(TYPES[seed % 2])
    stored = np.asarray(kept.astype("float32"))
    count, v_dim = 1 + len(k) // 2, int(random.integers(1, k.shape[2] + 1))
    chosen = np.asarray(kv.ops.choose_keys(q, kept, weights, mask, count))
    scores = scores_of(q, stored, weights, mask)
    for row, keys in enumerate(chosen):
        own = keys[keys >= 0]
        left = np.setdiff1d(np.flatnonzero(mask[row] == 0), own)
        assert len(own) == min(count, (mask[row] == 0).sum()) and (np.diff(own) > 0).all()
        if len(left) and len(own):  # rounding may decide only between scores that are as good as equal
            assert scores[row, left].max() <= scores[row, own].min() + REFERENCE.value * np.abs(scores[row, own]).max()
    got = np.asarray(kv.ops.attend_chosen(q, kept, chosen, v_dim, 0.3))
    close(got, attended(q, stored, chosen, v_dim, 0.3), REFERENCE)
    unscaled = np.asarray(kv.ops.attend_chosen(q, kept, chosen, v_dim))
    close(unscaled, attended(q, stored, chosen, v_dim, q.shape[2] ** -0.5), REFERENCE)


def test_bits_of_a_row_are_its_own() -> None:
    """Alone or among others, whatever hidden keys lie between those that it sees, and in pieces of rows."""
    random = np.random.default_rng(3)
    q = random.standard_normal((5, 4, 24)).astype(np.float32)
    k = random.standard_normal((90, 1, 24)).astype(np.float32)
    weights = random.standard_normal((5, 4)).astype(np.float32)
    mask = np.where(np.arange(90) < np.array([90, 61, 8, 40, 3])[:, None], 0, -np.inf).astype(np.float32)
    chosen = np.asarray(kv.ops.choose_keys(q, k, weights, mask, 11))
    out = np.asarray(kv.ops.attend_chosen(q, k, chosen, 16))
    places = np.sort(random.choice(200, 90, replace=False))
    wide, wide_mask = np.full((200, 1, 24), np.nan, np.float32), np.full((5, 200), -np.inf, np.float32)
    wide[places], wide_mask[:, places] = k, mask
    for row in range(5):
        own = slice(row, row + 1)
        alone = np.asarray(kv.ops.choose_keys(q[own], wide, weights[own], wide_mask[own], 11))
        np.testing.assert_array_equal(alone, np.where(chosen[own] < 0, -1, places[chosen[own]]))
        np.testing.assert_array_equal(np.asarray(kv.ops.attend_chosen(q[own], wide, alone, 16)), out[own])


def test_many_rows_have_the_bits_of_each_alone() -> None:
    """Lists of more than two tiles of 512 keys, which many rows walk and a single one cuts into splits."""
    random = np.random.default_rng(4)
    rows, n = 40, 1400
    q = random.standard_normal((rows, 3, 16)).astype(np.float32)
    k = random.standard_normal((n, 1, 16)).astype(np.float32)
    chosen = np.sort(random.permuted(np.tile(np.arange(n, dtype=np.int32), (rows, 1)), axis=1)[:, :1100], axis=1)
    for row, seen in enumerate(random.integers(0, 1101, rows)):
        chosen[row, seen:] = -1
    out = np.asarray(kv.ops.attend_chosen(q, k, chosen, 12, 0.3))
    close(out, attended(q, k, chosen, 12, 0.3), REFERENCE)
    for row in range(rows):
        own = slice(row, row + 1)
        np.testing.assert_array_equal(np.asarray(kv.ops.attend_chosen(q[own], k, chosen[own], 12, 0.3)), out[own])


def test_pieces_of_rows() -> None:
    """Scores of more than 16 MiB: 1,000 rows of 5,000 keys, whose choice is known."""
    n, rows = 5000, 1000
    k = np.arange(n, dtype=np.float32).reshape(n, 1, 1)
    end = np.arange(1, rows + 1) * 5
    mask = np.where(np.arange(n) < end[:, None], 0, -np.inf).astype(np.float32)
    ones = np.ones((rows, 1), np.float32)
    got = np.asarray(kv.ops.choose_keys(ones.reshape(rows, 1, 1), k, ones, mask, 3))
    np.testing.assert_array_equal(got, end[:, None] + np.array([-3, -2, -1]))


def test_a_row_without_keys() -> None:
    q, k, ones = np.ones((2, 1, 4), np.float32), np.ones((3, 1, 4), np.float32), np.ones((2, 1), np.float32)
    mask = np.full((2, 3), -np.inf, np.float32)
    chosen = np.asarray(kv.ops.choose_keys(q, k, ones, mask, 2))
    assert (chosen == -1).all()
    assert (np.asarray(kv.ops.attend_chosen(q, k, np.array([[-1, 3], [7, -9]], np.int32), 4)) == 0).all()


def test_attention_refuses_bfloat16() -> None:
    q, k = np.ones((1, 1, 4), np.float32), kv.tensor(np.ones((3, 1, 4), np.float32)).astype("bfloat16")
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"k: got bfloat16 .*, allowed float32 or float16"):
        kv.ops.attend_chosen(q, k, np.zeros((1, 1), np.int32), 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, w, m: kv.ops.choose_keys(q, k, w, m, 0), "count: got 0, allowed 1 or more"),
        (lambda q, k, w, m: kv.ops.choose_keys(q, k[:, :, :3], w, m, 1), r"k: got float32 \[3, 1, 3\]"),
        (lambda q, k, w, m: kv.ops.choose_keys(q, k, w[:1], m, 1), r"weights: got float32 \[1, 1\]"),
        (lambda q, k, w, m: kv.ops.choose_keys(q, k, w, m[:, :2], 1), r"mask: got float32 \[2, 2\]"),
        (lambda q, k, w, m: kv.ops.attend_chosen(q, k, np.zeros((3, 1), np.int32), 4), r"chosen: got int32 \[3, 1\]"),
        (lambda q, k, w, m: kv.ops.attend_chosen(q, k, np.zeros((2, 1), np.int32), 5), "v_dim: got 5, allowed 1 to 4"),
        (lambda q, k, w, m: kv.ops.attend_chosen(q, k, np.zeros((2, 1), np.int32), 4, -1.0), "scale: got -1"),
    ],
)
def test_refusals(call: Any, message: str) -> None:
    given = [np.ones(shape, np.float32) for shape in ((2, 1, 4), (3, 1, 4), (2, 1), (2, 3))]
    with pytest.raises(kv.errors.ArgumentError, match=message):
        call(*given)
