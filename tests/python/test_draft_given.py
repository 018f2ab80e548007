"""What is given as a drafter, and by one: refused by name, whatever the value does when it is shown."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from kvtrie import _devices, _draft_tree, _prediction_head, draft
from kvtrie.draft import PromptLookup, drafters
from random_models import VOCAB, random_model
from test_draft import eager, make_cache, prompt

__all__ = ["eager"]
pytestmark = pytest.mark.usefixtures("nothing_left_over")


@pytest.mark.parametrize(
    ("draft", "error"),
    [
        ("suffixes", r'\[generate\] draft: got \'suffixes\' \(str\), allowed "prompt", "tree"'),
        (5, r"\[generate\] draft: got "),
        (["tree", 5], r"\[generate\] draft: got "),
    ],
)
def test_what_is_no_drafter_is_refused(draft: Any, error: str) -> None:
    with pytest.raises(kv.Error, match=error):
        drafters(draft, random_model("dense"))


@pytest.mark.usefixtures("eager")
def test_what_a_callable_gives_is_checked() -> None:
    model = random_model("dense")
    with make_cache(model) as cache, cache.begin(prompt(7)) as session:
        for given in ([0.5], ["a"], 3):
            made = kv.generate(model, session, 5, ignore_eos=True, draft=lambda _tokens, _most, given=given: given)
            with pytest.raises(kv.Error, match="draft"):
                list(made)
        with pytest.raises(kv.errors.ArgumentError, match="97"):
            list(kv.generate(model, session, 5, ignore_eos=True, draft=lambda _tokens, _most: [VOCAB]))
    with pytest.raises(kv.errors.ArgumentError, match="all_rows"):
        kv.generate(lambda step: model(step), prompt(7), draft="tree", ignore_eos=True)


class Unshown(Exception):
    """That a value raises which is to be shown."""


class Text(str):
    def __repr__(self) -> str:
        raise Unshown


class Number(int):
    def __repr__(self) -> str:
        raise Unshown


class Model:
    """One without a prediction head."""

    def __repr__(self) -> str:
        raise Unshown


class Headed(Model):
    mtp = object()


@pytest.mark.parametrize(
    "given",
    [
        lambda: drafters(Text("suffixes"), random_model("dense")),
        lambda: PromptLookup(Number(0)),
        lambda: kv.DraftTree(Text("prompt")),
        lambda: kv.PredictionHead(Model()),  # type: ignore[arg-type]
        lambda: kv.PredictionHead(Headed(), make_cache(random_model("dense"))).drafter(Headed()),  # type: ignore[arg-type]
        lambda: kv.Device(Text("no device has this name")),
    ],
)
def test_a_value_that_cannot_be_shown_is_refused_all_the_same(given: Callable[[], Any]) -> None:
    with pytest.raises(kv.errors.ArgumentError, match=r"^\[\w+\] .*got .*a value \(\w+\), allowed "):
        given()


@pytest.mark.parametrize("module", [draft, _draft_tree, _prediction_head, _devices])
def test_no_message_asks_a_value_for_its_repr(module: Any) -> None:
    """In what is raised; ``_arguments.shown`` asks, and bears what the value does then."""
    source = ast.parse(Path(module.__file__).read_text())
    for raised in (node for node in ast.walk(source) if isinstance(node, ast.Raise)):
        for part in ast.walk(raised):
            assert not (isinstance(part, ast.FormattedValue) and part.conversion == ord("r")), ast.unparse(raised)
