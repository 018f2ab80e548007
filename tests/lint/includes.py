"""The map of includes inside csrc/: which folder includes which. An arrow upwards or a circle is a failure.

    python3 tests/lint/includes.py            says what is wrong; 1 if something is
    python3 tests/lint/includes.py --write    also draws the map into docs/layers.md

A folder is a layer of csrc/CMakeLists.txt, `kvtrie_layer(NAME BELOW...)`, and may include itself and all that lies
below it. Two headers that include each other, over any number of others, are a circle even in one folder. Needs
only Python's standard library.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "csrc"
PAGE = ROOT / "docs" / "layers.md"
BEGIN, END = "<!-- includes: begin -->\n", "<!-- includes: end -->\n"
INCLUDE = re.compile(r'^#include "([\w/]+)/(\w+\.h)"', flags=re.M)


def layers() -> dict[str, set[str]]:
    """Each folder, from the lowest to the highest, and every folder that it may include besides itself."""
    text = (SOURCES / "CMakeLists.txt").read_text(encoding="utf-8")
    below: dict[str, set[str]] = {}
    for name, *under in (line.split() for line in re.findall(r"^kvtrie_layer\(([\w ]+)\)", text, flags=re.M)):
        below[name] = set(under).union(*(below[each] for each in under))
    return below


def includes() -> dict[str, set[str]]:
    """Each file of csrc/, by folder and name, and the headers of csrc/ that it includes."""
    files = sorted([*SOURCES.glob("*/*.h"), *SOURCES.glob("*/*.cpp"), *SOURCES.glob("*/*/*.cpp")])
    found = {path.relative_to(SOURCES).as_posix(): path.read_text(encoding="utf-8") for path in files}
    return {
        name: {f"{folder}/{header}" for folder, header in INCLUDE.findall(text)} & found.keys()
        for name, text in found.items()
    }


def folder_of(name: str) -> str:
    return name.partition("/")[0]


def arrows(graph: Mapping[str, Set[str]]) -> dict[str, set[str]]:
    """Each folder, and the folders that its files include, itself left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, headers in graph.items():
        found[folder_of(name)] |= {folder_of(header) for header in headers} - {folder_of(name)}
    return found


def wrong_arrows(graph: Mapping[str, Set[str]], below: Mapping[str, Set[str]]) -> Iterator[str]:
    for name, headers in sorted(graph.items()):
        allowed = below.get(folder_of(name), set()) | {folder_of(name)}
        for header in sorted(header for header in headers if folder_of(header) not in allowed):
            yield f"csrc/{name}: got an include of {header}, allowed {', '.join(sorted(allowed))}"


def circles(graph: Mapping[str, Set[str]]) -> Iterator[str]:
    """One line for each header that closes a circle."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        rest = [(start, False)]
        while rest:
            name, left = rest.pop()
            if left:
                done.add(path.pop())
            elif name in path:
                circle = " -> ".join([*path[path.index(name) :], name])
                yield f"csrc/{name}: got a circle of includes, {circle}, allowed none"
            elif name not in done:
                path.append(name)
                rest += [(name, True), *((header, False) for header in sorted(graph[name]))]


def drawing(graph: Mapping[str, Set[str]], below: Mapping[str, Set[str]]) -> str:
    """A row for each folder, the highest first; an x in the column of each folder that it includes."""
    names, found = list(below), arrows(graph)
    width = max(map(len, names))
    rows = []
    for at in range(len(names) - 1, -1, -1):
        cells = [("x" if name in found[names[at]] else ".").center(len(name)) for name in names[:at]]
        rows.append(f"    {names[at]:>{width}}   {'  '.join(cells)}".rstrip())
    return "\n".join([*rows, f"    {'':>{width}}   {'  '.join(names[:-1])}"]) + "\n"


def problems() -> list[str]:
    graph = includes()
    return [*wrong_arrows(graph, layers()), *circles(graph)]


def page() -> str:
    """docs/layers.md with the map as it is now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{drawing(includes(), layers())}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    found = problems()
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
