"""One word for one thing: what docs/glossary.md rules out is in no text, comment or identifier."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split("|")]
    for line in GLOSSARY.read_text(encoding="utf-8").splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| term"))
]
INSTEAD = {word.strip(): row[0] for row in ROWS for word in row[3].split(",") if word.strip()}
# Plain English that a reader stumbles over, and what says the same.
UNNATURAL = {"tell of": "report", "tells of": "reports", "says of": "says about", "wish": "request"}

# Words that are for one thing in the code, or for none: the files that have it.
OWNERS = {
    "part": (),
    "piece": (
        "csrc/cache/cell_pool",
        "csrc/cache/causal_cache",
        "csrc/prefix_cache/prefix_cache.h",
        "csrc/prefix_cache/inspect.cpp",
        "python/bindings/prefix_cache_stats.cpp",
    ),
}
TEXTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs", "examples")
SOURCES = ("csrc", "kernels", "python/bindings", "tests/cpp", "tests/oracle")
CODE = (
    "csrc",
    "kernels",
    "python/bindings",
)  # where "part" names nothing and "piece" one thing; elsewhere they are plain English
PYTHON = ("python/kvtrie", "tests/python")
SUFFIXES = {".md", ".h", ".cpp", ".cl", ".clh", ".py", ".pyi", ".txt"}


@cache
def files(under: tuple[str, ...]) -> list[str]:
    found = []
    for name in under:
        path = ROOT / name
        found += [path] if path.is_file() else sorted(path.rglob("*"))
    names = [path.relative_to(ROOT).as_posix() for path in found if path.suffix in SUFFIXES and path.is_file()]
    return [n for n in names if n not in ("docs/glossary.md", "tests/python/test_words.py") and "docs/results" not in n]


def as_words(text: str) -> str:
    """In lower case, identifiers taken apart, lines of a comment joined: "kGivesUp", "gives // up" are "gives up"."""
    text = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text)
    return re.sub(r"\s+(?:(?://+|#+|\*) *)?", " ", text).lower()


def uses(word: str, text: str) -> int:
    forms = " ".join(f"{each}(?:s|es|ed|ing)?" for each in word.split())
    return len(re.findall(rf"\b{forms}\b", text))


def code_of(text: str) -> str:
    """A C++ or OpenCL source without comments and strings."""
    return re.sub(r'//[^\n]*|/\*.*?\*/|R"\(.*?\)"|"(?:\\.|[^"\\\n])*"', " ", text, flags=re.S)


@cache
def found(word: str) -> list[str]:
    """The files in which a word is that has no place there."""
    names = files(CODE if word in OWNERS else TEXTS + SOURCES + PYTHON)
    return [n for n in names if uses(word, words_of(n, word in OWNERS)) and not n.startswith(OWNERS.get(word, ()))]


@cache
def words_of(name: str, code_only: bool) -> str:
    text = (ROOT / name).read_text(encoding="utf-8")
    return as_words(code_of(text) if code_only else text)


def test_words_are_found_in_every_form() -> None:
    assert uses("give up", as_words("void GiveUp(); kGives_up // what it gives\n  // up")) == 3
    assert uses("stretch", as_words("kStretches, stretch_begin, outstretched")) == 2
    assert "part" not in code_of("// a part\ncall(\"part\", 'x'); /* part */")
    assert len(INSTEAD) > 10


@pytest.mark.parametrize("word", [*INSTEAD, *UNNATURAL, *OWNERS])
def test_a_word_that_is_ruled_out_is_used_nowhere(word: str) -> None:
    assert found(word) == [], f"'{word}': say {INSTEAD.get(word) or UNNATURAL.get(word) or 'another word'!r}"


def test_the_glossary_is_in_order() -> None:
    terms = [row[0] for row in ROWS]
    assert terms == sorted(terms, key=lambda term: re.sub(r"[^a-z ]", "", term.lower()))
    assert len(terms) == len(set(terms)) > 60
    assert all(row[1] for row in ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_the_code_calls_it_is_there(row: list[str]) -> None:
    for name in re.findall(r"`([^`]+)`", row[2]):
        if "/" in name:
            assert (ROOT / name).exists(), name
            continue
        last = re.split(r"::|\.", name)[-1]
        assert any(
            re.search(rf"\b{last}\b", (ROOT / f).read_text(encoding="utf-8")) for f in files(SOURCES + PYTHON)
        ), name
