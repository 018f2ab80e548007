"""Files that texts and comments name are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".md", ".h", ".cpp", ".cl", ".clh", ".py", ".pyi", ".cmake", ".txt"}
OWN = "tests/python/test_paths.py"
FOLDERS = ("csrc", "kernels", "python", "tests", "bench", "examples", "docs", "cmake", ".ci")
NAME = re.compile(r"(?<![\w./*<{-])((?:[\w.-]+/)*[\w-]+\.(?:h|cpp|cl|clh|py|pyi|md|cmake))(?![\w(*])")
# Names of other projects' files, of files that are made, and of no file in particular.
ELSEWHERE = {
    "CL/cl.h",
    "ggml/src/ggml-common.h",
    "llama.cpp",
    "build/drivers/table.md",
    "bench/NAME.cpp",
    "layer/file.h",
    "name.cl",
    "name.clh",
    "_oracle.cpp",
}


@cache
def ours() -> frozenset[str]:
    names = {path.name for path in ROOT.iterdir() if path.is_file()}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                names.add(path.relative_to(ROOT).as_posix())
    return frozenset(names)


@cache
def endings() -> frozenset[str]:
    """Every name by which a file may be called: its path, or what is left of it without its first folders."""
    return frozenset("/".join(parts[at:]) for name in ours() for parts in [name.split("/")] for at in range(len(parts)))


def comments(name: str, text: str) -> str:
    """What a reader reads: all of a page, else what follows // or # and what is in docstrings."""
    if name.endswith(".md"):
        return text
    if name.endswith((".py", ".pyi")):
        return "\n".join(re.findall(r"#[^\n]*", text) + re.findall(r'"""(.*?)"""', text, flags=re.S))
    return "\n".join(re.findall(r"//[^\n]*|^# [^\n]*", text, flags=re.M))


def missing(name: str) -> list[str]:
    text = comments(name, (ROOT / name).read_text(encoding="utf-8"))
    named = {re.sub(r"^(\.\./)+", "", each) for each in NAME.findall(text)}
    return sorted(named - endings() - ELSEWHERE)


def test_names_are_found_in_comments_only() -> None:
    assert NAME.findall(comments("a.h", "#include <vector.h>\n// see store/blob.h, not blob.cpp.\nopen(x.py);")) == [
        "store/blob.h",
        "blob.cpp",
    ]
    assert NAME.findall(comments("a.py", '"""Of csrc/a.cpp."""\nread("b.cpp")  # c.md')) == ["c.md", "csrc/a.cpp"]
    assert "store/blob.h" in endings() and "store/blob.hpp" not in endings()


@pytest.mark.parametrize("folder", ["", *FOLDERS])
def test_files_that_are_named_are_there(folder: str) -> None:
    names = [
        n for n in ours() if (n.startswith(f"{folder}/") if folder else "/" not in n) and Path(n).suffix in SUFFIXES
    ]
    assert names
    faults = {name: missing(name) for name in sorted(names) if "docs/results" not in name and name != OWN}
    assert {name: found for name, found in faults.items() if found} == {}
