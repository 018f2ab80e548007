"""How near does a GPU come to its own memory, and what does a step ask of it?

stream     a sum of two large tensors, 12 bytes a number: the rate of the device's memory as one kernel reaches it
launches   the smallest operation: what a launch takes of the host
products   one row and 512 rows of float16, q8_0, q4_0 and (CLBlast) float32 weights
attention  one query row against a history of float16 K and V, and 512 rows at the end of it
paging     the K and V of a conversation to host memory and back
steps      a random model of SmolLM2's shape with q8_0 weights: launches, bytes and seconds of a prefill of 512 tokens
           and of decode steps, of one conversation and of 8
torch      float16 weights and attention of the same shapes by PyTorch, where that finds a GPU

Every figure is a median with the middle half, by a clock that stops when the device is done; the same work is enqueued
several times on one reading, so that a launch's latency counts once. Sizes shrink where a CPU poses as a GPU: figures
of one say nothing about speed, counts do. `./dev gpu` runs it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
import random_models
from report import Report, arguments
from timing import Timing, measure

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "tie_word_embeddings": True,
}
COUNTED = ("launches", "upload_bytes", "download_bytes", "copy_bytes")


class Bench:
    """The parts, on one device; ``full``: at sizes that leave a GPU's caches."""

    def __init__(self, report: Report, device: Any, full: bool) -> None:
        self.report, self.device, self.full = report, device, full
        self.random = np.random.default_rng(1)
        self.finish = device.finish  # waits for what was enqueued
        self.calls = 20 if full else 4  # of the same work on one reading of the clock
        self.stream_rate = 0.0  # bytes/s, once measured

    def timed(self, work: Callable[[], Any], repeats: int = 7) -> Timing:
        """Seconds of one ``work``, of ``calls`` that are waited for together."""

        def several() -> None:
            for _ in range(self.calls):
                work()
            self.finish()

        found = measure(several, repeats=repeats, warm_up=2)
        return Timing(found.median / self.calls, found.low / self.calls, found.high / self.calls, repeats)

    def normal(self, *shape: int) -> np.ndarray:
        return self.random.standard_normal(shape, np.float32)

    def rate(self, name: str, nbytes: float, time_of: Timing, **more: Any) -> None:
        """A row: bytes a second, and the share of the stream's."""
        rate = nbytes / time_of.median
        share = rate / self.stream_rate if self.stream_rate else 1.0
        text = f"{name:34} {time_of}  {rate / 1e9:8.1f} GB/s  {share:5.2f} of the stream"
        if more.get("flops_per_second"):
            text += f"  {more['flops_per_second'] / 1e9:8.1f} GFLOP/s"
        self.report.row(text, part=name, seconds=time_of, bytes_per_second=rate, share=share, **more)

    def stream(self) -> None:
        count = (256 if self.full else 4) << 20
        a = kv.tensor(self.normal(64, count // 256), device=self.device)
        b = kv.ops.add(a, a)
        found = self.timed(lambda: kv.ops.add(a, b))
        self.stream_rate = 12 * (count // 4) / found.median
        self.rate("stream", 12 * (count // 4), found)

    def launches(self) -> None:
        a = kv.tensor(self.normal(1, 64), device=self.device)
        found = self.timed(lambda: kv.ops.add(a, a))
        self.report.row(f"{'launch':34} {found}", part="launch", seconds=found)

    def products(self) -> None:
        shapes = ((4096, 4096), (14336, 4096), (128256, 2048)) if self.full else ((512, 512),)
        for out, inputs in shapes:
            plain = self.normal(out, inputs) * np.float32(0.05)
            on_device = kv.tensor(plain, device=self.device)
            weights = {
                "float32": on_device,
                "float16": kv.ops.pack(kv.tensor(plain.astype(np.float16), device=self.device)),
                "q8_0": kv.ops.pack(on_device, "q8_0"),
                "q4_0": kv.ops.pack_blocks(_q4(out, inputs, self.random), "q4_0", device=self.device),
            }
            for dtype, weight in weights.items():
                self.product(dtype, weight, out, inputs)

    def product(self, dtype: str, weight: Any, out: int, inputs: int) -> None:
        for rows in (1, 8, 512) if out < 100_000 else (1,):
            x = kv.tensor(self.normal(rows, inputs), device=self.device)
            found = self.timed(lambda x=x: kv.ops.matmul(x, weight))
            flops = 2.0 * rows * out * inputs / found.median
            name = f"{dtype} {rows} x {inputs} -> {out}"
            self.rate(name, weight.nbytes, found, rows=rows, dtype=dtype, flops_per_second=flops)

    def attention(self) -> None:
        heads, kv_heads, dim = (32, 8, 128) if self.full else (4, 2, 32)
        for length in (1024, 16384) if self.full else (256,):
            cache = kv.CausalCache(range(4), kv_heads, dim, length + 512, dtype="float16", device=self.device)
            for rows in (length, 1, 512):
                first = 0 if rows == length else length
                cache.start_forward(list(range(first, first + rows)), [0] * rows)
                k, q = (kv.tensor(self.normal(rows, n, dim), device=self.device) for n in (kv_heads, heads))
                for layer in range(4):
                    cache.put(layer, k, k)
                if rows == length:
                    continue
                found = self.timed(lambda cache=cache, q=q: [cache.attend(layer, q) for layer in range(4)])
                nbytes = 4 * 4.0 * (length + rows) * kv_heads * dim
                flops = 4 * 4.0 * rows * length * heads * dim / found.median  # per layer: scores and values
                name = f"attention {rows} rows of {length}"
                self.rate(name, nbytes, found, rows=rows, length=length, flops_per_second=flops)
                cache.remove(0, length)

    def paging(self) -> None:
        model = random_models.build("tiny", device=self.device)
        length = 2048 if self.full else 128
        cache = kv.PrefixCache(model.caches(capacity=2 * length), host_bytes=1 << 30, load="always")
        tokens = self.random.integers(2, 3000, length)
        with cache.begin(tokens) as session:
            for step in session.prefill():
                model(step)
        begun = time.perf_counter()
        nbytes = cache.page_out(tokens)
        self.device.finish()
        out = time.perf_counter() - begun
        begun = time.perf_counter()
        with cache.begin(tokens) as session:
            for step in session.prefill():
                model(step)
            self.device.finish()
            back = time.perf_counter() - begun
        text = (
            f"paging: {length} tokens, {nbytes >> 10} KiB: out {1e3 * out:.1f} ms, back and one row {1e3 * back:.1f} ms"
        )
        self.report.row(text, part="paging", tokens=length, bytes=nbytes, out_seconds=out, back_seconds=back)

    def steps(self, layers: int) -> None:
        random_models.SHAPES["smollm2-size"] = {**SHAPE, "num_hidden_layers": layers}
        model = random_models.build("smollm2-size", device=self.device, dtype="q8_0")
        cache = kv.PrefixCache(model.caches(capacity=1024), host_bytes=0)
        with cache.begin(self.random.integers(1, 49152, 512)) as session:
            logits = self.counted("prefill of 512", lambda: [model(step).numpy() for step in session.prefill()][-1])
            for index in range(6):
                session.append(int(logits.argmax()))
                logits = self.counted(f"decode step {index + 1}", lambda: model(session.decode()).numpy())

        self.decode(model, 1)
        self.decode(model, 8)

    def decode(self, model: Any, conversations: int) -> None:
        """Steps of that many conversations, each of 512 tokens: the logits come to the host each time."""
        cache = kv.PrefixCache(model.caches(capacity=conversations * 640), host_bytes=0)
        sessions = []
        for _ in range(conversations):
            sessions.append(cache.begin(self.random.integers(1, 49152, 512)))
            for step in sessions[-1].prefill():
                model(step)

        def one() -> None:
            for session in sessions:
                session.append(1)
            model(cache.batch(sessions)).numpy()

        found = measure(one, repeats=32, warm_up=8)
        text = f"decode, {conversations:2} at once {found} a step, {conversations / found.median:.0f} tokens/s"
        self.report.row(text, part="decode", conversations=conversations, seconds=found)

    def torch(self) -> None:
        """The float16 rows above by PyTorch, whose matrix products use tensor cores."""
        torch: Any = _torch_on_gpu()
        if torch is None:
            return
        self.finish = torch.cuda.synchronize
        for out, inputs in ((4096, 4096), (14336, 4096)):
            weight = torch.randn(out, inputs, device="cuda", dtype=torch.float16)
            for rows in (1, 8, 512):
                x = torch.randn(rows, inputs, device="cuda", dtype=torch.float16)
                found = self.timed(lambda x=x, weight=weight: torch.nn.functional.linear(x, weight))
                flops = 2.0 * rows * out * inputs / found.median
                name = f"torch float16 {rows} x {inputs} -> {out}"
                self.rate(name, 2.0 * out * inputs, found, rows=rows, flops_per_second=flops)
        for length in (1024, 16384):
            k, v = (torch.randn(1, 8, length, 128, device="cuda", dtype=torch.float16) for _ in range(2))
            for rows in (1, 512):
                q = torch.randn(1, 32, rows, 128, device="cuda", dtype=torch.float16)
                attend = torch.nn.functional.scaled_dot_product_attention
                found = self.timed(lambda q=q, k=k, v=v: attend(q, k, v, enable_gqa=True))
                flops = 4.0 * rows * length * 32 * 128 / found.median
                name = f"torch attention {rows} rows of {length}"
                self.rate(name, 4.0 * length * 8 * 128, found, rows=rows, length=length, flops_per_second=flops)

    def counted(self, name: str, work: Callable[[], Any]) -> Any:
        before, begun = self.device.memory(), time.perf_counter()
        result = work()
        seconds, now = time.perf_counter() - begun, self.device.memory()
        counts = {each: now[each] - before[each] for each in COUNTED}
        text = ", ".join(f"{value} {each.replace('_', ' ')}" for each, value in counts.items())
        self.report.row(f"{name:15} {text}, {1e3 * seconds:.1f} ms", part=name, seconds=seconds, **counts)
        return result


def _q4(out: int, inputs: int, random: np.random.Generator) -> np.ndarray:
    """Blocks of q4_0 with scales of 2^-6: 18 bytes for 32 numbers."""
    blocks = random.integers(0, 256, (out, inputs // 32, 18), np.uint8)
    blocks[..., :2] = np.frombuffer(np.float16(2.0**-6).tobytes(), np.uint8)
    return blocks.reshape(out, -1)


def _torch_on_gpu() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def main() -> None:
    """Measure part by part."""
    options = arguments(__doc__)
    options.add_argument("--layers", type=int, help="of the model of steps (default: 30, posing 4)")
    chosen = options.parse_args()
    device = kv.Device()
    full = device.kind == "gpu" and "(as " not in device.name
    report = Report("How near does a GPU come to its own memory, and what does a step ask of it?", chosen.json)
    report.device(device)
    bench = Bench(report, device, full)
    for part in (bench.stream, bench.launches, bench.products, bench.attention, bench.paging):
        part()
    bench.steps(chosen.layers or (30 if full else 4))
    bench.torch()
    report.close()


if __name__ == "__main__":
    main()
