"""Where the resident memory of a process lies, from ``/proc/PID/smaps``.

    parts = of(pid)           # MiB by part: "heap", "llvm", "files", ...
    sum(parts.values())       # its resident memory

Every mapping counts with its Rss, so that no figure depends on what else runs: a page that several processes map
counts in each of them. A mapping of a file belongs to the part of the first pattern that its path has; memory without
a file is one part, whatever asked for it. Units: MiB.
"""

from __future__ import annotations

import re
from pathlib import Path

_HEADER = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+\s*(.*)")
# In this order; a path that has none of them is "other files".
PARTS = {
    "model file": r"\.gguf|\.safetensors",
    "driver and its compiler": r"libLLVM|libclang|libpocl|libOpenCL|libclblast|libz3|libhwloc",
    "compiled programs": r"/pocl/|/kvtrie/",
    "Python, numpy, packages": r"python|site-packages|openblas|gfortran|quadmath",
}
ANONYMOUS, OTHER = "memory without a file", "other files"


def of(pid: int) -> dict[str, float]:
    """MiB by part, largest first."""
    return parse(Path(f"/proc/{pid}/smaps").read_text())


def parse(smaps: str) -> dict[str, float]:
    """MiB by part of the text of such a file, largest first."""
    sums: dict[str, float] = {}
    part = ""
    for line in smaps.splitlines():
        header = _HEADER.fullmatch(line)
        if header:
            part = _part(header[1])
        elif line.startswith("Rss:"):
            sums[part] = sums.get(part, 0.0) + int(line.split()[1]) / 1024
    return dict(sorted(sums.items(), key=lambda each: -each[1]))


def _part(path: str) -> str:
    if not path.startswith("/"):
        return ANONYMOUS  # heap, stacks, what malloc maps
    return next((part for part, pattern in PARTS.items() if re.search(pattern, path)), OTHER)
