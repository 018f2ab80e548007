"""What does it cost to send state to host memory and back, against one device copy of the same bytes?

State of 8 layers, 8 K/V heads of 64, float16. The processor's caches are filled with something else before each sample,
as an idle conversation is not in them. Goals from 16 MiB on: page-out and page-in 1.5 times the copy, gather and
scatter 1.25 times; of the same tokens in q8_0, half of float16's time. bench/tiers_bench.cpp says what each of them is.
"""

from __future__ import annotations

from typing import Any

import google_benchmark
import kvtrie as kv
from colours import GUIDE
from report import Report, Rows, arguments
from timing import Race

COPY = "DeviceCopy"
SIDES = {
    "Gather": "gather",
    "Scatter": "scatter",
    "Checksum": "checksum alone",
    "PageOut": "page-out",
    "PageIn": "page-in",
}
Q8 = {"PageOutQ8": ("PageOut", "page-out, q8_0"), "PageInQ8": ("PageIn", "page-in, q8_0")}


def draw(axes: Any, rows: Rows) -> None:
    """Times of the copy over the bytes moved, a line for each operation."""
    for name in SIDES.values():
        own = [row for row in rows if row["name"] == name]
        axes.plot([row["mib"] for row in own], [row["ratio"]["median"] for row in own], marker="o", label=name)
    axes.axhline(1.0, color=GUIDE, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("MiB")
    axes.set_ylabel("time against one device copy")
    axes.set_ylim(bottom=0)
    axes.legend()


def main() -> None:
    """Print one row for each operation and size."""
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    report = Report("state to host memory and back, against one device copy of the same bytes", options.json)
    report.device(kv.Device())
    for mib in (4, 16, 64):
        samples = {}
        for name, repetitions in google_benchmark.run(
            "tiers_bench", only=f"MiB:{mib}/", repetitions=options.repeats
        ).items():
            samples[name.removeprefix("BM_").split("/")[0]] = [each["seconds"] for each in repetitions]
        sides = Race(samples)
        report.row(f"{mib:>4} MiB  {'device copy':<15} {sides[COPY]}", mib=mib, name="device copy", timing=sides[COPY])
        for side, name in SIDES.items():
            ratio = sides.ratio(side, COPY)
            report.row(
                f"{mib:>4} MiB  {name:<15} {sides[side]}   {ratio}", mib=mib, name=name, timing=sides[side], ratio=ratio
            )
        for side, (whole, name) in Q8.items():
            ratio = sides.ratio(side, whole)
            text = f"{mib:>4} MiB  {name:<15} {sides[side]}   {ratio} of float16's"
            report.row(text, mib=mib, name=name, timing=sides[side], of_float16=ratio)
    report.close(draw)


if __name__ == "__main__":
    main()
