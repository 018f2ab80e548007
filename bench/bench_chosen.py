"""A step of one row over a long history: attention to all latents, and to those that an index chooses.

Rows are of one layer: all latents (`cache.attend`); the choice (`cache.choose_keys`), the chosen latents
(`cache.attend_chosen`) and the sum of their medians; both together from copies of what the row sees (`cache.get`,
`ops.choose_keys`, `ops.attend_chosen`). All in turns. 16 query heads where DeepSeek-V3.2 has 128, all else as it has
it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kvtrie as kv
from report import Report, arguments
from timing import human, race

HEADS, RANK, ROPE, INDEX_HEADS, INDEX_DIM = 16, 512, 64, 64, 128


def filled(tokens: int, dim: int, **options: Any) -> Any:
    """A cache of one layer whose sequence 0 has ``tokens`` random keys, and a forward of its next row, put."""
    random = np.random.default_rng(1)
    cache = kv.caches.CausalCache([0], 1, dim, tokens + 1, dtype="float16", **options)
    for count, first in ((tokens, 0), (1, tokens)):
        cache.start_forward(list(range(first, first + count)), [0] * count)
        cache.put(0, random.standard_normal((count, 1, dim), np.float32), np.zeros((count, 1, 0), np.float32))
    return cache


def main() -> None:
    """A row for each part, and one for the chosen keys together."""
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--most", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    report = Report(f"what does attention to {given.most:,} chosen keys of {given.tokens:,} take?", given.json)
    report.device(kv.Device())
    random = np.random.default_rng(2)
    latents = filled(given.tokens, ROPE + RANK, latent_dim=RANK)
    index = filled(given.tokens, INDEX_DIM, v_head_dim=0)
    q = kv.tensor(random.standard_normal((1, HEADS, ROPE + RANK), np.float32))
    index_q = kv.tensor(random.standard_normal((1, INDEX_HEADS, INDEX_DIM), np.float32))
    factors = kv.tensor(random.standard_normal((1, INDEX_HEADS), np.float32))
    chosen = index.choose_keys(0, index_q, factors, given.most)
    whole, copies = "all latents", "by copies"

    def copied() -> Any:
        keys, _, mask = index.get(0)
        own = kv.ops.choose_keys(index_q, keys, factors, mask, given.most)
        return kv.ops.attend_chosen(q, latents.get(0)[0], own, RANK)

    parts = {
        whole: lambda: np.asarray(latents.attend(0, q)),
        "choice": lambda: np.asarray(index.choose_keys(0, index_q, factors, given.most)),
        "chosen latents": lambda: np.asarray(latents.attend_chosen(0, q, chosen)),
        copies: lambda: np.asarray(copied()),
    }
    found = race(parts, rounds=given.rounds, warm_up=1)
    for name in parts:
        report.row(f"{name:<18} {found[name]}", part=name, seconds=found[name])
    together = found["choice"].median + found["chosen latents"].median
    for name in (whole, copies):
        ratio = together / found[name].median
        report.row(
            f"{'together':<18} {human(together):>9}, {ratio:.2f} of {name}", part=f"together of {name}", ratio=ratio
        )
    report.close()


if __name__ == "__main__":
    main()
