"""What do smaller K and V cost in quality, ours beside llama.cpp's ``-ctk`` and ``-ctv``, on the same weights and text?

SmolLM2-135M-Instruct (Q4_1), windows of one English text. Each side reads them with K and V in each of its formats, and
is compared with its own logits over float32 cells, so that what is measured is how K and V are kept and read, and
nothing else of how a side computes: mean KL in nats, its 99.9 %, and how often the likeliest token is the same.
llama.cpp needs flash attention for blocks, which reads float32 cells as float16; before K and V become blocks it turns
them by a Hadamard matrix (its llama-kv-cache.cpp), as our q4h does, and it rounds queries to 8 bits, as ours does not.

Goal: no format of ours above llama.cpp's of as many bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
from kvtrie._divergence import Sums
from report import Report, arguments

# Bits a number of K and V together, and what either side calls it.
FORMATS = {
    16.0: ("float16", "float16"),
    8.5: ("q8_0", "q8_0"),
    6.5: ("q8_0/q4h", "q8_0/q4_0"),
    4.5: ("q4h", "q4_0"),
}
PLAIN = "float32"


def ours(model: Any, window: np.ndarray, kept: str) -> np.ndarray:
    """Logits float32 [tokens, vocab]."""
    caches = model.caches(capacity=len(window) + 64, dtype=kept, warm_up=False)
    with kv.PrefixCache(caches, host_bytes=0) as cache, cache.begin(window, publish=False) as session:
        return np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill(chunk=len(window))])


def theirs(model: Any, window: np.ndarray, kept: str) -> np.ndarray:
    """The same in llama.cpp."""
    with model.context(tokens=len(window), batch=len(window), kv_dtype=kept, flash_attention=True) as context:
        context.decode([(0, 0, window)], every=True)
        return np.array(context.logits())


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    options = parser.parse_args()
    report = Report("what K and V in fewer bits lose, ours and llama.cpp's", options.json)
    report.device(kv.Device())
    from peers import llama

    file = smollm2.path()
    own = kv.models.load(file)
    peer = llama.Model(file) if llama.installed() else None
    if peer is None:
        report.note("llama.cpp is left out: ./dev peers installs it")
    text = np.array(own.tokenizer.encode(smollm2.text()), np.int32)
    sums = {name: Sums() for pair in FORMATS.values() for name in (f"ours {pair[0]}", f"llama.cpp {pair[1]}")}
    for window in text[: options.windows * options.context].reshape(options.windows, -1):
        sides = [("ours", own, ours)] + ([("llama.cpp", peer, theirs)] if peer is not None else [])
        for at, (side, model, logits) in enumerate(sides):
            exact = logits(model, window, PLAIN)[:-1]
            for pair in FORMATS.values():
                sums[f"{side} {pair[at]}"].add(exact, logits(model, window, pair[at])[:-1], window[1:])
    for bits, pair in FORMATS.items():
        for side, kept in zip(("ours", "llama.cpp"), pair, strict=True):
            found = sums[f"{side} {kept}"]
            if not found.positions:
                continue
            kl, tail = float(found.divergence.mean()), found.tail()
            report.row(
                f"{bits:>4} bits  {side:<9} {kept:<9}  KL {kl:.2e}, 99.9 % {tail:.1e}, same {found.agreement:.2%}",
                bits=bits,
                side=side,
                kept=kept,
                kl=kl,
                tail=tail,
                same=found.agreement,
            )
    report.close()


if __name__ == "__main__":
    main()
