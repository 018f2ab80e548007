"""What does it cost to know that a transformers model computes what it computed before?

Before each pass a session looks whether anything that K and V depend on has changed, and a new one also at a few
numbers of each tensor. Where something has, all modules are walked over once. Beside it a pass over one token, which
has 1,000 tokens before it.

The model has SmolLM2-135M's shape and random weights, float32, on all cores; with peft, all of its linear layers have
two LoRA adapters of rank 8, of which one is active.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import kvtrie as kv
from bench_hf import load
from peers import hugging_face
from report import Report, Rows, arguments
from timing import measure

BEFORE = 1000  # tokens


def adapted(model: Any) -> Any:
    peft = importlib.import_module("peft")
    config = peft.LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = peft.get_peft_model(model, config, adapter_name="x")
        made.add_adapter("y", config)
    return made.eval()


def token(model: Any) -> Callable[[], object]:
    """A pass over one token with transformers' own cache, which goes back each time."""
    torch = hugging_face.torch()
    cache = importlib.import_module("transformers").DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.ones(1, BEFORE, dtype=torch.long), cache=cache)

    def run() -> None:
        with torch.no_grad():
            model(torch.ones(1, 1, dtype=torch.long), cache=cache)
        cache.crop(-1)

    return run


def timed(report: Report, name: str, model: Any) -> None:
    from kvtrie.hf.tensors import Tensors
    from kvtrie.hf.walk import Walk

    modules = sum(1 for _ in model.get_decoder().modules())
    with kv.hf.Cache(model, capacity=64, device="host") as cache:
        sides: dict[str, Callable[[], object]] = {
            "before a pass": cache.states.current,
            "for a new session": lambda: cache.states.current(thorough=True),
            "after a change": lambda: Walk(cache.decoder, Tensors(content=False)),
            "a pass over one token": token(model),
        }
        for side, function in sides.items():
            timing = measure(function, repeats=20)
            report.row(f"{name:<28} {side:<22} {timing}", name=name, modules=modules, side=side, seconds=timing)


def main() -> None:
    """Print what each look takes, with and without adapters."""
    options = arguments(__doc__).parse_args()
    report = Report("what it costs to know that a model is in the state that it was in", options.json)
    model = load(None)
    timed(report, "30 layers", model)
    if importlib.util.find_spec("peft") is not None:
        timed(report, "30 layers, two adapters each", adapted(model))
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """A bar for each look."""
    labels = [f"{row['name']}: {row['side']}" for row in rows]
    axes.barh(labels, [row["seconds"]["median"] * 1e3 for row in rows])
    axes.set(xlabel="milliseconds", xscale="log")


if __name__ == "__main__":
    main()
