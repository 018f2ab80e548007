#!/usr/bin/env python3
"""Sources that are compiled as one unit must not have a function or a constant of the same name in their anonymous
namespaces: the compiler takes two functions for overloads, and the one file may call the other's.

Its argument is a build folder with units. An alias or a class that two files share is the compiler's to judge.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

PRIVATE = re.compile(r"^namespace \{\n(.*?)^\}  // namespace$", re.DOTALL | re.MULTILINE)
# What clang-format leaves at the beginning of a line, up to the name that is declared.
DECLARED = re.compile(
    r"^(?!using |struct |class |enum |template |TEST|INSTANTIATE)[A-Za-z][^(={;]*?(\w+)(?:\(|\[|\{| = )", re.MULTILINE
)


def declared(path: str) -> set[str]:
    blocks = PRIVATE.findall(Path(path).read_text(encoding="utf-8"))
    return {name for block in blocks for name in DECLARED.findall(block)}


def clashes(unit: Path) -> list[str]:
    where = defaultdict(list)
    for path in re.findall(r'^#include "(.*)"$', unit.read_text(encoding="utf-8"), re.MULTILINE):
        for name in declared(path):
            where[name].append(path)
    return [f"{name}: in {' and in '.join(paths)}" for name, paths in sorted(where.items()) if len(paths) > 1]


def main() -> int:
    commands = json.loads((Path(sys.argv[1]) / "compile_commands.json").read_text(encoding="utf-8"))
    units = sorted(Path(entry["file"]) for entry in commands if Path(entry["file"]).name.startswith("unity_"))
    if not units:
        print(f"no units in {sys.argv[1]}: was it configured with KVTRIE_UNITY=OFF?")
        return 1
    found = [line for unit in units for line in clashes(unit)]
    print("\n".join([*found, f"{len(units)} units"]))
    return 1 if found else 0


sys.exit(main())
