"""Every promise in docs/promises.md names tests that exist, or says why no test remains."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| scenario"))
]
NAMES = sorted(set(re.findall(r"`(\w+::[\w.]+)`", TEXT)))


def sources(stem: str) -> str:
    """The text of a Python test, a C++ test, or an oracle with the headers it is made of."""
    if stem.endswith("_oracle"):
        oracle = ROOT / "tests" / "oracle" / f"{stem}.cpp"
        parts = [*oracle.parent.glob("*.h")] if oracle.exists() else []
        return "\n".join(path.read_text(encoding="utf-8") for path in (oracle, *parts) if path.exists())
    for path in (ROOT / "tests" / "python" / f"{stem}.py", ROOT / "tests" / "cpp" / f"{stem}.cpp"):
        if path.exists():
            return path.read_text(encoding="utf-8")
    return ""


@pytest.mark.parametrize("name", NAMES)
def test_the_test_exists(name: str) -> None:
    stem, test = name.split("::")
    text = sources(stem)
    assert text, f"no file of the name {stem} in tests"
    if "." in test:
        suite, case = test.split(".")
        found = re.search(rf"^TEST(?:_[FP])?\({suite},\s*{case}\)", text, flags=re.M)
    elif stem.endswith("_oracle"):
        found = re.search(rf"^ +(?:[\w:<>&*]+ )+{test}\(", text, flags=re.M)  # what the driver does or checks
    else:
        found = re.search(rf"^def {test}\(", text, flags=re.M)
    assert found, f"no {test} in {stem}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_every_promise_has_a_test_or_a_reason(row: list[str]) -> None:
    scenario, promise, held = row
    assert scenario
    assert promise
    assert re.search(r"`\w+::[\w.]+`", held) or held.startswith("None remains: ")


def test_nothing_is_missing_its_backticks() -> None:
    assert len(re.findall(r"\w+::[\w.]+", TEXT)) == len(re.findall(r"`\w+::[\w.]+`", TEXT))
    assert len(ROWS) > 80
