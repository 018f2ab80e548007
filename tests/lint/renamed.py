"""Finds names of kvtrie that moved (python/kvtrie/_moved.py) in texts and code, and writes the new ones.

    python3 tests/lint/renamed.py [--write] [FILE ...]     all that git has, unless files are named

Prints each line as it is to be, and exits with 1 where it found any. Needs nothing that is built.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "python" / "kvtrie" / "_moved.py"
READ = (".py", ".pyi", ".md", ".ipynb", ".toml", ".yml", ".cpp", ".h")
# Where an old name is meant: the history, the table and its test.
HISTORY = ("CHANGELOG.md", "python/kvtrie/_moved.py", "tests/python/test_surface.py", "docs/results/")
ERRORS = ("CacheFull", "NotRestorable", "NotSupported")  # also written alone, as C++ has kinds of the same names
ALONE = ("docs/", "README.md", "python/", "tests/python/", "tests/typing/", "examples/", "bench/")


@cache
def moved() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("moved", TABLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    table: dict[str, str] = module.MOVED
    return table


# The functions of two packages have the names that the packages had.
PACKAGES = (
    (re.compile(r"kvtrie([./])simulate(?=[./]| import\b)"), r"kvtrie\1replay"),
    (re.compile(r"kvtrie([./])scale\b(?!:app)"), r"kvtrie\1ray\1scale"),
)


@cache
def patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Names behind ``kv`` or ``kvtrie``, and names of errors by themselves."""
    names = "|".join(sorted(moved().keys() - {"scale"}, key=len, reverse=True))
    return re.compile(rf"(?<![\w./<])(kv|kvtrie)\.({names})\b"), re.compile(rf"(?<![\w:])({'|'.join(ERRORS)})\b(?!::)")


def rewritten(name: str, text: str) -> str:
    """The text of the file of this name with the new names."""
    table, (behind, alone) = moved(), patterns()
    for pattern, new in PACKAGES:
        text = pattern.sub(new, text)
    text = behind.sub(lambda found: f"{found[1]}.{table[found[2]]}", text)
    if name.startswith(ALONE):
        text = alone.sub(lambda found: table[found[1]].removeprefix("errors."), text)
    return text


def changes(name: str, text: str) -> Iterator[tuple[int, str]]:
    """The lines that name what moved, by number, and what they are to say."""
    new = rewritten(name, text)
    for number, (old_line, new_line) in enumerate(zip(text.split("\n"), new.split("\n")), 1):
        if old_line != new_line:
            yield number, new_line


def main() -> int:
    write, names = "--write" in sys.argv[1:], [each for each in sys.argv[1:] if each != "--write"]
    if not names:
        names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    found = 0
    for name in names:
        if not name.endswith(READ) or name.startswith(HISTORY) or not (ROOT / name).is_file():
            continue
        text = (ROOT / name).read_text(encoding="utf-8")
        for number, line in changes(name, text):
            found += 1
            print(f"{name}:{number}: {line.strip()[:140]}")
        if write:
            (ROOT / name).write_text(rewritten(name, text), encoding="utf-8")
    return found > 0


if __name__ == "__main__":
    sys.exit(main())
