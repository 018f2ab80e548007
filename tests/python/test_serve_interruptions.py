"""Requests to servers, fleets and Ray's actors that are interrupted anywhere: a right answer or an error, and no trace.

The sweeps are serve_interruption_worker.py's: the default circle plays a few of their points, soak all. What they found
is here once more by itself.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from circles import CIRCLE, SOAK
from interruptions import Place, Visit
from kvtrie.models.chat_template import ChatTemplate
from kvtrie.models.prompts import OwnText
from kvtrie.ray.scale.routing import Ledger, Prompt, Replica
from kvtrie.ray.scale.shortlist import Index
from kvtrie.serve.grammar import Grammars
from kvtrie.serve.journal import Journal
from kvtrie.serve.replays import Replays
from kvtrie.serve.tool_calls import syntax_of
from kvtrie.serve.tool_grammar import grammar_for_tools
from processes import PATIENCE, run_python
from scale_engine import plain_model
from serve_ways import TOOLS
from small_templates import WITH_TOOLS

WORKER = Path(__file__).with_name("serve_interruption_worker.py")
SWEEPS = (  # what, ways, points of each way
    pytest.param("errors", "chat_streams,messages", 4, id="a-few"),
    pytest.param("errors", "all", 4, marks=pytest.mark.ci),
    pytest.param("watched", "chat_stream,explain", 6, marks=pytest.mark.ci),
    pytest.param("threads", "chat_tools,messages", 8, marks=pytest.mark.ci),
    pytest.param("cold", "chat_tools", 5, marks=pytest.mark.ci),
    pytest.param("steps", "chat_schema", 6, marks=pytest.mark.ci),
    pytest.param("leaving", "chat,chat_streams,messages_tools", 0, marks=pytest.mark.ci),
    pytest.param("closing", "chat,text_stream,messages_tools", 4, marks=pytest.mark.ci),
    pytest.param("fleet", "chat_streams,messages", 8, marks=pytest.mark.ci),
    pytest.param("routes", "-", 40, marks=pytest.mark.ci),
    pytest.param("rows", "-", 12, marks=pytest.mark.ci),
    pytest.param("scores", "-", 8, marks=pytest.mark.soak),
    pytest.param("closes", "-", 6, marks=pytest.mark.ci),
)
NEED_RAY = ("fleet", "routes", "rows", "scores")


class Placed(Exception):
    """What is raised at a point."""


@pytest.mark.parametrize(("what", "ways", "points"), SWEEPS)
def test_a_request_that_is_interrupted(what: str, ways: str, points: int) -> None:
    if what in NEED_RAY:
        pytest.importorskip("ray")
        pytest.importorskip("pyarrow")
    if SOAK:
        ways, points = "all", 0
    ended = run_python(WORKER, what, ways, points, 1, timeout=PATIENCE * (100 if SOAK else 1))
    assert ended.returncode == 0, ended.stderr[-3000:]
    report = json.loads(ended.stdout)
    print(report)
    assert report["wrongs"] == 0, report["wrong"]
    assert report["played"] > 0


# ---- what a text is kept to ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [None, "</think>"])
def test_a_choice_that_was_interrupted_is_made_again(behind: Any) -> None:
    """At every point of a processor: the next call for the same position allows what it would have allowed."""
    model = plain_model(check=False)
    syntax = syntax_of(WITH_TOOLS)
    assert syntax is not None
    grammar = grammar_for_tools(syntax, TOOLS, True)
    assert grammar is not None
    known = Grammars(model).lark(grammar, behind)
    tokens, masks = called(known, model, behind)
    points = 0
    for position in range(len(masks)) if SOAK else (1, len(masks) - 2):
        for at in range(1, 60):
            processor = again(known)
            for before in range(position):
                mask_of(processor, tokens[: 1 + before], model)
            if not interrupted(lambda: mask_of(processor, tokens[: 1 + position], model), at):  # noqa: B023
                break
            points += 1
            for after in range(position, min(position + 3, len(masks))):
                assert (mask_of(processor, tokens[: 1 + after], model) == masks[after]).all(), (position, at, after)
    assert points > 20


def again(processor: Any) -> Any:
    """Another processor of the same grammar, which is compiled once."""
    kind = type(processor)
    tokens = SimpleNamespace(eos_tokens=list(processor._ends))
    return kind(processor._fresh, tokens, processor._behind, processor._tokenizer, processor._where)


def called(processor: Any, model: Any, behind: Any) -> tuple[list[int], list[Any]]:
    """Token ids of a text, the first one being the prompt, and what was allowed behind each."""
    tokens = [5]
    for token in model.tokenizer.encode(f"so{behind}") if behind else []:
        mask_of(processor, tokens, model)
        tokens.append(token)
    prefix = len(tokens) - 1
    masks = []
    for _ in range(12):
        masks.append(mask_of(processor, tokens, model))
        tokens.append(int(np.flatnonzero(masks[-1])[0]))
    all_masks = [np.ones(model.config.vocab_size, bool)] * prefix + masks
    return tokens, all_masks


def mask_of(processor: Any, tokens: list[int], model: Any) -> Any:
    logits = np.zeros(model.config.vocab_size, np.float32)
    processor(np.asarray(tokens, np.int32), logits)
    return logits == 0


def interrupted(call: Callable[[], Any], at: int, *folders: str) -> bool:
    """Whether there was such a point."""

    def act(_: Place) -> None:
        raise Placed

    visit = Visit(act, at, folders=folders or ("serve/grammar",))
    try:
        with visit:
            call()
    except Placed:
        pass
    return visit.place is not None


def test_a_probe_without_memory_finds_nothing_out() -> None:
    """What a template reads is found by rendering, and kept: a failed allocation is no refusal of the template's."""
    where = ("models/template",)
    with Visit(folders=where) as every:
        wanted = ChatTemplate(WITH_TOOLS).reads
    chance = random.Random(1)

    def act(_: Place) -> None:
        raise MemoryError("placed")

    for at in range(1, every.count) if SOAK else chance.sample(range(1, every.count), 50 if CIRCLE == "ci" else 5):
        visit = Visit(act, at, folders=where)
        template = None
        with contextlib.suppress(MemoryError), visit:
            template = ChatTemplate(WITH_TOOLS)
            assert template.reads == wanted
        if template is not None:
            assert template.reads == wanted, visit.place


# ---- what is counted -------------------------------------------------------------------------------------------------


def test_a_journal_counts_each_request_once() -> None:
    request: Any = Asked()
    for at in range(1, 200):
        journal, entries = Journal(), []

        def both(journal: Journal = journal, entries: list[Any] = entries) -> None:
            entries.append(journal.begin("chat", "default", request))
            journal.end(entries[0], "stop", 3, 4)

        if not interrupted(both, at, "serve"):
            break
        for entry in entries:
            journal.end(entry, "stop", 3, 4)
        lost = Asked()
        journal.begin("chat", "default", lost)  # type: ignore[arg-type]
        del lost
        begun = len(journal.entries)
        assert begun in (1, 2, 3)
        ended = journal.outcomes
        assert ended.get("stop", 0) == len(entries) and ended["cancelled"] == 1
        assert journal.totals["generated_tokens"] == 4 * len(entries)
    assert at > 20


class Asked:
    """As much of a request as a journal sees."""

    prompt_tokens = 5


def test_replays_know_how_much_they_keep() -> None:
    for at in range(1, 200):
        replays = Replays(most=3, most_characters=20)
        for number in range(3):
            replays.keep("a", OwnText("12345"), {f"{number}": ("f", "{}")})
        if not interrupted(lambda: replays.keep("a", OwnText("123456789"), {"x": ("f", "{}")}), at, "serve"):  # noqa: B023
            break
        replays.keep("a", OwnText("1234567"), {"y": ("f", "{}")})
        assert replays._characters == sum(len(each.text) for each in replays._kept.values()) <= 20
        assert 1 <= len(replays._kept) <= 3
    assert at > 5


def test_a_ledger_and_an_index_go_on_from_any_point() -> None:
    dice = random.Random(1)
    before, now = (frozenset(dice.sample(range(30), 10)) for _ in range(2))
    for at in range(1, 500):
        index: Index[str] = Index()
        index.turn("a", before)
        index.turn("b", before)
        if not interrupted(lambda: index.turn("a", now), at, "ray/scale"):  # noqa: B023
            break
        index.turn("a", frozenset(range(5)))
        held = {each for each in range(30) if "a" in index.holders(each)}
        assert held == set(range(5)) and {each for each in range(30) if "b" in index.holders(each)} == before
        index.turn("a", frozenset())
        index.turn("b", frozenset())
        assert not index._holders and not index._held
    assert at > 20
    for at in range(1, 500):
        ledger: Ledger[str] = Ledger()
        replica: Replica[str] = Replica("a", version=1)
        ledger.sent(Prompt(100, (1, 2)), replica, 100, "x")
        replica.version = 2
        if not interrupted(lambda: ledger.sent(Prompt(60, (3,)), replica, 60, "y"), at, "ray/scale"):  # noqa: B023
            break
        ledger.done("a", "x")
        assert ledger.load(replica) in (0, 60)
        ledger.done("a", "y")
        assert ledger.load(replica) == 0
    assert at > 5
