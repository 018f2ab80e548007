"""How much of a prompt is computed again after a switch, and what does the switch save?

The table of issue 3: two 2200-token prompts that share 1500, for a dense model, one with sliding windows of 512, and a
hybrid with three of four layers recurrent (restore points every 512 tokens). Cached / prompt tokens, and the seconds to
the next token after switching back against a prefill of the same prompt that reuses nothing. The models are small and
have random weights: the counts hold for any size, the seconds for this one only.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import Any

import numpy as np

import kvtrie as kv
from report import Report, Rows, arguments
from timing import Race, Ratio, race

SHARED, LENGTH, CHUNK, VOCAB = 1500, 2200, 512, 97
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 4,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Llama", {"model_type": "llama", "hidden_act": "silu"}),
    "window": (
        "Gemma3",
        {
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "sliding_window": 512,
            "query_pre_attn_scalar": 32,
        },
    ),
    "hybrid": (
        "Qwen3Next",
        {
            "model_type": "qwen3_next",
            "hidden_act": "silu",
            "layer_types": [*["linear_attention"] * 3, "full_attention"],
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "mlp_only_layers": [0, 1, 2, 3],
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 64,
        },
    ),
}


def random_model(kind: str) -> Any:
    """A model whose norms are about 1 and whose matrices keep the scale of what goes through them."""
    name, own = MODELS[kind]
    family = getattr(kv.models, name)
    config = family.parse_config({**COMMON, **own})
    random = np.random.default_rng(1)
    weights = {}
    for tensor, shape in family.tensor_shapes(config).items():
        values = random.standard_normal(shape) / math.sqrt(shape[-1])
        if tensor.endswith("norm.weight") and (kind == "dense" or "linear_attn.norm" in tensor):
            values = 1 + 0.1 * values
        weights[tensor] = values.astype(np.float32)
    return kv.models.from_weights(config, weights, dtype="float32")


def prompts() -> dict[str, np.ndarray]:
    """The prompts of the table; ``next turn`` is missing what the model said."""
    random = np.random.default_rng(2)

    def words(count: int) -> np.ndarray:
        return random.integers(0, VOCAB, count, dtype=np.int32)

    a = words(LENGTH)

    def parted(at: int, offset: int) -> np.ndarray:
        return np.concatenate([a[:at], [(a[at] + offset) % VOCAB], words(LENGTH - at - 1)]).astype(np.int32)

    shared = {"B": parted(SHARED, 1), "C": parted(SHARED, 2)}
    return {"A": a, **shared, "edited": parted(LENGTH - 100, 1), "stopped": words(LENGTH), "new": words(30)}


class Bench:
    """One prefix cache, and what each prompt reused of it."""

    def __init__(self, model: Any, window_capacity: int | None = None) -> None:
        self.model = model
        model.warm_up("float32")  # all of it: no helper compiles beside what is timed
        caches = model.caches(capacity=8192, dtype="float32", window_capacity=window_capacity)
        self.cache = kv.PrefixCache(caches, host_bytes=0)

    def turn(
        self, prompt: np.ndarray, *, generate: int = 0, steps: int = 0, use: bool = True
    ) -> tuple[int, float, Any]:
        """Reused tokens, seconds until the logits are on the host, and the tokens generated after that."""
        start = time.perf_counter()
        with self.cache.begin(prompt, use=use, publish=use) as session:
            for count, step in enumerate(session.prefill(chunk=CHUNK), 1):
                logits = self.model(step)
                if count == steps:
                    break
            np.asarray(logits)
            elapsed = time.perf_counter() - start
            rest = {"max_tokens": generate, "stop": (), "logits": logits}
            made = list(kv.generate(self.model, session, **rest)) if generate else []
            return session.reused, elapsed, made


def table(model: Any) -> dict[str, str]:
    """Name -> "cached / prompt tokens"."""
    bench, texts = Bench(model), prompts()
    rows: dict[str, str] = {}

    def play(name: str, prompt: np.ndarray, **options: Any) -> Any:
        reused, _, made = bench.turn(prompt, **options)
        rows[name] = f"{reused} / {len(prompt)}"
        return made

    bench.turn(texts["A"])
    play("identical again", texts["A"])
    _, _, made = bench.turn(texts["A"], generate=2)
    play("next turn", np.concatenate([texts["A"], made, texts["new"]]).astype(np.int32))
    play("last 100 edited", texts["edited"])
    play("B shares 1500", texts["B"])
    play("C shares 1500", texts["C"])
    play("back to A", texts["A"])
    play("back to B", texts["B"])
    bench.turn(texts["stopped"], steps=2)
    play("stopped at 1024", texts["stopped"])
    bench.cache.close()
    return rows


def switches(model: Any, rounds: int) -> Race:
    """Seconds to the next token, in turns: switching between A and B, and the same prompts computed whole."""
    bench, texts = Bench(model), prompts()
    pair = (texts["A"], texts["B"])
    for prompt in pair * 2:
        bench.turn(prompt)
    turns = {"switch": itertools.cycle(pair), "prefill": itertools.cycle(pair)}
    sides = {
        "switch": lambda: bench.turn(next(turns["switch"]))[1],
        "prefill": lambda: bench.turn(next(turns["prefill"]), use=False)[1],
    }
    result = race(sides, rounds=rounds, clocked=sides)
    bench.cache.close()
    return result


def main() -> None:
    """Print the table, one row for each situation, and the switches, one for each kind."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=16)
    options = parser.parse_args()
    report = Report("reuse of 2200-token prompts that share 1500: cached / prompt tokens", options.json)
    report.device(kv.Device())
    models = {kind: random_model(kind) for kind in MODELS}
    rows = {kind: table(model) for kind, model in models.items()}
    report.row(f"{'':<18}" + "".join(f"{kind:>14}" for kind in rows))
    for name in rows["dense"]:
        counts = {kind: own[name] for kind, own in rows.items()}
        report.row(f"{name:<18}" + "".join(f"{count:>14}" for count in counts.values()), name=name, **counts)
    narrow, texts = Bench(models["window"], window_capacity=2560), prompts()
    reused = [narrow.turn(texts[name])[0] for name in "ABAB"]
    report.row(f"window pool of 2560 cells, A B A B: {', '.join(map(str, reused))}", name="2560 cells", reused=reused)
    for kind, model in models.items():
        result = switches(model, options.rounds)
        ratio: Ratio = result.ratio("prefill", to="switch")
        report.row(
            f"{kind:<8} switch back {result['switch']}   whole prefill {result['prefill']}   {ratio}",
            name="switch",
            kind=kind,
            switch=result["switch"],
            prefill=result["prefill"],
            ratio=ratio,
        )
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """Reused share of each prompt, a bar for each kind of model."""
    counted = [row for row in rows if "dense" in row]
    for place, kind in enumerate(MODELS):
        shares = [100 * int(row[kind].split("/")[0]) / int(row[kind].split("/")[1]) for row in counted]
        axes.bar([index + 0.27 * (place - 1) for index in range(len(counted))], shares, 0.25, label=kind)
    axes.set_xticks(range(len(counted)), [row["name"].replace(" ", "\n", 1) for row in counted], fontsize=7)
    axes.set(ylabel="% of the prompt's tokens reused", ylim=(0, 118))
    axes.set_yticks(range(0, 101, 20))
    axes.legend(ncols=len(MODELS), loc="upper left", fontsize=8)


if __name__ == "__main__":
    main()
