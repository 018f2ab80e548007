"""What does multi-head latent attention cost in its absorbed form, beside keys and values of every head?

One layer of DeepSeek-V2-Lite's shape, 16 heads of 128 + 64 numbers with values of 128, a latent of 512, in float16, at
the end of a history:

absorbed   attention over latents, 576 numbers a token for all heads, with the maps of each head before and behind it
expanded   attention over keys and values of each head, 5120 numbers a token. In prefill they are first made of the
           history's latents, in one product; that they would have to be laid out and rotated then is left out

decode     one row
prefill    512 rows
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
from kvtrie.models.latent import HeadMaps
from kvtrie.models.linear import Linear
from report import Report, arguments
from timing import race

HEADS, RANK, NOPE, ROPE, VALUE = 16, 512, 128, 64, 128
CHUNK = 512


class History:
    """A session with ``length`` tokens, and a step of ``rows`` more that attends again and again."""

    def __init__(self, length: int, rows: int, shape: tuple[int, int, int], latent: int | None, device: Any) -> None:
        kv_heads, k_dim, v_dim = shape
        self.random = np.random.default_rng(1)
        cells = kv.caches.CausalCache(
            1, kv_heads, k_dim, length + rows, v_head_dim=v_dim, latent_dim=latent, device=device
        )
        self.cache = kv.PrefixCache(cells, host_bytes=0)
        session = self.cache.begin(list(range(length + rows)), publish=False)
        for step in session.prefill(rows):
            count = len(step.tokens)
            step.put(0, self.numbers(count, kv_heads, k_dim), self.numbers(count, kv_heads, v_dim))
        self.step = step
        self.q = kv.tensor(self.numbers(rows, HEADS, k_dim), device=device)

    def numbers(self, *shape: int) -> Any:
        return self.random.standard_normal(shape, np.float32)

    def attend(self) -> Any:
        return self.step.attend(0, self.q)


def packed(random: np.random.Generator, out: int, width: int, device: Any) -> Linear:
    values = (random.standard_normal((out, width)) / width**0.5).astype(np.float16)
    return Linear(kv.ops.pack(kv.tensor(values, device=device)))


def sides(length: int, rows: int, device: Any) -> dict[str, Callable[[], Any]]:
    """Each waited for at its end."""
    random = np.random.default_rng(2)
    keys = HeadMaps([packed(random, RANK, NOPE, device) for _ in range(HEADS)], device)
    values = HeadMaps([packed(random, VALUE, RANK, device) for _ in range(HEADS)], device)
    both = packed(random, HEADS * (NOPE + VALUE), RANK, device)
    absorbed = History(length, rows, (1, ROPE + RANK, 0), RANK, device)
    expanded = History(length, rows, (HEADS, NOPE + ROPE, VALUE), None, device)
    queries = kv.tensor(absorbed.numbers(rows, HEADS * NOPE), device=device)
    latents = kv.tensor(absorbed.numbers(length + rows, RANK), device=device)

    def over_latents() -> Any:
        keys(queries)
        return np.asarray(values(absorbed.attend().reshape(rows, HEADS * RANK)))

    def over_heads() -> Any:
        if rows > 1:
            both(latents)
        return np.asarray(expanded.attend())

    return {"absorbed": over_latents, "expanded": over_heads}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--lengths", type=int, nargs="*", default=[1024, 4096, 16384])
    options = parser.parse_args()
    report = Report("What does latent attention cost in its absorbed form?", options.json)
    device = kv.Device()
    report.device(device)
    for rows, name in ((1, "decode"), (CHUNK, "prefill")):
        for length in options.lengths:
            found = race(
                sides(length, rows, device), rounds=options.rounds if rows == 1 else max(3, options.rounds // 3)
            )
            ratio = found.ratio("expanded", "absorbed")
            report.row(
                f"{name:<8} {length:>6} tokens  absorbed {found['absorbed']}  expanded {found['expanded']}  {ratio}",
                what=name,
                length=length,
                absorbed=found["absorbed"],
                expanded=found["expanded"],
                ratio=ratio,
            )
    report.close()


if __name__ == "__main__":
    main()
