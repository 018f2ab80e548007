"""The map of imports inside a Python package, and its circles: modules that need each other.

    .ci/circles.py [FOLDER [PACKAGE]]          prints a circle and exits with 1 if there is one
    .ci/circles.py --map [FOLDER [PACKAGE]]    draws the map: each row needs rows above it only

The folder is python and the package kvtrie, unless others are named. Every import counts: at the top, inside functions,
and those for type checkers only (``if TYPE_CHECKING``).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from textwrap import wrap


def modules(folder: Path, package: str) -> dict[str, Path]:
    """Every module below ``folder``/``package`` by its dotted name; of a binary one, its stub."""
    files = [file for ending in ("py", "pyi") for file in sorted((folder / package).rglob(f"*.{ending}"))]
    names = {file: list(file.relative_to(folder).with_suffix("").parts) for file in files}
    return {".".join(name[:-1] if name[-1] == "__init__" else name): file for file, name in names.items()}


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node


def needs(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The modules of the package that a module imports."""
    package = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    found: set[str] = set()
    for node in imports(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
            continue
        above = package[: len(package) - node.level + 1] if node.level else []
        origin = ".".join([*above, *([node.module] if node.module else [])])
        inner = {f"{origin}.{alias.name}" for alias in node.names}
        found.update(inner & known.keys())
        if not inner <= known.keys():
            found.add(origin)
    return (found & known.keys()) - {name}


def graph(folder: Path, package: str) -> dict[str, set[str]]:
    known = modules(folder, package)
    return {name: needs(name, file, known) for name, file in known.items()}


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """One circle, its first module again at the end; [] if there is none."""
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def rows(arrows: dict[str, set[str]]) -> list[list[str]]:
    """The modules that need nothing, those that need these only, and so on. REQUIRES: no circle."""
    sorter = TopologicalSorter(arrows)
    sorter.prepare()
    found: list[list[str]] = []
    while sorter.is_active():
        found.append(sorted(sorter.get_ready()))
        sorter.done(*found[-1])
    return found


def drawing(arrows: dict[str, set[str]], package: str) -> Iterator[str]:
    """A line for each row: the package's own modules by name, those of its folders by their number."""
    for number, row in enumerate(rows(arrows)):
        counts: dict[str, int] = {}
        for name in row:
            parts = name.removeprefix(f"{package}.").split(".")
            label = parts[0] if len(parts) == 1 else "/".join(parts[:-1])
            counts[label] = counts.get(label, 0) + 1
        labels = (label if count == 1 else f"{label} ({count})" for label, count in counts.items())
        yield from wrap(", ".join(labels), 112, initial_indent=f"{number:3}  ", subsequent_indent="     ")


def main() -> int:
    named = [each for each in sys.argv[1:] if each != "--map"]
    folder, package = [*named, *["python", "kvtrie"][len(named) :]]
    arrows = graph(Path(folder), package)
    found = circle(arrows)
    if found:
        print(f"modules that import each other:\n  {' -> '.join(found)}\n")
    elif "--map" in sys.argv:
        print("\n".join(drawing(arrows, package)))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
