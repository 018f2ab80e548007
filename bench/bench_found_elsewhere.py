"""What would be lost if a document's K and V were used again behind another text than they were computed behind?

A prefix cache finds tokens again where all before them agree. A document that was read behind text A and is wanted
behind text B is computed again. Its keys could be turned to their new positions, which moves no key here; but K and V
of every layer but the first also carry what their tokens saw of A, and nothing of B. This bench measures that, on
SmolLM2-135M-Instruct and one English text:

    asked    B, the document, what follows the document: 64 rows, the ones that are compared
    exact    all of it computed in that order
    found    the document's K and V computed behind A, keys turned, behind B's own
    first N  the same, but the document's first N tokens are computed anew, as EPIC proposes (arXiv 2410.15332)
    without  no document at all: what is lost where it is not read

KL(exact || side) in nats a row, how often the likeliest token is the same, and what the text itself loses (mean
negative log likelihood, side less exact). Several places in the text, each with its own B. Computed by transformers in
float32, where K and V can be put together as one likes.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import numpy as np

import smollm2
from report import Report, arguments

BEFORE, AFTER = 192, 64  # tokens of A and B each; rows that are compared
LENGTHS = (64, 256, 768)  # of the document
FIRST = (0, 8, 32, 64)  # tokens computed anew


class Cells(NamedTuple):
    """K and V of each layer, [1, heads, tokens, dim], and the position of the first token."""

    layers: list[tuple[Any, Any]]
    begin: int

    def part(self, begin: int, end: int) -> Cells:
        """By their own order."""
        return Cells([(k[:, :, begin:end], v[:, :, begin:end]) for k, v in self.layers], self.begin + begin)


class Reader:
    """The model, and what is put together of what it has computed."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, logging

        logging.disable_progress_bar()
        file = smollm2.path()
        self._torch = torch
        self._model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        self._model.eval()
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        self.tokens = np.asarray(tokenizer(smollm2.text())["input_ids"], np.int64)
        takes = inspect.signature(self._model.forward).parameters
        self._cache = "cache" if "cache" in takes else "past_key_values"  # since transformers 5.24
        dim = self._model.config.head_dim
        theta = self._model.config.rope_parameters["rope_theta"]
        self._frequencies = theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)

    def read(self, tokens: np.ndarray, behind: Cells | None = None) -> tuple[np.ndarray, Cells]:
        """Logits float32 [tokens, vocab], and all cells with those before them."""
        from transformers import DynamicCache

        torch, cache = self._torch, DynamicCache()
        for layer, (k, v) in enumerate(behind.layers if behind is not None else []):
            cache.update(k, v, layer)
        with torch.inference_mode():
            given: dict[str, Any] = {self._cache: cache, "use_cache": True}
            logits = self._model(torch.from_numpy(tokens[None]), **given).logits[0]
        return logits.numpy(), Cells([(layer.keys, layer.values) for layer in cache.layers], 0)

    def moved(self, cells: Cells, to: int) -> Cells:
        """Keys turned, so that the first token is at ``to``."""
        angle = (to - cells.begin) * self._frequencies
        cos, sin = (self._torch.cat([each, each]).float() for each in (angle.cos(), angle.sin()))
        half = len(angle)

        def turned(k: Any) -> Any:
            return k * cos + self._torch.cat([-k[..., half:], k[..., :half]], -1) * sin

        return Cells([(turned(k), v) for k, v in cells.layers], to)

    def behind(self, first: Cells, then: Cells) -> Cells:
        """Both, one after the other."""
        assert then.begin == first.begin + first.layers[0][0].shape[2]
        pairs = zip(first.layers, then.layers, strict=True)
        return Cells(
            [tuple(self._torch.cat(both, 2) for both in zip(a, b, strict=True)) for a, b in pairs], first.begin
        )


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(-1, keepdims=True))


def compared(exact: np.ndarray, side: np.ndarray, following: np.ndarray) -> dict[str, float]:
    """Means over rows; ``following``: the token behind each row."""
    a, b = log_probabilities(exact), log_probabilities(side)
    rows = np.arange(len(following))
    return {
        "kl": float((np.exp(a) * (a - b)).sum(-1).mean()),
        "same": float((a.argmax(-1) == b.argmax(-1)).mean()),
        "lost": float((a[rows, following] - b[rows, following]).mean()),
    }


def sides(reader: Reader, a: np.ndarray, b: np.ndarray, document: np.ndarray, asked: np.ndarray) -> dict[str, Any]:
    """The figures of each side at one place of the text."""
    rows, following = asked[:-1], asked[1:]
    _, of_b = reader.read(b)
    exact = reader.read(np.concatenate([document, rows]), of_b)[0][len(document) :]
    _, all_of_a = reader.read(np.concatenate([a, document]))
    found = reader.moved(all_of_a.part(len(a), len(a) + len(document)), len(b))
    figures = {"without": compared(exact, reader.read(rows, of_b)[0], following)}
    for count in FIRST:
        before = of_b if count == 0 else reader.read(document[:count], of_b)[1]
        cells = reader.behind(before, found.part(count, len(document))) if count < len(document) else before
        figures["found" if count == 0 else f"first {count}"] = compared(exact, reader.read(rows, cells)[0], following)
    return figures


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--places", type=int, default=6, help="documents of each length, each elsewhere in the text")
    options = parser.parse_args()
    report = Report("what is lost where a document's K and V are found again behind another text", options.json)
    reader = Reader()
    for length in LENGTHS:
        last = len(reader.tokens) - length - AFTER - 1
        starts = np.linspace(2 * BEFORE, last, options.places).astype(int)
        runs = []
        for start in starts:
            document, asked = reader.tokens[start : start + length], reader.tokens[start + length :][: AFTER + 1]
            a, b = reader.tokens[:BEFORE], reader.tokens[start - BEFORE : start]  # behind B the text goes on
            runs.append(sides(reader, a, b, document, asked))
        for side in runs[0]:
            means = {name: float(np.mean([run[side][name] for run in runs])) for name in ("kl", "same", "lost")}
            worst = max(run[side]["kl"] for run in runs)
            report.row(
                f"{length:>4} tokens  {side:<8}  KL {means['kl']:.4f} (worst place {worst:.4f})  same"
                f" {means['same']:.3f}  the text loses {means['lost']:+.4f}",
                tokens=length,
                side=side,
                worst=worst,
                **means,
            )
    report.close()


if __name__ == "__main__":
    main()
