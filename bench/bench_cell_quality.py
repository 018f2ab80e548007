"""What do smaller K and V cost in quality, ours beside llama.cpp's ``-ctk`` and ``-ctv``, on the same weights and text?

SmolLM2-135M-Instruct (Q4_1), windows of one English text; or ``--model dense-28m`` and ``window``, random models of two
families (random_models.py) on random tokens, whose K has what trained models have (KIVI, arXiv 2402.02750) and blocks
suffer from: in each head OUTLIERS pairs of channels are LARGER times as large as the others, in queries as much
smaller; the channels of V are of log-normal sizes. Each side reads with K and V in each of its formats, and is compared
with its own logits over float32 cells, so that what is measured is how K and V are kept and read, and nothing else of
how a side computes: mean KL in nats, its 99.9 %, and how often the likeliest token is the same.
llama.cpp needs flash attention for blocks, which reads float32 cells as float16; before K and V become blocks it turns
them by a Hadamard matrix (its llama-kv-cache.cpp), as our q4h does, and it rounds queries to 8 bits, as ours does not.

Goal: no format of ours above llama.cpp's of as many bits.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
import random_models
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
SMOLLM2 = "smollm2"
MODELS = (SMOLLM2, "dense-28m", "window")
OUTLIERS, LARGER, SPREAD = 2, 8.0, 0.5


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


def trained_like(kind: str) -> tuple[Any, dict[str, np.ndarray]]:
    """A random model's configuration and weights. Scores are those of the weights as they were."""
    config, weights = random_models.config(kind), random_models.weights(kind)
    offset = random_models.family(config.model_type).norm_offset
    heads, shared, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    for layer in range(config.num_hidden_layers):
        name = f"model.layers.{layer}.self_attn."
        random = np.random.default_rng(layer)
        sizes = np.ones(dim, np.float32)  # RoPE turns channels i and i + dim / 2 into each other
        sizes[np.add.outer([0, dim // 2], random.choice(dim // 2, OUTLIERS, replace=False)).reshape(-1)] = LARGER
        if f"{name}k_norm.weight" in weights:
            for part, by in (("k_norm", sizes), ("q_norm", 1 / sizes)):
                weights[f"{name}{part}.weight"] = (offset + weights[f"{name}{part}.weight"]) * by - offset
        else:
            for part, by in (("k_proj", np.tile(sizes, shared)), ("q_proj", np.tile(1 / sizes, heads))):
                weights[f"{name}{part}.weight"] = (weights[f"{name}{part}.weight"] * by[:, None]).astype(np.float16)
        values = weights[f"{name}v_proj.weight"]
        values *= random.lognormal(-(SPREAD**2), SPREAD, (len(values), 1)).astype(np.float16)
    return config, weights


def model_file(kind: str, folder: Path) -> Path:
    from peers import gguf_file

    return smollm2.path() if kind == SMOLLM2 else gguf_file.write(*trained_like(kind), folder / f"{kind}.gguf")


def compare(report: Report, kind: str, options: Any, folder: Path) -> None:
    """A row for each format of each side."""
    from peers import llama

    file = model_file(kind, folder)
    own = kv.models.load(file)
    peer = llama.Model(file) if llama.installed() else None
    if peer is None:
        report.note("llama.cpp is left out: ./dev peers installs it")
    count = options.windows * options.context
    if kind == SMOLLM2:
        tokens = np.array(own.tokenizer.encode(smollm2.text()), np.int32)
    else:
        tokens = np.random.default_rng(3).integers(3, own.config.vocab_size, count, np.int32)
    sums = {name: Sums() for pair in FORMATS.values() for name in (f"ours {pair[0]}", f"llama.cpp {pair[1]}")}
    for window in tokens[:count].reshape(options.windows, -1):
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
            text = f"{kind:<9} {bits:>4} bits  {side:<9} {kept:<9}  KL {kl:.2e}, 99.9 % {tail:.1e}"
            report.row(
                f"{text}, same {found.agreement:.2%}",
                model=kind,
                bits=bits,
                side=side,
                kept=kept,
                kl=kl,
                tail=tail,
                same=found.agreement,
            )
    if peer is not None:
        peer.close()


def main() -> None:
    """A row for each model, format and side."""
    parser = arguments(__doc__)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=512, help="tokens of a window")
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one")
    options = parser.parse_args()
    from peers import gguf_file

    report = Report("what K and V in fewer bits lose, ours and llama.cpp's", options.json)
    report.device(kv.Device())
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.model or MODELS:
            if kind != SMOLLM2 and gguf_file.package() is None:
                report.note(f"{kind} is left out: ./dev peers installs the gguf package")
                continue
            compare(report, kind, options, Path(folder))
    report.close()


if __name__ == "__main__":
    main()
