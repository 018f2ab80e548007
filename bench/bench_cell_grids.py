"""What do 4 bits a number of K and V cost in quality, by grid and by rotation?

A model reads a text twice, as ``python -m kvtrie quality`` has it: with K and V as they are, and with what a way of
keeping them leaves. The ways are computed in numpy, so that those that no kernel has can be compared, too. Rows are cut
into blocks of 32 numbers with a float16 scale (4.5 bits a number); before that a block, or the whole head, may be
multiplied by an orthonormal Hadamard matrix, and afterwards is again.

    signed      16 steps from -8 to 7, of which -8 is the number of the largest magnitude (GGML's q4_0)
    midpoint    -7.5, -6.5 .. 7.5 times the largest magnitude / 7.5
    codebook    16 numbers that a Gaussian's blocks have the least square error with (Lloyd and Max)
    cubic       midpoint steps t, through 0.65 t + 0.35 t^3 (ExLlamaV3)
    fitted      the scale is then changed so that the square error is least

    python bench/bench_cell_grids.py [--windows 2] [--context 1024]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
from kvtrie._divergence import Sums
from report import Report, arguments

BLOCK, CHUNK = 32, 256
Way = Callable[[np.ndarray], np.ndarray]  # float32 [..., dim] -> what is left of it


def hadamard(size: int) -> np.ndarray:
    """Orthonormal, its own inverse."""
    made = np.ones((1, 1), np.float32)
    while len(made) < size:
        made = np.block([[made, made], [made, -made]])
    return made / np.float32(np.sqrt(size))


def half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16).astype(np.float32)


def codebook() -> np.ndarray:
    """Levels in [-1, 1] of blocks of a Gaussian over their largest magnitude."""
    x = np.random.default_rng(1).standard_normal((20_000, BLOCK)).astype(np.float32)
    x = np.sort((x / np.abs(x).max(1, keepdims=True)).reshape(-1))
    levels = (np.arange(16, dtype=np.float32) - 7.5) / 7.5
    for _ in range(60):
        cells = np.searchsorted((levels[1:] + levels[:-1]) / 2, x)
        levels = np.bincount(cells, x, 16) / np.maximum(np.bincount(cells, minlength=16), 1)
        levels = ((levels - levels[::-1]) / 2).astype(np.float32)
    return levels


MIDPOINT = ((np.arange(16) - 7.5) / 7.5).astype(np.float32)
LEVELS = {
    "midpoint": MIDPOINT,
    "cubic": (0.65 * MIDPOINT + 0.35 * MIDPOINT**3).astype(np.float32),
    "signed": ((np.arange(16) - 8) / -8).astype(np.float32)[::-1].copy(),
}


def on_grid(x: np.ndarray, levels: np.ndarray, signed: bool, fitted: bool) -> np.ndarray:
    """x [blocks, 32] by the levels nearest to it, over a scale that brings the largest magnitude to 1, or to -1."""
    at = np.abs(x).argmax(1)[:, None]
    largest = np.take_along_axis(x, at, 1) if signed else np.abs(np.take_along_axis(x, at, 1))
    scale = half(largest)
    between = (levels[1:] + levels[:-1]) / 2
    unit = np.divide(x, scale, out=np.zeros_like(x), where=scale != 0)
    chosen = levels[np.searchsorted(between, unit)]
    if fitted:
        scale = half((x * chosen).sum(1, keepdims=True) / np.maximum((chosen * chosen).sum(1, keepdims=True), 1e-20))
    return np.asarray(scale * chosen, np.float32)


def four_bits(grid: str, rotated: int | None, fitted: bool = False) -> Way:
    """``rotated``: numbers that a Hadamard matrix takes at once; None: none."""
    levels = codebook() if grid == "codebook" else LEVELS[grid]

    def keep(x: np.ndarray) -> np.ndarray:
        shape, turn = x.shape, None if rotated is None else hadamard(rotated)
        if turn is not None:
            x = (x.reshape(-1, len(turn)) @ turn).reshape(shape)
        x = on_grid(x.reshape(-1, BLOCK), levels, grid == "signed", fitted).reshape(shape)
        return x if turn is None else np.asarray((x.reshape(-1, len(turn)) @ turn).reshape(shape), np.float32)

    return keep


def q8_0(x: np.ndarray) -> np.ndarray:
    blocks = x.reshape(-1, BLOCK)
    scale = half(np.abs(blocks).max(1, keepdims=True) / 127)
    whole = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale != 0)).clip(-127, 127)
    return np.asarray((scale * whole).reshape(x.shape), np.float32)


def same(x: np.ndarray) -> np.ndarray:
    return x


class Through:
    """A step whose K (rotated by position) and V go through a way each before they are stored."""

    def __init__(self, step: Any, k: Way, v: Way, model: Any) -> None:
        self._step, self._k, self._v, self._config = step, k, v, model.config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def attend_qkv(self, layer: int, qkv: Any, rope: Any = None, *rest: Any, weight: Any = None, bias: Any = None,
                   norm: Any = None, **options: Any) -> Any:  # fmt: skip
        if weight is not None:
            qkv = kv.ops.matmul(qkv, weight, add=bias, norm=norm)
        assert all(norm is None for norm in rest[:2]), "norms of heads are not needed here"
        heads, kv_heads, dim = (
            self._config.num_attention_heads, self._config.num_key_value_heads, self._config.head_dim,
        )  # fmt: skip
        rows = np.asarray(qkv)
        cuts = np.cumsum([heads * dim, kv_heads * dim])
        q, k, v = (part.reshape(len(rows), -1, dim) for part in np.split(rows, cuts, 1))
        positions = np.asarray(self._step.positions, np.int32)
        q, k = (np.asarray(kv.ops.rope(np.ascontiguousarray(x), positions, table=rope)) for x in (q, k))
        scale = rest[4] if len(rest) > 4 else options.get("scale")
        found = self._step.attend(layer, q, self._k(k), self._v(np.ascontiguousarray(v)), scale)
        return found.reshape(len(rows), heads * dim)


def rows_of(model: Any, window: np.ndarray, k: Way, v: Way) -> Iterator[np.ndarray]:
    """Logits of the second half of a window."""
    caches = model.caches(len(window) + 64, "float32", warm_up=False)
    with kv.PrefixCache(caches, host_bytes=0) as cache, cache.begin(window[:-1], use=False, publish=False) as session:
        half_at = len(window) // 2
        for step in session.prefill(chunk=CHUNK):
            first = int(np.asarray(step.positions)[0])
            logits = np.asarray(model(Through(step, k, v, model), all_rows=True), np.float32)
            if first + len(logits) > half_at:
                yield logits[max(0, half_at - first) :]


def ways(dim: int) -> dict[str, tuple[Way, Way]]:
    best = four_bits("signed", BLOCK)
    made: dict[str, tuple[Way, Way]] = {"q8_0": (q8_0, q8_0)}
    for rotated in (None, BLOCK, dim):
        for grid in ("signed", "midpoint", "codebook", "cubic"):
            for fitted in (False, True):
                if fitted and (rotated is None or grid == "cubic"):
                    continue
                way = four_bits(grid, rotated, fitted)
                turn = "" if rotated is None else f", H{rotated}"
                made[f"{grid}{turn}{', fitted' * fitted}"] = (way, way)
    made["q8_0 / signed, H32"] = (q8_0, best)
    made["q8_0 / signed"] = (q8_0, four_bits("signed", None))
    return made


def main() -> None:
    """Print one row for each way."""
    parser = arguments(__doc__)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--only", nargs="*", metavar="WAY", help="these alone")
    options = parser.parse_args()
    report = Report("What do 4 bits a number of K and V cost in quality, by grid and by rotation?", options.json)
    model = kv.models.load(smollm2.path())
    report.device(model.device)
    ids = np.asarray(model.tokenizer.encode(smollm2.text()), np.int32)
    ids = ids[: options.windows * options.context].reshape(options.windows, options.context)
    exact = [list(rows_of(model, window, same, same)) for window in ids]
    for name, (k, v) in ways(model.config.head_dim).items():
        if options.only and name not in options.only:
            continue
        sums = Sums()
        for window, wanted in zip(ids, exact):
            at = len(window) // 2 + 1
            for rows, own in zip(wanted, rows_of(model, window, k, v)):
                sums.add(rows, own, window[at : at + len(rows)])
                at += len(rows)
        kl, tail = float(sums.divergence.mean()), sums.tail()
        report.row(
            f"{name:<26} KL {kl:.2e}, 99.9 % {tail:.1e}, same token {sums.agreement:.1%}",
            way=name, kl=kl, tail=tail, agreement=sums.agreement,
        )  # fmt: skip
    report.close()


if __name__ == "__main__":
    main()
