"""Import circles of a Python package: modules that need each other, at import or inside functions.

    .ci/circles.py [FOLDER [PACKAGE]]    python and kvtrie, unless others are named

Prints each circle and exits with 1 if there is one. Imports for type checkers only (``if TYPE_CHECKING``) do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


def modules(folder: Path, package: str) -> dict[str, Path]:
    """Every module below ``folder``/``package`` by its dotted name; of a binary one, its stub."""
    files = [file for ending in ("py", "pyi") for file in sorted((folder / package).rglob(f"*.{ending}"))]
    names = {file: list(file.relative_to(folder).with_suffix("").parts) for file in files}
    return {".".join(name[:-1] if name[-1] == "__init__" else name): file for file, name in names.items()}


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                yield from imports(other)
        else:
            yield from imports(node)


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


def circle(folder: Path, package: str) -> list[str]:
    """One circle, its first module again at the end; [] if there is none."""
    known = modules(folder, package)
    try:
        TopologicalSorter({name: needs(name, file, known) for name, file in known.items()}).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []


def main() -> int:
    folder, package = [*sys.argv[1:], *["python", "kvtrie"][len(sys.argv) - 1 :]]
    found = circle(Path(folder), package)
    if found:
        print(f"modules that import each other:\n  {' -> '.join(found)}\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
