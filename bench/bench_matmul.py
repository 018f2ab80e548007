"""How fast are products with packed weights, beside OpenBLAS, CLBlast and what the memory can deliver?

OpenBLAS is NumPy's own, with float32 weights, two threads, ``out=`` given, and the better of its two layouts (x @ W and
x @ W.T). Its kernels are those for AVX-512 where the processor has that (OPENBLAS_CORETYPE=SkylakeX: it does not
recognise new processors by itself, and is then half as fast). PoCL's workers are pinned (POCL_AFFINITY=1). By default
OpenBLAS's worker spins for some 0.1 s after a product, at half the cost of whatever comes next; here it spins for 2**20
cycles (OPENBLAS_THREAD_TIMEOUT), which keeps it awake within a batch. Ours are timed after that, and every sample after
one untimed product.

Weights rotate over at least four times the last cache, so none is found there. Products are queued in batches of about
a millisecond, as a step of a model does: ours wait once for each batch, and the time is that of one product.

Read bandwidth is measured in the same rounds by two threads that add up 256 MiB (bench/yardsticks/read.cpp), as one
stream each, and as four, which some processors fetch faster.
Targets: 0.9 of OpenBLAS everywhere; one row at 85 % of the read bandwidth, float32 and float16. q8_0 weights (8.5 bits
a number) stand beside our own float16: what they gain where memory is the limit, and what they cost where it is not.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import kvtrie as kv
from built import built
from colours import GUIDE, SOFT
from report import Report, Rows, arguments
from timing import human, openblas_kernels_wanted, race

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHAPES = ((512, 512), (1536, 512), (512, 1536), (1024, 1024), (4096, 1024), (2048, 2048), (4096, 4096))  # (out, in)
STREAMED = ((512, 512), (1536, 512), (4096, 4096), (8192, 4096))
LAST_CACHE = 32 << 20  # bytes
ROTATED = 4 * LAST_CACHE
BATCH = 1e-3  # seconds of products in one sample
SPIN_CYCLES = "20"  # as a power of two
SPINS = 2e-3  # seconds; longer than 2**20 cycles
TARGET = 0.9
BYTES = {"float32": 4.0, "float16": 2.0, "q8_0": 34 / 32}  # of one number


def use_best_kernels(kernels: str | None) -> None:
    """Start again with the settings that both sides need before their libraries are loaded."""
    kernels = kernels or openblas_kernels_wanted()
    wanted = {"OPENBLAS_NUM_THREADS": "2", "OPENBLAS_THREAD_TIMEOUT": SPIN_CYCLES, "POCL_AFFINITY": "1"}
    if kernels:
        wanted["OPENBLAS_CORETYPE"] = kernels
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**environment, **wanted})


def openblas_kernels() -> str:
    """The name OpenBLAS gives the kernels it chose."""
    for library in (Path(np.__file__).parents[1] / "numpy.libs").glob("*openblas*"):
        handle = ctypes.CDLL(str(library))
        for name in ("scipy_openblas_get_corename64_", "openblas_get_corename64_", "openblas_get_corename"):
            if hasattr(handle, name):
                function = getattr(handle, name)
                function.restype = ctypes.c_char_p
                return str(function().decode())
    return "unknown"


class Reader:
    """Reads ``numbers`` with two threads, each as ``streams`` streams; a call gives the seconds."""

    def __init__(self, numbers: np.ndarray, streams: int) -> None:
        self._read = ctypes.CDLL(str(built("yardstick_read"))).read_yardstick
        self._read.restype = ctypes.c_double
        self._numbers, self._streams = numbers, streams
        self._total = ctypes.c_float()
        self.bytes = numbers.nbytes

    def __call__(self) -> float:
        address, count = ctypes.c_void_p(self._numbers.ctypes.data), ctypes.c_size_t(self._numbers.size)
        return float(self._read(address, count, ctypes.c_size_t(self._streams), ctypes.byref(self._total)))


class Rotation:
    """Multiplies by the next of several weights, ``batch`` times, then ends; a call gives the seconds of that.

    ``pause``: seconds to sleep before, for others to come to rest.
    """

    def __init__(
        self,
        product: Callable[[Any], Any],
        weights: list[Any],
        end: Callable[[], Any] = lambda: None,
        pause: float = 0.0,
    ) -> None:
        self._product, self._weights, self._end, self._pause = product, weights, end, pause
        self._next = 0
        self.batch = 1

    def __call__(self) -> float:
        time.sleep(self._pause)
        self._run(1)
        begin = time.perf_counter()
        self._run(self.batch)
        return time.perf_counter() - begin

    def _run(self, count: int) -> None:
        for _ in range(count):
            self._next = (self._next + 1) % len(self._weights)
            self._product(self._weights[self._next])
        self._end()


class Weights:
    """One weight [out, in] as every side wants it, copied until it is larger than all caches."""

    def __init__(self, rng: np.random.Generator, out: int, width: int, device: Any, blas: bool = True) -> None:
        self.out, self.width, self.device = out, width, device
        self.layout = ""  # the better one of OpenBLAS's
        plain = rng.standard_normal((out, width), dtype=np.float32)
        count = ROTATED // plain.nbytes + 1
        half = kv.tensor(plain.astype(np.float16))
        self.packed = {
            "float32": [kv.ops.pack(plain) for _ in range(count)],
            "float16": [kv.ops.pack(half) for _ in range(2 * count)],
            "q8_0": [kv.ops.pack(half, dtype="q8_0") for _ in range(4 * count)],
        }
        self.rows_first = [plain.copy() for _ in range(count if blas else 0)]
        self.columns_first = [np.ascontiguousarray(plain.T) for _ in range(count if blas else 0)]

    def sides(self, x: np.ndarray) -> dict[str, Rotation]:
        """Products of x [rows, in] by every side."""
        on_device = kv.tensor(x)
        y = np.empty((x.shape[0], self.out), np.float32)
        pauses = {"float32": SPINS if self.rows_first else 0.0}  # behind OpenBLAS
        sides = {
            dtype: Rotation(lambda w: kv.ops.matmul(on_device, w), weights, self.device.finish, pauses.get(dtype, 0.0))
            for dtype, weights in self.packed.items()
        }
        if self.rows_first:
            layouts = {
                "NT": Rotation(lambda w: np.matmul(x, w.T, out=y), self.rows_first),
                "NN": Rotation(lambda w: np.matmul(x, w, out=y), self.columns_first),
            }
            seconds = {name: min(layout() for _ in range(5)) for name, layout in layouts.items()}
            self.layout = min(seconds, key=lambda name: seconds[name])
            sides["openblas"] = layouts[self.layout]
        return sides

    def check(self, x: np.ndarray) -> None:
        """All sides compute the same."""
        expected = x @ self.columns_first[0]
        for dtype, tolerance in (("float32", 1e-4), ("float16", 1e-2), ("q8_0", 2e-2)):
            got = kv.ops.matmul(x, self.packed[dtype][0]).numpy()
            if not np.allclose(got, expected, atol=tolerance * np.abs(expected).max()):
                raise SystemExit("the sides disagree")


def choose_batches(sides: dict[str, Rotation], rounds_for: float) -> tuple[int, int]:
    """Products in one sample, the same for all sides, and rounds that take about ``rounds_for`` seconds."""
    slowest = max(min(side() for _ in range(3)) for side in sides.values())
    batch = max(1, round(BATCH / slowest))
    for side in sides.values():
        side.batch = batch
    return batch, max(5, min(12, round(rounds_for / (batch * slowest * len(sides)))))


def beside_openblas(report: Report, rng: np.random.Generator, device: Any, seconds: float) -> None:
    """Every size and number of rows, in turns with OpenBLAS."""
    for out, width in SHAPES:
        weights = Weights(rng, out, width, device)
        weights.check(rng.standard_normal((5, width), dtype=np.float32))
        for rows in ROWS:
            sides = weights.sides(rng.standard_normal((rows, width), dtype=np.float32))
            batch, rounds = choose_batches(sides, seconds)
            result = race(sides, rounds=rounds, warm_up=1, clocked=sides)
            flops = 2.0 * rows * out * width * batch
            text = f"{rows:4} x {width:4} -> {out:4}"
            for dtype in BYTES:
                speed = result.ratio("openblas", dtype)
                rate = flops / result[dtype].median / 1e9
                text += f"   {dtype} {rate:6.1f} GFLOP/s, {speed} of OpenBLAS"
                report.rows.append(
                    {"part": "rows", "rows": rows, "in": width, "out": out, "dtype": dtype, "gflops": rate}
                    | {"seconds": result[dtype].median / batch, "openblas": result["openblas"].median / batch}
                    | {"speed": speed.median, "low": speed.low, "high": speed.high, "layout": weights.layout}
                    | {"of_float16": result.ratio("float16", dtype).median}
                )
            text += f" and {result.ratio('float16', 'q8_0')} of float16"
            text += f"   ({weights.layout} {flops / result['openblas'].median / 1e9:.1f}, batch {batch}, n={rounds})"
            report.note(text)


def beside_memory(report: Report, rng: np.random.Generator, device: Any) -> None:
    """One row by weights that come from memory, in turns with a plain read."""
    numbers = np.ones(2 * ROTATED // 4, np.float32)
    read, four = Reader(numbers, 1), Reader(numbers, 4)
    for out, width in STREAMED:
        weights = Weights(rng, out, width, device, blas=False)
        sides = weights.sides(rng.standard_normal((1, width), dtype=np.float32))
        batch, _ = choose_batches(sides, 1.0)
        everything: dict[str, Callable[[], float]] = {**sides, "read": read, "four": four}
        result = race(everything, rounds=25, warm_up=2, clocked=everything)
        bandwidth, as_four = (read.bytes / result[side].median for side in ("read", "four"))
        for dtype, size in BYTES.items():
            moved = out * width * size
            share = result.ratio("read", dtype)
            scale = batch * moved / read.bytes
            report.row(
                f"1 row, {width} -> {out}, {dtype} from memory: {human(result[dtype].median / batch)}, "
                f"{batch * moved / result[dtype].median / 1e9:.1f} GB/s of {bandwidth / 1e9:.1f} read: "
                f"{share.median * scale:.2f} ({share.low * scale:.2f} .. {share.high * scale:.2f}), "
                f"of {as_four / 1e9:.1f} as four streams: {result.ratio('four', dtype).median * scale:.2f}"
                + (f", {result.ratio('float16', 'q8_0')} of float16" if dtype == "q8_0" else ""),
                part="memory",
                out=out,
                dtype=dtype,
                share=share.median * scale,
                of_float16=result.ratio("float16", dtype).median,
                bandwidth=bandwidth,
                share_of_four=result.ratio("four", dtype).median * scale,
                bandwidth_of_four=as_four,
                seconds=result[dtype].median / batch,
                **{"in": width},
            )


def beside_clblast(report: Report, rng: np.random.Generator, device: Any) -> None:
    """A few sizes by CLBlast on the same device; its first product of a kind compiles."""
    weight = kv.tensor(rng.standard_normal((1024, 1024), dtype=np.float32))
    packed = kv.ops.pack(weight)
    for rows in (1, 32, 256):
        x = kv.tensor(rng.standard_normal((rows, 1024), dtype=np.float32))
        sides = {
            "packed": Rotation(lambda w, x=x: kv.ops.matmul(x, w), [packed], device.finish),
            "clblast": Rotation(lambda w, x=x: kv.ops.matmul(x, w, backend="clblast"), [weight], device.finish),
        }
        begin = time.perf_counter()
        kv.ops.matmul(x, weight, backend="clblast")
        device.finish()
        first = time.perf_counter() - begin
        result = race(sides, rounds=8, warm_up=1, clocked=sides)
        ratio = result.ratio("clblast", "packed")
        report.row(
            f"{rows:4} x 1024 -> 1024: CLBlast takes {ratio} as long: {human(result['clblast'].median)}, "
            f"the first one {human(first)}",
            part="clblast",
            rows=rows,
            ratio=ratio,
            first=first,
        )


def beside_float32(report: Report, rng: np.random.Generator, device: Any) -> None:
    """bfloat16 weights, as most checkpoints are stored, beside the same numbers as float32."""
    for out, width in ((1536, 512), (4096, 4096)):
        bfloats = kv.tensor(rng.standard_normal((out, width), dtype=np.float32)).astype("bfloat16")
        wide = bfloats.astype("float32")
        count = ROTATED // wide.nbytes + 1
        weights = {
            "float32": [kv.ops.pack(wide) for _ in range(count)],
            "bfloat16": [kv.ops.pack(bfloats) for _ in range(2 * count)],
        }
        for rows in (1, 8, 128, 512):
            x = kv.tensor(rng.standard_normal((rows, width), dtype=np.float32))
            sides = {dtype: Rotation(lambda w, x=x: kv.ops.matmul(x, w), each, device.finish)
                     for dtype, each in weights.items()}  # fmt: skip
            choose_batches(sides, 1.0)
            result = race(sides, rounds=12, warm_up=1, clocked=sides)
            ratio = result.ratio("float32", "bfloat16")
            text = f"{rows:4} x {width:4} -> {out:4}: bfloat16 {ratio} as fast as float32"
            report.row(text, part="bfloat16", rows=rows, out=out, speed=ratio, **{"in": width})


def draw(axes: Any, rows: Rows) -> None:
    """Speed over OpenBLAS by rows: a colour for each square size, dashed for float16 weights, dotted for q8_0."""
    for index, size in enumerate((512, 1024, 2048, 4096)):
        for dtype, style in (("float32", "-"), ("float16", "--"), ("q8_0", ":")):
            own = [r for r in rows if r["part"] == "rows" and r["in"] == r["out"] == size and r["dtype"] == dtype]
            label = f"{size} x {size}" if dtype == "float32" else None
            axes.plot([r["rows"] for r in own], [r["speed"] for r in own], style, color=f"C{index}", label=label)
    axes.axhline(TARGET, color=GUIDE, linewidth=0.8, linestyle=":")
    axes.text(2, TARGET, "target", va="top", ha="center", fontsize=7, color=SOFT)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ROWS, [str(count) for count in ROWS])
    axes.set_yticks((0.5, 1, 2, 4, 8, 16), ("0.5", "1", "2", "4", "8", "16"))
    axes.set_ylim(0.5, 16)
    axes.set_xlabel("rows (weights solid: float32, dashed: float16, dotted: q8_0)")
    axes.set_ylabel("speed of OpenBLAS float32 = 1")
    axes.legend(ncols=4, loc="upper right")


def main() -> None:
    """Print one row for each size and number of rows, then the memory and CLBlast."""
    parser = arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each size and number of rows")
    parser.add_argument("--only", choices=("rows", "memory", "clblast", "bfloat16"), help="one part")
    parser.add_argument("--openblas", metavar="KERNELS", help="OPENBLAS_CORETYPE instead of the best one")
    options = parser.parse_args()
    use_best_kernels(options.openblas)
    report = Report("products with packed weights, beside OpenBLAS", options.json)
    device = kv.Device()
    report.device(device)
    report.note(f"OpenBLAS kernels: {openblas_kernels()}")
    rng = np.random.default_rng(20240611)
    if options.only in (None, "memory"):
        beside_memory(report, rng, device)
    if options.only in (None, "rows"):
        beside_openblas(report, rng, device, options.seconds)
    if options.only in (None, "clblast"):
        beside_clblast(report, rng, device)
    if options.only in (None, "bfloat16"):
        beside_float32(report, rng, device)
    report.close(draw if options.only in (None, "rows") else None)


if __name__ == "__main__":
    main()
