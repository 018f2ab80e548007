"""OpenVINO GenAI on a GGUF file, in a process of its own.

    engine = Engine(file, threads=2, keep_gib=1)     # keep_gib None: the pipeline as shipped
    engine.complete(prompt, 32)                        # as chat_engine's: "first" and "total" in seconds, "tokens"

It computes as it is shipped: activations rounded to 8 bits before products, K and V kept in 8 bits. ``keep_gib``: its
scheduler with prefix caching and so much memory for K and V. What it found again it does not tell.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
from piped import Piped, answer_all


def installed() -> bool:
    """Whether the package is there (``./dev peers``)."""
    return importlib.util.find_spec("openvino_genai") is not None


class Engine(Piped):
    """The process, seen from the bench."""

    def __init__(self, file: Path, *, threads: int, keep_gib: int | None = None) -> None:
        settings = {"file": str(file), "threads": threads, "keep_gib": keep_gib}
        super().__init__([sys.executable, __file__, json.dumps(settings)])

    def complete(self, prompt: Sequence[int], count: int) -> dict[str, Any]:
        """As chat_engine's; ``reused`` is 0, since it does not tell."""
        return self.ask({"prompt": list(map(int, prompt)), "count": count})


def _serve(settings: dict[str, Any]) -> None:
    import numpy as np
    import openvino
    import openvino_genai as genai

    options: dict[str, Any] = {"INFERENCE_NUM_THREADS": settings["threads"]}
    if settings["keep_gib"] is not None:
        scheduler = genai.SchedulerConfig()
        scheduler.enable_prefix_caching = True
        scheduler.cache_size = settings["keep_gib"]
        options["scheduler_config"] = scheduler
    pipeline = genai.LLMPipeline(settings["file"], "CPU", **options)

    def complete(asked: dict[str, Any]) -> dict[str, Any]:
        ids = np.array([asked["prompt"]], np.int64)
        config = genai.GenerationConfig(max_new_tokens=asked["count"], ignore_eos=True, do_sample=False)
        given = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        begun = time.perf_counter()
        found = pipeline.generate(given, config)
        total = time.perf_counter() - begun
        first = found.perf_metrics.get_ttft().mean / 1000  # ms
        return {"first": first, "total": total, "reused": 0, "tokens": [int(token) for token in found.tokens[0]]}

    complete({"prompt": list(range(300, 364)), "count": 2})
    print(json.dumps({"version": genai.__version__}), flush=True)
    answer_all(complete)


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
