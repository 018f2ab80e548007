"""How soon does a transformers model begin to answer when its conversation is known, and what does a branch cost?

One conversation that grows to ``--tokens`` in ``--turns`` turns, half of each the user's, half the answer, which is
given. Timed is ``generate(whole text, max_new_tokens=1)`` for turns 2 to the last:

``kept``      the ``DynamicCache`` of this conversation, kept by hand
``deepcopy``  a ``copy.deepcopy`` of it, as one does who wants to keep it as it is
``nothing``   no cache is kept
``copy``      a new ``kv.hf.Cache.session()`` each turn, which reads what is known into tensors
``goes on``   the session of the turn before
``cells``     a new session each turn, whose attention reads the cells

The model has SmolLM2-135M's shape and random weights, or is the GGUF file given with ``--file``; float32, all cores.
Targets: ``copy`` at most 1.1 times the fastest of the first three; a branch 20 times as fast as a deep copy.
"""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import kvtrie as kv
from peers import hugging_face
from report import Report, Rows, arguments
from timing import Ratio, Timing, human, race, summarise

SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": None,
}
OURS = ("copy", "goes on", "cells")


def load(file: Path | None) -> Any:
    """The model, in eval mode."""
    import transformers

    if file is not None:
        loaded = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
        return loaded.eval()
    hugging_face.torch().manual_seed(1)
    return transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SHAPE)).eval()


class Sides:
    """The same conversation on each side."""

    def __init__(self, model: Any, tokens: int, turns: int) -> None:
        self.torch = hugging_face.torch()
        self.model, self.other = model, copy.deepcopy(model)
        capacity = 2 * tokens
        self.caches = {
            "copy": kv.hf.Cache(model, capacity=capacity),
            "goes on": kv.hf.Cache(model, capacity=capacity),
            "cells": kv.hf.Cache(self.other, capacity=capacity, form="cells"),
        }
        generator = self.torch.Generator().manual_seed(2)
        self.text = self.torch.randint(1, 49000, (1, tokens), generator=generator)
        self.half = tokens // turns // 2
        self.kept = self._dynamic()
        self.going = self.caches["goes on"].session()

    def _dynamic(self) -> Any:
        import transformers

        return transformers.DynamicCache(config=self.model.config)

    def _first_token(self, model: Any, end: int, cache: Any) -> None:
        model.generate(self.text[:, :end], cache=cache, max_new_tokens=1, do_sample=False, pad_token_id=0)

    def turn(self, side: str, number: int) -> float:
        """Seconds to the first token; then the answer is computed, too."""
        end = (2 * number - 1) * self.half
        model = self.other if side == "cells" else self.model
        start = time.perf_counter()
        if side in ("copy", "cells"):
            cache = self.caches[side].session()
        elif side == "deepcopy":
            cache = copy.deepcopy(self.kept)
        else:
            cache = {"kept": self.kept, "goes on": self.going, "nothing": self._dynamic()}[side]
        self._first_token(model, end, cache)
        seconds = time.perf_counter() - start
        if side not in ("nothing", "deepcopy"):
            with self.torch.no_grad():
                model(self.text[:, end : end + self.half], cache=cache)
        return seconds

    def close(self) -> None:
        for cache in self.caches.values():
            cache.close()


def conversation(sides: Sides, turns: int) -> dict[str, list[float]]:
    """Seconds of each side, turn by turn, in an order that turns round; ``kept`` last, since the deep copy is of it."""
    names = ["deepcopy", "nothing", *OURS]
    seconds: dict[str, list[float]] = {name: [] for name in [*names, "kept"]}
    for number in range(1, turns + 1):
        for name in [*(names if number % 2 else reversed(names)), "kept"]:
            taken = sides.turn(name, number)
            if number > 1:
                seconds[name].append(taken)
    return seconds


def ratios(seconds: dict[str, list[float]], side: str) -> Ratio:
    """Of one side to the fastest of those without kvtrie, turn by turn."""
    others = [name for name in seconds if name not in OURS]
    found = [own / min(seconds[name][at] for name in others) for at, own in enumerate(seconds[side])]
    spread = summarise(found)
    return Ratio(spread.median, spread.low, spread.high, spread.repeats)


def main() -> None:
    """Print what each side takes, and what branches cost at the end."""
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--file", type=Path, help="a GGUF file instead of random weights")
    options = parser.parse_args()
    report = Report("time to the first token of a known conversation in transformers, and branches", options.json)
    report.device(kv.Device())
    sides = Sides(load(options.file), options.tokens, options.turns)
    seconds = conversation(sides, options.turns)
    for name, taken in seconds.items():
        timing: Timing = summarise(taken)
        report.row(
            f"{name:<9} turns 2 to {options.turns} {timing}   {ratios(seconds, name)} the fastest without kvtrie",
            name=name,
            seconds=timing,
            turns=taken,
            ratio=ratios(seconds, name),
        )
    branches = {"branch": lambda: sides.going.branch().close(), "deepcopy": lambda: copy.deepcopy(sides.kept)}
    result = race(branches, rounds=20)
    report.row(
        f"branch at {options.tokens} tokens: {human(result['branch'].median)}, deep copy "
        f"{human(result['deepcopy'].median)}: {result.ratio('deepcopy', to='branch')}",
        name="branch",
        branch=result["branch"],
        deepcopy=result["deepcopy"],
        ratio=result.ratio("deepcopy", to="branch"),
    )
    sides.close()
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """Seconds over the turns, a line for each side."""
    for row in rows:
        if "turns" in row:
            axes.plot(range(2, 2 + len(row["turns"])), row["turns"], label=row["name"])
    axes.set(xlabel="turn", ylabel="seconds to the first token", yscale="log")
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
