"""Tool calls whose arguments are text about tool calls, and calls that are only quoted."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrie.serve.quotes import Quotes
from kvtrie.serve.tool_calls import syntax_of

TEMPLATES = {
    "functions": "<tool_call>\n<function=example>\n<parameter=a>\n</parameter>\n</function>\n</tool_call>",
    "tagged": '<tool_call>\n{"name": ...}\n</tool_call>',
    "fenced": 'Answer with\n```json\n{"name": ...}\n```',
}
TOOLS = {"write": {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}}


def read(kind: str, pieces: Sequence[str]) -> tuple[str, list[dict[str, object]]]:
    syntax = syntax_of(TEMPLATES[kind])
    assert syntax is not None
    reader = syntax.reader(TOOLS)
    text = "".join(map(reader.feed, pieces)) + reader.finish()
    return text, [json.loads(each.arguments) for each in reader.calls]


def cut(said: str) -> list[list[str]]:
    return [[said[at : at + size] for at in range(0, len(said), size)] for size in (1, 3, 11, len(said))]


def written(content: str, tagged: bool = True) -> str:
    path = "<parameter=path>\na.py\n</parameter>"
    call = f"<function=write>\n{path}\n<parameter=content>\n{content}\n</parameter>\n</function>"
    return f"<tool_call>\n{call}\n</tool_call>" if tagged else call


VALUES = [
    "</parameter>",
    "</parameter>\n</function>",
    "x = 1\n</parameter>\n</function>\n# end",
    "</function>",
    "</tool_call>",
    "</parameter>\n</function>\n</tool_call>\n</parameter>",
    "print('</parameter>')\nprint('</function>')",
    "</parameter>\n<parameter=other>\n1",  # the tool has no such parameter
    "</parameter>\n<parameter=path>\nagain",  # and this one was given
    "<parameter=content>\n1\n</parameter>\n<parameter=b>\n2\n</parameter>",
    "<tool_call>\n<function=write>\n<parameter=content>\nx\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=write>\n<parameter=content>\nx\n</parameter>\n</function>\n</tool_call>\nand text",
    "```\n<function=f>\n</function>\n```",
    "if text.startswith('<tool_call>'):",  # opens what it does not close
    "<function=",
    "`</parameter></function>`",
]


# Behind a closing tag, an untagged call has ended.
UNTAGGED = [value for value in VALUES if "</tool_call>\n</parameter>" not in value]


@pytest.mark.parametrize(
    ("value", "tagged"), [*((value, True) for value in VALUES), *((value, False) for value in UNTAGGED)]
)
def test_values_have_delimiters_in_them(value: str, tagged: bool) -> None:
    for pieces in cut(written(value, tagged)):
        assert read("functions", pieces) == ("", [{"path": "a.py", "content": value}])


@pytest.mark.parametrize("value", VALUES)
def test_calls_behind_such_a_call_are_found(value: str) -> None:
    said = f"First.\n{written(value)}\n{written('two')}\n{written('three')}"
    for pieces in cut(said):
        text, calls = read("functions", pieces)
        assert text == "First." and [each["content"] for each in calls] == [value, "two", "three"]


@given(
    st.lists(st.sampled_from([*VALUES, written("x"), written("y", False), "\n", "```\n", "`", "z"]), max_size=6),
    st.data(),
)
def test_cuts_change_nothing(parts: list[str], data: st.DataObject) -> None:
    said = "".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=12)))
    pieces = [said[start:end] for start, end in zip([0, *cuts], [*cuts, len(said)])]
    for kind in TEMPLATES:
        assert read(kind, pieces) == read(kind, [said]) == read(kind, list(said))


@pytest.mark.parametrize(
    "part", ["</parameter>", "</parameter>\n<parameter=z>", "<tool_call>", "</function>\n", "`", "```\n"]
)
def test_hostile_values_take_time_in_proportion(part: str) -> None:
    began = time.thread_time()  # whatever else the machine does
    said = written(part * (30_000 // len(part)))
    for pieces in ([said[at : at + 50] for at in range(0, len(said), 50)], [said]):
        read("functions", pieces)
    assert time.thread_time() - began < 20


# --- quotes -----------------------------------------------------------------------------------------------------------

TAGGED = '<tool_call>\n{"name": "write", "arguments": {"path": "a"}}\n</tool_call>'
QUOTED = [
    "```\n{}\n```",
    "As here:\n```xml\n{}\n```\nThat is all.",
    "~~~\n{}\n~~~",
    "````\n```\n{}\n```\n````",
    "  ```\n{}\n  ```",
    "- so:\n    ```\n{}\n    ```",
    "```\ncode\n```python\n{}\n```",  # which is no end, as more stands there
    "```\n{}",  # never ends
    "Write `{}` for it.",
    "Write ``a ` {}`` for it.",
]
PLAIN = [
    "```\ncode\n```\n{}",
    "`code` {}",
    "`a`\n{}",
    "It`s so.\n{}",
    "~~\n{}",
    "````\ncode\n````\n{}",
    "a ``` b ```\n{}",
]


@pytest.mark.parametrize("form", QUOTED)
@pytest.mark.parametrize("kind", ["tagged", "functions"])
def test_a_call_that_is_quoted_is_text(kind: str, form: str) -> None:
    said = form.replace("{}", TAGGED if kind == "tagged" else written("x"))
    for pieces in cut(said):
        assert read(kind, pieces) == (said, [])


@pytest.mark.parametrize("form", PLAIN)
@pytest.mark.parametrize("kind", ["tagged", "functions"])
def test_a_call_beside_a_quotation_is_a_call(kind: str, form: str) -> None:
    said = form.replace("{}", TAGGED if kind == "tagged" else written("x"))
    for pieces in cut(said):
        text, calls = read(kind, pieces)
        assert len(calls) == 1 and "write" not in text


def test_a_fence_may_be_the_call_itself() -> None:
    call = '```json\n{"name": "write", "arguments": {"path": "a"}}\n```'
    for before in ("", "So:\n", "```\ncode\n```\n", "```json\n[1]\n```\n"):
        for pieces in cut(before + call):
            text, calls = read("fenced", pieces)
            assert calls == [{"path": "a"}] and text.strip() == before.strip()
    quoted = f"````\n{call}\n````"
    for pieces in cut(quoted):
        assert read("fenced", pieces) == (quoted, [])


@given(st.text("`~\n ax", max_size=40), st.data())
def test_quotes_do_not_depend_on_cuts(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    whole, parts = Quotes(), Quotes()
    whole.feed(text)
    parts.feed(text[:at])
    parts.feed(text[at:])
    assert whole.around() == parts.around()
