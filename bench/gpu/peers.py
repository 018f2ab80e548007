"""PyTorch on the same card, in the same run: device time of its products and of its attention, by replay of a graph.

A replay asks nothing of the host between kernels, so this is what the device takes; the gaps between kernels of one
graph are in it. float16, as peers keep weights. Nothing where there is no PyTorch or no GPU of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpu.rows import Rows
from timing import summarise

LINEAR = ((4096, 14336), (4096, 4096), (14336, 4096), (2048, 128256), (576, 1536))
# Conversations, rows of each, keys of each.
ATTENTION = (
    (1, 1, 4096),
    (1, 1, 32768),
    (1, 1, 131072),
    (8, 1, 4096),
    (8, 1, 32768),
    (64, 1, 4096),
    (64, 1, 16384),
    (1, 512, 16384),
    (1, 4096, 4096),
)
HEADS, KV_HEADS, DIM = 32, 8, 128


def torch_on_gpu() -> Any:
    """The package, or None."""
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def graph_us(torch: Any, work: Callable[[], Any], repeats: int, rounds: int = 7) -> float:
    """Microseconds of one ``work``, of ``repeats`` in one graph."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            work()
    graph.replay()
    torch.cuda.synchronize()
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(1e3 * begin.elapsed_time(end) / repeats)
    return summarise(found).median


def peers(rows: Rows) -> None:
    """Products and attention."""
    torch = torch_on_gpu()
    if torch is None:
        rows.say("no PyTorch with a GPU of its own: left out", what="left out")
        return
    for inputs, out in LINEAR:
        rows.attempt(f"linear {inputs} -> {out}", partial(_linear, rows, torch, inputs, out))
    for case in ATTENTION:
        rows.attempt(f"attention {case}", partial(_attention, rows, torch, *case))


def _linear(rows: Rows, torch: Any, inputs: int, out: int) -> None:
    nbytes = 2 * inputs * out
    count = max(1, min(8, (200 << 20) // nbytes))
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    weights = [torch.randn(out, inputs, **kind) * 0.05 for _ in range(count)]
    found = []
    for lines in (1, 8, 64, 512, 4096):
        if lines * out > 1 << 27:
            continue
        x = torch.randn(lines, inputs, **kind)
        us = graph_us(torch, lambda x=x: [torch.nn.functional.linear(x, weight) for weight in weights], 3) / count
        found.append(f"{lines} rows {us:.1f}")
        rows.say("", what="linear", inputs=inputs, out=out, rows=lines, us=us)
    print(f"torch linear {inputs} -> {out}, us: {', '.join(found)}", flush=True)


def _attention(rows: Rows, torch: Any, conversations: int, lines: int, length: int) -> None:
    """The rows are the last of ``length`` and see all of it; as many as there are keys: causal."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.float16}
    k, v = (torch.randn(conversations, KV_HEADS, length, DIM, **kind) for _ in range(2))
    q = torch.randn(conversations, HEADS, lines, DIM, **kind)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    attend = partial(sdpa, q, k, v, enable_gqa=True, is_causal=lines == length)
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        with sdpa_kernel(backend):
            us = rows.attempt(f"{name} {lines} of {length}", lambda: graph_us(torch, attend, 3))
        if us is not None:
            text = f"torch attention by {name}, {conversations} x {lines} rows of {length}: {us:.1f} us"
            sizes = {"conversations": conversations, "rows": lines, "length": length}
            rows.say(text, what="attention", backend=name, us=us, **sizes)
