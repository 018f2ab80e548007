"""Finds names of kvtrie that moved (python/kvtrie/_moved.py) in texts and code, and writes the new ones.

    python3 tests/lint/renamed.py [--write] [FILE ...]     all that git has, unless files are named

Prints `file:line: old -> new` and exits with 1 where it found any. Needs nothing that is built.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "python" / "kvtrie" / "_moved.py"
READ = (".py", ".pyi", ".md", ".ipynb", ".toml", ".yml", ".cpp", ".h")
# Where an old name is meant: the history, the table and its test.
HISTORY = ("CHANGELOG.md", "python/kvtrie/_moved.py", "tests/python/test_surface.py", "docs/results/")
ERRORS = ("CacheFull", "NotRestorable", "NotSupported")  # also written alone, as C++ has kinds of the same names
ALONE = ("docs/", "README.md", "python/", "tests/python/", "tests/typing/", "examples/", "bench/")


def moved() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("moved", TABLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table: dict[str, str] = module.MOVED
    return table


def patterns(name: str) -> list[tuple[re.Pattern[str], str]]:
    """What to look for in the file of this name, in order, and what to write for it."""
    table = moved()
    # The functions of two packages have the names that the packages had.
    found = [
        (re.compile(r"kvtrie([./])simulate(?=[./]| import\b)"), r"kvtrie\1replay"),
        (re.compile(r"kvtrie([./])scale\b(?!:app)"), r"kvtrie\1ray\1scale"),
    ]
    for old in sorted(table.keys() - {"scale"}, key=len, reverse=True):
        found.append((re.compile(rf"(?<![\w./<])(kv|kvtrie)\.{old}\b"), rf"\1.{table[old]}"))
    if name.startswith(ALONE):
        for old in ERRORS:
            new = table[old].removeprefix("errors.")
            found.append((re.compile(rf"(?<![\w:]){old}\b(?!::)"), new))
    return found


def rewritten(name: str, text: str) -> str:
    for pattern, new in patterns(name):
        text = pattern.sub(new, text)
    return text


def main() -> int:
    write, names = "--write" in sys.argv[1:], [each for each in sys.argv[1:] if each != "--write"]
    if not names:
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    found = 0
    for name in names:
        if not name.endswith(READ) or name.startswith(HISTORY) or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        new = rewritten(name, text)
        for number, (old_line, new_line) in enumerate(zip(text.split("\n"), new.split("\n")), 1):
            if old_line != new_line:
                found += 1
                print(f"{name}:{number}: {new_line.strip()[:140]}")
        if write and new != text:
            (ROOT / name).write_text(new, encoding="utf-8")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
