"""What does computing with quantised weights cost in quality, ours and llama.cpp's, from the same file?

Both are compared with the float64 logits of the very numbers that the file's blocks stand for, so that what is measured
is how a side computes and not what quantisation did. One text of 8,192 tokens in four windows of 2,048; each side reads
it as it would a prompt, with its own defaults (K and V in float16):

    KL            mean over positions of KL(reference || side), in nats, and that of the worst position
    perplexity    of the text, and that of the reference

``file`` is SmolLM2's own mixture (Q4_1 with a Q8_0 embedding). For the other types llama.cpp's quantiser makes all
matrices of that type. Blocks of K-quants are 256 wide and SmolLM2's rows 576, so the model is padded with zeros to 768:
more heads that give 0, more channels that stay 0, norms scaled so that the mean over 768 is what it was over 576. It
computes the same numbers.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import kvtrie as kv
import smollm2
from kvtrie.models import gguf
from kvtrie.models.weights import to_float32
from report import Report, arguments

sys.path.append(str(Path(__file__).parents[1] / "tests" / "python"))
import reference_llama

TYPES = ("file", "q2_k", "q4_0", "q4_1", "q4_k", "q5_k", "q6_k", "q8_0")
# llama_ftype, of K-quants those that end in S; that of q2_k wants an importance matrix.
FILE_TYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q2_k": 10, "q4_k": 14, "q5_k": 16, "q6_k": 18}
WINDOW, WINDOWS, ROWS = 2048, 4, 512
TOGETHER = 32  # rows whose logits are compared at once, so that they stay in the cache
FIGURES = ("kl", "worst", "perplexity", "agreement")
WIDTH, HEADS = 768, (12, 4)  # of the padded model
Logits = Callable[[np.ndarray], Iterator[np.ndarray]]  # tokens of a window -> logits, ROWS rows at a time


class Exact:
    """What the next token is by some logits [rows, vocab], in float64."""

    def __init__(self, logits: np.ndarray) -> None:
        total = log_sum(logits)
        self.p = np.exp(logits - total[:, None])
        self.entropy = total - np.einsum("rv,rv->r", self.p, logits)
        self.top = logits.argmax(-1)


class Sums:
    """Means of a side over all positions."""

    def __init__(self) -> None:
        self.divergence: list[np.ndarray] = []
        self.surprise: list[np.ndarray] = []
        self.same: list[np.ndarray] = []

    def add(self, exact: Exact, logits: np.ndarray, following: np.ndarray) -> None:
        """``logits`` [rows, vocab]; ``following``: the tokens that came, one fewer at the end of a window."""
        numbers = logits.astype(np.float64)
        total = log_sum(numbers)
        self.divergence.append(total - np.einsum("rv,rv->r", exact.p, numbers) - exact.entropy)
        self.same.append(exact.top == logits.argmax(-1))
        self.surprise.append(total[: len(following)] - numbers[np.arange(len(following)), following])

    @property
    def kl(self) -> float:
        return float(np.concatenate(self.divergence).mean())

    @property
    def worst(self) -> float:
        return float(np.concatenate(self.divergence).max())

    @property
    def perplexity(self) -> float:
        return math.exp(np.concatenate(self.surprise).mean())

    @property
    def agreement(self) -> float:
        """Share of positions with the same likeliest token."""
        return float(np.concatenate(self.same).mean())


def log_sum(logits: np.ndarray) -> np.ndarray:
    """log of the sum of exp, float64 [rows]."""
    most = logits.max(-1).astype(np.float64)
    return most + np.log(np.exp(logits - most[:, None]).sum(-1))


class Checkpoint(NamedTuple):
    """What a GGUF file stands for: configuration and float32 weights by a checkpoint's names."""

    config: Any
    weights: dict[str, np.ndarray]


def checkpoint(file: Path) -> Checkpoint:
    parts = gguf.read(file)
    sources = {name: parts.sources[name] for name in parts.family.tensor_shapes(parts.config)}
    return Checkpoint(parts.config, {name: to_float32(each.read(), each.dtype) for name, each in sources.items()})


def padded(model: Checkpoint) -> Checkpoint:
    """The same function, ``WIDTH`` numbers wide and with ``HEADS`` query and K/V heads."""
    config = model.config
    ratio = config.hidden_size / WIDTH
    queries, keys = (heads * config.head_dim for heads in HEADS)
    rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": WIDTH, "down_proj": WIDTH}
    columns = {"o_proj": queries, "down_proj": config.intermediate_size}
    weights = {}
    for name, values in model.weights.items():
        if values.ndim == 1:
            weights[name] = np.pad(values * np.float32(math.sqrt(ratio)), (0, WIDTH - len(values)))
            continue
        part = name.split(".")[-2]
        shape = rows.get(part, values.shape[0]), columns.get(part, WIDTH)
        weights[name] = np.pad(values, [(0, wanted - had) for wanted, had in zip(shape, values.shape)])
    changes = {"hidden_size": WIDTH, "num_attention_heads": HEADS[0], "num_key_value_heads": HEADS[1]}
    return Checkpoint(dataclasses.replace(config, **changes, rms_norm_eps=config.rms_norm_eps * ratio), weights)


def ours(model: Any) -> Logits:
    """A prompt computed in steps of ``ROWS``."""
    caches = model.caches(capacity=WINDOW + 64)

    def logits(tokens: np.ndarray) -> Iterator[np.ndarray]:
        with kv.PrefixCache(caches, host_bytes=0) as cache, cache.begin(tokens, publish=False) as session:
            for step in session.prefill(chunk=ROWS):
                yield np.asarray(model(step, all_rows=True))

    return logits


def theirs(context: Any) -> Logits:
    """The same in llama.cpp."""

    def logits(tokens: np.ndarray) -> Iterator[np.ndarray]:
        context.clear()
        for begin in range(0, len(tokens), ROWS):
            context.decode([(0, begin, tokens[begin : begin + ROWS])], every=True)
            yield context.logits()

    return logits


def compare(reference: Checkpoint, sides: dict[str, Logits], text: np.ndarray) -> dict[str, Sums]:
    """Sums of the sides and of the reference itself, window by window."""
    sums = {name: Sums() for name in ("reference", *sides)}
    config = dataclasses.asdict(reference.config)
    for window in text.reshape(-1, WINDOW):
        logits = reference_llama.reference_logits(config, reference.weights, window)
        parts = [side(window) for side in sides.values()]
        for begin, rows in zip(range(0, WINDOW, ROWS), zip(*parts)):
            numbers = logits[begin : begin + ROWS]
            for at in range(0, ROWS, TOGETHER):
                few = slice(at, at + TOGETHER)
                exact, after = Exact(numbers[few]), window[begin + at + 1 : begin + at + TOGETHER + 1]
                for name, found in zip(sums, (numbers, *rows)):
                    sums[name].add(exact, found[few], after)
    return sums


def measure(
    report: Report, kind: str, file: Path, llama: Any, text: np.ndarray, dtypes: list[str], threads: int | None
) -> None:
    """One row for each way of ours to keep the weights."""
    sides = {dtype: ours(kv.models.load(file, dtype=dtype)) for dtype in dtypes}
    with llama.Model(file) as model, model.context(tokens=WINDOW, batch=ROWS, threads=threads) as context:
        found = compare(checkpoint(file), {**sides, "llama.cpp": theirs(context)}, text)
    exact, peer = found["reference"], found["llama.cpp"]
    for dtype in dtypes:
        own = found[dtype]
        said = f"KL {own.kl:.2e} (worst {own.worst:.1e}), perplexity {own.perplexity:.4f}, same {own.agreement:.2%}"
        other = (
            f"KL {peer.kl:.2e} (worst {peer.worst:.1e}), perplexity {peer.perplexity:.4f}, same {peer.agreement:.2%}"
        )
        verdict = "met" if own.kl <= peer.kl else "missed"
        report.row(
            f"{kind:<5} {dtype:<8} ours {said}   llama.cpp {other}   exact {exact.perplexity:.4f}   goal: {verdict}",
            type=kind,
            dtype=dtype,
            bytes=file.stat().st_size,
            exact_perplexity=exact.perplexity,
            **{f"{name}{key}": getattr(sums, key) for name, sums in (("", own), ("peer_", peer)) for key in FIGURES},
        )


def files(kinds: list[str], folder: Path, llama: Any) -> Iterator[tuple[str, Path]]:
    """The file of each type; those that are made are gone when the next one is asked for."""
    from peers import gguf_file

    package, plain = gguf_file.package(), folder / "f32.gguf"
    for kind in kinds:
        if kind == "file":
            yield kind, smollm2.path()
            continue
        if not plain.exists():
            gguf_file.write(*padded(checkpoint(smollm2.path())), plain, "f32")
        made = folder / f"{kind}.gguf"
        llama.quantise(plain, made, FILE_TYPES[kind], int(package.GGMLQuantizationType[kind.upper()]))
        yield kind, made
        made.unlink()


def draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Mean KL of both sides, by type."""
    kinds = list(dict.fromkeys(row["type"] for row in rows))
    for place, kind in enumerate(kinds):
        row = next(row for row in rows if row["type"] == kind)
        for offset, key, name in ((-0.2, "kl", f"kvtrie, {row['dtype']}"), (0.2, "peer_kl", "llama.cpp")):
            label = name if place == 0 else None
            axes.bar(place + offset, row[key], 0.4, color="C0" if offset < 0 else "C1", label=label)
    axes.set_yscale("log")
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("mean KL from the exact logits, nats")
    axes.legend()


def main() -> None:
    """One row for each type and dtype."""
    parser = arguments(__doc__)
    parser.add_argument("--type", choices=TYPES, action="append", help="only this one")
    parser.add_argument("--dtype", action="append", help='how ours keeps the weights (default: "stored")')
    parser.add_argument("--windows", type=int, default=WINDOWS, help=f"of {WINDOW} tokens")
    parser.add_argument("--threads", type=int, help="of llama.cpp: 1 is faster on a machine that has other work")
    options = parser.parse_args()
    report = Report(f"KL from the exact logits of a file's numbers, {options.windows * WINDOW} tokens", options.json)
    report.device(kv.Device())
    from peers import llama

    if not llama.installed():
        report.note("nothing to compare with: ./dev peers installs llama.cpp")
        return
    try:
        parts = gguf.read(smollm2.path())
    except FileNotFoundError as error:
        report.note(str(error))
        return
    text = np.array(parts.tokenizer.encode(smollm2.text()), np.int32)[: options.windows * WINDOW]
    with tempfile.TemporaryDirectory() as folder:
        for kind, file in files(options.type or list(TYPES), Path(folder), llama):
            measure(report, kind, file, llama, text, options.dtype or ["stored"], options.threads)
    report.close(draw)


if __name__ == "__main__":
    main()
