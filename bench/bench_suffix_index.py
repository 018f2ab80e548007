"""What does the index of suffixes cost, for each token that comes or goes, and for a look-up?

A million tokens in paths of 1,000 (``trie_suffixes_bench``, in C++; bench/trie_suffixes_bench.cpp says which), with the
index and without it, in turns. ``prompts``: whole paths come; ``grow``: a token at a time, as answers do; ``full``: the
same where the oldest goes for each that comes; ``remove``: whole paths go. Times of an index include those of the tree.
All are of the processor, not of the clock on the wall, so that other work on the machine counts less.

Targets: at most 1 us a token, and 40 bytes.
"""

from __future__ import annotations

import re
import statistics

import google_benchmark
from report import Report, arguments

NAMES = {"Prompts": "prompts", "Grow": "grow", "GrowFull": "full", "Remove": "remove", "LookUp": "look-up of 15 tokens"}


def main() -> None:
    report = Report(str(__doc__).split("\n", 1)[0], arguments(__doc__).parse_args().json)
    for name, repetitions in sorted(google_benchmark.run("trie_suffixes_bench", repetitions=5, seconds=0.01).items()):
        what, indexed = re.fullmatch(r"BM_(\w+?)(?:/(\d))?", name).groups()  # type: ignore[union-attr]
        text = NAMES[what] + ("" if indexed is None else ", with it" if indexed == "1" else ", without")
        if what == "LookUp":
            seconds = statistics.median(each["cpu_time"] for each in repetitions) / 1e9
            found = statistics.median(each["found"] for each in repetitions)
            report.row(f"{text:26} {seconds * 1e6:7.2f} us, {found:.0%} found", name=text, seconds=seconds, found=found)
            continue
        nanoseconds = statistics.median(each["ns_per_token"] for each in repetitions)
        size = repetitions[0].get("bytes_per_token")
        shown = f"{nanoseconds:7.1f} ns a token" + ("" if size is None else f", {size:.1f} bytes")
        report.row(f"{text:26} {shown}", name=text, nanoseconds=nanoseconds, bytes=size)
    report.close()


if __name__ == "__main__":
    main()
