"""Answers that a pattern matches, that are one of several texts, or that follow a grammar: by each of their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvtrie.serve import rules
from kvtrie.serve.rules import Rule
from kvtrie.serve.wrong_fields import FieldError
from processes import PATIENCE
from serving import Served, served, tiny_model
from small_templates import WITH_TOOLS

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES: dict[str, Any] = {CHAT: {"messages": [{"role": "user", "content": "Which?"}]}, TEXT: {"prompt": "Which? "}}
PATTERN = r"[a-c]{2}/\d\d"
CHOICES = ["a cache", 'a "lock"\n', "é/☃"]
GBNF = 'root ::= item ("; " item){1,2}\nitem ::= [x-z]+ "!"  # two or three'
LARK = 'start: ITEM ("; " ITEM)~1..2\nITEM: /[x-z]+!/'
ITEMS = r"[x-z]+!(; [x-z]+!){1,2}"
TOOLS = [{"type": "function", "function": {"name": "measure", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(WITH_TOOLS), temperature=1.0) as running:
        yield running


def asked(server: Served, path: str, **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={**BODIES[path], "max_tokens": 60, **fields}, timeout=PATIENCE)


def answer(server: Served, path: str, **fields: Any) -> str:
    response = asked(server, path, **fields)
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    assert choice["finish_reason"] == "stop", choice
    return str(choice["text"] if path == TEXT else choice["message"]["content"])


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"guided_regex": PATTERN}, PATTERN),
        ({"regex": f"^{PATTERN}$"}, PATTERN),
        ({"structured_outputs": {"regex": PATTERN}}, PATTERN),
        ({"guided_choice": CHOICES}, "|".join(map(re.escape, CHOICES))),
        ({"structured_outputs": {"choice": CHOICES}}, "|".join(map(re.escape, CHOICES))),
        ({"grammar": GBNF}, ITEMS),
        ({"guided_grammar": LARK}, ITEMS),
        ({"ebnf": GBNF}, ITEMS),
        ({"structured_outputs": {"grammar": LARK}}, ITEMS),
    ],
)
def test_an_answer_is_what_was_asked_for(server: Served, path: str, fields: Any, wanted: str) -> None:
    for seed in (1, 2):
        text = answer(server, path, **fields, logit_bias=ends_soon(server, "!"), seed=seed)
        assert re.fullmatch(wanted, text), (seed, text)


def ends_soon(server: Served, sign: str) -> dict[str, float]:
    """So that a random model does not repeat itself for as long as it may."""
    return {str(token): 100.0 for token in server.engine.model.tokenizer.encode(sign, add_special_tokens=False)}


def test_beside_tools_it_is_a_call_or_that(server: Served) -> None:
    for fields in ({"guided_choice": ["yes", "no"]}, {"guided_regex": "yes|no"}):
        for seed in range(3):
            response = asked(server, CHAT, tools=TOOLS, seed=seed, max_tokens=200, **fields)
            message = response.json()["choices"][0]["message"]
            assert message["content"] in ("yes", "no") or message["tool_calls"][0]["function"]["name"] == "measure"
    response = asked(server, CHAT, tools=TOOLS, grammar=GBNF)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "grammar")
    message = asked(server, CHAT, tools=TOOLS, tool_choice="required", guided_choice=["yes"], max_tokens=200).json()
    assert message["choices"][0]["message"]["tool_calls"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "(?=a)b"}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_regex": "a\\"}, "guided_regex"),
        ({"guided_regex": "a|/ b: /c"}, None),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", ""]}, "guided_choice.1"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
        ({"grammar": "root ::= missing"}, "grammar"),
        ({"grammar": "no grammar"}, "grammar"),
        ({"grammar": "(" * 5000}, "grammar"),
        ({"ebnf": 'item ::= "a"'}, "ebnf"),
        ({"grammar": "start: missing"}, "grammar"),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.json"),
    ],
)
def test_what_is_none_is_refused_by_its_name(server: Served, fields: Any, param: Any) -> None:
    response = asked(server, TEXT, **fields)
    if param is None:
        assert response.status_code == 200
        return
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert f"{param}: " in error["message"]


def test_a_pattern_stays_between_its_slashes() -> None:
    assert Rule("pattern", r"a/b\/c\\/[/]", "regex").expression() == r"/a\/b\/c\\\/[\/]/"
    assert Rule("pattern", "a\nb", "regex").expression() == r"/a\nb/"


def test_several_answers_share_a_translation(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[str] = []
    elsewhere = rules.elsewhere
    monkeypatch.setattr(rules, "elsewhere", lambda program, text: asked_for.append(text) or elsewhere(program, text))
    for _ in range(2):
        assert asked(server, TEXT, grammar='root ::= "of sixteen"', n=16).status_code == 200
    assert len(asked_for) == 1


def test_where_there_can_be_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Rule("grammar", GBNF, "grammar").lark()
    rules._translated.cache_clear()
    monkeypatch.setattr(rules._child, "possible", lambda: False)
    assert Rule("grammar", GBNF, "grammar").lark() == elsewhere
    with pytest.raises(FieldError, match="grammar: got what is no grammar"):
        Rule("grammar", "no grammar", "grammar").lark()


def test_a_grammar_that_takes_long_to_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_TRANSLATION", "while True: pass")
    rules._translated.cache_clear()
    with pytest.raises(FieldError, match="takes more to read"):
        Rule("grammar", GBNF, "grammar").lark()
