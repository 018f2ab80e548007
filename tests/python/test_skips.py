"""No test is skipped for what kvtrie is or is not (skips.py)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import skips

FOLDER = Path(__file__).parent


def text_of(node: ast.expr) -> str | None:
    """A constant, or an f-string with an x for each of its values; None: something else, as a call."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "x" for part in node.values)
    return None


def reasons(path: Path) -> Iterator[tuple[str, str]]:
    """Each place that skips, and why."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = [each.value for each in node.keywords if each.arg == "reason"]
        if name == "pytest.skip":
            given = node.args[:1]
        elif name != "pytest.mark.skipif":
            continue
        yield from ((f"{path.name}:{node.lineno}", text) for each in given if (text := text_of(each)) is not None)


def test_every_reason_is_one_that_may_be() -> None:
    found = [each for path in sorted(FOLDER.glob("*.py")) for each in reasons(path)]
    assert len(found) > 20
    assert [each for each in found if not skips.known(each[1])] == []


@pytest.mark.parametrize("reason", ["caches of all kinds are not built yet", "Skipped: later", "", "needs rooted"])
def test_others_are_not(reason: str) -> None:
    assert not skips.known(reason)


def test_ci_lacks_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "could not import 'torch': No module named 'torch'"
    monkeypatch.setattr(skips, "CIRCLE", "test")
    assert skips.known(said)
    monkeypatch.setattr(skips, "CIRCLE", "ci")
    assert not skips.known(said)
