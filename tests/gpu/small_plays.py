"""Plays of the kernels between products and attention: element by element, rotation, drawing, routing, copies."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import ptx
from plays import Case, Play, assert_near, empty, launch
from variants import CHOSEN, OPERATIONS, Variant

LANES = 64
_VECTORS = ("ROW_VW=4",)
_GROUP = ("LANES=64", *_VECTORS)


# ---- element by element ----------------------------------------------------------------------------------------------

_UNARY = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "signed_root": lambda x: np.sign(x) * np.sqrt(np.maximum(np.abs(x), 1e-6)),
    "clamp_scaled": lambda x: np.clip(2 * x, -1.5, 2.5) + 0.25,
}
_BOUNDS = {"clamp_scaled": [2.0, -1.5, 2.5, 0.25]}  # scale, low, high, shift
_BINARY = {
    "add": lambda x, z: x + z,
    "mul": lambda x, z: x * z,
    "silu_mul": lambda x, z: x / (1 + np.exp(-x)) * z,
    "gelu_tanh_mul": lambda x, z: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) * z,
    "gelu_exact_mul": lambda x, z: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) * z,
}


def elementwise(op: str) -> Play:
    """Three rows of 301 numbers, eight to a lane; of the second argument two rows take turns."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        random, rows, dim, chunk, b_rows = np.random.default_rng(11), 3, 301, 8, 2
        a, b = ((random.standard_normal((n, dim)) * 3).astype(np.float32) for n in (rows, b_rows))
        memory = ptx.GlobalMemory()
        y = memory.put(empty(rows, dim))
        given = (
            [a, 0, y, 0, dim, chunk, *_BOUNDS.get(op, [])] if op in _UNARY else [a, 0, b, 0, y, 0, dim, chunk, b_rows]
        )
        report = launch(program, (1, rows, 1), LANES, memory, given, seed)
        x, z = a.astype(np.float64), b[np.arange(rows) % b_rows].astype(np.float64)
        assert_near(memory.get(y, (rows, dim), np.float32), _UNARY[op](x) if op in _UNARY else _BINARY[op](x, z), 5e-7)
        return report

    return play


def rope(program: ptx.Program, seed: int) -> ptx.Report:
    """Halves, then neighbours: 13 pairs of heads of 30, so that vectors, the rest and what is copied are all there."""
    random, tokens, heads, dim, pairs, factor = np.random.default_rng(12), 2, 3, 30, 13, 1.25
    x, positions = random.standard_normal((tokens, heads, dim)).astype(np.float32), np.array([5, 900], np.int32)
    frequencies = (0.7 ** np.arange(pairs)).astype(np.float32)
    angles = (positions[:, None].astype(np.float32) * frequencies).astype(np.float64)[:, None]
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    for interleaved in (0, 1):
        memory = ptx.GlobalMemory()
        y = memory.put(empty(*x.shape))
        given = [x, 0, positions, 0, frequencies, y, 0, heads, dim, pairs, interleaved, factor]
        report = launch(program, (1, tokens, 1), LANES, memory, given, seed)
        first, second = (slice(0, 26, 2), slice(1, 26, 2)) if interleaved else (slice(0, 13), slice(13, 26))
        wanted = x.astype(np.float64)
        u, v = wanted[..., first].copy(), wanted[..., second].copy()
        wanted[..., first], wanted[..., second] = u * cos - v * sin, v * cos + u * sin
        assert_near(memory.get(y, x.shape, np.float32), wanted, 5e-7)
    return report


def take_turned(program: ptx.Program, seed: int) -> ptx.Report:
    """Two rows of three heads of 30 numbers, of which 26 turn, and four copies: halves, then neighbours."""
    random, rows, heads, dim, pairs, layer = np.random.default_rng(13), 2, 3, 30, 13, 1
    q = random.standard_normal((rows, heads, dim)).astype(np.float32)
    sources = np.array([(0, -1), (1, -1), (1, 1), (0, 0), (1, -1), (0, 1)], np.int32)
    angles = np.array([[5], [900]]) * 0.7 ** np.arange(pairs)
    turns = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    for interleaved in (0, 1):
        ropes_at = 1 + sources.size
        turns_at = ropes_at + 6
        ropes = np.array([-1, -1, -1, turns_at, pairs, interleaved], np.int32)
        table = np.concatenate([[-7], sources.ravel(), ropes, turns.ravel().view(np.int32)]).astype(np.int32)
        memory = ptx.GlobalMemory()
        y = memory.put(empty(len(sources), heads, dim))
        given = [q, 0, table, 1, ropes_at, layer, heads, dim, y, 0]
        report = launch(program, (1, len(sources), 1), LANES, memory, given, seed)
        first, second = (slice(0, 26, 2), slice(1, 26, 2)) if interleaved else (slice(0, 13), slice(13, 26))
        wanted = q[sources[:, 0]].astype(np.float64)
        for row, (_, turn) in zip(wanted, sources):
            if turn >= 0:
                u, v, (cos, sin) = row[:, first].copy(), row[:, second].copy(), turns[turn].astype(np.float64)
                row[:, first], row[:, second] = u * cos - v * sin, v * cos + u * sin
        assert_near(memory.get(y, wanted.shape, np.float32), wanted, 5e-7)
    return report


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _uniform(key: int, counter: int) -> float:
    """Philox 4x32-10 (Salmon et al., SC 2011): the first word's upper 24 bits."""
    low = 0xFFFFFFFF
    keys, c = [key & low, key >> 32], [counter, 0, 0, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ keys[0], b & low, a >> 32 ^ c[3] ^ keys[1], a & low]
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    return (c[0] >> 8) / 2.0**24


# temperature, top_p, min_p, top_k, seed, counter, and edits (token, divide, add)
_Draw = tuple[float, float, float, int, int, int, tuple[tuple[int, float, float], ...]]
DRAWS: tuple[_Draw, ...] = (
    (0.0, 1.0, 0.0, 0, 1, 0, ((3, 1.0, 9.0),)),
    (0.8, 1.0, 0.0, 0, 2, 7, ()),
    (1.3, 1.0, 0.0, 9, 3 << 32 | 5, 1, ((0, 1.5, -0.5), (40, 1.5, 0.0))),
    (1.0, 0.7, 0.0, 0, 4, 2, ()),
    (0.9, 0.8, 0.05, 20, 5, 3, ()),
)


def drawn(logits: Any, draw: _Draw) -> int:
    """In float64: edits, temperature, min_p, top_k, top_p, and the first kept token whose mass exceeds the draw."""
    temperature, top_p, min_p, top_k, key, counter, edits = draw
    x = logits.astype(np.float64)
    for token, divide, add in edits:
        x[token] = (x[token] / divide if x[token] > 0 else x[token] * divide) + add
    if not np.isfinite(x.max()):
        return -1
    if temperature == 0:
        return int(x.argmax())
    p = np.exp((x - x.max()) / temperature)
    p[p < min_p] = 0
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
    if top_p < 1:
        before = np.concatenate([[0], np.cumsum(p[order])[:-1]])
        p[order[before >= top_p * p.sum()]] = 0
    passed = np.cumsum(p) - _uniform(key, counter) * p.sum()
    assert np.abs(passed).min() > 1e-5 * p.sum(), "a draw that rounding decides proves nothing: take another seed"
    return int(np.argmax(passed > 0))


def sample(program: ptx.Program, seed: int) -> ptx.Report:
    """Every kind of draw, ties at the threshold of top_k among them, and a row without a finite logit."""
    dim, rows = 150, len(DRAWS) + 1
    logits = (np.random.default_rng(13).standard_normal((rows, dim)) * 2).astype(np.float32)
    logits[2, 60:90] = np.sort(logits[2])[-7]
    logits[-1] = -np.inf
    draws = [*DRAWS, DRAWS[1]]
    words, edits = np.zeros((rows, 9), np.int32), []
    for row, (temperature, top_p, min_p, top_k, key, counter, own) in enumerate(draws):
        words[row, :3] = np.array([temperature, top_p, min_p], np.float32).view(np.int32)
        words[row, 3:] = (top_k, key & 0xFFFFFFFF, key >> 32, counter, len(edits), len(edits) + len(own))
        edits += [(token, *np.array([divide, add], np.float32).view(np.int32)) for token, divide, add in own]
    memory = ptx.GlobalMemory()
    y = memory.put(np.full(rows, -7, np.int32))
    table = np.concatenate([words.ravel(), np.array(edits, np.int32).ravel()])
    report = launch(program, (1, rows, 1), LANES, memory, [logits, 0, empty(rows, dim), y, 0, dim, rows, table], seed)
    wanted = [drawn(logits[row], draws[row]) for row in range(rows)]
    assert memory.get(y, (rows,), np.int32).tolist() == wanted
    return report


# ---- chosen keys -----------------------------------------------------------------------------------------------------

_KEYS, _SEEN = 150, (150, 90, 0)  # of three rows


def _index(kind: Any, dim: int) -> tuple[Any, Any]:
    """Queries [3][2][dim] and keys [150][dim] of whole numbers: scores are exact, and tie."""
    random = np.random.default_rng(23)
    return random.integers(-2, 3, (3, 2, dim)).astype(np.float32), random.integers(-2, 3, (_KEYS, dim)).astype(kind)


def score_keys(program: ptx.Program, seed: int) -> ptx.Report:
    (q, k), w = _index(np.float32, 36), np.array([[1, -2], [3, 1], [2, 2]], np.float32)
    mask = np.where(np.arange(_KEYS) < np.array(_SEEN)[:, None], 0, -np.inf).astype(np.float32)
    memory = ptx.GlobalMemory()
    scores = memory.put(empty(3, _KEYS))
    cells = np.random.default_rng(26).permutation(2 * _KEYS)[:_KEYS].astype(np.int32)
    pool = np.full((2 * _KEYS, 36), np.nan, np.float32)
    pool[cells] = k
    for count, stride in ((_KEYS, 2), (_KEYS - 1, 0), (_KEYS - 1, 2)):
        given = [q, 0, pool, 0, cells, 0, 1, w, 0, stride, mask, 0, scores, 2, _KEYS, count]
        report = launch(program, (1, 3, 1), LANES, memory, given, seed)
        own = np.einsum("rh,rhn->rn", w if stride else w[[0, 0, 0]], np.maximum(np.einsum("rhd,nd->rhn", q, k), 0))
        wanted = np.where(mask == 0, own if count < _KEYS else 0, -np.inf)
        assert (memory.get(scores, (3, _KEYS), np.float32) == wanted).all()
    return report


def choose_keys(program: ptx.Program, seed: int) -> ptx.Report:
    """Fewer than a row sees, with ties at the limit, and more."""
    scores = np.random.default_rng(24).integers(-3, 4, (3, _KEYS)).astype(np.float32)
    scores[np.arange(_KEYS) >= np.array(_SEEN)[:, None]] = -np.inf
    scores[0, 3] = -0.0
    for count in (70, 120, 160):
        memory = ptx.GlobalMemory()
        chosen = memory.put(np.full((3, count), -7, np.int32))
        report = launch(program, (1, 3, 1), LANES, memory, [scores, chosen, 0, _KEYS, count], seed)
        wanted = np.full((3, count), -1)
        for row, seen in enumerate(_SEEN):
            best = np.sort(np.argsort(-scores[row, :seen], kind="stable")[:count])
            wanted[row, : len(best)] = best
        assert (memory.get(chosen, (3, count), np.int32) == wanted).all()
    return report


def place_chosen(program: ptx.Program, seed: int) -> ptx.Report:
    """Lists of 70 in a plan that stands behind other numbers; what is no key's in the middle, at the end, and alone."""
    count, bounds_at, segments_at = 70, 5, 11
    chosen = np.random.default_rng(25).permuted(np.tile(np.arange(_KEYS, dtype=np.int32), (3, 1)), axis=1)[:, :count]
    chosen[0, [5, 66]] = -1, _KEYS
    chosen[1, 60:] = -1
    chosen[2] = -1
    wanted = np.full(segments_at + 3 * 3 * count + 4, -7, np.int32)
    memory = ptx.GlobalMemory()
    table = memory.put(wanted)
    places = np.random.default_rng(26).permutation(2 * _KEYS)[:_KEYS].astype(np.int32)
    given = [chosen, 0, _KEYS, count, places, 0, 1, table, bounds_at, segments_at]
    report = launch(program, (1, 3, 1), LANES, memory, given, seed)
    cells = wanted[segments_at:-4].reshape(3, count, 3)[:, :, 0]
    for row, listed in enumerate(chosen):
        own = listed[(listed >= 0) & (listed < _KEYS)]
        cells[row] = np.pad(places[own], (0, count - len(own)))
        wanted[bounds_at + 2 * row + 1] = len(own)
    assert (memory.get(table, wanted.shape, np.int32) == wanted).all()
    return report


def mean_keys(program: ptx.Program, seed: int) -> ptx.Report:
    """19 blocks of three keys, halves, then neighbours; none of it where as many are chosen."""
    random, blocks, ratio, dim, pairs, factor = np.random.default_rng(27), 19, 3, 36, 13, 1.25
    pool = random.standard_normal((2 * _KEYS, dim)).astype(np.float32)
    cells, weight = random.permutation(2 * _KEYS)[:_KEYS].astype(np.int32), random.standard_normal(dim)
    tokens, starts = random.permutation(_KEYS)[: blocks * ratio].astype(np.int32), np.arange(blocks) * ratio
    frequencies = (100.0 ** (-np.arange(pairs) / pairs)).astype(np.float32)
    mean = pool[cells[tokens]].astype(np.float64).reshape(blocks, ratio, dim).mean(1)
    normed = mean / np.sqrt((mean**2).mean(-1, keepdims=True) + 1e-5) * (1 + weight)
    for interleaved, count in ((0, 18), (1, 18), (0, 19)):
        memory = ptx.GlobalMemory()
        means = memory.put(np.full((blocks, dim), 7, np.float32))
        turns = [frequencies, pairs, interleaved, np.float32(factor), np.float32(1e-5), np.float32(1)]
        given = [pool, 0, cells, 0, 1, tokens, 0, starts.astype(np.int32), 0, weight.astype(np.float32), 0]
        report = launch(program, (1, 2, 1), LANES, memory, [*given, *turns, ratio, means, blocks, count], seed)
        first, second = (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (
            slice(0, pairs), slice(pairs, 2 * pairs))  # fmt: skip
        angle, wanted = starts[:, None] * frequencies.astype(np.float64), normed.copy()
        c, s = np.cos(angle) * factor, np.sin(angle) * factor
        wanted[:, first] = normed[:, first] * c - normed[:, second] * s
        wanted[:, second] = normed[:, second] * c + normed[:, first] * s
        assert_near(memory.get(means, (blocks, dim), np.float32), wanted if count < blocks else 7 + 0 * wanted, 2e-5)
    return report


def spread_blocks(program: ptx.Program, seed: int) -> ptx.Report:
    """30 blocks of three for each of two rows, some of them none, and tails."""
    random, blocks, count, ratio = np.random.default_rng(28), 40, 30, 3
    tokens = random.permutation(blocks * ratio).astype(np.int32).reshape(blocks, ratio)
    best = random.permuted(np.tile(np.arange(blocks, dtype=np.int32), (2, 1)), axis=1)[:, :count].copy()
    best[0, [4, 17]] = -1, blocks
    tails = np.array([[120, -1], [121, 122]], np.int32)
    memory = ptx.GlobalMemory()
    chosen = memory.put(np.full((2, count * ratio + ratio - 1), -7, np.int32))
    given = [best, 0, tokens, 0, tails, 0, chosen, 0, blocks, count, ratio]
    report = launch(program, (1, 2, 1), LANES, memory, given, seed)
    known = (best >= 0) & (best < blocks)
    inside = np.where(known[:, :, None], tokens[np.where(known, best, 0)], -1).reshape(2, -1)
    assert (memory.get(chosen, (2, count * ratio + ratio - 1), np.int32) == np.hstack([inside, tails])).all()
    return report


# ---- experts ---------------------------------------------------------------------------------------------------------

_SIGMOID, _SOFTMAX, _NORMED, _SIGMOID_NORMED = range(4)


def _softmax(x: Any) -> Any:
    e = np.exp(x - np.nanmax(x))
    return e / np.nansum(e)


def _scores(rows: int, experts: int) -> Any:
    """Float32 scores with a tie in the first row and a NaN in the last."""
    scores = np.random.default_rng(14).standard_normal((rows, experts)).astype(np.float32)
    scores[0, 2] = scores[0, 5] = 3
    scores[-1, 1] = np.nan
    return scores


def _best(ranks: Any, k: int) -> Any:
    return np.argsort(-np.where(np.isnan(ranks), -np.inf, ranks), kind="stable")[:k]


def route(program: ptx.Program, seed: int) -> ptx.Report:
    """Three of seven experts, for each weighting."""
    rows, experts, k = 4, 7, 3
    scores = _scores(rows, experts)
    for weighting in (_SIGMOID, _SOFTMAX, _NORMED):
        memory = ptx.GlobalMemory()
        chosen, factors = memory.put(np.full((rows, k), -7, np.int32)), memory.put(empty(rows, k))
        given = [scores, 0, chosen, 0, factors, 0, rows, experts, k, weighting]
        report = launch(program, (1, 1, 1), LANES, memory, given, seed)
        of_rows = memory.get(factors, (rows, k), np.float32)
        assert np.isnan(of_rows[-1]).all()
        for row in range(rows):
            best = _best(scores[row], k)
            assert (memory.get(chosen, (rows, k), np.int32)[row] == best).all()
            x = scores[row].astype(np.float64)
            wanted = {_SIGMOID: 1 / (1 + np.exp(-x[best])), _SOFTMAX: _softmax(x)[best], _NORMED: _softmax(x[best])}
            if row < rows - 1:
                assert_near(of_rows[row], wanted[weighting], 5e-7)
    return report


def _kept(ranks: Any, groups: int, kept: int, summed: int) -> Any:
    """Ranks of all groups but the best, by their ``summed`` best, become -inf."""
    by_group = ranks.reshape(groups, -1)
    sums = np.sort(by_group, axis=-1)[:, -summed:].sum(-1)
    out = np.full_like(by_group, -np.inf)
    best = np.argsort(-sums, kind="stable")[:kept]
    out[best] = by_group[best]
    return out.ravel()


def route_biased(program: ptx.Program, seed: int) -> ptx.Report:
    """Three of twelve experts in four groups of which two are kept; with and without a bias, for each weighting."""
    rows, experts, k, groups = 4, 12, 3, 4
    scores, bias = _scores(rows, experts), np.random.default_rng(15).standard_normal(experts).astype(np.float32) * 0.3
    for weighting, has_bias, kept, summed in (
        (_SIGMOID, 1, 2, 2),
        (_SOFTMAX, 0, 2, 1),
        (_NORMED, 1, 4, 2),
        (_SIGMOID_NORMED, 1, 1, 2),
    ):
        memory = ptx.GlobalMemory()
        chosen, factors = memory.put(np.full((rows, k), -7, np.int32)), memory.put(empty(rows, k))
        given = [scores, 0, bias, 0, has_bias, empty(rows, experts), 0, chosen, 0, factors, 0, rows, experts, k,
                 weighting, groups, kept, summed]  # fmt: skip
        report = launch(program, (1, 1, 1), LANES, memory, given, seed)
        of_rows = memory.get(factors, (rows, k), np.float32)
        assert np.isnan(of_rows[-1]).all()
        for row in range(rows - 1):
            x = scores[row].astype(np.float64)
            shares = 1 / (1 + np.exp(-x)) if weighting in (_SIGMOID, _SIGMOID_NORMED) else _softmax(x)
            best = _best(_kept(shares + bias * has_bias, groups, kept, summed), k)
            assert (memory.get(chosen, (rows, k), np.int32)[row] == best).all()
            wanted = shares[best] / (shares[best].sum() if weighting in (_NORMED, _SIGMOID_NORMED) else 1)
            assert_near(of_rows[row], wanted, 5e-7)
    return report


def scale_rows(program: ptx.Program, seed: int) -> ptx.Report:
    random, rows, k, dim, chunk = np.random.default_rng(16), 2, 3, 301, 8
    x, factors = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, dim), (rows, k)))
    memory = ptx.GlobalMemory()
    y = memory.put(empty(rows, k, dim))
    report = launch(program, (1, rows * k, 1), LANES, memory, [x, 0, factors, 0, y, 0, dim, chunk, k], seed)
    assert (memory.get(y, (rows, k, dim), np.float32) == x[:, None] * factors[..., None]).all()
    return report


def weighted_sum(program: ptx.Program, seed: int) -> ptx.Report:
    random, rows, k, dim, chunk = np.random.default_rng(17), 2, 3, 301, 8
    x, factors = (random.standard_normal(shape).astype(np.float32) for shape in ((rows, k, dim), (rows, k)))
    for has_factors in (0, 1):
        memory = ptx.GlobalMemory()
        y = memory.put(empty(rows, dim))
        given = [x, 0, factors, 0, has_factors, y, 0, dim, chunk, k]
        report = launch(program, (1, rows, 1), LANES, memory, given, seed)
        weights = factors if has_factors else np.ones_like(factors)
        wanted = np.einsum("rkd,rk->rd", x.astype(np.float64), weights.astype(np.float64))
        assert_near(memory.get(y, (rows, dim), np.float32), wanted, 3e-7)
    return report


# ---- copies ----------------------------------------------------------------------------------------------------------


def cast(source: Any, target: Any) -> Play:
    """301 numbers, eight to a lane, subnormal ones and infinities of float16 among them."""

    def play(program: ptx.Program, seed: int) -> ptx.Report:
        count, chunk = 301, 8
        x = (np.random.default_rng(18).standard_normal(count) * 100).astype(source)
        x[:5] = np.array([6e-8, 1e-5, -np.inf, 65504, 0], np.float32).astype(source)
        memory = ptx.GlobalMemory()
        y = memory.put(np.full(count, np.nan, target))
        report = launch(program, (1, 1, 1), LANES, memory, [x, 0, y, 0, count, chunk], seed)
        assert (memory.get(y, (count,), target) == x.astype(target)).all()
        return report

    return play


def embedding(program: ptx.Program, seed: int) -> ptx.Report:
    """The first part of a table in two parts: ids outside of the table are NaN, those of the other part untouched."""
    count, all_, dim, chunk = 3, 5, 77, 8
    table = np.random.default_rng(19).standard_normal((count, dim)).astype(np.float16)
    ids = np.array([2, 0, 4, 5, -1], np.int32)
    memory = ptx.GlobalMemory()
    y = memory.put(np.full((len(ids), dim), 9, np.float32))
    given = [table, 0, ids, 0, y, 0, count, dim, chunk, 0, all_]
    report = launch(program, (1, len(ids), 1), LANES, memory, given, seed)
    got = memory.get(y, (len(ids), dim), np.float32)
    assert (got[:2] == table[[2, 0]]).all() and (got[2] == 9).all() and np.isnan(got[3:]).all()
    return report


def copy_rows(program: ptx.Program, seed: int) -> ptx.Report:
    """Rows of 77 words into wider ones, whose rest stays."""
    rows, words, chunk, wide = 3, 77, 16, 90
    x = np.random.default_rng(20).integers(0, 1 << 16, (rows, words), np.uint16)
    memory = ptx.GlobalMemory()
    y = memory.put(np.full((rows, wide), 9, np.uint16))
    report = launch(program, (1, rows, 1), LANES, memory, [x, 0, words, y, 4, wide, words, chunk], seed)
    wanted = np.full((rows, wide), 9, np.uint16)
    wanted[:, 4 : 4 + words] = x
    assert (memory.get(y, wanted.shape, np.uint16) == wanted).all()
    return report


def take_rows(program: ptx.Program, seed: int) -> ptx.Report:
    words, chunk = 77, 16
    x, rows = np.random.default_rng(21).integers(0, 1 << 16, (4, words), np.uint16), np.array([3, 0, 3], np.int32)
    memory = ptx.GlobalMemory()
    y = memory.put(np.zeros((len(rows), words), np.uint16))
    report = launch(program, (1, len(rows), 1), LANES, memory, [x, 0, rows, y, words, chunk], seed)
    assert (memory.get(y, (len(rows), words), np.uint16) == x[rows]).all()
    return report


# ---- the list --------------------------------------------------------------------------------------------------------

_CHOSEN = Variant("chosen", ("KEPT_AS=0", "DIM=36", *_GROUP), CHOSEN, LANES)
_EXPERTS = Variant("experts", _GROUP, ("route", "route_biased", "scale_rows", "weighted_sum"), LANES)
_TO_HALF = Variant("copy", ("FROM=0", "TO=1", *_VECTORS), ("cast",), LANES)
_FROM_HALF = Variant("copy", ("FROM=1", "TO=0", *_VECTORS), ("cast", "embedding"), LANES)
_COPIES = Variant("copy", _VECTORS, ("copy_rows", "take_rows"), LANES)

_TOP = "after the largest logit: `shared` is not written again before the barriers of what follows"
_FIRST = "before the first sum: nothing has read `shared` yet"
_LAST = "the last one behind a sum: nothing writes `shared` after it"
_NORM = "the last one behind a sum: that behind the norm comes before `shared` is written again"

SMALL_PLAYS: list[Case] = [
    *[Case(Variant("elementwise", (f"OP={op}", *_VECTORS), (op,), LANES), op, elementwise(op)) for op in OPERATIONS],
    Case(Variant("rope", _GROUP, ("rope",), LANES), "rope", rope),
    Case(Variant("turn", _GROUP, ("take_turned",), LANES), "take_turned", take_turned),
    Case(Variant("sample", _GROUP, ("sample",), LANES), "sample", sample, ((9, _TOP), (51, _LAST))),
    Case(_CHOSEN, "score_keys", score_keys),
    Case(_CHOSEN, "choose_keys", choose_keys, ((2, _FIRST),)),
    Case(_CHOSEN, "place_chosen", place_chosen, ((0, _FIRST),)),
    Case(_CHOSEN, "mean_keys", mean_keys, ((7, _NORM),)),
    Case(_CHOSEN, "spread_blocks", spread_blocks, ((0, _FIRST),)),
    Case(_EXPERTS, "route", route),
    Case(_EXPERTS, "route_biased", route_biased),
    Case(_EXPERTS, "scale_rows", scale_rows),
    Case(_EXPERTS, "weighted_sum", weighted_sum),
    Case(_TO_HALF, "cast", cast(np.float32, np.float16)),
    Case(_FROM_HALF, "cast", cast(np.float16, np.float32)),
    Case(_FROM_HALF, "embedding", embedding),
    Case(_COPIES, "copy_rows", copy_rows),
    Case(_COPIES, "take_rows", take_rows),
]
