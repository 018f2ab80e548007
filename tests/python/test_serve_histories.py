"""Conversations as newer clients send them, and how they end: what is said is in the prompt, or is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from kvtrie.models.prompts import OwnText
from kvtrie.serve.openai_schema import ChatMessage
from kvtrie.serve.volatile import VolatileLines
from kvtrie.serve.wrong_fields import ROLE_NOT_SUPPORTED
from kvtrie.thinking.reasoning import reasoning_of
from processes import PATIENCE
from serving import Served, served, tiny_model

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and m.content == 'refused' %}{{ raise_exception('no system') }}"
    "{% endif %}[{{ m.role }}]{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    '{{ m.content or \'\' }}{% for call in m.tool_calls or [] %}<tool_call>\n{"name": "{{ call.function.name }}", '
    '"arguments": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %};{% endfor %}'
    "{% if enable_thinking is defined %}({{ enable_thinking }} {{ reasoning_effort }}){% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


def user(content: Any) -> Any:
    return {"role": "user", "content": content}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(tiny_model(TEMPLATE), temperature=0.0) as running:
        yield running


def asked(server: Served, path: str, messages: Any, **fields: Any) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 1, **fields}
    return httpx.post(server.url + path, json=body, timeout=PATIENCE)


def prompt(server: Served, path: str, messages: Any, **fields: Any) -> str:
    """What the model is shown."""
    shown: list[str] = []
    encoded = server.engine._prompts._encoded

    def recorded(text: str, *rest: Any) -> Any:
        shown.append(text)
        return encoded(text, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.engine._prompts, "_encoded", recorded)
        response = asked(server, path, messages, **fields)
    assert response.status_code == 200, response.text
    return shown[-1]


def refusal(response: httpx.Response) -> str:
    assert response.status_code == 400, response.text
    message: str = response.json()["error"]["message"]
    return message


# ---- Anthropic's -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {}}]])
def test_system_messages_between_others(server: Served, content: Any) -> None:
    messages = [user("hi"), {"role": "system", "content": content}, user("go on")]
    assert "[user]hi;[system]Be brief.;[user]go on;[assistant]" in prompt(server, MESSAGES, messages)
    counted = [
        asked(server, "/v1/messages/count_tokens", each).json()["input_tokens"] for each in (messages, messages[:1])
    ]
    assert counted[0] > counted[1] + 5


def test_a_template_without_such_messages_says_so_in_words_that_clients_know(server: Served) -> None:
    said = refusal(asked(server, MESSAGES, [user("hi"), {"role": "system", "content": "refused"}, user("?")]))
    assert (
        ROLE_NOT_SUPPORTED == "role 'system' is not supported"
    )  # a client looks for "role ... system ... not supported"
    assert said.startswith(f"[serve] messages.1.role: {ROLE_NOT_SUPPORTED}") and "no system" in said


DOCUMENT = {
    "type": "document",
    "title": "A title",
    "source": {"type": "text", "media_type": "text/plain", "data": "Its text"},
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
FOUND = {
    "type": "search_result",
    "source": "https://a.b",
    "title": "A title",
    "content": [{"type": "text", "text": "x"}],
}
BLOCKS: list[tuple[Any, list[str]]] = [
    (DOCUMENT, ["A title", "Its text"]),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "a part"}]}}, ["a part"]),
    ({"type": "document", "source": {"type": "content", "content": "whole"}}, ["whole"]),
    (FOUND, ["https://a.b", "A title", "x"]),
    ({"type": "tool_reference", "tool_name": "lookup"}, ["lookup"]),
    ({"type": "tool_addition", "tool": {"type": "tool_reference", "tool_name": "lookup"}}, ["lookup"]),
    ({"type": "tool_removal", "name": "lookup"}, ["lookup"]),
    ({"type": "server_tool_use", "id": "s", "name": "search", "input": {"query": "q"}}, ["search", '{"query": "q"}']),
    ({"type": "web_search_tool_result", "tool_use_id": "s", "content": [
        {"type": "web_search_result", "title": "A page", "url": "https://c.d", "encrypted_content": "zzz"}]},
     ["A page", "https://c.d"]),
    ({"type": "of_next_year", "text": "words"}, ["words"]),
]  # fmt: skip


@pytest.mark.parametrize(("block", "words"), BLOCKS)
@pytest.mark.parametrize("within", [False, True])
def test_other_blocks_are_read_as_their_text(server: Served, block: Any, words: list[str], within: bool) -> None:
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    shown = prompt(server, MESSAGES, [user("hi"), call, user([result])] if within else [user([block])])
    for each in words:
        assert each in shown
    assert "zzz" not in shown


@pytest.mark.parametrize("block", [
    IMAGE,
    {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}},
    {"type": "document", "source": {"type": "content", "content": [IMAGE]}},
    {"type": "container_upload", "file_id": "f"},
])  # fmt: skip
def test_what_has_no_text_is_refused_by_its_kind_and_place(server: Served, block: Any) -> None:
    text = {"type": "text", "text": "See:"}
    word = (
        "image" if "image" in json.dumps(block).split("media")[0] else "base64" if "source" in block else block["type"]
    )
    said = refusal(asked(server, MESSAGES, [user("a"), user([text, block])]))
    assert said.startswith("messages.1.content.1: got ") and word in said
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text, block]}
    said = refusal(asked(server, MESSAGES, [user("a"), user([result])]))
    assert said.startswith("messages.1.content.0.content.1: got ") and word in said


def test_tools_that_run_elsewhere_are_refused(server: Served) -> None:
    tools = [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}]
    assert refusal(asked(server, MESSAGES, [user("a")], tools=tools)).startswith(
        "tools.1.type: got 'web_search_20250305'"
    )
    assert asked(server, MESSAGES, [user("a")], tools=[{"type": "custom", "name": "f"}]).status_code == 200


def test_thinking_and_effort_are_variables_of_the_template(server: Served) -> None:
    fields = {"thinking": {"type": "disabled"}, "output_config": {"effort": "low"}}
    assert "(False low)" in prompt(server, MESSAGES, [user("a")], **fields)
    assert "(True " in prompt(server, MESSAGES, [user("a")], thinking={"type": "enabled", "budget_tokens": 1024})
    effort = {"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": True}}
    assert "(True high)" in prompt(server, CHAT, [user("a")], **effort)


# ---- OpenAI's --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [
    {"reasoning_content": "why"},
    {"reasoning": "why"},
    {"reasoning_details": [{"type": "reasoning.text", "text": "why"}, {"type": "reasoning.encrypted", "data": "x"}]},
    {"reasoning_details": [{"type": "reasoning.summary", "summary": "why"}]},
])  # fmt: skip
def test_reasoning_in_a_history_has_many_names(server: Served, fields: Any) -> None:
    said = {"role": "assistant", "content": "so", **fields}
    assert "<think>why</think>so" in prompt(server, CHAT, [user("a"), said, user("b")])


def test_older_and_rarer_messages() -> None:
    def shown(**fields: Any) -> Any:
        return ChatMessage.model_validate({"role": "assistant", **fields}).as_dict()

    (call,) = shown(content=None, function_call={"name": "f", "arguments": "{}"})["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": "{}"}
    assert shown(content=None, refusal="No.")["content"] == "No."
    assert shown(content=[{"type": "refusal", "refusal": "No."}])["content"] == [{"type": "text", "text": "No."}]


# ---- the end of a conversation ---------------------------------------------------------------------------------------

CALL = {"id": "c", "type": "function", "function": {"name": "remove", "arguments": '{"path": "notes.txt"}'}}
WRITTEN = '<tool_call>\n{"name": "remove", "arguments": {"path": "notes.txt"}}\n</tool_call>;[assistant]'


@pytest.mark.parametrize("content", [None, "", "I will."])
def test_a_last_message_with_calls_is_a_whole_turn(server: Served, content: Any) -> None:
    said = {"role": "assistant", "content": content, "tool_calls": [CALL]}
    assert prompt(server, CHAT, [user("q"), said]).endswith(f"[assistant]{content or ''}{WRITTEN}")
    blocks = [{"type": "text", "text": content}] if content else []
    use = {"type": "tool_use", "id": "c", "name": "remove", "input": {"path": "notes.txt"}}
    said = {"role": "assistant", "content": [*blocks, use]}
    assert prompt(server, MESSAGES, [user("q"), said]).endswith(f"[assistant]{content or ''}{WRITTEN}")


def test_a_call_that_was_sampled_here_ends_its_turn_too(server: Served) -> None:
    sampled = OwnText.of("Well <tool_call>sampled", [])
    server.engine._replays.keep("default", sampled, {"c9": ("remove", '{"path": "notes.txt"}')})
    said = {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "c9"}]}
    assert prompt(server, CHAT, [user("q"), said]).endswith("[assistant]Well <tool_call>sampled;[assistant]")


def test_a_last_message_with_reasoning_is_a_whole_turn(server: Served) -> None:
    said = {"role": "assistant", "content": "so", "reasoning_content": "why"}
    assert prompt(server, CHAT, [user("q"), said]).endswith("[assistant]<think>why</think>so;[assistant]")
    blocks = [{"type": "thinking", "thinking": "why", "signature": ""}, {"type": "text", "text": "so"}]
    said = {"role": "assistant", "content": blocks}
    assert prompt(server, MESSAGES, [user("q"), said]).endswith("[assistant]<think>why</think>so;[assistant]")


@pytest.mark.parametrize("content", ["so", [{"type": "text", "text": "so"}]])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_a_last_text_is_gone_on_with(server: Served, path: str, content: Any) -> None:
    assert prompt(server, path, [user("q"), {"role": "assistant", "content": content}]).endswith(
        "[user]q;[assistant]so"
    )


@pytest.mark.parametrize(
    ("asked", "begun", "said", "parts"),
    [
        ("assistant\n<think>\n", "It is", " so.\n</think>\n\nYes.", (" so.", "Yes.")),
        ("assistant\n<think>\n", "It is so.\n</think>\n\nYes", " it is.", ("", " it is.")),
        ("assistant\n", "<think>\nIt is", " so.\n</think>\n\nYes.", (" so.", "Yes.")),
        ("assistant\n", "<think>a</think>b", "\nc", ("", "\nc")),
        ("assistant\n", "Yes", "<think>no</think>", ("", "<think>no</think>")),
        ("user<think>assistant\n", " ", "<think>a</think>b", ("a", "b")),
    ],
)
def test_what_was_begun_says_where_an_answer_goes_on(asked: str, begun: str, said: str, parts: tuple[str, str]) -> None:
    for size in (1, 3, len(said)):
        reader = reasoning_of("<think></think>", asked, begun)
        assert reader is not None
        found = [
            each for at in range(0, len(said), size) for each in reader.feed(said[at : at + size])
        ] + reader.finish()
        kinds = ("reasoning", "text")
        assert tuple("".join(text for kind, text in found if kind == wanted) for wanted in kinds) == parts


# ---- lines -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_line_breaks_end_a_line(sign: str) -> None:
    lines = VolatileLines(["date: .*"])
    assert lines.without(f"a{sign}date: 1\nb\r\ndate: 2\r\nc") == f"a{sign}date: 1\nb\r\nc"
    assert lines.without("a\n\nb") == "a\n\nb"
