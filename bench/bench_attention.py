"""How near does attention come to the memory and to the arithmetic of this machine?

Six questions, each with all sides in turns on the same K and V (bench/yardsticks/attention.cpp):

decode   one query row against a history, launched layer by layer and, as steps of a model do, replayed in one launch
         (docs/own_model.md), beside a hand-written loop on two threads (AVX2, FMA, F16C, software prefetch;
         bench/yardsticks/attention_avx2.cpp) and beside the mere reading of the same K and V by two threads
spans    the same history in spans of 16, 64 and 256 cells that are not neighbours, beside one whole span
prefill  512 rows, beside OpenBLAS: per head Q K^T, softmax, times V, in blocks of 128 rows that stop at the last key
         they see, one head on each of two threads; the OpenBLAS that numpy ships, with the kernels it picks itself
shared   8 conversations on one prefix of 16k tokens in one pass, beside 8 passes
formats  one query row against K and V in other formats, beside the same numbers in float16; 512 tokens of a layer come
         from caches, and show what arithmetic alone takes
before   one query row, in each format, beside the same kernels of another build: --before LIBRARY; by the clock of the
         process, so that what else the machine does counts for little

A figure is the attention of a whole step over several layers, as many as it takes for 128 MiB of K and V (at most 16),
waited for once at its end, as in a model; printed per layer. So K and V come mostly from memory, not from caches. In
decode and prefill every side is compared with double arithmetic before it is timed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from built import built
from report import Report, Rows, arguments
from timing import Race, human, lesser_level, openblas_kernels_wanted, processor_seconds, race

KV_HEADS = 8
MIB = 1 << 20
FORMATS = {"float32": 0, "float16": 1, "q8_0": 3, "q4h": 4, "q8_0/q4h": 3 + 16 * 5}  # codes (docs/format.md)
NUMBER_BYTES = {0: 4.0, 1: 2.0, 3: 34 / 32, 4: 18 / 32, 3 + 16 * 5: 26 / 32}  # K and V on average
SMALL = ("q8_0", "q8_0/q4h", "q4h")
FIELDS = ("kv_heads", "group", "dim", "format", "length", "span", "rows", "sequences", "layers")


class Spec(ctypes.Structure):
    """A case, as bench/yardsticks/attention.cpp reads it."""

    _fields_ = [(name, ctypes.c_int32) for name in FIELDS]

    @property
    def bytes(self) -> int:
        """K and V of one layer."""
        return int(2 * self.kv_heads * self.length * self.dim * NUMBER_BYTES[self.format])


def spec(length: int, dtype: str, *, dim: int = 128, group: int = 4, span: int = 0, rows: int = 1, **more: int) -> Spec:
    """A case with enough layers to leave the caches."""
    made = Spec(KV_HEADS, group, dim, FORMATS[dtype], length, span, rows, more.get("sequences", 1), 1)
    made.layers = more.get("layers", max(1, min(16, 128 * MIB // made.bytes)))
    return made


class Library:
    """The benches' shared library, and OpenBLAS out of numpy's."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path))
        self.lib.attention_message.restype = self.lib.attention_device.restype = ctypes.c_char_p
        self.lib.attention_open.restype = ctypes.c_void_p
        self.lib.attention_error.restype = ctypes.c_double
        self.blas, self.blas_name = openblas()

    def open(self, made: Spec) -> Case:
        """Fill the pools and upload the plans."""
        handle = self.lib.attention_open(ctypes.byref(made))
        if not handle:
            raise RuntimeError(self.lib.attention_message().decode())
        return Case(self, handle, made)


class Case:
    """One open case; calls are sides of a race."""

    def __init__(self, library: Library, handle: int, made: Spec) -> None:
        self.library, self.handle, self.spec = library, ctypes.c_void_p(handle), made

    def side(self, name: str, *more: Any) -> Callable[[], None]:
        """What runs the side once."""
        function = getattr(self.library.lib, f"attention_{name}")

        def call() -> None:
            if not function(self.handle, *more):
                raise RuntimeError(self.library.lib.attention_message().decode())

        return call

    def checked(self, sides: dict[str, Callable[[], None]]) -> dict[str, Callable[[], None]]:
        """The sides, after each gave what double arithmetic gives."""
        for name, call in sides.items():
            call()
            error = self.library.lib.attention_error(self.handle, name in ("ours", "replayed"))
            if not error < 1e-4:
                raise RuntimeError(f"{name} is off by {error}")
        return sides

    def close(self) -> None:
        """Give the memory back."""
        self.library.lib.attention_close(self.handle)


def openblas() -> tuple[Any, str]:
    """cblas_sgemm of the OpenBLAS that numpy ships, on one thread each call, and its kernels' name; None without it.

    It chooses kernels for this processor itself, or gets those of a lesser level, whatever the environment says (numpy
    must not be loaded yet).
    """
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
        os.environ.pop(name, None)
    if lesser_level():
        os.environ["OPENBLAS_CORETYPE"] = openblas_kernels_wanted() or ""
    numpy = importlib.util.find_spec("numpy")
    if numpy is None or numpy.origin is None:
        return None, ""
    for file in (Path(numpy.origin).parent.parent / "numpy.libs").glob("*openblas64*"):
        lib = ctypes.CDLL(str(file))
        lib.scipy_openblas_set_num_threads64_(1)
        lib.scipy_openblas_get_corename64_.restype = ctypes.c_char_p
        return ctypes.cast(lib.scipy_cblas_sgemm64_, ctypes.c_void_p), lib.scipy_openblas_get_corename64_().decode()
    return None, ""


def decode(library: Library, report: Report, rounds: int, full: bool) -> None:
    """Ours, by hand, and reading alone."""
    shapes = [(128, 1), (128, 4), (128, 8), (64, 4), (256, 4)]
    if full:
        shapes = [(dim, group) for dim in (64, 128, 256) for group in (1, 4, 8)]
    for dim, group in shapes:
        for dtype in ("float32", "float16"):
            for length in (1024, 4096, 8192, 16384, 32768) if full or (dim, group) == (128, 4) else (1024, 4096, 32768):
                made = spec(length, dtype, dim=dim, group=group)
                case = library.open(made)
                checked = {"ours": case.side("ours"), "replayed": case.side("replayed")}
                if library.lib.attention_yardstick_available(ctypes.byref(made)):
                    checked["by hand"] = case.side("decode_yardstick")
                timed = race({**case.checked(checked), "read": case.side("read")}, rounds=rounds)
                case.close()
                line(report, "decode", made, timed, dtype)


def line(report: Report, part: str, made: Spec, timed: Race, dtype: str) -> None:
    """One row for a race in which "ours" reads K and V once."""
    ours = timed["ours"].median / made.layers
    text = f"{part} {dtype} dim {made.dim:>3} {made.group}:1 {made.length:>6} tokens"
    text += f"  {human(ours):>8}  {made.bytes / ours / 1e9:5.1f} GB/s"
    figures = {"seconds": ours, "ours": made.bytes / ours / 1e9}
    for side in timed.samples:
        if side != "ours":
            ratio = timed.ratio(side, "ours")
            text += f"  {side} takes {ratio}"
            figures[side] = made.bytes / timed[side].median * made.layers / 1e9
            figures[f"{side} over ours"] = ratio.median
    if "by hand" in timed.samples and "replayed" in timed.samples:
        ratio = timed.ratio("by hand", "replayed")
        text += f"  by hand over replayed {ratio}"
        figures["by hand over replayed"] = ratio.median
    values = {name: getattr(made, name) for name in FIELDS}
    report.row(text, part=part, dtype=dtype, **values, **figures)


def spans(library: Library, report: Report, rounds: int) -> None:
    """Every length of span in turns with the whole."""
    for dtype in ("float32", "float16"):
        for length in (4096, 16384):
            cases = {span: library.open(spec(length, dtype, span=span, layers=2)) for span in (0, 16, 64, 256)}
            sides = {f"{span or 'whole'}": case.side("ours") for span, case in cases.items()}
            timed = race(sides, rounds=rounds)
            for span, case in cases.items():
                ratio = timed.ratio(f"{span or 'whole'}", "whole")
                rate = case.spec.bytes * case.spec.layers / timed[f"{span or 'whole'}"].median / 1e9
                report.row(
                    f"spans {dtype} {length:>6} tokens in spans of {span or 'all':>3}  {rate:5.1f} GB/s  takes {ratio}",
                    part="spans",
                    dtype=dtype,
                    length=length,
                    span=span,
                    ratio=ratio,
                    rate=rate,
                )
                case.close()


def prefill(library: Library, report: Report, rounds: int) -> None:
    """The last 512 rows of a history."""
    for dim, group in ((128, 4), (64, 4), (128, 1)):
        for length in (512, 4096, 8192):
            for dtype in ("float32", "float16"):
                made = spec(length, dtype, dim=dim, group=group, rows=512, layers=1)
                case = library.open(made)
                sides = {"ours": case.side("ours")}
                if library.blas and dtype == "float32":
                    sides["OpenBLAS"] = case.side("prefill_yardstick", library.blas)
                timed = race(case.checked(sides), rounds=max(5, rounds // 3), warm_up=1)
                case.close()
                pairs = 512 * (length - 512) + 512 * 513 / 2
                work = 4.0 * pairs * KV_HEADS * group * dim
                text = f"prefill {dtype} dim {dim:>3} {group}:1 512 rows of {length:>5}"
                values: dict[str, Any] = {"ours": work / timed["ours"].median / 1e9}
                text += f"  {human(timed['ours'].median):>8}  {values['ours']:5.0f} GFLOP/s"
                if "OpenBLAS" in sides:
                    ratio = timed.ratio("OpenBLAS", "ours")
                    values |= {"OpenBLAS": work / timed["OpenBLAS"].median / 1e9, "ratio": ratio}
                    text += f"  OpenBLAS ({library.blas_name}) {values['OpenBLAS']:5.0f}, takes {ratio}"
                report.row(text, part="prefill", dtype=dtype, length=length, dim=dim, group=group, **values)


def shared(library: Library, report: Report, rounds: int) -> None:
    """8 conversations on one prefix: one pass or 8."""
    for dtype in ("float32", "float16"):
        for length in (2048, 16384):
            case = library.open(spec(length, dtype, sequences=8, layers=1 if length > 4096 else 8))
            timed = race({"ours": case.side("ours"), "apart": case.side("apart")}, rounds=max(5, rounds // 2))
            case.close()
            ratio = timed.ratio("apart", "ours")
            report.row(
                f"shared {dtype} 8 conversations on {length:>5} tokens  {timed['ours']}  8 passes take {ratio}",
                part="shared",
                dtype=dtype,
                length=length,
                timing=timed["ours"],
                ratio=ratio,
            )


def formats(library: Library, report: Report, rounds: int) -> None:
    """One row over K and V in formats of blocks and in float16, in turns."""
    for dim, group in ((128, 4), (64, 4), (128, 8), (64, 3), (128, 1)):
        for length in (512, 4096, 16384):
            layers = max(2, 128 * MIB // spec(length, "float16", dim=dim, group=group, layers=1).bytes)
            layers = 1 if length == 512 else layers
            cases = {
                name: library.open(spec(length, name, dim=dim, group=group, layers=layers))
                for name in ("float16", *SMALL)
            }
            timed = race({name: case.side("ours") for name, case in cases.items()}, rounds=rounds)
            for case in cases.values():
                case.close()
            ratios = {name: timed.ratio(name, "float16") for name in SMALL}
            took, shown = human(timed["float16"].median / layers), ", ".join(f"{n} {r}" for n, r in ratios.items())
            report.row(
                f"formats dim {dim:>3} {group}:1 {length:>6} tokens  float16 {took}, {shown}",
                part="formats",
                dim=dim,
                group=group,
                length=length,
                seconds={name: timed[name].median / layers for name in cases},
                ratios=ratios,
            )


def before(library: Library, other: Library, report: Report, rounds: int) -> None:
    """One row, this build and another in turns."""

    for dim, group in ((128, 1), (128, 4), (128, 7), (128, 8), (64, 3), (64, 5), (64, 7)):
        for length in (512, 4096):
            for dtype in ("float32", "float16", *SMALL):
                made = spec(length, dtype, dim=dim, group=group, layers=1 if length == 512 else 2)
                cases = {"now": library.open(made), "before": other.open(made)}
                sides = {
                    name: partial(processor_seconds, case.side("ours"), 16384 // length) for name, case in cases.items()
                }
                timed = race(sides, rounds=rounds, clocked=sides)
                for case in cases.values():
                    case.close()
                ratio = timed.ratio("now", "before")
                report.row(
                    f"before {dtype:>8} dim {dim:>3} {group}:1 {length:>6} tokens  takes {ratio} of before",
                    part="before",
                    dtype=dtype,
                    dim=dim,
                    group=group,
                    length=length,
                    ratio=ratio,
                )


def draw(axes: Any, rows: Rows) -> None:
    """Bytes of K and V a second over the history's length, one style for each side."""
    chosen = [row for row in rows if row["part"] == "decode" and row["dim"] == 128 and row["group"] == 4]
    for index, dtype in enumerate(("float32", "float16")):
        of_type = sorted((row for row in chosen if row["dtype"] == dtype), key=lambda row: row["length"])
        lengths = [row["length"] for row in of_type]
        for side, style in (("ours", "o-"), ("by hand", "s--"), ("read", ":")):
            if all(side in row for row in of_type):
                name = {"ours": "kvtrie", "by hand": "AVX2 by hand", "read": "reading alone"}[side]
                axes.plot(
                    lengths, [row[side] for row in of_type], style, color=f"C{index}", label=f"{name}, {dtype}", ms=4
                )
    axes.set_xscale("log", base=2)
    axes.set_xticks([1024, 4096, 16384, 32768], ["1k", "4k", "16k", "32k"])
    axes.set_xlabel("tokens in the history")
    axes.set_ylabel("K and V read (GB/s)")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=2, fontsize=7)


def main() -> None:
    """Print one row for each case of every part."""
    parser = arguments(__doc__)
    parser.add_argument("--library", type=Path, help="libyardstick_attention; the newest under build/ otherwise")
    parser.add_argument("--parts", nargs="*", default=["decode", "spans", "prefill", "shared", "formats"])
    parser.add_argument("--before", type=Path, help="libyardstick_attention of another build, in turns with this one")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--full", action="store_true", help="decode: every head size, group and length")
    options = parser.parse_args()
    library = Library(options.library or built("yardstick_attention"))
    report = Report("How near does attention come to reading its K and V once? (32 heads on 8)", options.json)
    report.note(f"device {library.lib.attention_device().decode()}")
    if library.blas is None:
        report.note("numpy ships no OpenBLAS here: left out")
    if "decode" in options.parts:
        decode(library, report, options.rounds, options.full)
    if "spans" in options.parts:
        spans(library, report, options.rounds)
    if "prefill" in options.parts:
        prefill(library, report, options.rounds)
    if "shared" in options.parts:
        shared(library, report, options.rounds)
    if "formats" in options.parts:
        formats(library, report, options.rounds)
    if options.before:
        before(library, Library(options.before), report, options.rounds)
    report.close(draw)


if __name__ == "__main__":
    main()
